// Package kinds is what each kind of the Kubernetes API means: one package per API group, with the kinds' storage
// strategies, validation, defaults, warnings and table columns side by side (docs/spec/apiserver.md).
//
//	kinds/batch/cronjob.go             what is stored and served of CronJob, and the columns of `kubectl get`
//	kinds/batch/cronjob_validation.go  which CronJobs are refused, and warnings
//	kinds/batch/cronjob_defaults.go    what a client may leave out
//	kinds/batch/rules.go               which check belongs to which kind of the group
//
// Shared by the groups: registry (descriptor of a kind, strategy, storage), rules (checks of fields), table,
// defaulting,
// pods (pods and templates of pods), volumes (volumes, claims, and sources of volumes), and what upstream generates
// from
// the types: declarative, mergeschema, openapi. Package apiserver drives it: it makes the storages that the descriptors
// here describe and installs them. Nothing here listens, authenticates or starts a goroutine, and nothing here may
// import apiserver: what a kind needs from a running server is handed in as a function.
package kinds
