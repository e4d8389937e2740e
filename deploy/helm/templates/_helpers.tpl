{{- define "pddpo.labels" -}}
app.kubernetes.io/name: pddpo-ray
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end }}

{{- define "pddpo.claim" -}}
{{ .Values.storage.existingClaim | default .Release.Name }}
{{- end }}

{{- define "pddpo.journal" -}}
{{ if .Values.database.enabled }}postgresql://pddpo@{{ .Release.Name }}-database/pddpo{{ else }}{{ .Values.database.url }}{{ end }}
{{- end }}

{{- /* What the restricted profile of pod security asks of a pod, and of a container; (list user) */}}
{{- define "pddpo.podSecurity" -}}
securityContext:
  runAsNonRoot: true
  runAsUser: {{ . }}
  runAsGroup: {{ . }}
  fsGroup: {{ . }}
  fsGroupChangePolicy: OnRootMismatch
  seccompProfile: {type: RuntimeDefault}
{{- end }}

{{- define "pddpo.containerSecurity" -}}
securityContext:
  allowPrivilegeEscalation: false
  capabilities: {drop: [ALL]}
{{- end }}

{{- /* One pod of a Ray cluster. Keys: root, group (head or worker), size, scaled (an autoscaler beside the head), stopS
       (seconds that answers have to end; 0: none), offline */}}
{{- define "pddpo.rayPod" -}}
metadata:
  labels:
    {{- include "pddpo.labels" .root | nindent 4 }}
spec:
  automountServiceAccountToken: {{ and (eq .group "head") .scaled }}
  {{- if .stopS }}
  terminationGracePeriodSeconds: {{ add .stopS 30 }}
  {{- end }}
  {{- include "pddpo.podSecurity" 1000 | nindent 2 }}
  {{- if .size.gpus }}
  {{- with .root.Values.gpuNodes.tolerations }}
  tolerations:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with .root.Values.gpuNodes.nodeSelector }}
  nodeSelector:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- end }}
  containers:
    - name: ray-{{ .group }}
      image: {{ .root.Values.image | quote }}
      {{- include "pddpo.containerSecurity" . | nindent 6 }}
      {{- if and .stopS (eq .group "head") }}
      lifecycle:
        preStop: # refuses what is new and waits for answers under way; at SIGTERM Ray waits for nobody
          exec:
            command: [python, -m, deploy.serving.stopping, pddpo, {{ .stopS | quote }}]
      {{- end }}
      ports:
        - {containerPort: 8080, name: metrics}
        {{- if eq .group "head" }}
        - {containerPort: 6379, name: gcs-server}
        - {containerPort: 8265, name: dashboard}
        - {containerPort: 10001, name: client}
        {{- if .stopS }}
        - {containerPort: 8000, name: serve}
        {{- end }}
        {{- end }}
      env:
        - {name: HF_HUB_OFFLINE, value: {{ ternary "1" "0" .offline | quote }}}
        - {name: HF_HOME, value: /mnt/pddpo/hub}
      envFrom:
        - secretRef: {name: {{ .root.Values.secret | quote }}}
      resources:
        {{- range list "requests" "limits" }}
        {{ . }}:
          cpu: {{ $.size.cpu | quote }}
          memory: {{ $.size.memory | quote }}
          {{- if $.size.gpus }}
          nvidia.com/gpu: {{ $.size.gpus | quote }}
          {{- end }}
        {{- end }}
      volumeMounts:
        - {name: shared, mountPath: /mnt/pddpo}
        - {name: memory, mountPath: /dev/shm}
  volumes:
    - name: shared
      persistentVolumeClaim: {claimName: {{ include "pddpo.claim" .root | quote }}}
    - name: memory
      emptyDir: {medium: Memory, sizeLimit: {{ .size.sharedMemory | default "4Gi" | quote }}}
{{- end }}

{{- /* A Ray cluster. Keys: root, part (run, service or standing), scaled, low, high, stopS, offline */}}
{{- define "pddpo.rayCluster" -}}
{{- $part := index .root.Values .part }}
rayVersion: {{ .root.Values.rayVersion | quote }}
authOptions: {mode: token}
{{- if .scaled }}
enableInTreeAutoscaling: true
autoscalerOptions: # a container in the head's pod: restricted as the others
  idleTimeoutSeconds: 900
  {{- include "pddpo.containerSecurity" . | nindent 2 }}
{{- end }}
{{- if .root.Values.gcs.enabled }}
gcsFaultToleranceOptions:
  redisAddress: {{ .root.Values.gcs.redisAddress | default (printf "redis:%s-redis:6379" .root.Release.Name) | quote }}
  redisPassword:
    valueFrom:
      secretKeyRef: {name: {{ .root.Values.secret | quote }}, key: REDIS_PASSWORD}
{{- end }}
headGroupSpec:
  rayStartParams:
    num-cpus: "0" # driver, journal and dual variable only; nothing that computes
    dashboard-host: 0.0.0.0 # inside the pod; the network policy and the token decide who gets there
    metrics-export-port: "8080"
  template:
    {{- include "pddpo.rayPod" (merge (dict "group" "head" "size" $part.head) .) | nindent 4 }}
workerGroupSpecs:
  - groupName: gpu
    replicas: {{ $part.workers.replicas }}
    minReplicas: {{ .low }}
    maxReplicas: {{ .high }}
    rayStartParams:
      metrics-export-port: "8080"
    template:
      {{- include "pddpo.rayPod" (merge (dict "group" "worker" "size" $part.workers) .) | nindent 6 }}
{{- end }}
