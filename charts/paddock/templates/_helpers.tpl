{{/* Begin of all names: the release's name, with paddock in it. */}}
{{- define "paddock.fullname" -}}
{{- $name := ternary .Release.Name (printf "%s-paddock" .Release.Name) (contains "paddock" .Release.Name) -}}
{{- $name | trunc 40 | trimSuffix "-" -}}
{{- end }}

{{/* Labels that select pods: never change between versions. */}}
{{- define "paddock.selector" -}}
app.kubernetes.io/name: paddock
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "paddock.labels" -}}
{{ include "paddock.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/part-of: paddock
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end }}

{{/* Image of operator or agent: (list $ "agent") */}}
{{- define "paddock.image" -}}
{{- $root := index . 0 -}}
{{- $image := index $root.Values.images (index . 1) -}}
{{- printf "%s:%s" $image.repository ($image.tag | default $root.Chart.AppVersion) -}}
{{- end }}

{{/* Of every pod: nobody is root, nothing can be gained, only the system calls of the runtime's default profile. */}}
{{- define "paddock.podSecurity" -}}
runAsNonRoot: true
runAsUser: {{ int64 .Values.server.user }}
runAsGroup: {{ int64 .Values.server.user }}
fsGroup: {{ int64 .Values.server.user }}
seccompProfile: {type: RuntimeDefault}
{{- end }}

{{- define "paddock.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- end }}

{{/* Name of the volume of the n-th model root. */}}
{{- define "paddock.rootVolume" -}}
model-root-{{ . }}
{{- end }}
