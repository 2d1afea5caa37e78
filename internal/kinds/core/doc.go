// Package core is the core group ("v1") except pods, services, volumes, and ReplicationControllers
// (package apps), which have packages of their own. It has namespaces and their deletion, nodes,
// events, config maps, secrets, service accounts, endpoints, limit ranges, quotas, pod templates,
// and component statuses.
package core
