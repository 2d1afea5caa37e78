// Package coordination is the group coordination.k8s.io: Leases.
package coordination
