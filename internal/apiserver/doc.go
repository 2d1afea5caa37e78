// Package apiserver is the Kubernetes API server: k8s.io/apiserver on an etcd in the same process,
// with storages built from descriptors. The composition root drives it with New and Run, and gives
// carob's other parts an in-process client (Server.ClientConfig); those parts know the server only
// through that client. It must never import another part, and nothing in it may wait for one.
package apiserver
