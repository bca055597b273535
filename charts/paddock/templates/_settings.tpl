{{/*
The environment of operator and agents: each PADDOCK_ variable is a field of their Settings, and a test compares them.
Environment given in values comes first, so that every setting can be reached.
*/}}

{{- define "paddock.operatorEnv" -}}
{{- $own := dict
  "PADDOCK_AGENT_IMAGE" (include "paddock.image" (list . "agent"))
  "PADDOCK_AGENT_PORT" (int .Values.agent.port | toString)
  "PADDOCK_AGENT_SECRET" "paddock-agent"
  "PADDOCK_AGENT_TTL" (int .Values.operator.agentTtlSeconds | toString)
  "PADDOCK_ALLOWED_IMAGES" (.Values.images.allowed | toJson)
  "PADDOCK_CACHE_FOLDER" .Values.modelCache.hostPath
  "PADDOCK_CACHE_SIZE" .Values.modelCache.size
  "PADDOCK_DEVICE_CLASSES" (.Values.dra.deviceClasses | toJson)
  "PADDOCK_DRA" (.Values.dra.enabled | toString)
  "PADDOCK_FETCH_CERTIFICATES" .Values.fetch.caBundle
  "PADDOCK_FETCH_ENVIRONMENT" (include "paddock.fetchEnv" . | fromYaml | toJson)
  "PADDOCK_HOLDER_PODS" (.Values.holderPods.enabled | toString)
  "PADDOCK_HOST_BUDGET" .Values.server.hostBudget
  "PADDOCK_IMAGE_PULL_POLICY" .Values.images.pullPolicy
  "PADDOCK_IMAGE_VOLUMES" (.Values.imageVolumes | toString)
  "PADDOCK_LEADER_ELECTION" "true"
  "PADDOCK_LEASE_SECONDS" (int .Values.operator.leaseSeconds | toString)
  "PADDOCK_LISTEN" (printf ":%d" (int .Values.operator.port))
  "PADDOCK_LOG_FORMAT" .Values.log.format
  "PADDOCK_LOG_LEVEL" .Values.log.level
  "PADDOCK_MODEL_ROOTS" (.Values.modelRoots | toJson)
  "PADDOCK_NODE_CAPACITY" .Values.nodeCapacity.mode
  "PADDOCK_RESERVE" .Values.server.reserve
  "PADDOCK_RUNTIME_CLASSES" (.Values.runtimeClasses | toJson)
  "PADDOCK_SERVER_IMAGES" (.Values.images.servers | toJson)
  "PADDOCK_SERVER_USER" (int64 .Values.server.user | toString)
  "PADDOCK_WATCH_NAMESPACES" (join "," .Values.watchNamespaces)
-}}
{{- merge (dict) .Values.operator.env $own | toYaml -}}
{{- end }}

{{/* What pods that fetch models are told; only what differs from the program's own defaults. */}}
{{- define "paddock.fetchEnv" -}}
{{- $mirrors := list -}}
{{- range $registry, $address := .Values.fetch.mirrors }}{{ $mirrors = append $mirrors (printf "%s=%s" $registry $address) }}{{ end -}}
{{- $own := dict -}}
{{- with .Values.fetch.proxy }}{{ $_ := set $own "PADDOCK_FETCH_PROXY" . }}{{ end -}}
{{- with .Values.fetch.noProxy }}{{ $_ := set $own "PADDOCK_FETCH_NO_PROXY" (join "," .) }}{{ end -}}
{{- with .Values.fetch.hub }}{{ $_ := set $own "PADDOCK_FETCH_HUB" . }}{{ end -}}
{{- with .Values.fetch.ollama }}{{ $_ := set $own "PADDOCK_FETCH_OLLAMA" . }}{{ end -}}
{{- with $mirrors }}{{ $_ := set $own "PADDOCK_FETCH_MIRRORS" (join "," .) }}{{ end -}}
{{- merge (dict) .Values.fetch.env $own | toYaml -}}
{{- end }}

{{/* (list $ pool) */}}
{{- define "paddock.agentEnv" -}}
{{- $root := index . 0 -}}
{{- $pool := index . 1 -}}
{{- $paths := list -}}
{{- range $root.Values.modelRoots }}{{ $paths = append $paths .path }}{{ end -}}
{{- $own := dict
  "PADDOCK_CREDENTIALS_FOLDER" "/etc/paddock/agent"
  "PADDOCK_HOST_PROCESSES" ($root.Values.agent.hostPID | toString)
  "PADDOCK_LISTEN" (printf ":%d" (int $root.Values.agent.port))
  "PADDOCK_LOG_FORMAT" $root.Values.log.format
  "PADDOCK_LOG_LEVEL" $root.Values.log.level
  "PADDOCK_MODEL_ROOTS" (join "," $paths)
-}}
{{- if $root.Values.modelCache.hostPath }}{{ $_ := set $own "PADDOCK_CACHE_FOLDER" "/model-cache" }}{{ end -}}
{{- if $root.Values.agent.devicePlugin.enabled }}{{ $_ := set $own "PADDOCK_PLUGIN_FOLDER" "/run/paddock" }}{{ end -}}
{{- if $root.Values.agent.podResources }}{{ $_ := set $own "PADDOCK_POD_RESOURCES" "/relay/pod-resources.sock" }}{{ end -}}
{{- with $pool.libraryFolder }}{{ $_ := set $own "PADDOCK_LIBRARY_FOLDER" . }}{{ end -}}
{{- merge (dict) ($pool.env | default dict) $own | toYaml -}}
{{- end }}

{{/* (list $ pool): the same, and no card for this container. */}}
{{- define "paddock.pluginEnv" -}}
{{- merge (dict "NVIDIA_VISIBLE_DEVICES" "void") (include "paddock.agentEnv" . | fromYaml) | toYaml -}}
{{- end }}

{{/* What the schema cannot say. */}}
{{- define "paddock.checkValues" -}}
{{- if and .Values.holderPods.enabled (not .Values.agent.podResources) }}{{ fail "holderPods.enabled needs agent.podResources" }}{{ end -}}
{{- $names := list -}}
{{- range .Values.agents -}}
{{- if has .name $names }}{{ fail (printf "two entries of agents are named %s" .name) }}{{ end -}}
{{- $names = append $names .name -}}
{{- end -}}
{{- $paths := list -}}
{{- range .Values.modelRoots -}}
{{- if and $.Values.modelCache.hostPath (eq .path "/model-cache") }}{{ fail "modelRoots: the path /model-cache is the cache's" }}{{ end -}}
{{- if has .path $paths }}{{ fail (printf "two entries of modelRoots have the path %s" .path) }}{{ end -}}
{{- $paths = append $paths .path -}}
{{- end -}}
{{- end }}
