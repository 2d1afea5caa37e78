package bridge

import (
	"net/netip"
	"testing"
	"time"

	"carob/internal/network"
)

// TestOneSocketForAllPods: pods come and go through one netlink socket, as to close it is slow. After a transaction
// that failed, which may leave answers in it, another one is opened.
func TestOneSocketForAllPods(t *testing.T) {
	n := open(t, testConfig(t))
	pod := func(id string) network.Pod {
		return network.Pod{SandboxID: id, Name: id, UID: id, Ports: []network.PortMapping{
			{Protocol: "tcp", HostPort: 18080, ContainerPort: 80, HostIP: netip.MustParseAddr("198.18.255.1")}}}
	}
	cycle := func(id string) {
		t.Helper()
		if _, err := n.Attach(t.Context(), pod(id)); err != nil {
			t.Fatal(err)
		}
		if err := n.Detach(t.Context(), id); err != nil {
			t.Fatal(err)
		}
	}
	cycle("a")
	first := n.rules.elements.conn
	for _, id := range []string{"b", "c"} {
		cycle(id)
	}
	sock := n.flows.sock
	if sock == nil {
		t.Error("connection tracking has no socket that stays open")
	}
	if first == nil || n.rules.elements.conn != first {
		t.Error("more than one socket was opened for three pods")
	}
	if _, err := n.Attach(t.Context(), pod("gone")); err != nil {
		t.Fatal(err)
	}
	n.mu.Lock()
	gone := n.attached["gone"].pin()
	n.mu.Unlock()
	if err := n.Detach(t.Context(), "gone"); err != nil {
		t.Fatal(err)
	}
	if err := n.rules.unpublish(nil, gone); err != nil { // nothing of it exists
		t.Error(err)
	}
	if n.rules.elements.conn == first {
		t.Error("the socket stays open after a failure")
	}
	cycle("d")
	second := n.rules.elements.conn
	cycle("e")
	if second == nil || n.rules.elements.conn != second {
		t.Error("more than one socket was opened for two pods after a failure")
	}
	if n.flows.sock != sock {
		t.Error("another socket of connection tracking was opened")
	}
}

// All host ports of a pod are removed in one transaction, and in one more if they do not exist any more: one that fails
// for each port would take seconds, and leave no socket open.
func TestOneTransactionForAllPorts(t *testing.T) {
	n := open(t, testConfig(t))
	pod := network.Pod{SandboxID: "a", Name: "a", UID: "a"}
	for i := range 300 {
		pod.Ports = append(pod.Ports, network.PortMapping{Protocol: "tcp", HostPort: uint16(20000 + i),
			ContainerPort: 80,
			HostIP:        netip.MustParseAddr("198.18.255.1")})
	}
	if _, err := n.Attach(t.Context(), pod); err != nil {
		t.Fatal(err)
	}
	n.mu.Lock()
	published, gone := n.attached["a"].published(), n.attached["a"].pin()
	n.mu.Unlock()
	first := n.rules.elements.conn
	if err := n.Detach(t.Context(), "a"); err != nil {
		t.Fatal(err)
	}
	if first == nil || n.rules.elements.conn != first {
		t.Error("the transaction that removes the ports failed")
	}
	if err := n.rules.unpublish(published, gone); err != nil { // as after a failure in the middle of Detach
		t.Fatal(err)
	}
	if n.rules.elements.conn == nil {
		t.Error("the ports that do not exist are removed one by one")
	}
	// Nothing is left: another pod gets the same ports.
	pod.SandboxID, pod.Name, pod.UID = "b", "b", "b"
	if _, err := n.Attach(t.Context(), pod); err != nil {
		t.Fatal(err)
	}
	if err := n.Detach(t.Context(), "b"); err != nil {
		t.Error(err)
	}
}

// BenchmarkDetach is the end of a pod's network, each a moment after the one before.
func BenchmarkDetach(b *testing.B) {
	n := open(b, testConfig(b))
	for range b.N {
		b.StopTimer()
		if _, err := n.Attach(b.Context(), network.Pod{SandboxID: "a", Name: "a", UID: "a"}); err != nil {
			b.Fatal(err)
		}
		time.Sleep(20 * time.Millisecond) // the kernel has freed what the last pod removed
		b.StartTimer()
		if err := n.Detach(b.Context(), "a"); err != nil {
			b.Fatal(err)
		}
	}
}
