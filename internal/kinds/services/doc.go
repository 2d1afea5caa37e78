// Package services is the kind Service: its storage, validation, defaults, and columns, and the
// allocator of cluster IPs and node ports with the ranges and IPAddress objects that it records
// (docs/spec/network.md). A request allocates its addresses and ports before it is stored and
// releases them if it is not stored. After a crash or an unknown result, Repair finds the
// difference. Package controllers runs the repair; this package starts no goroutine.
package services
