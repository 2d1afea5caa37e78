package bridge

import (
	"fmt"
	"math"

	"github.com/vishvananda/netlink"

	"carob/internal/network"
)

const (
	// shapeLatency is how long a packet waits at most, in microseconds (N7.34).
	shapeLatency = 25_000
	// burstTime is the time in seconds whose traffic may pass at once, and minBurst the smallest burst in bytes: one
	// segment of generic segmentation offload and its headers.
	burstTime = 0.05
	minBurst  = 66 << 10
)

// shape limits the bandwidth of a pod: received traffic at its port on the host, sent traffic at its own device, where
// the kernel makes the sender wait instead of dropping packets. h is in the pod's namespace. A container with
// CAP_NET_ADMIN can lift the limit of what it sends.
func shape(h *netlink.Handle, eth0, port int, limit network.Bandwidth) error {
	if limit.Ingress > 0 {
		if err := netlink.QdiscReplace(bucket(port, limit.Ingress)); err != nil {
			return fmt.Errorf("limit what the pod receives: %w", err)
		}
	}
	if limit.Egress > 0 {
		if err := h.QdiscReplace(bucket(eth0, limit.Egress)); err != nil {
			return fmt.Errorf("limit what the pod sends: %w", err)
		}
	}
	return nil
}

// bucket is the kernel's token bucket for a rate in bits per second.
func bucket(link int, bits uint64) *netlink.Tbf {
	rate := max(bits/8, 1)
	burst := min(max(float64(rate)*burstTime, minBurst), math.MaxUint32/2)
	ticks := burst * netlink.TIME_UNITS_PER_SEC / float64(rate) * netlink.TickInUsec()
	queue := float64(rate)*shapeLatency/netlink.TIME_UNITS_PER_SEC + burst
	return &netlink.Tbf{
		QdiscAttrs: netlink.QdiscAttrs{LinkIndex: link, Handle: netlink.MakeHandle(1, 0),
			Parent: netlink.HANDLE_ROOT},
		Rate: rate, Buffer: uint32(min(ticks, math.MaxUint32)), Limit: uint32(min(queue, math.MaxUint32)),
	}
}
