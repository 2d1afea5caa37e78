package bridge

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/netip"
	"sync"
	"testing"
	"time"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/types"

	"carob/internal/base/netns"
	"carob/internal/base/testwait"
	"carob/internal/network"
)

// A pod is busy as long as a connection waits in the queue of one of its listeners, and is reported when the connection
// has been accepted.
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
	packets, passed := q.passed, make(chan struct{})
	q.passed = func() {
		packets()
		<-passed
	}
	released := make(chan types.UID)
	go q.Follow(t.Context(), func(pod types.UID) { released <- pod })
	if !q.Routed("u") {
		t.Error("let go before it was looked at")
	}
	if !q.Routed("other") {
		t.Error("another pod was let go before it was looked at")
	}
	select {
	case pod := <-released:
		t.Errorf("%s was released before its packets had left the rules", pod)
	case passed <- struct{}{}:
	}
	close(passed)                                           // however often it looks again
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
	// The wait for a program that never accepts is limited.
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
func TestQueuesOfAllCPUsWereEmpty(t *testing.T) {
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

// A connection that was accepted counts until the first of what has arrived is read; later bytes, connections that the
// pod opens itself, and those on which nothing has come, do not.
func TestUnreadConnections(t *testing.T) {
	n := open(t, testConfig(t))
	at, err := n.Attach(t.Context(), network.Pod{UID: "u", Namespace: "default", Name: "web", SandboxID: "s"})
	if err != nil {
		t.Fatal(err)
	}
	for _, address := range []string{"127.0.0.1:0", "[::]:0"} {
		var server net.Listener
		var client, accepted net.Conn
		if err := netns.Do(at.NetNS, func() (err error) {
			if server, err = net.Listen("tcp", address); err != nil {
				return err
			}
			_, port, _ := net.SplitHostPort(server.Addr().String())
			client, err = net.Dial("tcp", "127.0.0.1:"+port)
			return err
		}); err != nil {
			t.Fatal(err)
		}
		defer server.Close()
		defer client.Close()
		if accepted, err = server.Accept(); err != nil {
			t.Fatal(err)
		}
		defer accepted.Close()
		waits := func(want int, when string) {
			t.Helper()
			testwait.Until(t, when, func() error {
				return netns.Do(at.NetNS, func() error {
					have, err := pending()
					if err == nil && have != want {
						err = fmt.Errorf("%s: %d connections wait, want %d", address, have, want)
					}
					return err
				})
			})
		}
		send := func(c net.Conn) {
			t.Helper()
			if _, err := c.Write([]byte("question")); err != nil {
				t.Fatal(err)
			}
		}
		receive := func(c net.Conn, n int) {
			t.Helper()
			if _, err := io.ReadFull(c, make([]byte, n)); err != nil {
				t.Fatal(err)
			}
		}
		waits(0, "nothing has come")
		send(client)
		waits(1, "nothing of the question has been read")
		receive(accepted, 1)
		waits(0, "it is being read")
		receive(accepted, len("question")-1)
		send(client)
		send(accepted)
		waits(0, "another question, and an answer")
	}
}

// A connection counts from the moment when its first packet has arrived.
func TestHalfOpen(t *testing.T) {
	n := open(t, testConfig(t))
	at, err := n.Attach(t.Context(), network.Pod{UID: "u", Namespace: "default", Name: "web", SandboxID: "s"})
	if err != nil {
		t.Fatal(err)
	}
	var l net.Listener
	if err := netns.Do(at.NetNS, func() (err error) {
		if l, err = net.Listen("tcp", netip.AddrPortFrom(at.IPs[0], 80).String()); err != nil {
			return err
		}
		// What the pod answers is lost.
		conn, err := nftables.New()
		if err != nil {
			return err
		}
		table := conn.AddTable(&nftables.Table{Family: nftables.TableFamilyIPv4, Name: "lost"})
		chain := conn.AddChain(&nftables.Chain{Table: table, Name: "output", Type: nftables.ChainTypeFilter,
			Hooknum: nftables.ChainHookOutput, Priority: nftables.ChainPriorityFilter})
		conn.AddRule(&nftables.Rule{Table: table, Chain: chain,
			Exprs: []expr.Any{&expr.Verdict{Kind: expr.VerdictDrop}}})
		return conn.Flush()
	}); err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	ctx, cancel := context.WithCancel(t.Context())
	var dialing sync.WaitGroup
	defer dialing.Wait()
	defer cancel()
	late := time.After(30 * time.Second)
	dialing.Go(func() { _, _ = (&net.Dialer{}).DialContext(ctx, "tcp", l.Addr().String()) })
	for {
		waiting := 0
		if err := netns.Do(at.NetNS, func() (err error) {
			waiting, err = pending()
			return err
		}); err != nil {
			t.Fatal(err)
		}
		if waiting == 1 {
			return
		}
		select {
		case <-time.After(time.Millisecond):
		case <-late:
			t.Fatal("a connection that is being established is not counted")
		}
	}
}
