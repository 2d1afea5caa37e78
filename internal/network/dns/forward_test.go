package dns

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/miekg/dns"

	"carob/internal/base/testwait"
	core "carob/internal/core/netplan/dns"
)

var errUnreachable = errors.New("no answer")

func unreachable(core.Upstream, *dns.Msg) (*dns.Msg, error) { return nil, errUnreachable }

// A cached name is still answered when the servers are gone, as long as the configuration allows.
func TestServeStale(t *testing.T) {
	for _, mode := range []string{"serve_stale 1h verify 0 30s", "serve_stale 1h immediate 30s"} {
		s, u, c := made(t, fmt.Sprintf(forwarding, mode))
		query(t, s, "example.com.", dns.TypeA)
		u.set(unreachable)
		c.add(31 * time.Second)
		want(t, mode, query(t, s, "example.com.", dns.TypeA), "NOERROR example.com. 30 A 192.0.2.1")
		c.add(time.Hour)
		if m := query(t, s, "example.com.", dns.TypeA); m.Rcode != dns.RcodeServerFailure {
			t.Errorf("%s: after an hour: %v", mode, m)
		}
		if m := query(t, s, "web.ns.svc.cluster.local.", dns.TypeA); len(m.Answer) != 1 {
			t.Errorf("%s: a name of the cluster: %v", mode, m)
		}
	}
	s, u, c := made(t, fmt.Sprintf(forwarding, "serve_stale 1h verify 0 30s"))
	query(t, s, "example.com.", dns.TypeA)
	c.add(31 * time.Second)
	u.set(func(_ core.Upstream, m *dns.Msg) (*dns.Msg, error) { return address(m, "192.0.2.2", 30), nil })
	want(t, "verified", query(t, s, "example.com.", dns.TypeA), "NOERROR example.com. 30 A 192.0.2.2")
}

// A popular name is queried again before it expires; no client waits for that.
func TestPrefetch(t *testing.T) {
	s, u, c := made(t, fmt.Sprintf(forwarding, "prefetch 2 1m 50%"))
	for range 3 {
		query(t, s, "example.com.", dns.TypeA)
	}
	if u.count() != 1 {
		t.Fatalf("asked %v", u.queries)
	}
	u.set(func(_ core.Upstream, m *dns.Msg) (*dns.Msg, error) { return address(m, "192.0.2.2", 30), nil })
	c.add(20 * time.Second)
	want(t, "while it is asked for", query(t, s, "example.com.", dns.TypeA), "NOERROR example.com. 10 A 192.0.2.1")
	s.blocks.Load().group.group.Wait()
	want(t, "then", query(t, s, "example.com.", dns.TypeA), "NOERROR example.com. 30 A 192.0.2.2")
	if u.count() != 2 {
		t.Errorf("asked %v", u.queries)
	}
}

// Negative answers are cached as long as their SOA record specifies, failures for five seconds.
func TestNegative(t *testing.T) {
	s, u, c := made(t, fmt.Sprintf(forwarding, ""))
	u.set(func(_ core.Upstream, m *dns.Msg) (*dns.Msg, error) {
		r := new(dns.Msg).SetRcode(m, dns.RcodeNameError)
		r.Ns = []dns.RR{&dns.SOA{Ns: "ns.example.", Mbox: "a.example.", Minttl: 10,
			Hdr: dns.RR_Header{Name: "example.", Rrtype: dns.TypeSOA, Class: dns.ClassINET, Ttl: 3600}}}
		return r, nil
	})
	for i, step := range []struct {
		after     time.Duration
		requested int
	}{{0, 1}, {9 * time.Second, 1}, {2 * time.Second, 2}} {
		c.add(step.after)
		if m := query(t, s, "x.example.", dns.TypeA); m.Rcode != dns.RcodeNameError || len(m.Ns) != 1 ||
			u.count() != step.requested {
			t.Errorf("step %d: %v, asked %d times", i, m, u.count())
		}
	}
	u.set(func(_ core.Upstream, m *dns.Msg) (*dns.Msg, error) {
		return new(dns.Msg).SetRcode(m, dns.RcodeServerFailure), nil
	})
	n := u.count()
	query(t, s, "broken.example.", dns.TypeA)
	query(t, s, "broken.example.", dns.TypeA)
	c.add(6 * time.Second)
	query(t, s, "broken.example.", dns.TypeA)
	if u.count() != n+2 {
		t.Errorf("a failure was asked for %d times", u.count()-n)
	}
}

