package bridge

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/google/nftables"
	"github.com/vishvananda/netlink"

	"carob/internal/base/errkind"
	"carob/internal/base/netns"
	"carob/internal/network"
	"carob/internal/network/nettest"
)

var subnet atomic.Int32

func testConfig(t testing.TB) Config {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("bridges need root")
	}
	// A range for benchmarks, not a private one: nothing else on the host uses it. Each process of
	// this test uses another part.
	id := os.Getpid()*7 + int(subnet.Add(1))
	dir := t.TempDir()
	cfg := Config{
		Bridge: fmt.Sprintf("cbt%d", id%10_000_000), Table: fmt.Sprintf("carob-test-%d", id),
		Pods:     netip.PrefixFrom(netip.AddrFrom4([4]byte{198, 18, byte(id % 128), 0}), 24),
		StateDir: filepath.Join(dir, "state"), RunDir: filepath.Join(dir, "run"), Pool: 4,
	}
	t.Cleanup(func() {
		if err := Destroy(cfg); err != nil {
			t.Errorf("destroy: %v", err)
		}
		expectClean(t, cfg)
	})
	return cfg
}

func open(t testing.TB, cfg Config) *Network {
	t.Helper()
	n, err := Open(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = n.Close() })
	return n
}

func expectClean(t testing.TB, cfg Config) {
	t.Helper()
	if _, err := netlink.LinkByName(cfg.Bridge); err == nil {
		t.Errorf("bridge %s is left", cfg.Bridge)
	}
	conn, err := nftables.New()
	if err != nil {
		t.Fatal(err)
	}
	tables, err := conn.ListTables()
	if err != nil {
		t.Fatal(err)
	}
	for _, table := range tables {
		if table.Name == cfg.Table {
			t.Errorf("nftables table %s is left", cfg.Table)
		}
	}
}

func TestContract(t *testing.T) {
	for name, change := range map[string]func(*Config){
		"Pool":   func(*Config) {},
		"NoPool": func(c *Config) { c.Pool = -1 },
		"IPv6": func(c *Config) {
			c.Pods6 = netip.MustParsePrefix(fmt.Sprintf("fd00:211:%d::/64", (os.Getpid()*7+int(subnet.Load()))%128))
		},
	} {
		t.Run(name, func(t *testing.T) {
			nettest.Run(t, func(t testing.TB) nettest.Harness {
				cfg := testConfig(t)
				change(&cfg)
				n := open(t, cfg)
				return nettest.Harness{Network: n, SameAddress: true, HostPorts: true,
					Reopen: func(t testing.TB) network.PodNetwork {
						if err := n.Close(); err != nil {
							t.Fatal(err)
						}
						return open(t, cfg)
					}}
			})
		})
	}
}

func TestInvalidConfig(t *testing.T) {
	good := testConfig(t)
	for name, change := range map[string]func(*Config){
		"long name":              func(c *Config) { c.Bridge = "a-bridge-name-that-is-too-long" },
		"no room":                func(c *Config) { c.Pods = netip.MustParsePrefix("10.211.0.0/30") },
		"range of the host":      func(c *Config) { c.Pods = hostRange(t) },
		"device is not a bridge": func(c *Config) { c.Bridge = "lo" },
		"IPv6 range for IPv4":    func(c *Config) { c.Pods = netip.MustParsePrefix("fd00::/64") },
		"no table":               func(c *Config) { c.Table = "" },
	} {
		t.Run(name, func(t *testing.T) {
			cfg := good
			change(&cfg)
			n, err := Open(t.Context(), cfg)
			if err == nil {
				_ = n.Close()
			}
			if !errkind.Is(err, errkind.Invalid) {
				t.Errorf("got %v", err)
			}
		})
	}
}

func hostRange(t *testing.T) netip.Prefix {
	addrs, err := net.InterfaceAddrs()
	if err != nil {
		t.Fatal(err)
	}
	for _, a := range addrs {
		if p, err := netip.ParsePrefix(a.String()); err == nil && p.Addr().Is4() && !p.Addr().IsLoopback() {
			return netip.PrefixFrom(p.Addr(), 16).Masked()
		}
	}
	t.Skip("the host has no address")
	return netip.Prefix{}
}

// After a kill between the record and the configuration, the next Attach completes it.
func TestAttachIsFinishedAfterKill(t *testing.T) {
	cfg := testConfig(t)
	cfg.Pool = -1
	n := open(t, cfg)
	pod := network.Pod{UID: "u", Namespace: "default", Name: "web", SandboxID: "s"}
	p, err := n.makePlace(t.Context(), "")
	if err != nil {
		t.Fatal(err)
	}
	p.close()
	if _, err := n.reserve(pod, p); err != nil {
		t.Fatal(err)
	}
	stray, err := n.makePlace(t.Context(), "") // of a pool, without a record
	if err != nil {
		t.Fatal(err)
	}
	stray.close()
	if err := n.Close(); err != nil {
		t.Fatal(err)
	}
	n = open(t, cfg)
	at, err := n.Attach(t.Context(), pod)
	if err != nil || at.NetNS != p.path {
		t.Fatalf("%+v, %v", at, err)
	}
	if err := netns.Do(at.NetNS, func() error {
		_, err := net.Dial("udp", "192.0.2.77:9") // needs the default route
		return err
	}); err != nil {
		t.Errorf("the network is incomplete: %v", err)
	}
	if netns.Pinned(stray.path) {
		t.Errorf("%s of the killed process is left", stray.path)
	}
}

