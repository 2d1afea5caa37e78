package bridge

import (
	"testing"

	"github.com/vishvananda/netlink"

	"carob/internal/base/errkind"
	"carob/internal/base/netns"
)

// Pods have the MTU of the configuration, or else that of the uplink. Another one holds for new pods after a start,
// and for the bridge.
func TestMTU(t *testing.T) {
	cfg := testConfig(t)
	cfg.Pool = -1
	var names []string
	for i, want := range []int{1300, 1290, 0, 9000} {
		cfg.MTU = want
		n := open(t, cfg)
		names = append(names, []string{"a", "b", "c", "d"}[i])
		if want == 0 {
			want = defaultMTU()
		}
		at, err := n.Attach(t.Context(), podOf(names[i]))
		if err != nil {
			t.Fatal(err)
		}
		got := 0
		if err := netns.Do(at.NetNS, func() error {
			l, err := netlink.LinkByName("eth0")
			if err == nil {
				got = l.Attrs().MTU
			}
			return err
		}); err != nil {
			t.Fatal(err)
		}
		bridge, err := netlink.LinkByName(cfg.Bridge)
		if err != nil || got != want || bridge.Attrs().MTU != want {
			t.Errorf("MTU %d: the pod has %d, the bridge %d, %v", cfg.MTU, got, bridge.Attrs().MTU, err)
		}
		if err := n.Close(); err != nil {
			t.Fatal(err)
		}
	}
	for _, wrong := range []int{-1, 67, 65536} {
		cfg.MTU = wrong
		if _, err := Open(t.Context(), cfg); errkind.Of(err) != errkind.Invalid {
			t.Errorf("MTU %d: %v", wrong, err)
		}
	}
}
