// Package dns decides what the cluster's DNS answers: it keeps the records of Services, endpoints,
// and pods by name, answers questions in wire form, and parses a Corefile. The driver
// internal/network/dns feeds it and sends what it writes; it must never look at a clock or a socket.
//
// Contract: N4 in docs/spec/network.md, the Kubernetes DNS specification 1.1.0.
package dns