// A query without recursion, to which other servers answer what they have at the moment, takes no name from others.
func TestQueriesWithoutRecursion(t *testing.T) {
	s, u, _ := made(t, fmt.Sprintf(forwarding, ""))
	u.set(func(_ core.Upstream, m *dns.Msg) (*dns.Msg, error) {
		if m.RecursionDesired {
			return address(m, "192.0.2.1", 30), nil
		}
		r := new(dns.Msg).SetReply(m) // a referral
		r.Ns = []dns.RR{&dns.NS{Ns: "a.root-servers.net.",
			Hdr: dns.RR_Header{Name: ".", Rrtype: dns.TypeNS, Class: dns.ClassINET, Ttl: 3600}}}
		return r, nil
	})
	without := func(m *dns.Msg) { m.RecursionDesired = false }
	for range 2 {
		if m := query(t, s, "example.com.", dns.TypeA, without); len(m.Answer) != 0 || len(m.Ns) != 1 {
			t.Errorf("without recursion: %v", m)
		}
		want(t, "with recursion", query(t, s, "example.com.", dns.TypeA), "NOERROR example.com. 30 A 192.0.2.1")
	}
	if u.count() != 2 {
		t.Errorf("asked %v", u.queries)
	}
}

// Some servers answer an error without the question. It is cached as other errors are, even if its records look like a
// question to whoever expects one.
func TestErrorWithoutQuestion(t *testing.T) {
	const logged = ".:53 {\n log\n forward . 192.0.2.53\n cache 30\n}"
	s, u, _ := made(t, logged)
	for name, ns := range map[string][]dns.RR{"no-records.": nil, "a-record.": {&dns.RFC3597{Rdata: "000000000100",
		Hdr: dns.RR_Header{Name: ".", Rrtype: 65280, Class: dns.ClassINET, Ttl: 30}}}} {
		u.set(func(_ core.Upstream, m *dns.Msg) (*dns.Msg, error) {
			r := new(dns.Msg).SetRcode(m, dns.RcodeNameError)
			r.Question, r.Ns = nil, ns
			return r, nil
		})
		before := u.count()
		for range 2 {
			if m := query(t, s, name, dns.TypeA); m.Rcode != dns.RcodeNameError || len(m.Ns) != len(ns) {
				t.Errorf("%s: %v", name, m)
			}
		}
		if n := u.count() - before; n != 1 {
			t.Errorf("%s: asked %d times", name, n)
		}
	}
}

// A server that does not answer is left out until it does; a slow one does not delay other queries.
func TestFailover(t *testing.T) {
	s, u, _ := made(t, ".:53 {\nforward . 192.0.2.1 192.0.2.2 {\npolicy sequential\nhealth_check 10ms\n}\n}")
	var mu sync.Mutex
	broken := true
	u.set(func(to core.Upstream, m *dns.Msg) (*dns.Msg, error) {
		mu.Lock()
		defer mu.Unlock()
		if broken && to.Addr.Addr() == netip.MustParseAddr("192.0.2.1") {
			return nil, errUnreachable
		}
		return address(m, to.Addr.Addr().String(), 0), nil
	})
	for i := range 4 {
		want(t, "one is down", query(t, s, fmt.Sprintf("a%d.example.", i), dns.TypeA),
			fmt.Sprintf("NOERROR a%d.example. 0 A 192.0.2.2", i))
	}
	first := 0
	u.mu.Lock()
	for _, a := range u.queries {
		if strings.HasPrefix(a, "a") && strings.HasSuffix(a, "192.0.2.1:53") {
			first++
		}
	}
	u.mu.Unlock()
	if first != 2 { // max_fails
		t.Errorf("the broken server was asked %d times", first)
	}
	mu.Lock()
	broken = false
	mu.Unlock()
	f := s.blocks.Load().all[0].forwards[0]
	other := core.Upstream{Addr: netip.MustParseAddrPort("192.0.2.1:53")}
	testwait.For(t, "it is up again", func() bool { return !f.down(other) })
	want(t, "it is up", query(t, s, "b.example.", dns.TypeA), "NOERROR b.example. 0 A 192.0.2.1")
	mu.Lock()
	broken = true
	mu.Unlock()
	u.set(unreachable)
	if m := query(t, s, "c.example.", dns.TypeA); m.Rcode != dns.RcodeServerFailure {
		t.Errorf("all are down: %v", m)
	}
}

