// Package dns serves the cluster's DNS on this node: it follows Services, endpoints, and namespaces,
// answers their names from memory, and queries other servers for the rest. carob/internal/core/netplan/dns decides
// which names exist. Package app runs it; it must never depend on pods' containers, and it opens ports only on the
// addresses of its Config.
//
// Contract: N4 in docs/spec/network.md.
package dns

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	mathrand "math/rand/v2"
	"net"
	"net/netip"
	"runtime"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/miekg/dns"
	"k8s.io/klog/v2"

	core "carob/internal/core/netplan/dns"
)

// Limits of what clients can use.
const (
	mostWaiting       = 2048 // questions that wait for other servers
	mostWaitingSource = 256  // of them, of one address
	mostConns         = 1024 // TCP connections
	mostConnsSource   = 64   // of them, of one address
	idleConn          = 10 * time.Second
	slowConn          = 5 * time.Second // to send a message that has begun, and to read an answer
	answerTimeout     = 6 * time.Second
)

// Server answers questions. Make it with New and Run it once.
type Server struct {
	cfg  Config
	zone *zone
	m    *metrics

	pods     chan struct{} // receives a token when the names of pods must be verified
	blocks   atomic.Pointer[serverBlocks]
	exchange exchanger
	resolver *resolverFile
	now      func() time.Time
	sources  *sources

	waiting quota
	conns   quota
	probe   atomic.Pointer[loopProbe]

	udp []*net.UDPConn
	tcp []*net.TCPListener
}

// loopProbe is the name that the loop check queries: the query comes back only if forwarding loops.
type loopProbe struct {
	name string
	seen chan struct{}
	once sync.Once
}

// quota limits how much all, and how much one address, may have at a time.
type quota struct {
	all, one int

	mu    sync.Mutex
	total int
	of    map[netip.Addr]int
}

func (q *quota) take(a netip.Addr) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.total >= q.all || q.of[a] >= q.one {
		return false
	}
	if q.of == nil {
		q.of = map[netip.Addr]int{}
	}
	q.total++
	q.of[a]++
	return true
}

func (q *quota) give(a netip.Addr) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.total--
	if q.of[a]--; q.of[a] <= 0 {
		delete(q.of, a)
	}
}

// listen opens an address for UDP and TCP. If another process of the host has port 53 on all
// addresses, a free port is taken: the endpoints of the Service name it.
func listen(ctx context.Context, at netip.Addr) (*net.UDPConn, *net.TCPListener, error) {
	var errs []error
	for _, port := range []uint16{53, 0, 0, 0} {
		udp, err := net.ListenUDP("udp", net.UDPAddrFromAddrPort(netip.AddrPortFrom(at, port)))
		if err != nil {
			errs = append(errs, err)
			if !errors.Is(err, syscall.EADDRINUSE) {
				break
			}
			continue
		}
		// TCP has the same port, so that one number stands for both.
		port := udp.LocalAddr().(*net.UDPAddr).AddrPort().Port()
		var lc net.ListenConfig
		tcp, err := lc.Listen(ctx, "tcp", netip.AddrPortFrom(at, port).String())
		if err == nil {
			return udp, tcp.(*net.TCPListener), nil
		}
		errs = append(errs, err, udp.Close())
		if !errors.Is(err, syscall.EADDRINUSE) {
			break
		}
	}
	return nil, nil, fmt.Errorf("listen for DNS at %s: %w", at, errors.Join(errs...))
}

// serveUDP answers datagrams until the socket is closed.
func (s *Server) serveUDP(ctx context.Context, conn *net.UDPConn, group *sync.WaitGroup) {
	in, out := make([]byte, core.MaxMessage), make([]byte, 0, core.MaxMessage)
	for {
		n, from, err := conn.ReadFromUDPAddrPort(in)
		if err != nil {
			if errors.Is(err, net.ErrClosed) || ctx.Err() != nil {
				return
			}
			continue // an ICMP error of an earlier answer
		}
		from = netip.AddrPortFrom(from.Addr().Unmap(), from.Port())
		if !s.sources.allowed(from.Addr()) {
			continue
		}
		answer, later := s.handle(in[:n], out, from.Addr(), true)
		if later == nil {
			if answer != nil {
				// A client that cannot be reached repeats its query.
				_, _ = conn.WriteToUDPAddrPort(answer, from)
			}
			continue
		}
		group.Go(func() {
			if answer := later(ctx); answer != nil {
				_, _ = conn.WriteToUDPAddrPort(answer, from)
			}
		})
	}
}

