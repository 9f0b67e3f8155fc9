{{- define "cairn.name" -}}
{{- if contains .Chart.Name .Release.Name }}{{ .Release.Name | trunc 63 | trimSuffix "-" }}{{ else }}{{ printf "%s-%s" .Release.Name .Chart.Name | trunc 63 | trimSuffix "-" }}{{ end }}
{{- end }}

{{- define "cairn.selector" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "cairn.labels" -}}
{{ include "cairn.selector" . }}
app.kubernetes.io/part-of: cairn
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end }}

{{- define "cairn.image" -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}{{ if .Values.gpu.enabled }}-cuda{{ end }}
{{- end }}

{{- define "cairn.hosts" -}}
{{- $name := include "cairn.name" . -}}
{{- $inside := printf "%s.%s" $name .Release.Namespace -}}
{{- concat (list $name $inside (printf "%s.svc" $inside) (printf "%s.svc.cluster.local" $inside)) .Values.allowedHosts | join "," -}}
{{- end }}
