package bridge

import (
	"net"
	"net/netip"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/types"

	"carob/internal/base/netns"
	"carob/internal/network"
)

// A pod is busy as long as a connection waits in the queue of one of its listeners, and is told of when it has been
// accepted.
func TestQueues(t *testing.T) {
	n := open(t, testConfig(t))
	at, err := n.Attach(t.Context(), network.Pod{UID: "u", Namespace: "default", Name: "web", SandboxID: "s"})
	if err != nil {
		t.Fatal(err)
	}
	fd := 0
	if err := netns.Do(at.NetNS, func() (err error) {
		if fd, err = unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0); err != nil {
			return err
		}
		if err = unix.Bind(fd, &unix.SockaddrInet4{Port: 80}); err != nil {
			return err
		}
		return unix.Listen(fd, 10)
	}); err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	if !n.idle(t.Context(), "u", map[int]bool{}) && !arrives(t, n) {
		t.Error("busy without a connection")
	}
	c, err := net.Dial("tcp", netip.AddrPortFrom(at.IPs[0], 80).String())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if n.idle(t.Context(), "u", map[int]bool{}) {
		t.Error("idle while a connection waits")
	}
	q := n.Queues()
	released := make(chan types.UID)
	go q.Follow(t.Context(), func(pod types.UID) { released <- pod })
	if !q.Routed("u") {
		t.Error("let go before it was looked at")
	}
	if !q.Routed("other") {
		t.Error("another pod was let go before it was looked at")
	}
	if pod := <-released; pod != "other" || q.Routed(pod) { // has no network: nothing can be on its way
		t.Errorf("released %q", pod)
	}
	began := time.Now()
	a, _, err := unix.Accept(fd)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(a)
	if pod := <-released; pod != "u" || q.Routed(pod) {
		t.Errorf("released %q", pod)
	}
	t.Log(time.Since(began))
	if len(q.pods) > 0 {
		t.Errorf("remembers %v", q.pods)
	}
	// Who never accepts is not waited for.
	if !q.Routed("u") {
		t.Error("let go before it was looked at")
	}
	if <-released; q.Routed("u") {
		t.Error("still busy")
	}
}

// arrives waits until the packets of everybody on this host have arrived.
func arrives(t *testing.T, n *Network) bool {
	arrived := map[int]bool{}
	for range 1000 {
		if n.idle(t.Context(), "u", arrived) {
			return true
		}
		time.Sleep(time.Millisecond)
	}
	return false
}

// Packets that were on their way have arrived when each CPU's queue has been empty once.
func TestArrived(t *testing.T) {
	line := func(queued string) string {
		return "00b56781 00000000 00000000 0 0 0 0 0 0 0 0 " + queued + " 00000000 0 0\n"
	}
	arrived := map[int]bool{}
	for _, step := range []struct {
		stat string
		want bool
	}{{line("00000001") + line("000000ff"), false}, {line("00000000") + line("00000001"), false},
		{line("00000001") + line("00000000"), true}} {
		if got := allArrived(step.stat, arrived); got != step.want {
			t.Errorf("%q: %v", step.stat, got)
		}
	}
	if !allArrived("00b56781 00000000\n", map[int]bool{}) {
		t.Error("an old kernel does not tell, and is not waited for")
	}
}
