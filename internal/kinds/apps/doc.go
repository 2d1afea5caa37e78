// Package apps is the group apps: Deployments, ReplicaSets, StatefulSets, DaemonSets,
// ControllerRevisions; and ReplicationController of the core group (docs/spec/workloads.md). It
// never acts on them: the controllers do.
package apps
