// Package nettest is the contract of network.PodNetwork as a test suite that every implementation
// runs. It needs root and leaves nothing on the host.
package nettest

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"carob/internal/base/netns"
	"carob/internal/network"
)

// Harness is one implementation under test.
type Harness struct {
	// Network is open and has no pods.
	Network network.PodNetwork
	// Reopen closes the network as a crash would and opens it again with the same state; nil if the
	// implementation has none.
	Reopen func(testing.TB) network.PodNetwork
	// SameAddress: a UID gets its address again.
	SameAddress bool
	// HostPorts: port mappings work.
	HostPorts bool
}

var serial atomic.Int64

func pod(name string) network.Pod {
	n := serial.Add(1)
	return network.Pod{UID: fmt.Sprintf("uid-%s-%d", name, n), Namespace: "default", Name: name,
		SandboxID: fmt.Sprintf("sandbox%d", n)}
}

// Run checks an implementation; open creates a new one for each test.
func Run(t *testing.T, open func(testing.TB) Harness) {
	if os.Geteuid() != 0 {
		t.Skip("network namespaces need root")
	}
	for name, test := range map[string]func(*testing.T, Harness){
		"PodHasWorkingNetwork":   testWorkingNetwork,
		"PodsReachEachOther":     testPodToPod,
		"AttachTwiceIsTheSame":   testAttachTwice,
		"DetachIsTotal":          testDetach,
		"SamePodSameAddress":     testSameAddress,
		"ManyAtOnce":             testMany,
		"SurvivesRestart":        testRestart,
		"SweepFreesTheDead":      testSweep,
		"HostPort":               testHostPort,
		"CancelledAttachIsClean": testCancelled,
		"GivenNamespace":         testGivenNamespace,
	} {
		t.Run(name, func(t *testing.T) { test(t, open(t)) })
	}
}

func attach(t testing.TB, n network.PodNetwork, p network.Pod) network.Attachment {
	t.Helper()
	at, err := n.Attach(t.Context(), p)
	if err != nil {
		t.Fatalf("attach %s: %v", p.Name, err)
	}
	t.Cleanup(func() { _ = n.Detach(context.Background(), p.SandboxID) })
	if len(at.IPs) == 0 || at.NetNS == "" {
		t.Fatalf("attachment %+v", at)
	}
	return at
}

func detach(t testing.TB, n network.PodNetwork, p network.Pod) {
	t.Helper()
	if err := n.Detach(t.Context(), p.SandboxID); err != nil {
		t.Fatalf("detach %s: %v", p.Name, err)
	}
}

// serve sends a text to each connection in a namespace.
func serve(t testing.TB, ns, addr, text string) {
	t.Helper()
	var l net.Listener
	if err := netns.Do(ns, func() (err error) { l, err = net.Listen("tcp", addr); return err }); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			_, _ = io.WriteString(c, text)
			_ = c.Close()
		}
	}()
}

// connect connects from a namespace and reads the response.
func connect(ns, addr string) (got string, _ error) {
	err := netns.Do(ns, func() (err error) {
		got, err = dial(addr)
		return err
	})
	return got, err
}

func dial(addr string) (string, error) {
	c, err := net.DialTimeout("tcp", addr, 5*time.Second)
	if err != nil {
		return "", err
	}
	defer c.Close()
	body, err := io.ReadAll(c)
	return string(body), err
}

