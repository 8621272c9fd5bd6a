{{- define "tollgate.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 63 | trimSuffix "-" }}
{{- end }}

{{- define "tollgate.fullname" -}}
{{- if .Values.fullnameOverride }}
{{- .Values.fullnameOverride | trunc 63 | trimSuffix "-" }}
{{- else if contains (include "tollgate.name" .) .Release.Name }}
{{- .Release.Name | trunc 63 | trimSuffix "-" }}
{{- else }}
{{- printf "%s-%s" .Release.Name (include "tollgate.name" .) | trunc 63 | trimSuffix "-" }}
{{- end }}
{{- end }}

{{- define "tollgate.selectorLabels" -}}
app.kubernetes.io/name: {{ include "tollgate.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "tollgate.labels" -}}
{{ include "tollgate.selectorLabels" . }}
app.kubernetes.io/component: token-endpoint
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end }}

{{- define "tollgate.serviceAccountName" -}}
{{- if .Values.serviceAccount.create }}
{{- default (include "tollgate.fullname" .) .Values.serviceAccount.name }}
{{- else }}
{{- default "default" .Values.serviceAccount.name }}
{{- end }}
{{- end }}

{{- define "tollgate.image" -}}
{{- if .Values.image.digest }}
{{- printf "%s@%s" .Values.image.repository .Values.image.digest }}
{{- else }}
{{- printf "%s:%s" .Values.image.repository (default .Chart.AppVersion .Values.image.tag) }}
{{- end }}
{{- end }}

{{- /* What would be installed and not work is refused here, with what to do. */}}
{{- define "tollgate.validate" -}}
{{- if not (or .Values.existingSecret .Values.allowRemote) }}
{{- fail "callers are not authenticated: set existingSecret to a Secret with tokens (openssl rand -hex 32), or allowRemote: true where a mesh or a network policy keeps strangers out" }}
{{- end }}
{{- if and (eq .Values.store.url "memory") (or .Values.autoscaling.enabled (gt (int .Values.replicaCount) 1)) }}
{{- fail "store.url is memory, which endpoints do not share: each would have budgets of its own. Set store.url to a Redis, or replicaCount: 1" }}
{{- end }}
{{- if contains "@" .Values.store.url }}
{{- fail "store.url holds a user or a password, for everyone who may see pods to read: put the password into existingSecret and name it with secretKeys.redisPassword, and the user into store.redisUser" }}
{{- end }}
{{- if and (or .Values.secretKeys.redisPassword .Values.secretKeys.sentinelPassword) (not .Values.existingSecret) }}
{{- fail "secretKeys names a password, and existingSecret no Secret" }}
{{- end }}
{{- end }}
