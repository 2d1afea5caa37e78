// Package workload has the common parts of the decisions about workloads (ReplicaSet, Deployment,
// StatefulSet, DaemonSet, Job …): which children belong to an owner (Claim), the state of pods
// (Active, Available …), the order of deletion (RankForDeletion), pods from a template (NewPod),
// which templates are the same (SameTemplate, TemplateHash). The plans below it drive it; it must
// never read a clock or the API.
//
// A plan is a function of a package of its own: (owner, children, now) → what to create, delete and
// patch, the status, the events, and when to decide again. It never changes its arguments: owner
// and children are in a shared cache.
//
// Contract: docs/spec/workloads.md.
package workload