func testWorkingNetwork(t *testing.T, h Harness) {
	if err := h.Network.Ready(t.Context()); err != nil {
		t.Fatal(err)
	}
	at := attach(t, h.Network, pod("a"))
	var st unix.Statfs_t
	if err := unix.Statfs(at.NetNS, &st); err != nil || st.Type != unix.NSFS_MAGIC {
		t.Errorf("%s is not a pinned namespace: %v", at.NetNS, err)
	}
	var names []string
	var addrs []net.Addr
	if err := netns.Do(at.NetNS, func() error {
		links, err := net.Interfaces()
		for _, l := range links {
			if l.Flags&net.FlagUp != 0 {
				names = append(names, l.Name)
			}
		}
		if err != nil {
			return err
		}
		eth0, err := net.InterfaceByName("eth0")
		if err != nil {
			return err
		}
		addrs, err = eth0.Addrs()
		return err
	}); err != nil {
		t.Fatal(err)
	}
	if fmt.Sprint(names) != "[lo eth0]" {
		t.Errorf("devices that are up: %v", names)
	}
	found := false
	for _, a := range addrs {
		if p, err := netip.ParsePrefix(a.String()); err == nil && p.Addr() == at.IPs[0] {
			found = true
		}
	}
	if !found {
		t.Errorf("eth0 has %v, not %v", addrs, at.IPs)
	}
	serve(t, at.NetNS, "127.0.0.1:7001", "loopback")
	if got, err := connect(at.NetNS, "127.0.0.1:7001"); got != "loopback" || err != nil {
		t.Errorf("over lo: %q, %v", got, err)
	}
	serve(t, at.NetNS, ":7002", "pod")
	if got, err := connectHost(at.IPs[0], 7002); got != "pod" || err != nil {
		t.Errorf("from the host: %q, %v", got, err)
	}
}

func connectHost(ip netip.Addr, port uint16) (string, error) {
	return dial(netip.AddrPortFrom(ip, port).String())
}

// testGivenNamespace attaches a namespace that its own user namespace owns.
func testGivenNamespace(t *testing.T, h Harness) {
	cmd := exec.Command("sleep", "1000")
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags:  unix.CLONE_NEWUSER | unix.CLONE_NEWNET,
		UidMappings: []syscall.SysProcIDMap{{HostID: 700000, Size: 65536}},
		GidMappings: []syscall.SysProcIDMap{{HostID: 700000, Size: 65536}},
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	end := sync.OnceFunc(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait() // killed
	})
	defer end()
	owned, other := pod("owned"), pod("other")
	owned.NetNS = fmt.Sprintf("/proc/%d/ns/net", cmd.Process.Pid)
	var given, pinned unix.Stat_t
	if err := unix.Stat(owned.NetNS, &given); err != nil {
		t.Fatal(err)
	}
	at := attach(t, h.Network, owned)
	end() // the network keeps it
	if err := unix.Stat(at.NetNS, &pinned); err != nil || given.Ino != pinned.Ino {
		t.Errorf("attached namespace %d instead of %d, %v", pinned.Ino, given.Ino, err)
	}
	serve(t, at.NetNS, ":8080", "owned")
	addr := net.JoinHostPort(at.IPs[0].String(), "8080")
	if got, err := connect(attach(t, h.Network, other).NetNS, addr); err != nil || got != "owned" {
		t.Errorf("from another pod %q, %v", got, err)
	}
	if again := attach(t, h.Network, owned); again.NetNS != at.NetNS {
		t.Errorf("attached again as %s, was %s", again.NetNS, at.NetNS)
	}
	detach(t, h.Network, owned)
	if err := unix.Stat(at.NetNS, &pinned); err == nil {
		t.Errorf("%s is still there", at.NetNS)
	}
}

func testPodToPod(t *testing.T, h Harness) {
	a, b := attach(t, h.Network, pod("a")), attach(t, h.Network, pod("b"))
	if a.IPs[0] == b.IPs[0] || a.NetNS == b.NetNS {
		t.Fatalf("two pods share %v and %v", a, b)
	}
	serve(t, b.NetNS, ":7003", "b")
	if got, err := connect(a.NetNS, netip.AddrPortFrom(b.IPs[0], 7003).String()); got != "b" || err != nil {
		t.Errorf("a → b: %q, %v", got, err)
	}
}

func testAttachTwice(t *testing.T, h Harness) {
	p := pod("a")
	first, second := attach(t, h.Network, p), attach(t, h.Network, p)
	if fmt.Sprint(first) != fmt.Sprint(second) {
		t.Errorf("%v, then %v", first, second)
	}
}

func testDetach(t *testing.T, h Harness) {
	p := pod("a")
	at := attach(t, h.Network, p)
	for range 2 {
		detach(t, h.Network, p)
	}
	if _, err := os.Stat(at.NetNS); !os.IsNotExist(err) {
		t.Errorf("%s after detach: %v", at.NetNS, err)
	}
	if err := h.Network.Detach(t.Context(), "never-attached"); err != nil {
		t.Errorf("unknown sandbox: %v", err)
	}
}