// A thousand clients with one question cause one query to other servers; a thousand with different questions
// do not starve those of another pod, or the names of the cluster.
func TestFloods(t *testing.T) {
	s, u, _ := made(t, ".:53 {\nkubernetes cluster.local\nforward . 192.0.2.1 {\nmax_concurrent 100\n}\n}")
	gate := make(chan struct{})
	u.set(func(_ core.Upstream, m *dns.Msg) (*dns.Msg, error) {
		<-gate
		return address(m, "192.0.2.9", 0), nil
	})
	var group sync.WaitGroup
	var mu sync.Mutex
	rcodes := map[int]int{}
	send := func(name string, from netip.Addr) {
		wire, _ := new(dns.Msg).SetQuestion(name, dns.TypeA).Pack()
		answer, later := s.handle(wire, nil, from, true)
		count := func(answer []byte) {
			mu.Lock()
			defer mu.Unlock()
			rcodes[int(answer[3]&0xf)]++
		}
		if later == nil {
			count(answer)
			return
		}
		group.Go(func() { count(later(context.Background())) })
	}
	for range 200 {
		send("same.example.", pod)
	}
	testwait.For(t, "it was asked", func() bool { return u.count() == 1 })
	for i := range 2000 {
		send(fmt.Sprintf("n%d.example.", i), pod)
	}
	mu.Lock()
	if rcodes[dns.RcodeServerFailure] != 2200-mostWaitingSource {
		t.Errorf("refused at once: %v", rcodes)
	}
	mu.Unlock()
	send("other.example.", netip.MustParseAddr("10.88.0.10"))
	want(t, "the cluster", query(t, s, "web.ns.svc.cluster.local.", dns.TypeA),
		"NOERROR web.ns.svc.cluster.local. 5 A 10.96.0.7")
	testwait.For(t, "another pod is served", func() bool {
		u.mu.Lock()
		defer u.mu.Unlock()
		for _, a := range u.queries {
			if strings.HasPrefix(a, "other.") {
				return true
			}
		}
		return false
	})
	close(gate)
	group.Wait()
	if rcodes[dns.RcodeSuccess] < 200+56+1 || s.waiting.total != 0 || len(s.waiting.of) != 0 {
		t.Errorf("in the end: %v, %d wait", rcodes, s.waiting.total)
	}
}

// Random names of a flood do not grow the cache without end, and long answers less so.
func TestCacheIsBounded(t *testing.T) {
	c := newCache(&core.Cache{Success: core.CacheLimits{Capacity: 1000, TTL: time.Hour},
		Denial: core.CacheLimits{Capacity: 500, TTL: time.Hour}}, time.Now, newMetrics())
	for i := range 5000 {
		m := new(dns.Msg).SetQuestion(fmt.Sprintf("n%d.example.", i), dns.TypeTXT)
		m.Response = true
		if i%2 == 0 {
			m.Rcode = dns.RcodeNameError
		} else {
			for range 200 {
				m.Answer = append(m.Answer, &dns.TXT{Txt: []string{strings.Repeat("x", 250)},
					Hdr: dns.RR_Header{Name: m.Question[0].Name, Rrtype: dns.TypeTXT, Class: dns.ClassINET, Ttl: 9}})
			}
		}
		c.put(m.Question[0].Name, m)
		if a, b := c.count(); c.bytes > maxCacheBytes || a > 1000 || b > 500 {
			t.Fatalf("%d bytes, %d and %d answers", c.bytes, a, b)
		}
	}
	bytes := 0
	for k, e := range c.entries {
		bytes += size(k, e)
	}
	if bytes != c.bytes || len(c.entries) == 0 {
		t.Errorf("%d bytes counted, %d there", c.bytes, bytes)
	}
}

