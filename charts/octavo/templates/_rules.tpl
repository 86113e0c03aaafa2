{{- /* What the operator may do in the namespaces that it serves. Equal to the table in
operator/octavo_operator/shell/permissions.py; a test compares them. */ -}}
{{- define "octavo.servedNamespacesRules" -}}
- apiGroups: [serving.octavo.dev]
  resources: [inferenceservices]
  verbs: [get, list, watch]
- apiGroups: [serving.octavo.dev]
  resources: [inferenceservices/status]
  verbs: [patch]
- apiGroups: [apps]
  resources: [deployments]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [""]
  resources: [services]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [""]
  resources: [pods]
  verbs: [list, watch]
- apiGroups: [""]
  resources: [events]
  verbs: [create]
{{- end -}}

{{- /* And in its own namespace: one Lease says which operator acts. RBAC cannot bind the creation
of an object to its name. */ -}}
{{- define "octavo.ownNamespaceRules" -}}
- apiGroups: [coordination.k8s.io]
  resources: [leases]
  verbs: [create]
- apiGroups: [coordination.k8s.io]
  resources: [leases]
  resourceNames: [{{ include "octavo.operatorName" . }}]
  verbs: [get, update]
{{- end -}}

{{- /* Name of the roles that let the operator work in the namespaces that it serves. Two releases
in one cluster need two of them, so the release's namespace is part of it. */ -}}
{{- define "octavo.servedNamespacesRole" -}}
{{- printf "%s-%s" (include "octavo.operatorName" .) .Release.Namespace -}}
{{- end -}}

{{- define "octavo.subjects" -}}
- kind: ServiceAccount
  name: {{ include "octavo.serviceAccountName" . }}
  namespace: {{ .Release.Namespace }}
{{- end -}}
