// Package scheduling is the group scheduling.k8s.io: PriorityClasses.
//
// Contract: docs/spec/pod-lifecycle.md.
package scheduling
