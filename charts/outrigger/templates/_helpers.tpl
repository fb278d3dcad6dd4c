{{/*
SPDX-License-Identifier: Apache-2.0
Copyright The Outrigger Authors

outrigger install renders the templates too: they use only functions that tool/install has.
*/}}

{{- define "outrigger.revision" -}}
{{ .Values.revision | default "default" }}
{{- end }}

{{- define "outrigger.suffix" -}}
{{ if ne (include "outrigger.revision" .) "default" }}-{{ .Values.revision }}{{ end }}
{{- end }}

{{- define "outrigger.name" -}}
outrigger-control{{ include "outrigger.suffix" . }}
{{- end }}

{{/* Objects without a namespace have that of the release in their names. */}}
{{- define "outrigger.clusterName" -}}
{{ include "outrigger.name" . }}-{{ .Release.Namespace }}
{{- end }}

{{- define "outrigger.service" -}}
{{ .Values.service.name }}{{ include "outrigger.suffix" . }}
{{- end }}

{{- define "outrigger.replicas" -}}
{{ include "outrigger.name" . }}-replicas
{{- end }}

{{/* Several replicas share the proxies. */}}
{{- define "outrigger.several" -}}
{{ if or .Values.autoscaling.enabled (gt (int .Values.replicaCount) 1) }}true{{ end }}
{{- end }}

{{- define "outrigger.injector" -}}
istio-sidecar-injector{{ include "outrigger.suffix" . }}
{{- end }}

{{/* In the names of webhook configurations, as Istio's. */}}
{{- define "outrigger.inNamespace" -}}
{{ if ne .Release.Namespace "istio-system" }}-{{ .Release.Namespace }}{{ end }}
{{- end }}

{{- define "outrigger.validatorName" -}}
istio-validator{{ include "outrigger.suffix" . }}-{{ .Release.Namespace }}
{{- end }}

{{- define "outrigger.injectorName" -}}
{{ include "outrigger.injector" . }}{{ include "outrigger.inNamespace" . }}
{{- end }}

{{/* The revision is the default one, or has that tag. */}}
{{- define "outrigger.isDefault" -}}
{{ if or (eq (include "outrigger.revision" .) "default") (has "default" .Values.tags) }}true{{ end }}
{{- end }}

{{/* They never change: the selector of a Deployment cannot. */}}
{{- define "outrigger.selector" -}}
app.kubernetes.io/name: outrigger-control
istio.io/rev: {{ include "outrigger.revision" . }}
{{- end }}

{{- define "outrigger.labels" -}}
app.kubernetes.io/name: outrigger-control
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/part-of: outrigger
app.kubernetes.io/managed-by: {{ .Release.Service }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
istio.io/rev: {{ include "outrigger.revision" . }}
{{- end }}

{{- define "outrigger.image" -}}
{{ .Values.image.hub }}/{{ .Values.image.name }}{{ if .Values.image.digest }}@{{ .Values.image.digest }}{{ else }}:{{ .Values.image.tag | default .Chart.AppVersion }}{{ end }}
{{- end }}

{{- define "outrigger.cni" -}}
outrigger-cni{{ include "outrigger.suffix" . }}
{{- end }}

{{- define "outrigger.cniSelector" -}}
app.kubernetes.io/name: outrigger-cni
istio.io/rev: {{ include "outrigger.revision" . }}
{{- end }}

{{- define "outrigger.cniLabels" -}}
{{ include "outrigger.labels" . | replace "app.kubernetes.io/name: outrigger-control" "app.kubernetes.io/name: outrigger-cni" }}
{{- end }}

{{- define "outrigger.cniImage" -}}
{{ .Values.cni.hub | default .Values.image.hub }}/{{ .Values.cni.image }}:{{ .Values.cni.tag | default .Values.image.tag | default .Chart.AppVersion }}
{{- end }}

{{/*
How the API server reaches a webhook: a list of the root and the path. Neither caBundle nor
failurePolicy is in the chart. The control plane alone writes them, and no upgrade takes them away.
*/}}
{{- define "outrigger.webhookClient" -}}
{{- $root := index . 0 }}
{{- with $root.Values.webhooks.url }}
url: {{ . | trimSuffix "/" }}{{ index $ 1 }}
{{- else }}
service:
  name: {{ include "outrigger.service" $root }}
  namespace: {{ $root.Release.Namespace }}
  path: {{ index . 1 }}
  port: 443
{{- end }}
{{- end }}

{{/*
Not empty if the proxies of Gateways are deployed. Their images are those of the injector.
*/}}
{{- define "outrigger.deploysGateways" -}}
{{ if and .Values.gatewayAPI.enabled .Values.gatewayAPI.deployments .Values.injection.enabled }}true{{ end }}
{{- end }}
