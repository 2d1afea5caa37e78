// Package pods defines pods and pod templates: their strategies for create, update, status, resize,
// and ephemeral containers, validation, defaults, warnings, and the table of `kubectl get pods`
// (docs/spec/pod-lifecycle.md, clauses L1). Kinds with a pod template validate it with this
// package. Package apiserver/podstorage serves the subresources of a pod (logs, exec, binding,
// eviction).
//
//	pod_validation.go     the spec as a whole; container_, env_, ports_, volume_… its parts
//	pod_update_validation.go, pod_status_validation.go, pod_resize_validation.go
//	                      which updates are valid, by subresource
//	pod_defaults.go, volume_defaults.go   default values
//	strategy.go, selectors.go, table.go     storage, selectable fields, columns
//
// It never decides where or how a pod runs.
package pods
