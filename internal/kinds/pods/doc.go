// Package pods is what pods and the templates of pods mean: their strategies for create, update, status, resize and
// ephemeral containers, validation, defaults, warnings and the table of `kubectl get pods` (docs/spec/pod-lifecycle.md,
// clauses L1). The kinds that make pods check their templates with it. What is served for a pod beside its object
// (logs,
// exec, binding, eviction) is in package apiserver/pods.
//
//	pod_validation.go     the spec as a whole; container_, env_, ports_, volume_… its parts
//	pod_update_validation.go, pod_status_validation.go, pod_resize_validation.go     what may change, by subresource
//	pod_defaults.go, volume_defaults.go     what a client may leave out
//	strategy.go, selectors.go, table.go     storage, selectable fields, columns
//
// It never decides where or how a pod runs.
package pods
