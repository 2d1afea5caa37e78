// Package workload is what the decisions about workloads (ReplicaSet, Deployment,
// StatefulSet, DaemonSet, Job …) have in common: which children are an owner's own
// (Claim), how pods stand (Active, Available …), which go first (RankForDeletion), how a
// pod is made of a template (NewPod), which templates are the same (SameTemplate,
// TemplateHash). The plans below it drive it; it must never read a clock or the API.
//
// A plan is a function of a package of its own: (owner, children, now) → what to create,
// delete and patch, the status, the events, and when to look again. It never changes
// what it gets: owner and children are those of a cache that others read, too.
//
// Contract: docs/spec/workloads.md.
package workload