func testSameAddress(t *testing.T, h Harness) {
	p := pod("a")
	first := attach(t, h.Network, p)
	detach(t, h.Network, p)
	other := attach(t, h.Network, pod("b"))
	if other.IPs[0] == first.IPs[0] {
		t.Errorf("%s was given to another pod at once", first.IPs[0])
	}
	if !h.SameAddress {
		return
	}
	p.SandboxID += "-again"
	again := attach(t, h.Network, p)
	if again.IPs[0] != first.IPs[0] {
		t.Errorf("the pod had %s and has %s", first.IPs[0], again.IPs[0])
	}
	serve(t, again.NetNS, ":7004", "again")
	if got, err := connectHost(again.IPs[0], 7004); got != "again" || err != nil {
		t.Errorf("the new namespace at the old address: %q, %v", got, err)
	}
}

func testMany(t *testing.T, h Harness) {
	const pods = 24
	var got [pods]network.Attachment
	g, ctx := errgroup.WithContext(t.Context())
	ps := make([]network.Pod, pods)
	for i := range pods {
		ps[i] = pod("many")
		t.Cleanup(func() { _ = h.Network.Detach(context.Background(), ps[i].SandboxID) })
		g.Go(func() (err error) {
			got[i], err = h.Network.Attach(ctx, ps[i])
			return err
		})
	}
	if err := g.Wait(); err != nil {
		t.Fatal(err)
	}
	seen := map[netip.Addr]bool{}
	for _, at := range got {
		if seen[at.IPs[0]] {
			t.Errorf("%s twice", at.IPs[0])
		}
		seen[at.IPs[0]] = true
	}
	for _, p := range ps {
		g.Go(func() error { return h.Network.Detach(context.Background(), p.SandboxID) })
	}
	if err := g.Wait(); err != nil {
		t.Fatal(err)
	}
}

func testRestart(t *testing.T, h Harness) {
	if h.Reopen == nil {
		t.Skip("keeps no state")
	}
	p, gone := pod("a"), pod("gone")
	before := attach(t, h.Network, p)
	old := attach(t, h.Network, gone)
	detach(t, h.Network, gone)
	serve(t, before.NetNS, ":7005", "alive")

	n := h.Reopen(t)
	if got, err := connectHost(before.IPs[0], 7005); got != "alive" || err != nil {
		t.Errorf("after the restart: %q, %v", got, err)
	}
	if after := attach(t, n, p); fmt.Sprint(after) != fmt.Sprint(before) {
		t.Errorf("was %v, is %v", before, after)
	}
	fresh := attach(t, n, pod("fresh"))
	if fresh.IPs[0] == before.IPs[0] {
		t.Errorf("%s given twice", fresh.IPs[0])
	}
	if h.SameAddress {
		gone.SandboxID += "-again"
		if again := attach(t, n, gone); again.IPs[0] != old.IPs[0] {
			t.Errorf("over a restart: had %s, has %s", old.IPs[0], again.IPs[0])
		}
	}
}

func testSweep(t *testing.T, h Harness) {
	live, removed := pod("live"), pod("dead")
	kept, freed := attach(t, h.Network, live), attach(t, h.Network, removed)
	if err := h.Network.Sweep(t.Context(), map[string]bool{live.SandboxID: true}); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(kept.NetNS); err != nil {
		t.Errorf("the live one: %v", err)
	}
	if _, err := os.Stat(freed.NetNS); !os.IsNotExist(err) {
		t.Errorf("the dead one: %v", err)
	}
}

func testCancelled(t *testing.T, h Harness) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	p := pod("a")
	if at, err := h.Network.Attach(ctx, p); err == nil {
		t.Fatalf("a cancelled attach answered %v", at)
	}
	if err := h.Network.Sweep(t.Context(), nil); err != nil {
		t.Fatal(err)
	}
	attach(t, h.Network, p)
}

