// Package network is the contract of the pod network, which gives a sandbox its network namespace
// and address. bridge implements it on this host, cni calls external plugins. The runtime drives
// it; it must never depend on containers.
//
// Contract: docs/spec/network.md.
package network

import (
	"context"
	"net/netip"
)

// Pod names the pod that a network namespace is for.
type Pod struct {
	UID       string // the same UID gets the same address again
	Namespace string
	Name      string
	SandboxID string
	Labels    map[string]string // of the sandbox
	Ports     []PortMapping
	Bandwidth Bandwidth
	// NetNS is the path of the network namespace to attach. The caller creates it for a pod whose
	// user namespace must own it; if empty, Attach creates one.
	NetNS string
	// External: the namespace belongs to another container runtime, which removes it. Sweep does not
	// take such a pod for dead while the namespace is at NetNS.
	External bool
}

// PortMapping publishes a port of the pod on the host.
type PortMapping struct {
	Protocol      string // tcp, udp, sctp
	ContainerPort uint16
	HostPort      uint16
	HostIP        netip.Addr // unset: all addresses
}

// Attachment is a pod's place on the network.
type Attachment struct {
	NetNS string       // path of the pinned network namespace
	IPs   []netip.Addr // primary first
}

// Device is a pod's device on a network.
type Device struct {
	IPs      []netip.Addr // primary first
	Gateways []netip.Addr // one of each family of the network
	MAC      string
}

// PodNetwork attaches sandboxes to the pod network.
//
// Attach returns a pinned namespace that is ready to use: loopback up, address, route, and port
// mappings in place. Attach of a known SandboxID returns the same result again. Detach removes
// namespace and mappings and frees the address; an unknown ID is not an error. Both survive a crash
// at any point: a repeated call completes the work.
type PodNetwork interface {
	Attach(context.Context, Pod) (Attachment, error)
	Detach(ctx context.Context, sandboxID string) error
	// Ready returns why pods cannot be attached now, or nil.
	Ready(context.Context) error
	// Sweep frees everything that belongs to none of the live sandboxes.
	Sweep(ctx context.Context, live map[string]bool) error
}

// Place is a pod with the addresses that it has on this network.
type Place struct {
	UID, Namespace, Name string
	SandboxID            string
	Labels               map[string]string // of the sandbox; nil if they are not known
	IPs                  []netip.Addr
}

// Gate keeps pods off the network until the rules for them are in force. A network calls it; the part that makes the
// rules implements it.
type Gate interface {
	// Adopt passes the pods that were attached before this process started.
	Adopt([]Place)
	// Admit returns when the rules for a pod are in force. The pod may send nothing before that.
	// After an error the pod is not attached.
	Admit(context.Context, Place) error
	// Free announces that a sandbox has released its addresses, before another one gets them. An
	// unknown ID is not an error.
	Free(sandboxID string)
}