// A question that comes back is a loop: nothing is forwarded then, and the cluster is still served.
func TestLoop(t *testing.T) {
	s, u, _ := made(t, "cluster.local {\nkubernetes\n}")
	u.set(func(_ core.Upstream, m *dns.Msg) (*dns.Msg, error) {
		wire, _ := m.Pack()
		answer, later := s.handle(wire, nil, pod, true)
		if later != nil {
			return nil, errUnreachable // a real loop goes on; the probe was seen
		}
		r := new(dns.Msg)
		return r, r.Unpack(answer)
	})
	if err := s.configure(".:53 {\nkubernetes cluster.local\nloop\nforward . 192.0.2.1\n}"); err != nil {
		t.Fatal(err)
	}
	f := s.blocks.Load().all[0].forwards[0]
	testwait.For(t, "the loop is found", f.looping.Load)
	n := u.count()
	if m := query(t, s, "example.com.", dns.TypeA); m.Rcode != dns.RcodeServerFailure || u.count() != n {
		t.Errorf("forwarded into the loop: %v", m)
	}
	want(t, "the cluster", query(t, s, "web.ns.svc.cluster.local.", dns.TypeA),
		"NOERROR web.ns.svc.cluster.local. 5 A 10.96.0.7")
	u.set(nil)
	if err := s.configure(".:53 {\nloop\nforward . 192.0.2.1\n}"); err != nil {
		t.Fatal(err)
	}
	s.blocks.Load().group.group.Wait()
	want(t, "without a loop", query(t, s, "example.com.", dns.TypeA), "NOERROR example.com. 30 A 192.0.2.1")
}

// A loop that has ended elsewhere, without a change of the configuration, is noticed when a server answers.
func TestLoopEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, u, _ := made(t, "cluster.local {\nkubernetes\n}")
		u.set(func(to core.Upstream, m *dns.Msg) (*dns.Msg, error) {
			wire, _ := m.Pack()
			_, _ = s.handle(wire, nil, pod, true) // the probe is seen
			return unreachable(to, m)
		})
		if err := s.configure(".:53 {\nloop\nforward . 192.0.2.1\n}"); err != nil {
			t.Fatal(err)
		}
		f := s.blocks.Load().all[0].forwards[0]
		for _, step := range []struct {
			what    string
			answers func(core.Upstream, *dns.Msg) (*dns.Msg, error)
			looping bool
		}{{"the loop is found", nil, true}, {"no server answers", unreachable, true}, {"one answers", nil, false}} {
			if step.what != "the loop is found" {
				u.set(step.answers)
				time.Sleep(lookForLoop + forwardTimeout)
			}
			synctest.Wait()
			if f.looping.Load() != step.looping {
				t.Fatalf("%s: looping %t", step.what, !step.looping)
			}
		}
		want(t, "after the loop", query(t, s, "example.com.", dns.TypeA), "NOERROR example.com. 30 A 192.0.2.1")
	})
}

// serverThat answers a question on a socket with what f makes of it, before the right answer.
func serverThat(t *testing.T, f func(right *dns.Msg) []*dns.Msg) netip.AddrPort {
	t.Helper()
	conn, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	go func() {
		buf := make([]byte, 4096)
		for {
			n, from, err := conn.ReadFrom(buf)
			if err != nil {
				return
			}
			m := new(dns.Msg)
			if m.Unpack(buf[:n]) != nil {
				continue
			}
			for _, forged := range f(address(m, "192.0.2.1", 30)) {
				if forged == nil {
					_, _ = conn.WriteTo([]byte("garbage"), from)
					continue
				}
				wire, _ := forged.Pack()
				_, _ = conn.WriteTo(wire, from)
			}
		}
	}()
	return netip.MustParseAddrPort(conn.LocalAddr().String())
}

