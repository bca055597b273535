{{/*
Every right of the operator, in one place. No wider than the calls that it makes: a test compares them with recorded
ones. The agents have none.
*/}}

{{/* In every namespace whose ModelDeployments it serves. */}}
{{- define "paddock.rules.namespaced" -}}
- apiGroups: [paddock.dev]
  resources: [modeldeployments]
  verbs: [list, watch]
- apiGroups: [paddock.dev]
  resources: [modeldeployments/status]
  verbs: [patch]
- apiGroups: [""]
  resources: [pods]
  verbs: [get, list, watch, create, delete]
# how servers load, and what inspectors read
- apiGroups: [""]
  resources: [pods/log]
  verbs: [get]
# the readiness gate paddock.dev/verified
- apiGroups: [""]
  resources: [pods/status]
  verbs: [patch]
- apiGroups: [""]
  resources: [services]
  verbs: [get, list, create]
- apiGroups: [""]
  resources: [persistentvolumeclaims]
  verbs: [get{{ if or .Values.modelRoots .Values.modelCache.hostPath }}, create, delete{{ end }}]
- apiGroups: [""]
  resources: [events]
  verbs: [create]
{{- if .Values.agent.podResources }}
# which card a server was given, on the pod
- apiGroups: [""]
  resources: [pods]
  verbs: [patch]
{{- end }}
{{- if .Values.dra.enabled }}
# a server's card, and which one it was given; the claims go with their pods
- apiGroups: [resource.k8s.io]
  resources: [resourceclaims]
  verbs: [get, create]
{{- end }}
{{- end }}

{{/* On objects without namespace. */}}
{{- define "paddock.rules.cluster" -}}
- apiGroups: [paddock.dev]
  resources: [gpus]
  verbs: [get, list, watch, create, delete]
- apiGroups: [paddock.dev]
  resources: [gpus/status]
  verbs: [update]
- apiGroups: [paddock.dev]
  resources: [placementpolicies]
  verbs: [list, watch]
- apiGroups: [""]
  resources: [nodes]
  verbs: [list, watch]
# where claims can be mounted, and the volumes through which servers read model roots: who may create volumes can write
# to nodes, so without roots and cache there is no such right
- apiGroups: [""]
  resources: [persistentvolumes]
  verbs: [get{{ if or .Values.modelRoots .Values.modelCache.hostPath }}, list, create, delete{{ end }}]
{{- if ne .Values.nodeCapacity.mode "Disabled" }}
# the memory of GPUs as extended resources
- apiGroups: [""]
  resources: [nodes/status]
  verbs: [patch]
{{- end }}
- apiGroups: [node.k8s.io]
  resources: [runtimeclasses]
  verbs: [list, watch]
{{- if .Values.dra.enabled }}
# which cards drivers offer
- apiGroups: [resource.k8s.io]
  resources: [resourceslices]
  verbs: [list]
{{- end }}
{{- end }}

{{/* In its own namespace. */}}
{{- define "paddock.rules.own" -}}
# which operator works
- apiGroups: [coordination.k8s.io]
  resources: [leases]
  verbs: [get, create, update]
# the agents' certificate and token; a name cannot restrict create
- apiGroups: [""]
  resources: [secrets]
  verbs: [create]
- apiGroups: [""]
  resources: [secrets]
  resourceNames: [paddock-agent]
  verbs: [get]
# where the agents are
- apiGroups: [""]
  resources: [pods]
  verbs: [list, watch{{ if .Values.holderPods.enabled }}, create, delete{{ end }}]
# its watches cover every kind in every namespace that it looks at; what it finds here is not served
{{- if .Values.watchNamespaces }}
- apiGroups: [paddock.dev]
  resources: [modeldeployments]
  verbs: [list, watch]
{{- end }}
{{- end }}
