{{/*
SPDX-License-Identifier: Apache-2.0
Copyright The Outrigger Authors
*/}}

{{- define "outrigger.tagName" -}}
istio-revision-tag-{{ index . 1 }}{{ include "outrigger.inNamespace" (index . 0) }}
{{- end }}

{{- define "outrigger.validationRules" -}}
rules:
- operations: [CREATE, UPDATE]
  apiGroups: [networking.istio.io, security.istio.io, telemetry.istio.io, extensions.istio.io]
  apiVersions: ["*"]
  resources: ["*"]
sideEffects: None
admissionReviewVersions: [v1]
timeoutSeconds: 10
{{- end }}

{{/*
The webhooks for one value of the label istio.io/rev: a list of the root and the value. A pod is
selected by exactly one of them, or by none.
*/}}
{{- define "outrigger.injectors" }}
{{- $root := index . 0 }}
{{- $revision := index . 1 }}
- name: rev.namespace.sidecar-injector.istio.io
  namespaceSelector:
    matchExpressions:
    - key: istio.io/rev
      operator: In
      values: [{{ $revision }}]
    - key: istio-injection
      operator: DoesNotExist
    {{- include "outrigger.notSystem" (list $root true) | nindent 4 }}
  objectSelector:
    matchExpressions:
    - key: sidecar.istio.io/inject
      operator: NotIn
      values: ["false"]
  {{- include "outrigger.injector.rest" $root | nindent 2 }}
- name: rev.object.sidecar-injector.istio.io
  namespaceSelector:
    matchExpressions:
    - key: istio.io/rev
      operator: DoesNotExist
    - key: istio-injection
      operator: DoesNotExist
    {{- include "outrigger.notSystem" (list $root false) | nindent 4 }}
  objectSelector:
    matchExpressions:
    - key: sidecar.istio.io/inject
      operator: NotIn
      values: ["false"]
    - key: istio.io/rev
      operator: In
      values: [{{ $revision }}]
  {{- include "outrigger.injector.rest" $root | nindent 2 }}
{{- if eq $revision "default" }}
- name: namespace.sidecar-injector.istio.io
  namespaceSelector:
    matchExpressions:
    - key: istio-injection
      operator: In
      values: [enabled]
    {{- include "outrigger.notSystem" (list $root true) | nindent 4 }}
  objectSelector:
    matchExpressions:
    - key: sidecar.istio.io/inject
      operator: NotIn
      values: ["false"]
  {{- include "outrigger.injector.rest" $root | nindent 2 }}
- name: object.sidecar-injector.istio.io
  namespaceSelector:
    matchExpressions:
    - key: istio-injection
      operator: DoesNotExist
    - key: istio.io/rev
      operator: DoesNotExist
    {{- include "outrigger.notSystem" (list $root false) | nindent 4 }}
  objectSelector:
    matchExpressions:
    - key: sidecar.istio.io/inject
      operator: In
      values: ["true"]
    - key: istio.io/rev
      operator: DoesNotExist
  {{- include "outrigger.injector.rest" $root | nindent 2 }}
{{- end }}
{{- end }}

{{/*
Pods of Kubernetes never wait for the webhook. Pods of the mesh's own namespace wait only if they
ask for a proxy by a label: a list of the root and whether to leave that namespace out.
*/}}
{{- define "outrigger.notSystem" -}}
- key: kubernetes.io/metadata.name
  operator: NotIn
  values:
  - kube-system
  - kube-public
  - kube-node-lease
  - local-path-storage
  {{- if index . 1 }}
  - {{ (index . 0).Release.Namespace }}
  {{- end }}
{{- end }}

{{- define "outrigger.injector.rest" -}}
clientConfig:
  {{- include "outrigger.webhookClient" (list . "/inject") | nindent 2 }}
rules:
- operations: [CREATE]
  apiGroups: [""]
  apiVersions: [v1]
  resources: [pods]
sideEffects: None
admissionReviewVersions: [v1]
reinvocationPolicy: Never
timeoutSeconds: 10
{{- end }}