func testHostPort(t *testing.T, h Harness) {
	if !h.HostPorts {
		t.Skip("no host ports")
	}
	hostIP := hostAddress(t)
	p := pod("web")
	p.Ports = []network.PortMapping{{Protocol: "TCP", ContainerPort: 80, HostPort: freePort(t)}}
	at := attach(t, h.Network, p)
	serve(t, at.NetNS, ":80", "web")
	port := p.Ports[0].HostPort
	for name, from := range map[string]struct {
		ns string
		ip netip.Addr
	}{
		"host → its address":       {"", hostIP},
		"host → loopback":          {"", netip.MustParseAddr("127.0.0.1")},
		"other pod → host":         {attach(t, h.Network, pod("client")).NetNS, hostIP},
		"the pod itself over host": {at.NetNS, hostIP},
	} {
		addr := netip.AddrPortFrom(from.ip, port)
		got, err := connectHost(from.ip, port)
		if from.ns != "" {
			got, err = connect(from.ns, addr.String())
		}
		if got != "web" || err != nil {
			t.Errorf("%s: %q, %v", name, got, err)
		}
	}
	local := pod("local")
	local.Ports = []network.PortMapping{{Protocol: "TCP", ContainerPort: 80, HostPort: freePort(t),
		HostIP: netip.MustParseAddr("127.0.0.1")}}
	serve(t, attach(t, h.Network, local).NetNS, ":80", "local")
	got, err := connectHost(netip.MustParseAddr("127.0.0.1"), local.Ports[0].HostPort)
	if got != "local" || err != nil {
		t.Errorf("host port of one address: %q, %v", got, err)
	}
	if got, err := connectHost(hostIP, local.Ports[0].HostPort); err == nil {
		t.Errorf("host port of the loopback address answers %q on %s", got, hostIP)
	}
	testUDPHostPort(t, h, hostIP)

	second := pod("second")
	second.Ports = p.Ports
	if _, err := h.Network.Attach(t.Context(), second); err == nil {
		t.Errorf("two pods have host port %d", port)
	}
	detach(t, h.Network, p)
	if got, err := connectHost(hostIP, port); err == nil {
		t.Errorf("after detach the host port answers %q", got)
	}
	attach(t, h.Network, second)
}

// A client that never stops sending must reach the pod that has the port now.
func testUDPHostPort(t *testing.T, h Harness, hostIP netip.Addr) {
	port := freePort(t)
	client, err := net.ListenUDP("udp4", nil)
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	for _, name := range []string{"first", "next"} {
		p := pod(name)
		p.Ports = []network.PortMapping{{Protocol: "UDP", ContainerPort: 5353, HostPort: port}}
		at := attach(t, h.Network, p)
		var server *net.UDPConn
		if err := netns.Do(at.NetNS,
			func() (err error) {
				server, err = net.ListenUDP("udp4", &net.UDPAddr{Port: 5353})
				return err
			}); err != nil {
			t.Fatal(err)
		}
		if _, err := client.WriteToUDPAddrPort([]byte(name), netip.AddrPortFrom(hostIP, port)); err != nil {
			t.Fatal(err)
		}
		if err := server.SetReadDeadline(time.Now().Add(5 * time.Second)); err != nil {
			t.Fatal(err)
		}
		buf := make([]byte, 16)
		if n, _, err := server.ReadFromUDPAddrPort(buf); err != nil || string(buf[:n]) != name {
			t.Errorf("UDP host port, %s pod: %q, %v", name, buf[:n], err)
		}
		server.Close()
		detach(t, h.Network, p)
	}
}

// hostAddress is an address of the host that is not a loopback address.
func hostAddress(t testing.TB) netip.Addr {
	t.Helper()
	addrs, err := net.InterfaceAddrs()
	if err != nil {
		t.Fatal(err)
	}
	for _, a := range addrs {
		if p, err := netip.ParsePrefix(a.String()); err == nil && p.Addr().Is4() && !p.Addr().IsLoopback() {
			return p.Addr()
		}
	}
	t.Skip("the host has no address")
	return netip.Addr{}
}

func freePort(t testing.TB) uint16 {
	t.Helper()
	l, err := net.Listen("tcp4", ":0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return uint16(l.Addr().(*net.TCPAddr).Port)
}
