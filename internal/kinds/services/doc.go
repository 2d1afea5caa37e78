// Package services is the kind Service: its storage, validation, defaults and columns, and the allocator of cluster
// IPs and node ports with the ranges and IPAddress objects that it records (docs/spec/network.md). A request takes its
// addresses and ports before it is stored and gives them back when it is not; what neither happened to, after a crash
// or
// an unknown outcome, Repair finds. Package controllers runs the repair; nothing here starts a goroutine.
package services
