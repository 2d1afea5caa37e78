// Package apiserver is the Kubernetes API server: k8s.io/apiserver on an etcd in the same process,
// with storages built from descriptors. The composition root drives it with New and Run, and gives
// carob's other parts an in-process client (Server.ClientConfig); those parts know the server only
// through that client. It must never import another part, and nothing in it may wait for one.
//
//	New ──> storage engine started ∥ types registered ──> system objects created ──> stores and routes built
//	Run ──> watch caches filled ──> Ready ──> serving until ctx ends ──> etcd closed
//
// Contract: docs/spec/pod-lifecycle.md.
package apiserver
