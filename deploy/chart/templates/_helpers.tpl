{{- define "sluice.labels" -}}
app.kubernetes.io/name: sluice
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- end }}

{{/* Of one component: (dict "root" $ "component" "gateway") */}}
{{- define "sluice.selector" -}}
app.kubernetes.io/name: sluice
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .component }}
{{- end }}

{{/* What all pods have: no rights, no token, and the secrets in a folder of their own, because a volume of a secret is
     readable by its group, which Sluice refuses. (dict "root" $ "image" IMAGE) */}}
{{- define "sluice.pod" -}}
automountServiceAccountToken: false
{{- with .root.Values.imagePullSecrets }}
imagePullSecrets: {{- toYaml . | nindent 2 }}
{{- end }}
securityContext:
  runAsNonRoot: true
  runAsUser: 10001
  runAsGroup: 10001
  fsGroup: 10001
  seccompProfile: { type: RuntimeDefault }
initContainers:
  - name: secrets
    image: {{ .image | quote }}
    imagePullPolicy: {{ .root.Values.image.pullPolicy }}
    command: [install, -m, "0600", /run/secret/secrets.json, /run/sluice/secrets.json]
    securityContext: {{- include "sluice.rights" . | nindent 6 }}
    resources:
      requests: { cpu: 10m, memory: 16Mi }
      limits: { memory: 64Mi }
    volumeMounts:
      - { name: secret, mountPath: /run/secret, readOnly: true }
      - { name: private, mountPath: /run/sluice }
{{- end }}

{{- define "sluice.rights" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: { drop: [ALL] }
{{- end }}

{{- define "sluice.env" -}}
- name: SLUICE_TENANTS_DSN
  valueFrom: { secretKeyRef: { name: {{ .Values.secret }}, key: dsn } }
- { name: SLUICE_TENANTS_SECRETS_FILE, value: /run/sluice/secrets.json }
- { name: SLUICE_TENANTS_JOURNAL_DIR, value: /var/lib/sluice/journal }
- { name: SLUICE_ENGINE_MODEL, value: {{ .Values.model | quote }} }
{{- end }}

{{- define "sluice.mounts" -}}
- { name: settings, mountPath: /etc/sluice, readOnly: true }
- { name: private, mountPath: /run/sluice }
- { name: tmp, mountPath: /tmp }
{{- end }}

{{- define "sluice.volumes" -}}
- name: settings
  configMap: { name: {{ .Release.Name }}-settings }
- name: secret
  secret:
    secretName: {{ .Values.secret }}
    items: [{ key: secrets.json, path: secrets.json }]
- name: private
  emptyDir: { medium: Memory, sizeLimit: 1Mi }
- name: tmp
  emptyDir: {}
{{- end }}

{{/* (dict "name" NAME "volume" VALUES) */}}
{{- define "sluice.claim" -}}
- metadata: { name: {{ .name }} }
  spec:
    accessModes: [ReadWriteOnce]
    {{- with .volume.storageClassName }}
    storageClassName: {{ . }}
    {{- end }}
    resources: { requests: { storage: {{ .volume.size }} } }
{{- end }}

{{- define "sluice.placement" -}}
{{- with .nodeSelector }}
nodeSelector: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .tolerations }}
tolerations: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .affinity }}
affinity: {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{/* A pod of Ray's: (dict "root" $ "name" CONTAINER "resources" RESOURCES "group" VALUES). KubeRay adds the command. */}}
{{- define "sluice.ray" -}}
{{- include "sluice.pod" (dict "root" .root "image" .root.Values.image.ray) }}
{{- include "sluice.placement" .group }}
terminationGracePeriodSeconds: {{ .root.Values.engine.terminationGracePeriodSeconds }}
containers:
  - name: {{ .name }}
    image: {{ .root.Values.image.ray | quote }}
    imagePullPolicy: {{ .root.Values.image.pullPolicy }}
    env:
      {{- include "sluice.env" .root | nindent 6 }}
    securityContext: {{- include "sluice.rights" .root | nindent 6 }}
    resources: {{- toYaml .resources | nindent 6 }}
    {{- with .afterStart }}
    lifecycle:
      postStart: { exec: { command: [sh, -c, {{ . | quote }}] } }
    {{- end }}
    volumeMounts:
      {{- include "sluice.mounts" .root | nindent 6 }}
      - { name: data, mountPath: /var/lib/sluice }
      - { name: cache, mountPath: /var/cache/sluice }
      - { name: shm, mountPath: /dev/shm }
volumes:
  {{- include "sluice.volumes" .root | nindent 2 }}
  - { name: data, emptyDir: {} }
  - { name: cache, emptyDir: {} }
  - name: shm
    emptyDir: { medium: Memory, sizeLimit: {{ .root.Values.engine.sharedMemory }} }
{{- end }}
