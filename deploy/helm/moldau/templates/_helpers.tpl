{{- define "moldau.fullname" -}}
{{- if contains .Chart.Name .Release.Name -}}
{{- .Release.Name | trunc 48 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name .Chart.Name | trunc 48 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{- /* A job is a cluster: releases of two namespaces may have one name. */ -}}
{{- define "moldau.job" -}}
{{ .Release.Namespace }}/{{ if not (contains .Chart.Name .Release.Name) }}{{ .Chart.Name }}-{{ end }}{{ .Release.Name }}
{{- end -}}

{{- define "moldau.selector" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "moldau.labels" -}}
{{ include "moldau.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- end -}}

{{- define "moldau.image" -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end -}}

{{- define "moldau.secretName" -}}
{{ .Values.clusterSecret.existingSecret | default (printf "%s-cluster" (include "moldau.fullname" .)) }}
{{- end -}}

{{- define "moldau.tlsSecretName" -}}
{{ .Values.tls.secretName | default (printf "%s-tls" (include "moldau.fullname" .)) }}
{{- end -}}

{{- /* The name of a broker, with the variables that Kubernetes puts in. */ -}}
{{- define "moldau.brokers" -}}
{{ include "moldau.fullname" . }}-brokers.$(POD_NAMESPACE).svc.{{ .Values.clusterDomain }}
{{- end -}}

{{- /* The chosen values must make sense together; each error names the way out. */ -}}
{{- define "moldau.check" -}}
{{- if eq (not .Values.tls.enabled) (not .Values.insecure) -}}
{{- fail "choose how clients are served: tls.enabled=true with a certificate (tls.secretName or tls.certManager), or insecure=true to serve every pod that reaches the brokers" -}}
{{- end -}}
{{- if and .Values.tls.enabled (not .Values.tls.secretName) (not .Values.tls.certManager.enabled) -}}
{{- fail "tls.enabled needs a certificate: tls.secretName, or tls.certManager.enabled=true with its issuer" -}}
{{- end -}}
{{- if and .Values.tls.certManager.enabled (not .Values.tls.certManager.issuer.name) -}}
{{- fail "tls.certManager.enabled needs tls.certManager.issuer.name" -}}
{{- end -}}
{{- $monitor := .Values.metrics.serviceMonitor -}}
{{- if and $monitor.enabled .Values.tls.enabled (not .Values.metrics.public) (not $monitor.basicAuthSecret) -}}
{{- fail "metrics.serviceMonitor needs a way in, since with TLS /metrics needs a login: metrics.serviceMonitor.basicAuthSecret (a Secret with username and password of a user that may describe the cluster), or metrics.public=true; else every scrape is rejected, and every broker counts as down" -}}
{{- end -}}
{{- if and (eq (int .Values.initialMembers) 1) (gt (int .Values.replicas) 1) -}}
{{- fail (printf "initialMembers=1 is for a single broker, and replicas=%d: one that lost its volume could ask nobody whether there is a cluster, and would make a second one; set initialMembers=3 in a new release, and move the data by a backup" (int .Values.replicas)) -}}
{{- end -}}
{{- if lt (int .Values.replicas) (int .Values.initialMembers) -}}
{{- fail (printf "replicas=%d is less than initialMembers=%d: the first brokers of the cluster must stay (for a single broker set both to 1, and replicationFactor and minInsyncReplicas too)" (int .Values.replicas) (int .Values.initialMembers)) -}}
{{- end -}}
{{- if gt (int .Values.replicationFactor) (int .Values.replicas) -}}
{{- fail (printf "replicationFactor=%d is more than replicas=%d" (int .Values.replicationFactor) (int .Values.replicas)) -}}
{{- end -}}
{{- if gt (int .Values.minInsyncReplicas) (int .Values.replicationFactor) -}}
{{- fail (printf "minInsyncReplicas=%d is more than replicationFactor=%d" (int .Values.minInsyncReplicas) (int .Values.replicationFactor)) -}}
{{- end -}}
{{- if lt (int .Values.terminationGracePeriodSeconds) (add (int .Values.preStopSeconds) 30) -}}
{{- fail "terminationGracePeriodSeconds must be at least preStopSeconds + 30: a broker that is killed while it stops has to check its logs at the next start" -}}
{{- end -}}
{{- end -}}

{{- define "moldau.probeScheme" -}}
{{ if .Values.tls.enabled }}HTTPS{{ else }}HTTP{{ end }}
{{- end -}}