// The last line of the journal may be incomplete.
func TestIncompleteJournal(t *testing.T) {
	cfg := testConfig(t)
	n := open(t, cfg)
	at, err := n.Attach(t.Context(), network.Pod{UID: "u", SandboxID: "s"})
	if err != nil {
		t.Fatal(err)
	}
	if err := n.Close(); err != nil {
		t.Fatal(err)
	}
	f, err := os.OpenFile(journalName(cfg.StateDir), os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.WriteString(`{"detach":"`); err != nil {
		t.Fatal(err)
	}
	f.Close()
	n = open(t, cfg)
	again, err := n.Attach(t.Context(), network.Pod{UID: "u", SandboxID: "s"})
	if err != nil || fmt.Sprint(again) != fmt.Sprint(at) {
		t.Errorf("was %v, is %v, %v", at, again, err)
	}
}

// After the bridge is deleted from outside, the next pod creates it again.
func TestDeletedBridgeIsRestored(t *testing.T) {
	cfg := testConfig(t)
	n := open(t, cfg)
	link, err := netlink.LinkByName(cfg.Bridge)
	if err != nil {
		t.Fatal(err)
	}
	if err := netlink.LinkDel(link); err != nil {
		t.Fatal(err)
	}
	if err := n.Ready(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := netlink.LinkByName(cfg.Bridge); err != nil {
		t.Error(err)
	}
}

// The host does not keep a neighbour entry for a pod that ended.
func TestNeighbourIsForgotten(t *testing.T) {
	cfg := testConfig(t)
	n := open(t, cfg)
	at, err := n.Attach(t.Context(), network.Pod{UID: "u", SandboxID: "s"})
	if err != nil {
		t.Fatal(err)
	}
	link, err := netlink.LinkByName(cfg.Bridge)
	if err != nil {
		t.Fatal(err)
	}
	known := func() bool {
		all, err := netlink.NeighList(link.Attrs().Index, netlink.FAMILY_V4)
		if err != nil {
			t.Fatal(err)
		}
		return slices.ContainsFunc(all,
			func(x netlink.Neigh) bool { return x.IP.Equal(at.IPs[0].AsSlice()) && len(x.HardwareAddr) > 0 })
	}
	if _, err := net.Dial("tcp", net.JoinHostPort(at.IPs[0].String(), "9")); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Fatal(err)
	}
	if !known() {
		t.Fatal("the host has no neighbour entry for the pod")
	}
	if err := n.Detach(t.Context(), "s"); err != nil {
		t.Fatal(err)
	}
	if known() {
		t.Error("the host still has a neighbour entry for the pod")
	}
}

func BenchmarkAttach(b *testing.B) {
	for name, pool := range map[string]int{"pool": 16, "cold": -1} {
		b.Run(name, func(b *testing.B) {
			cfg := testConfig(b)
			cfg.Pool = pool
			n := open(b, cfg)
			for i := range b.N {
				id := fmt.Sprint("s", i)
				if _, err := n.Attach(b.Context(), network.Pod{UID: id, SandboxID: id}); err != nil {
					b.Fatal(err)
				}
				b.StopTimer()
				if err := n.Detach(context.Background(), id); err != nil {
					b.Fatal(err)
				}
				b.StartTimer()
			}
		})
	}
}

// The kernel reports whether devices changed during a list.
func TestInterruptedDump(t *testing.T) {
	lists := 0
	got, err := dump(func() ([]int, error) {
		if lists++; lists < 3 {
			return []int{1}, netlink.ErrDumpInterrupted
		}
		return []int{1, 2}, nil
	})
	if err != nil || len(got) != 2 || lists != 3 {
		t.Errorf("got %v and %v after %d lists", got, err, lists)
	}
	wrong := errors.New("no permission")
	if _, err := dump(func() ([]int, error) { return nil, wrong }); !errors.Is(err, wrong) {
		t.Errorf("another error became %v", err)
	}
}

// With another address range, the bridge has only the new gateway address, pods of the old range
// lose their network, and new pods work.
func TestPodRangeChanges(t *testing.T) {
	cfg := testConfig(t)
	cfg.Pool = -1
	n := open(t, cfg)
	old, err := n.Attach(t.Context(), network.Pod{UID: "u", SandboxID: "s"})
	if err != nil {
		t.Fatal(err)
	}
	if err := n.Close(); err != nil {
		t.Fatal(err)
	}
	other := cfg
	other.Pods = netip.PrefixFrom(netip.AddrFrom4([4]byte{198, 19, cfg.Pods.Addr().As4()[2], 0}), 24)
	n = open(t, other)
	if netns.Pinned(old.NetNS) {
		t.Error("the pod of the old range still has a network")
	}
	bridge, err := netlink.LinkByName(cfg.Bridge)
	if err != nil {
		t.Fatal(err)
	}
	addrs, err := netlink.AddrList(bridge, netlink.FAMILY_V4)
	if err != nil || len(addrs) != 1 || !addrs[0].IP.Equal(n.v4.gateway().AsSlice()) {
		t.Errorf("the bridge has %v, %v", addrs, err)
	}
	at, err := n.Attach(t.Context(), network.Pod{UID: "u", SandboxID: "again"})
	if err != nil || !other.Pods.Contains(at.IPs[0]) {
		t.Fatalf("%v, %v", at, err)
	}
	if _, err := net.Dial("tcp", net.JoinHostPort(at.IPs[0].String(), "9")); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("the pod of the new range: %v", err)
	}
	if err := n.Close(); err != nil {
		t.Fatal(err)
	}
	other.Pods = hostRange(t)
	if n, err := Open(t.Context(), other); !errkind.Is(err, errkind.Invalid) {
		t.Errorf("a range of the host: %v", err)
		if err == nil {
			_ = n.Close()
		}
	}
}
