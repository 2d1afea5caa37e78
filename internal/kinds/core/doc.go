// Package core is the core group ("v1") but for what has a package of its own: pods, services, volumes, and
// ReplicationControllers (package apps). It holds namespaces and their deletion, nodes, events, config maps, secrets,
// service accounts, endpoints, limit ranges, quotas, templates of pods, and the states of components.
package core
