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
{{- if and (gt (int .Values.replicas) 1) (eq (int .Values.preStopSeconds) 0) -}}
{{- fail "preStopSeconds=0: a broker would stop while the others still need it; give them time to catch up (default: 60)" -}}
{{- end -}}
{{- $budget := toString .Values.podDisruptionBudget.maxUnavailable -}}
{{- $stopped := int $budget -}}
{{- if hasSuffix "%" $budget -}}
{{- $stopped = div (add (mul (int (trimSuffix "%" $budget)) (int .Values.replicas)) 99) 100 -}}
{{- end -}}
{{- $spare := max 1 (sub (int .Values.replicationFactor) (int .Values.minInsyncReplicas)) -}}
{{- if and .Values.podDisruptionBudget.enabled (gt (int $stopped) (int $spare)) -}}
{{- fail (printf "podDisruptionBudget.maxUnavailable=%s lets node upgrades stop %d brokers at once, but partitions can do without %d (replicationFactor - minInsyncReplicas)" $budget (int $stopped) (int $spare)) -}}
{{- end -}}
{{- range $label := list "app.kubernetes.io/name" "app.kubernetes.io/instance" "app.kubernetes.io/version" "app.kubernetes.io/managed-by" "helm.sh/chart" -}}
{{- if hasKey $.Values.podLabels $label -}}
{{- fail (printf "podLabels.%s is set by the chart, and services find the brokers by it" $label) -}}
{{- end -}}
{{- end -}}
{{- include "moldau.checkConfig" . -}}
{{- if lt (int .Values.terminationGracePeriodSeconds) (add (int .Values.preStopSeconds) 30) -}}
{{- fail "terminationGracePeriodSeconds must be at least preStopSeconds + 30: a broker that is killed while it stops has to check its logs at the next start" -}}
{{- end -}}
{{- end -}}

{{- /* How long a pod may take to stop: its processes stop one after the other, five seconds apart at most. How many
`auto` starts is known by the CPU limit alone; without one there is time for 64. */ -}}
{{- define "moldau.stopSeconds" -}}
{{- $count := 64 -}}
{{- $limit := toString (dig "limits" "cpu" "" .Values.resources) -}}
{{- if ne (toString .Values.processes) "auto" -}}
{{- $count = int .Values.processes -}}
{{- else if hasSuffix "m" $limit -}}
{{- $count = div (add (int (trimSuffix "m" $limit)) 999) 1000 -}}
{{- else if $limit -}}
{{- $count = int (ceil (float64 $limit)) -}}
{{- end -}}
{{- add (int .Values.terminationGracePeriodSeconds) (mul 5 (sub (max 1 $count) 1)) -}}
{{- end -}}

{{- /* Settings of the broker that are not for `config`, with the value of the chart that is. */ -}}
{{- define "moldau.ownSettings" -}}
data_dir: ""
processes: processes
broker_id: ""
bootstrap: ""
initial_members: initialMembers
join_addr: ""
join_token_file: ""
cluster_secret_file: clusterSecret
rack: rack
rack_file: rack
machine: ""
listeners: ""
port: ""
replication_factor: replicationFactor
min_insync_replicas: minInsyncReplicas
topic.replication_factor: replicationFactor
topic.min_insync_replicas: minInsyncReplicas
security.cert_file: tls
security.key_file: tls
security.client_ca_file: tls
security.insecure: insecure
kafka.addr: ""
kafka.advertised: ""
raft.addr: ""
raft.advertised: ""
raft.security: tls
http.addr: ""
http.advertised: ""
http.security: tls
http.public_metrics: metrics.public
grpc.addr: ""
grpc.advertised: ""
{{- end -}}

{{- define "moldau.checkConfig" -}}
{{- $config := .Values.config -}}
{{- range $key, $value := include "moldau.ownSettings" . | fromYaml -}}
{{- $parts := splitList "." $key -}}
{{- $section := ternary $config (get $config (first $parts) | default dict) (eq (len $parts) 1) -}}
{{- if hasKey $section (last $parts) -}}
{{- fail (printf "config.%s is for the chart to set, the same for all that depends on it: %s" $key (ternary (printf "use the value %s" $value) "remove it" (ne $value ""))) -}}
{{- end -}}
{{- end -}}
{{- range $section := list "kafka" "grpc" -}}
{{- $security := get (get $config $section | default dict) "security" -}}
{{- if and $security (or $.Values.insecure (ne $security "mtls")) -}}
{{- fail (printf "config.%s.security=%s: with tls.enabled it is tls, or mtls if you say so; with insecure there is none" $section $security) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- /* What is not refused, and yet seldom meant. */ -}}
{{- define "moldau.warnings" -}}
{{- if eq (mod (int .Values.initialMembers) 2) 0 }}
Warning: initialMembers={{ .Values.initialMembers }} is even: it survives as many lost brokers as {{ sub (int .Values.initialMembers) 1 }} would.
{{- end }}
{{- if and (gt (int .Values.replicationFactor) 1) (eq (int .Values.minInsyncReplicas) (int .Values.replicationFactor)) }}
Warning: minInsyncReplicas={{ .Values.minInsyncReplicas }} is all replicas: while a broker restarts, as in each update, acks=all is refused.
{{- end }}
{{- end -}}

{{- define "moldau.probeScheme" -}}
{{ if .Values.tls.enabled }}HTTPS{{ else }}HTTP{{ end }}
{{- end -}}