// serveTCP accepts connections until the listener is closed.
func (s *Server) serveTCP(ctx context.Context, l *net.TCPListener, group *sync.WaitGroup) {
	for {
		conn, err := l.AcceptTCP()
		if err != nil {
			if errors.Is(err, net.ErrClosed) || ctx.Err() != nil {
				return
			}
			select { // too many open files: others end meanwhile
			case <-time.After(10 * time.Millisecond):
			case <-ctx.Done():
			}
			continue
		}
		from, _ := netip.ParseAddrPort(conn.RemoteAddr().String())
		source := from.Addr().Unmap()
		if !s.sources.allowed(source) || !s.conns.take(source) {
			_ = conn.Close()
			continue
		}
		group.Go(func() {
			defer s.conns.give(source)
			defer conn.Close()
			stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
			defer stop()
			s.converse(ctx, conn, source)
		})
	}
}

// converse answers the queries of a connection, one after the other.
func (s *Server) converse(ctx context.Context, conn *net.TCPConn, from netip.Addr) {
	var length [2]byte
	var in, out []byte
	for {
		if conn.SetReadDeadline(time.Now().Add(idleConn)) != nil {
			return
		}
		if _, err := io.ReadFull(conn, length[:]); err != nil {
			return
		}
		n := int(binary.BigEndian.Uint16(length[:]))
		if cap(in) < n {
			in = make([]byte, n)
		}
		in = in[:n]
		if conn.SetReadDeadline(time.Now().Add(slowConn)) != nil {
			return
		}
		if _, err := io.ReadFull(conn, in); err != nil {
			return
		}
		answer, later := s.handle(in, out[:0], from, false)
		if later != nil {
			answer = later(ctx)
		} else if answer != nil {
			out = answer
		}
		if answer == nil || conn.SetWriteDeadline(time.Now().Add(slowConn)) != nil {
			return
		}
		binary.BigEndian.PutUint16(length[:], uint16(len(answer)))
		if _, err := (&net.Buffers{length[:], answer}).WriteTo(conn); err != nil {
			return
		}
	}
}

// handle writes the answer to a message into out, or returns a function that waits for other servers:
// later may be called once, on any goroutine. Without either, the message gets no answer. handle itself
// never waits.
func (s *Server) handle(msg, out []byte, from netip.Addr, udp bool) (answer []byte,
	later func(context.Context) []byte) {
	started := time.Now()
	var q core.Query
	verdict, rcode := q.Parse(msg)
	var b core.Builder
	switch {
	case verdict == core.Drop:
		return nil, nil
	case verdict == core.Reject:
		b.Begin(out, &q, udp)
		return s.m.rejected(&q, from, udp, b.End(rcode, false, false), started), nil
	case q.Class != core.ClassIN && q.Class != dns.ClassCHAOS && q.Class != dns.ClassANY:
		b.Begin(out, &q, udp)
		return s.m.rejected(&q, from, udp, b.End(core.Refused, false, false), started), nil
	}
	on := s.blocks.Load()
	one, zone := on.of(&q)
	if one == nil {
		b.Begin(out, &q, udp)
		return s.m.rejected(&q, from, udp, b.End(core.Refused, false, false), started), nil
	}
	figures := one.figures[zone]
	if uint16(q.Type) == dns.TypeHINFO {
		s.handleProbe(&q)
	}
	if one.simple {
		if answer, plugin := s.atOnce(&q, on, one, &b, out, udp); answer != nil {
			figures.done(&q, from, udp, len(msg), answer, plugin, time.Since(started))
			return answer, nil
		}
	}
	if !s.waiting.take(from) {
		s.m.overloads.Inc()
		b.Begin(out, &q, udp)
		answer = b.End(core.ServerFailure, false, true)
		figures.done(&q, from, udp, len(msg), answer, 0, time.Since(started))
		return answer, nil
	}
	req := new(dns.Msg)
	if err := req.Unpack(msg); err != nil {
		s.waiting.give(from)
		b.Begin(out, &q, udp)
		return s.m.rejected(&q, from, udp, b.End(core.FormatError, false, false), started), nil
	}
	size, held := len(msg), q // a copy: the question of an answer at once stays on the stack
	return nil, func(ctx context.Context) []byte {
		defer s.waiting.give(from)
		ctx, cancel := context.WithTimeout(ctx, answerTimeout)
		defer cancel()
		a := served{from: from}
		answer := finish(s.resolve(ctx, on, req, &a, 0), req, &held, udp)
		figures.done(&held, from, udp, size, answer, a.plugin, time.Since(started))
		return answer
	}
}

