// Package pods defines pods and pod templates: their strategies for create, update, status, resize,
// and ephemeral containers, validation, defaults, warnings, and the table of `kubectl get pods`
// (docs/spec/pod-lifecycle.md, clauses L1). Kinds with a pod template validate it with this
// package. Package apiserver/podstorage serves the subresources of a pod (logs, exec, binding,
// eviction).
package pods
