package bridge

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"testing"

	"github.com/vishvananda/netlink"

	"carob/internal/base/errkind"
	"carob/internal/base/netns"
	"carob/internal/network"
)

func podOf(uid string) network.Pod {
	return network.Pod{UID: uid, Namespace: "n", Name: uid, SandboxID: "s-" + uid}
}

// withSpare opens a network whose pool has exactly this spare place and makes no others.
func withSpare(t *testing.T, cfg Config) (*Network, *place) {
	t.Helper()
	cfg.Pool = -1
	n := open(t, cfg)
	p, err := n.makeSpare(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	n.pool = &pool{drop: n.discard, ready: []*place{p}, wake: make(chan struct{}, 1), done: make(chan struct{}),
		stop: func() {}}
	close(n.pool.done)
	return n, p
}

// permanent are the addresses that the host has permanent neighbour entries for.
func permanent(t *testing.T, n *Network) (ips []string) {
	t.Helper()
	all, err := netlink.NeighList(n.bridge.Load().index, netlink.FAMILY_V4)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range all {
		if e.State&netlink.NUD_PERMANENT != 0 {
			ips = append(ips, e.IP.String())
		}
	}
	return ips
}

// A spare place has all that a pod needs: attaching one changes no device, for which it would wait for the kernel's
// lock of all devices. The place's netlink handle is closed here, so an attempt would fail.
func TestSpareNeedsNoDeviceChange(t *testing.T) {
	n, p := withSpare(t, testConfig(t))
	p.close()
	at, err := n.Attach(t.Context(), podOf("u"))
	if err != nil {
		t.Fatal(err)
	}
	if at.NetNS != p.path || !slices.Equal(at.IPs, p.ips) {
		t.Errorf("attached %+v, the spare place is %s with %v", at, p.path, p.ips)
	}
	if known := permanent(t, n); !slices.Contains(known, at.IPs[0].String()) {
		t.Errorf("the host has only neighbour %v", known)
	}
	if err := netns.Do(at.NetNS, func() error {
		eth0, err := netlink.LinkByName("eth0")
		if err != nil {
			return err
		}
		have, err := netlink.AddrList(eth0, netlink.FAMILY_V4)
		if err == nil && (len(have) != 1 || have[0].IP.String() != at.IPs[0].String()) {
			err = fmt.Errorf("eth0 has %v", have)
		}
		return err
	}); err != nil {
		t.Error(err)
	}
	if err := n.Detach(t.Context(), "s-u"); err != nil {
		t.Fatal(err)
	}
	if known := permanent(t, n); len(known) > 0 {
		t.Errorf("the host still has neighbour %v", known)
	}
}

// A pod that was attached before gets its previous address and not the spare place's, which stays for others.
func TestSpareIsForNewPods(t *testing.T) {
	cfg := testConfig(t)
	n, p := withSpare(t, cfg)
	n.mu.Lock()
	old := p.ips[0].Next().Next()
	n.v4.reserve("before", old)
	n.mu.Unlock()
	at, err := n.Attach(t.Context(), podOf("before"))
	if err != nil || at.IPs[0] != old {
		t.Errorf("%+v, %v, want %s", at, err, old)
	}
	if at, err = n.Attach(t.Context(), podOf("new")); err != nil || at.NetNS != p.path {
		t.Errorf("%+v, %v, want the spare place %s", at, err, p.path)
	}
}

// Spare places hold no address back: the last pods get theirs.
func TestSparesInASmallRange(t *testing.T) {
	cfg := testConfig(t)
	cfg.Pods = netip.PrefixFrom(cfg.Pods.Addr(), 29) // for five pods
	n := open(t, cfg)                                // its pool holds two or more of them
	seen := map[netip.Addr]bool{}
	for i := range 5 {
		pod := podOf(fmt.Sprint(i))
		if i%2 == 1 { // it needs a place of its own
			n.mu.Lock()
			n.v4.reserve(pod.UID, cfg.Pods.Addr().Next()) // the bridge's: never free
			n.mu.Unlock()
		}
		at, err := n.Attach(t.Context(), pod)
		if err != nil {
			t.Fatalf("pod %d: %v", i, err)
		}
		if seen[at.IPs[0]] {
			t.Errorf("two pods have %s", at.IPs[0])
		}
		seen[at.IPs[0]] = true
	}
	if _, err := n.Attach(t.Context(), podOf("one too many")); errkind.Of(err) != errkind.Exhausted {
		t.Errorf("the sixth pod: %v", err)
	}
}

// What a killed process had in its pool is removed by the next one, and a discarded place frees its addresses.
func TestSpareOfAKilledProcess(t *testing.T) {
	cfg := testConfig(t)
	cfg.Pool = -1
	n := open(t, cfg)
	if _, err := n.Attach(t.Context(), podOf("u")); err != nil {
		t.Fatal(err)
	}
	killed, err := n.makeSpare(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	killed.close()
	if err := n.Close(); err != nil {
		t.Fatal(err)
	}
	n = open(t, cfg)
	if netns.Pinned(killed.path) {
		t.Errorf("%s is left", killed.path)
	}
	at, err := n.Attach(t.Context(), podOf("u"))
	if err != nil {
		t.Fatal(err)
	}
	if known := permanent(t, n); !slices.Equal(known, []string{at.IPs[0].String()}) {
		t.Errorf("the host has neighbour %v, the only pod is %v", known, at.IPs)
	}
	p, err := n.makeSpare(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	n.discard(p)
	n.mu.Lock()
	used := len(n.v4.used)
	n.mu.Unlock()
	if used != 1 || netns.Pinned(p.path) || len(permanent(t, n)) != 1 {
		t.Errorf("a discarded place left something: %d addresses in use", used)
	}
}

// A spare place whose port was removed from outside, or is on a bridge that was, is given to no pod.
func TestDisconnectedSpare(t *testing.T) {
	for what, disconnect := range map[string]func(n *Network, p *place) error{
		"port": func(_ *Network, p *place) error {
			return netlink.LinkDel(&netlink.Device{LinkAttrs: netlink.LinkAttrs{Index: p.port}})
		},
		"moved": func(_ *Network, p *place) error {
			return netlink.LinkSetNoMaster(&netlink.Device{LinkAttrs: netlink.LinkAttrs{Index: p.port}})
		},
		"bridge": func(n *Network, _ *place) error {
			link, err := netlink.LinkByName(n.cfg.Bridge)
			return errors.Join(err, netlink.LinkDel(link), n.Ready(t.Context()))
		},
	} {
		t.Run(what, func(t *testing.T) {
			n, p := withSpare(t, testConfig(t))
			if err := disconnect(n, p); err != nil {
				t.Fatal(err)
			}
			at, err := n.Attach(t.Context(), podOf("u"))
			if err != nil || at.NetNS == p.path {
				t.Errorf("%+v, %v", at, err)
			}
			if netns.Pinned(p.path) {
				t.Error("the place is left")
			}
		})
	}
}