// atOnce answers from memory; nil if the answer is not in memory or does not fit.
func (s *Server) atOnce(q *core.Query, on *serverBlocks, one *serverBlock, b *core.Builder, out []byte,
	udp bool) (answer []byte, plugin int) {
	if one.Kubernetes != nil && q.Class == core.ClassIN {
		b.Begin(out, q, udp)
		switch r := s.zone.answer(q, one.Kubernetes, b, one.Shuffle); r.Outcome {
		case core.Answered:
			return b.End(r.Rcode, true, false), pluginKubernetes
		case core.Alias:
			return nil, 0
		case core.Next:
		}
	}
	c, f := one.cacheOf(q), one.forwarderOf(q)
	if c == nil || f == nil || q.Class != core.ClassIN {
		return nil, 0
	}
	var buf [280]byte
	key := keyOf(buf[:0], q.Lower(), uint16(q.Type), q.Class, q.Recursion, q.DO, q.Checking)
	h, ok := c.get(key)
	s.m.looked(&h, ok)
	if !ok || h.stale {
		return nil, 0
	}
	if h.refresh {
		question := dns.Question{Name: core.Text(q.Lower()), Qtype: uint16(q.Type), Qclass: q.Class}
		request := forwarded(question, q.Recursion, q.Checking, q.EDNS, q.DO)
		s.refresh(on, c, f, string(key), request, true)
	}
	answer, ok = h.reply(out, q, 0, udp)
	if !ok {
		return nil, 0
	}
	return answer, pluginCache
}

// finish makes the wire form of an answer for a client.
func finish(m, req *dns.Msg, q *core.Query, udp bool) []byte {
	if m.Id != req.Id || len(m.Question) == 0 || m == req {
		m = m.Copy()
		m.Id, m.Question = req.Id, req.Question
	}
	m.Response, m.Opcode = true, dns.OpcodeQuery
	m.RecursionDesired, m.CheckingDisabled, m.RecursionAvailable = req.RecursionDesired, req.CheckingDisabled, true
	m.Compress = true
	m.Extra = withoutOPT(m.Extra)
	if q.EDNS {
		m.SetEdns0(4096, q.DO)
	}
	limit := core.MaxMessage
	if udp {
		limit = int(q.UDPSize)
	}
	m.Truncate(limit)
	wire, err := m.Pack()
	if err == nil && len(wire) <= limit {
		return wire
	}
	var b core.Builder
	b.Begin(nil, q, udp)
	return b.End(core.ServerFailure, false, true)
}

// handleProbe handles a probe that came back: there is a loop.
func (s *Server) handleProbe(q *core.Query) {
	if p := s.probe.Load(); p != nil && p.name == core.Text(q.Lower()) {
		p.once.Do(func() { close(p.seen) })
	}
}

// expect waits for a probe.
func (s *Server) expect(name string) <-chan struct{} {
	p := &loopProbe{name: name, seen: make(chan struct{})}
	s.probe.Store(p)
	return p.seen
}

// readers is how many goroutines read a UDP socket.
func readers() int { return min(max(runtime.GOMAXPROCS(0), 1), 4) }

// rotation picks which of several addresses comes first.
func rotation(shuffle bool) uint32 {
	if !shuffle {
		return 0
	}
	return mathrand.Uint32()
}

func logged(ctx context.Context) klog.Logger { return klog.FromContext(ctx).WithName("dns") }