// RFC 5452: an answer with another identifier, to another question, or from another socket is not
// taken, and does not end the wait for the right one.
func TestSpoofing(t *testing.T) {
	ids := map[uint16]bool{}
	var mu sync.Mutex
	at := serverThat(t, func(right *dns.Msg) []*dns.Msg {
		mu.Lock()
		ids[right.Id] = true
		mu.Unlock()
		forged := func() *dns.Msg { return address(right, "192.0.2.66", 30) }
		id, name, typ := forged(), forged(), forged()
		id.Id++
		name.Question[0].Name = "evil.example."
		typ.Question[0].Qtype = dns.TypeAAAA
		echo := right.Copy()
		echo.Response, echo.Answer = false, nil
		empty := forged()
		empty.Question = nil
		return []*dns.Msg{nil, id, name, typ, echo, empty, right}
	})
	for range 20 {
		m := new(dns.Msg).SetQuestion("example.com.", dns.TypeA)
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		answer, err := network{}.Exchange(ctx, core.Upstream{Addr: at}, m, false)
		cancel()
		if err != nil || line(answer) != "NOERROR example.com. 30 A 192.0.2.1" {
			t.Fatalf("%v, %v", answer, err)
		}
	}
	if len(ids) < 18 {
		t.Errorf("%d identifiers in 20 questions", len(ids))
	}
	silent := serverThat(t, func(*dns.Msg) []*dns.Msg { return nil })
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err := (network{}).Exchange(ctx, core.Upstream{Addr: silent}, new(dns.Msg).SetQuestion("a.", dns.TypeA),
		false); err == nil {
		t.Error("a server that is silent has answered")
	}
}

// The node's resolver file is followed; this server itself is not in the list.
func TestResolverFile(t *testing.T) {
	name := filepath.Join(t.TempDir(), "resolv.conf")
	c := &clock{t: time.Now()}
	r := &resolverFile{name: name, now: c.now, own: func(a netip.Addr) bool { return a.String() == "10.88.0.1" }}
	is := func(what, want string) {
		t.Helper()
		c.add(2 * time.Second)
		if got := fmt.Sprint(r.list()); got != want {
			t.Errorf("%s: %s, want %s", what, got, want)
		}
	}
	is("no file", "[]")
	write := func(text string) {
		t.Helper()
		next := name + ".new"
		if err := os.WriteFile(next, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(next, name); err != nil {
			t.Fatal(err)
		}
	}
	write("nameserver 127.0.0.53\nnameserver 10.88.0.1\nnameserver fd00::1\nnameserver nonsense\n")
	is("first", "[127.0.0.53:53 [fd00::1]:53]")
	write("nameserver 192.0.2.1\n")
	is("replaced", "[192.0.2.1:53]")
	if err := os.Remove(name); err != nil {
		t.Fatal(err)
	}
	is("somebody is about to replace it", "[192.0.2.1:53]")
}

// A client that connects and neither sends nor reads does not block others.
func TestSlowClients(t *testing.T) {
	s, _, _ := made(t, "cluster.local {\nkubernetes\n}")
	s.conns = quota{all: 100, one: 3}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	var group sync.WaitGroup
	group.Go(func() { s.serveTCP(ctx, l.(*net.TCPListener), &group) })
	t.Cleanup(func() { cancel(); l.Close(); group.Wait() })
	var idle []net.Conn
	for range 10 {
		c, err := net.Dial("tcp", l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		_, _ = c.Write([]byte{0xff, 0xff, 1}) // 64 KB that never come
		idle = append(idle, c)
	}
	closed := 0
	for _, c := range idle {
		_ = c.SetReadDeadline(time.Now().Add(200 * time.Millisecond))
		if _, err := c.Read(make([]byte, 1)); err != nil && !errors.Is(err, os.ErrDeadlineExceeded) {
			closed++
		}
	}
	if closed != 7 {
		t.Errorf("%d of 10 connections of one client were closed", closed)
	}
	d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 0, 2)}}
	conn, err := d.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	other := &dns.Conn{Conn: conn}
	for range 3 { // several questions over one connection
		if err := other.WriteMsg(new(dns.Msg).SetQuestion("web.ns.svc.cluster.local.", dns.TypeA)); err != nil {
			t.Fatal(err)
		}
		m, err := other.ReadMsg()
		if err != nil || len(m.Answer) != 1 {
			t.Fatalf("another client: %v, %v", m, err)
		}
	}
}

