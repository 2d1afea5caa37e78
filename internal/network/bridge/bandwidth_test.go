package bridge

import (
	"math"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"carob/internal/base/netns"
	"carob/internal/network"
)

// rateOf is the rate in bytes per second of a device's token bucket; 0: it has none.
func rateOf(t *testing.T, h *netlink.Handle, link int) uint64 {
	t.Helper()
	list, err := h.QdiscList(&netlink.Device{LinkAttrs: netlink.LinkAttrs{Index: link}})
	if err != nil {
		t.Fatal(err)
	}
	for _, q := range list {
		if b, ok := q.(*netlink.Tbf); ok && b.Attrs().LinkIndex == link {
			return b.Rate
		}
	}
	return 0
}

// A pod's limits hold in both directions, also when a killed process left the work undone; other pods have none, not
// even one whose place was a limited pod's before.
func TestBandwidth(t *testing.T) {
	n := open(t, testConfig(t))
	rates := func(at network.Attachment) (ingress, egress uint64) {
		t.Helper()
		var h *netlink.Handle
		if err := netns.Do(at.NetNS, func() (err error) {
			h, err = netlink.NewHandle(unix.NETLINK_ROUTE)
			return err
		}); err != nil {
			t.Fatal(err)
		}
		defer h.Close()
		eth0, err := h.LinkByName("eth0")
		if err != nil {
			t.Fatal(err)
		}
		host, err := netlink.NewHandle(unix.NETLINK_ROUTE)
		if err != nil {
			t.Fatal(err)
		}
		defer host.Close()
		return rateOf(t, host, eth0.Attrs().ParentIndex), rateOf(t, h, eth0.Attrs().Index)
	}
	attach := func(id string, b network.Bandwidth) network.Attachment {
		t.Helper()
		at, err := n.Attach(t.Context(), network.Pod{UID: "u" + id, SandboxID: id, Bandwidth: b})
		if err != nil {
			t.Fatal(err)
		}
		return at
	}
	limit := network.Bandwidth{Ingress: 8_000_000, Egress: 16_000_000}
	at := attach("a", limit)
	if in, out := rates(at); in != 1_000_000 || out != 2_000_000 {
		t.Errorf("rates %d and %d", in, out)
	}
	n.mu.Lock()
	n.attached["a"].ready = false // as after a kill
	n.mu.Unlock()
	if in, out := rates(attach("a", limit)); in != 1_000_000 || out != 2_000_000 {
		t.Errorf("rates %d and %d after the work was finished", in, out)
	}
	if in, out := rates(attach("b", network.Bandwidth{Egress: 1000})); in != 0 || out != 125 {
		t.Errorf("rates %d and %d of a pod that sends slowly", in, out)
	}
	if in, out := rates(attach("c", network.Bandwidth{})); in != 0 || out != 0 {
		t.Errorf("rates %d and %d without a limit", in, out)
	}
}

// The bucket of each rate can hold a segment, and nothing overflows.
func TestBucket(t *testing.T) {
	for bits := uint64(1000); bits <= 1e15; bits *= 10 {
		b := bucket(1, bits)
		if b.Rate != bits/8 || b.Limit < minBurst || b.Buffer == 0 {
			t.Errorf("%d bit/s: %+v", bits, b)
		}
		held := float64(b.Buffer) / netlink.TickInUsec() / netlink.TIME_UNITS_PER_SEC * float64(b.Rate)
		if b.Buffer != math.MaxUint32 && held < minBurst*0.99 {
			t.Errorf("%d bit/s: the bucket holds %.0f bytes", bits, held)
		}
	}
}
