// Package kinds defines each built-in kind of the Kubernetes API: one package per API group, with
// the kinds' storage strategies, validation, defaults, warnings, and table columns side by side
// (docs/spec/apiserver.md).
package kinds