// Rewrites, hosts, and templates work as CoreDNS documents them.
func TestPlugins(t *testing.T) {
	s, _, _ := made(t, `.:53 {
    rewrite name exact old.example web.ns.svc.cluster.local
    rewrite continue {
        name suffix .corp.internal .ns.svc.cluster.local answer auto
    }
    rewrite name regex (.*)\.v2\.example {1}.ns.svc.cluster.local answer name (.*)\.ns\.svc\.cluster\.local {1}.v2.example
    rewrite ttl suffix slow.example 60-
    hosts {
        192.0.2.7 Host.example alias.example
        fd00::7 host.example
        ttl 60
        fallthrough
    }
    template IN A tmpl.example {
        match "^(?P<a>[0-9]+)[.]tmpl[.]example[.]$"
        answer "{{ .Name }} 9 IN A 192.0.2.{{ .Group.a }}"
        fallthrough
    }
    kubernetes cluster.local
    forward . 192.0.2.53
}`)
	for _, c := range []struct{ name, typ, want string }{
		{"old.example.", "A", "NOERROR old.example. 5 A 10.96.0.7"},
		{"Web.corp.internal.", "A", "NOERROR Web.corp.internal. 5 A 10.96.0.7"},
		{"web.v2.example.", "A", "NOERROR web.v2.example. 5 A 10.96.0.7"},
		{"host.example.", "A", "NOERROR host.example. 60 A 192.0.2.7"},
		{"HOST.example.", "AAAA", "NOERROR HOST.example. 60 AAAA fd00::7"},
		{"alias.example.", "AAAA", "NOERROR"},
		{"7.2.0.192.in-addr.arpa.", "PTR", "NOERROR 7.2.0.192.in-addr.arpa. 60 PTR host.example. " +
			"7.2.0.192.in-addr.arpa. 60 PTR alias.example."},
		{"12.tmpl.example.", "A", "NOERROR 12.tmpl.example. 9 A 192.0.2.12"},
		{"x.tmpl.example.", "A", "NOERROR x.tmpl.example. 30 A 192.0.2.1"},
		{"9999.tmpl.example.", "A", "SERVFAIL"}, // no address
		{"slow.example.", "A", "NOERROR slow.example. 60 A 192.0.2.1"},
		{"web.ns.svc.cluster.local.", "A", "NOERROR web.ns.svc.cluster.local. 5 A 10.96.0.7"},
		{"other.example.", "A", "NOERROR other.example. 30 A 192.0.2.1"},
	} {
		want(t, c.name, query(t, s, c.name, dns.StringToType[c.typ]), c.want)
	}
}

// Stub domains are server blocks of their own; the longest zone wins.
func TestStubDomains(t *testing.T) {
	s, u, _ := made(t, `.:53 {
    kubernetes cluster.local
    forward . 192.0.2.53
}
corp.example:53 {
    forward . 10.0.0.1:5353
}
no.corp.example {
    hosts {
        192.0.2.8 a.no.corp.example
    }
}`)
	u.set(func(to core.Upstream, m *dns.Msg) (*dns.Msg, error) {
		return address(m, to.Addr.Addr().String(), 1), nil
	})
	want(t, "a stub domain", query(t, s, "x.corp.example.", dns.TypeA), "NOERROR x.corp.example. 1 A 10.0.0.1")
	want(t, "another", query(t, s, "x.example.", dns.TypeA), "NOERROR x.example. 1 A 192.0.2.53")
	want(t, "a longer zone", query(t, s, "a.no.corp.example.", dns.TypeA), "NOERROR a.no.corp.example. 3600 A 192.0.2.8")
}

// reconfiguring is a server that gets the question of a client while the Corefile changes.
type reconfiguring struct{ change func() }

func (r *reconfiguring) Exchange(ctx context.Context, _ core.Upstream, m *dns.Msg, _ bool) (*dns.Msg, error) {
	r.change()
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	return address(m, "192.0.2.1", 30), nil
}

// A client gets the answer to a question that is forwarded while the Corefile changes; the end of the server ends it.
func TestNewCorefileKeepsQuestions(t *testing.T) {
	e := &reconfiguring{}
	s := newServer(Config{Domain: "cluster.local", ResolvConf: "/nonexistent"}, e, time.Now)
	t.Cleanup(func() { s.blocks.Load().stop() })
	if err := s.configure(".:53 {\nforward . 192.0.2.1\n}"); err != nil {
		t.Fatal(err)
	}
	e.change = func() {
		if err := s.configure(".:53 {\nforward . 192.0.2.2\n}"); err != nil {
			t.Error(err)
		}
	}
	want(t, "with a new Corefile", query(t, s, "a.example.", dns.TypeA), "NOERROR a.example. 30 A 192.0.2.1")
	e.change = func() { s.blocks.Load().stop() }
	want(t, "at the end", query(t, s, "b.example.", dns.TypeA), "SERVFAIL")
}
