// Package kinds defines each built-in kind of the Kubernetes API: one package per API group, with
// the kinds' storage strategies, validation, defaults, warnings, and table columns side by side
// (docs/spec/apiserver.md).
//
//	kinds/batch/cronjob.go             storage strategy of CronJob, and the columns of `kubectl get`
//	kinds/batch/cronjob_validation.go  validation and warnings
//	kinds/batch/cronjob_defaults.go    default values
//	kinds/batch/rules.go               which validation belongs to which kind of the group
//
// Shared by the groups: registry (descriptor of a kind, strategy, storage), rules (validation of
// fields), table, defaulting, pods (pods and pod templates), volumes (volumes, claims, and volume
// sources), and what upstream generates from the types: declarative, mergeschema, openapi. Package
// apiserver drives it: it builds the storages from the descriptors here and installs them. Nothing
// here listens, authenticates, or starts a goroutine, and nothing here may import apiserver:
// functions of a running server that a kind needs are passed in.
package kinds
