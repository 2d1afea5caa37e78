package services

import (
	"bufio"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"carob/internal/base/netns"
	core "carob/internal/core/netplan/services"
)

// writes changes other Services at random and keeps the first one.
func (p *testPlane) writes(r *rand.Rand) core.Change {
	in := []core.Input{p.service("always", p.ip(1), nil, "pod1")}
	names := []string{"pod1", "pod2", "pod3"}
	for i := range 20 {
		one := p.service(fmt.Sprint("s", i), p.ip(2+i), nil, names[:r.IntN(4)]...)
		if r.IntN(4) == 0 {
			one.Service = nil
		}
		in = append(in, one)
	}
	return p.state.Update(in)
}

const writerEnv = "CAROB_TEST_SERVICES_WRITER"

// TestWriter is the process that TestKilled kills: it writes random changes to the table of a node until then.
func TestWriter(t *testing.T) {
	dir := os.Getenv(writerEnv)
	if dir == "" {
		t.Skip("only as a process of TestKilled")
	}
	p := &testPlane{lab: &lab{t: t, dir: dir, addrs: map[string][2]netip.Addr{}}}
	for i := range 3 {
		p.addrs[fmt.Sprint("pod", i+1)] = [2]netip.Addr{netip.MustParseAddr(fmt.Sprint("10.88.0.1", i+1)), {}}
	}
	p.state = core.New(false, labNode(false))
	p.open()
	r := rand.New(rand.NewPCG(rand.Uint64(), 1))
	p.writes(r)
	p.must(p.nft.Sync(p.content(p.state)))
	for {
		p.must(p.nft.Apply(p.change(p.writes(r))))
		fmt.Println("written")
	}
}

// A process is killed while it writes, again and again: Services of others and connections go on meanwhile, and the
// next process makes the table what it has to be.
func TestKilled(t *testing.T) {
	p := newPlane(t, false)
	vip := netip.AddrPortFrom(netip.MustParseAddr(p.ip(1)), 80)
	r := rand.New(rand.NewPCG(8, 8))
	p.writes(r)
	p.must(p.nft.Sync(p.content(p.state)))
	before, err := p.dial("pod3", "tcp", vip, patience)
	p.must(err)
	defer before.Close()
	for round := range 5 {
		cmd := exec.Command(os.Args[0], "-test.run=^TestWriter$")
		cmd.Env = append(os.Environ(), writerEnv+"="+p.dir)
		out, err := cmd.StdoutPipe()
		p.must(err)
		p.must(cmd.Start())
		lines := bufio.NewScanner(out)
		for range 1 + 9*round {
			if !lines.Scan() {
				t.Fatalf("the writer ended: %v", cmd.Wait())
			}
		}
		p.must(cmd.Process.Kill()) // in the middle of something
		_ = cmd.Wait()
		if name, _, err := p.reach("pod3", "tcp", vip, patience); err != nil || name != "pod1" {
			t.Errorf("round %d: before the next process: %s, %v", round, name, err)
		}
		p.open()
		p.state = core.New(false, labNode(false))
		p.writes(r)
		p.must(p.nft.Sync(p.content(p.state)))
		have, want := p.kernelElements(), map[string]int{}
		for e := range p.elements(p.state, p.state.Classes()) {
			want[e.Set]++
		}
		for _, s := range p.sets() {
			if !s.Dynamic && have[s.Name] != want[s.Name] {
				t.Errorf("round %d: %s has %d elements, want %d", round, s.Name, have[s.Name], want[s.Name])
			}
		}
		if name, _, err := exchange(before, patience); err != nil || name != "pod1" {
			t.Errorf("round %d: a connection of before: %s, %v", round, name, err)
		}
	}
}

// After `conntrack -F`, connections go on when the client sends next, wherever it is and however many endpoints there
// are, and new ones reach their endpoints. So it is when the next process has written the rules before.
func TestTrackingIsFlushed(t *testing.T) {
	families(t, func(t *testing.T, p *testPlane) {
		all := []string{"pod1", "pod2", "pod3", "remote"}
		many := p.service("many", p.ip(1), p.nodePort(false), all...)
		p.update(many, p.service("one", p.ip(2), nil, "pod2"))
		vip := netip.AddrPortFrom(netip.MustParseAddr(p.ip(1)), 80)
		var conns []flushed
		for range 6 {
			conns = append(conns, p.flushable("pod3", vip), p.flushable("outside", vip), p.flushable("node", vip),
				p.flushable("outside", netip.AddrPortFrom(p.addr("node"), 30080)),
				p.flushable("pod3", netip.AddrPortFrom(netip.MustParseAddr(p.ip(2)), 80)))
		}
		for round := range 3 {
			if round == 2 { // as after a start: every rule is made again
				p.must(p.nft.Sync(p.content(p.state)))
			}
			p.must(netns.Do(p.path("node"), func() error {
				return netlink.ConntrackTableFlush(netlink.ConntrackTable)
			}))
			for _, c := range conns {
				if name, _, err := exchange(c.Conn, patience); err != nil || name != c.reached {
					t.Errorf("round %d: from %s by %s: %s, %v, want %s", round, c.from, c.RemoteAddr(), name, err, c.reached)
				}
				acknowledge(t, c)
			}
			if _, _, err := p.reach("outside", "tcp", vip, patience); err != nil {
				t.Errorf("a new connection: %v", err)
			}
		}
	})
}

// flushed is a connection, with who answered it first.
type flushed struct {
	net.Conn
	from, reached string
}

// flushable opens a connection that has reached its endpoint and has nothing left to send.
func (p *testPlane) flushable(from string, to netip.AddrPort) flushed {
	p.t.Helper()
	c, err := p.dial(from, "tcp", to, patience)
	p.must(err)
	p.t.Cleanup(func() { _ = c.Close() })
	name, _, err := exchange(c, patience)
	p.must(err)
	acknowledge(p.t, c)
	return flushed{c, from, name}
}

// acknowledge sends what the client would acknowledge late: it would come before what it sends next.
func acknowledge(t testing.TB, c net.Conn) {
	t.Helper()
	if f, ok := c.(flushed); ok {
		c = f.Conn
	}
	raw, err := c.(*net.TCPConn).SyscallConn()
	if err == nil {
		err = errors.Join(raw.Control(func(fd uintptr) {
			_ = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_QUICKACK, 1)
		}))
	}
	if err != nil {
		t.Error(err)
	}
}
