// Package network is the contract of the pod network: who gives a sandbox its
// network namespace and address. bridge implements it on this host, cni calls
// external plugins. The runtime drives it; it must never know containers.
package network

import (
	"context"
	"net/netip"
)

// Pod names the pod that a network namespace is for.
type Pod struct {
	UID       string // the same UID gets the same address again (A4)
	Namespace string
	Name      string
	SandboxID string
	Ports     []PortMapping
	// NetNS is the path of the network namespace to attach. The caller makes it for
	// a pod whose user namespace has to own it; empty: Attach makes one.
	NetNS string
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

// PodNetwork attaches sandboxes.
//
// Attach returns a namespace that is ready to use and pinned: loopback up,
// address, route and port mappings in place. Attach of a known SandboxID answers the same again.
// Detach removes namespace and mappings and frees the address; an unknown id is
// no error. Both survive a crash at any point: a repeated call finishes the work.
type PodNetwork interface {
	Attach(context.Context, Pod) (Attachment, error)
	Detach(ctx context.Context, sandboxID string) error
	// Ready says why pods can't be attached now, or nil.
	Ready(context.Context) error
	// Sweep frees everything that belongs to none of the live sandboxes.
	Sweep(ctx context.Context, live map[string]bool) error
}
