{{- define "dlq-archiver.fullname" -}}
{{- if contains "dlq-archiver" .Release.Name -}}
{{- .Release.Name | trunc 52 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-dlq-archiver" .Release.Name | trunc 52 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{- define "dlq-archiver.serviceAccount" -}}
{{- if .Values.serviceAccount.create -}}
{{- .Values.serviceAccount.name | default (include "dlq-archiver.fullname" .) -}}
{{- else -}}
{{- .Values.serviceAccount.name | default "default" -}}
{{- end -}}
{{- end -}}

{{- define "dlq-archiver.selector" -}}
app.kubernetes.io/name: dlq-archiver
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "dlq-archiver.labels" -}}
{{ include "dlq-archiver.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end -}}

{{- define "dlq-archiver.image" -}}
{{- if .Values.image.digest -}}
{{ .Values.image.repository }}@{{ .Values.image.digest }}
{{- else -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end -}}
{{- end -}}

{{/* A pod template. Takes root, component, args, resources, and job (no restart) or not. */}}
{{- define "dlq-archiver.pod" -}}
{{- $v := .root.Values -}}
metadata:
  labels:
    {{- include "dlq-archiver.selector" .root | nindent 4 }}
    app.kubernetes.io/component: {{ .component }}
    {{- with $v.podLabels }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
  annotations:
    # Pods are made anew when it changes.
    checksum/config: {{ include (print .root.Template.BasePath "/configmap.yaml") .root | sha256sum }}
    {{- with $v.podAnnotations }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
spec:
  {{- if .job }}
  restartPolicy: Never
  {{- end }}
  serviceAccountName: {{ include "dlq-archiver.serviceAccount" .root }}
  automountServiceAccountToken: false
  {{- if eq .component "archiver" }}
  terminationGracePeriodSeconds: {{ $v.terminationGracePeriodSeconds }}
  {{- end }}
  securityContext:
    runAsNonRoot: true
    runAsUser: 65532
    runAsGroup: 65532
    fsGroup: 65532
    seccompProfile: { type: RuntimeDefault }
  {{- range $key := list "imagePullSecrets" "nodeSelector" "tolerations" "affinity" "topologySpreadConstraints" "priorityClassName" }}
  {{- with get $v $key }}
  {{ $key }}: {{ toJson . }}
  {{- end }}
  {{- end }}
  containers:
    - name: dlq-archiver
      image: {{ include "dlq-archiver.image" .root }}
      {{- if ne $v.image.pullPolicy "IfNotPresent" }}
      imagePullPolicy: {{ $v.image.pullPolicy }}
      {{- end }}
      args: {{ toJson .args }}
      envFrom:
        - configMapRef: { name: {{ include "dlq-archiver.fullname" .root }} }
        {{- with $v.s3.secret }}
        - secretRef: { name: {{ . }}, optional: true }
        {{- end }}
      {{- if or $v.kafka.secret $v.extraEnv }}
      env:
        {{- if $v.kafka.secret }}
        - { name: DLQ_ARCHIVER_KAFKA_CONFIG, value: /etc/dlq-archiver/kafka.properties }
        {{- end }}
        {{- with $v.extraEnv }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
      {{- end }}
      {{- if not .job }}
      ports:
        - { name: metrics, containerPort: {{ $v.metrics.port }} }
      livenessProbe:
        httpGet: { path: /livez, port: metrics }
        periodSeconds: 10
        timeoutSeconds: 5
        failureThreshold: 6
      readinessProbe:
        httpGet: { path: /readyz, port: metrics }
        periodSeconds: 10
        timeoutSeconds: 5
      {{- end }}
      resources: {{ toJson .resources }}
      securityContext:
        allowPrivilegeEscalation: false
        readOnlyRootFilesystem: true
        capabilities: { drop: [ALL] }
      {{- if or $v.kafka.secret $v.extraVolumeMounts }}
      volumeMounts:
        {{- if $v.kafka.secret }}
        - { name: kafka, mountPath: /etc/dlq-archiver, readOnly: true }
        {{- end }}
        {{- with $v.extraVolumeMounts }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
      {{- end }}
  {{- if or $v.kafka.secret $v.extraVolumes }}
  volumes:
    {{- if $v.kafka.secret }}
    - name: kafka
      secret:
        secretName: {{ $v.kafka.secret }}
        items: [{ key: {{ $v.kafka.key }}, path: kafka.properties }]
        defaultMode: 0440
    {{- end }}
    {{- with $v.extraVolumes }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
  {{- end }}
{{- end -}}
