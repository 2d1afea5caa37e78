package forward

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"carob/internal/core/httproute"
)

// The reasons in the metrics why a datagram of a client was dropped.
const (
	NoRoute   = "no_route"    // the port has no route
	NoBackend = "no_backend"  // the chosen backend is not valid, or has no endpoint
	noRoom    = "no_room"     // too many sessions
	busy      = "buffer_full" // the socket's send buffer is full
)

// datagram is the size of the largest datagram.
const datagram = 64 << 10

var errRefused = errors.New("the endpoint refuses datagrams")

// Route decides about sessions. Its methods must not block.
type Route interface {
	// Choose picks an endpoint for a new client; nil: its datagram is dropped, for a reason. A client for which an
	// invalid backend was chosen has a session without a connection, so that the share of refused clients equals the
	// backend's weight.
	Choose(ctx context.Context) (s *Session, drop string)
	// Stays reports whether the route still has the backend of a session.
	Stays(s *Session) bool
	// Dropped counts a datagram that no endpoint got.
	Dropped(reason string)
}

// Session has the endpoint of a client's datagrams.
type Session struct {
	*flow
	Rule    *httproute.Rule // that chose it
	Backend httproute.Ref
	Conn    *net.UDPConn // nil: datagrams are dropped
	Gone    func() bool  // reports whether the endpoint gets no new sessions
	Release func()       // called once, when the session has ended
	Seen    *Record

	raw     syscall.RawConn
	control []byte // for the kernel, with the source address of replies
}

// UDP passes the datagrams of one port to the backends of a route. Those of one client go to one endpoint, as long as
// it sends: a session. Sessions end by time, and with their endpoints and routes.
type UDP struct {
	conn    *net.UDPConn
	route   Route
	several bool // it listens on all addresses: replies must have the one to which the client has sent
	timer   *time.Timer
	wg      sync.WaitGroup
	cancel  context.CancelFunc

	mu    sync.Mutex
	flows *flows
	armed bool // the timer runs
	ended bool
}

// LeavingTime is how long a session waits for replies of an endpoint that gets no new sessions.
const LeavingTime = 2 * time.Second

// ListenUDP opens the socket of a port.
func ListenUDP(ctx context.Context, at netip.AddrPort) (*net.UDPConn, error) {
	var lc net.ListenConfig
	pc, err := lc.ListenPacket(ctx, "udp", at.String())
	if err != nil {
		return nil, fmt.Errorf("listen on %s (UDP): %w", at, err)
	}
	conn, ok := pc.(*net.UDPConn)
	if !ok {
		_ = pc.Close()
		return nil, fmt.Errorf("listen on %s (UDP): unexpected %T", at, pc)
	}
	return conn, nil
}

// ServeUDP serves the datagrams of a port's socket, and closes the socket at its end, also after an error. Sessions
// counts those of all ports, for their limit: most, if that is less than mostFlows.
func ServeUDP(ctx context.Context, conn *net.UDPConn, at netip.AddrPort, route Route, sessions *atomic.Int64,
	most int64, leaving time.Duration) (*UDP, error) {
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	p := &UDP{conn: conn, route: route, several: at.Addr().IsUnspecified(), flows: newFlows(sessions, most, leaving),
		cancel: cancel}
	if p.several {
		if err := receiveDestination(conn, at.Addr().Is4()); err != nil {
			cancel()
			_ = conn.Close()
			return nil, fmt.Errorf("listen on %s (UDP): %w", at, err)
		}
	}
	p.timer = time.AfterFunc(time.Hour, p.expire)
	p.timer.Stop()
	p.wg.Go(func() { p.run(ctx) })
	return p, nil
}

// receiveDestination makes the kernel report to which address a datagram was sent.
func receiveDestination(c *net.UDPConn, v4 bool) error {
	raw, err := c.SyscallConn()
	if err != nil {
		return err
	}
	var failed error
	err = raw.Control(func(fd uintptr) {
		if v4 {
			failed = unix.SetsockoptInt(int(fd), unix.IPPROTO_IP, unix.IP_PKTINFO, 1)
		} else {
			failed = unix.SetsockoptInt(int(fd), unix.IPPROTO_IPV6, unix.IPV6_RECVPKTINFO, 1)
		}
	})
	return errors.Join(err, failed)
}

// destination reads the address that tellDestination enabled; not valid: there is none.
func destination(control []byte) netip.Addr {
	all, err := unix.ParseSocketControlMessage(control)
	if err != nil {
		return netip.Addr{}
	}
	for _, m := range all {
		switch {
		case m.Header.Level == unix.IPPROTO_IP && m.Header.Type == unix.IP_PKTINFO && len(m.Data) >= 12:
			return netip.AddrFrom4([4]byte(m.Data[4:8]))
		case m.Header.Level == unix.IPPROTO_IPV6 && m.Header.Type == unix.IPV6_PKTINFO && len(m.Data) >= 20:
			a := netip.AddrFrom16([16]byte(m.Data[:16]))
			if a.IsLinkLocalUnicast() {
				return a.WithZone(fmt.Sprint(binary.NativeEndian.Uint32(m.Data[16:20])))
			}
			return a
		}
	}
	return netip.Addr{}
}

// sentFrom makes the kernel send from an address.
func sentFrom(a netip.Addr) []byte {
	switch {
	case !a.IsValid():
		return nil
	case a.Is4():
		return unix.PktInfo4(&unix.Inet4Pktinfo{Spec_dst: a.As4()})
	}
	return unix.PktInfo6(&unix.Inet6Pktinfo{Addr: a.As16(), Ifindex: atoi(a.Zone())})
}

// atoi reads the index of an interface; 0: none.
func atoi(text string) (n uint32) {
	for _, c := range []byte(text) {
		if c < '0' || c > '9' || n > 1<<24 {
			return 0
		}
		n = 10*n + uint32(c-'0')
	}
	return n
}

// run receives datagrams of clients until the port is closed.
func (p *UDP) run(ctx context.Context) {
	b, control := make([]byte, datagram), make([]byte, 256)
	for {
		n, more, _, from, err := p.conn.ReadMsgUDPAddrPort(b, control)
		switch {
		case errors.Is(err, net.ErrClosed):
			return
		case err != nil:
			select { // no memory: others may end
			case <-ctx.Done():
			case <-time.After(10 * time.Millisecond):
			}
			continue
		}
		key := flowKey{client: from}
		if p.several {
			key.local = destination(control[:more])
		}
		p.pass(ctx, key, b[:n])
	}
}

// pass sends a datagram of a client to its endpoint. If that refuses it, it is sent to another one.
func (p *UDP) pass(ctx context.Context, key flowKey, b []byte) {
	for range attempts {
		s, drop := p.session(ctx, key)
		if s == nil {
			p.route.Dropped(drop)
			return
		}
		switch err := s.send(b); {
		case err == nil:
			s.Seen.moved(int64(len(b)), 0)
			return
		case errors.Is(err, syscall.ECONNREFUSED):
			p.end(s, errRefused.Error())
			continue
		default:
			p.route.Dropped(busy)
			return
		}
	}
	p.route.Dropped(NoBackend)
}

// send never blocks: if the socket's send buffer is full, the datagram is lost, as UDP allows.
func (s *Session) send(b []byte) error {
	var failed error
	err := s.raw.Write(func(fd uintptr) bool {
		_, failed = syscall.Write(int(fd), b)
		return true
	})
	return errors.Join(err, failed)
}

// attempts is at how many endpoints a datagram is tried.
const attempts = 3

// session returns the session of a client, or why its datagram is dropped.
func (p *UDP) session(ctx context.Context, key flowKey) (s *Session, drop string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.ended {
		return nil, NoRoute
	}
	now := time.Now()
	if one := p.flows.sent(key, now); one != nil {
		if one.session.Conn == nil {
			return nil, NoBackend
		}
		if !one.session.Gone() {
			return one.session, ""
		}
		p.flows.leave(one, now)
	}
	if s, drop = p.route.Choose(ctx); s == nil {
		return nil, drop
	}
	one, gone := p.flows.begin(key, now)
	if gone != nil {
		p.close(gone.session, "")
	}
	if one == nil {
		p.close(s, "there are too many sessions")
		return nil, noRoom
	}
	one.session, s.flow = s, one
	if !p.armed {
		p.armed = true
		p.timer.Reset(newFlowTime)
	}
	if s.Conn == nil {
		return nil, NoBackend
	}
	var err error
	if s.raw, err = s.Conn.SyscallConn(); err != nil {
		p.flows.end(one)
		p.close(s, err.Error())
		return nil, NoBackend
	}
	s.control = sentFrom(key.local)
	s.Seen.Client = key.client.String()
	s.Seen.Connections.Add(1)
	p.wg.Go(func() { p.answers(s) })
	return s, ""
}

// answers forwards datagrams of the endpoint to the client until the session ends.
func (p *UDP) answers(s *Session) {
	for {
		b, err := readWhenThere(s.raw)
		if err != nil {
			why := ""
			if errors.Is(err, syscall.ECONNREFUSED) {
				why = errRefused.Error()
			}
			p.end(s, why)
			return
		}
		p.mu.Lock()
		p.flows.received(s.flow, time.Now())
		p.mu.Unlock()
		s.Seen.moved(0, int64(len(b.bytes)))
		_, _, err = p.conn.WriteMsgUDPAddrPort(b.bytes, s.control, s.client)
		b.release()
		if errors.Is(err, net.ErrClosed) {
			return // Stop ends the session
		}
	}
}

// end ends a session.
func (p *UDP) end(s *Session, why string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.flows.end(s.flow) {
		p.close(s, why)
	}
}

// close closes a session whose flow has been removed.
func (p *UDP) close(s *Session, why string) {
	if s.Conn == nil {
		return
	}
	_ = s.Conn.Close()
	s.Release()
	s.Seen.Problem(why)
	s.Seen.End()
}

// expire ends sessions by time.
func (p *UDP) expire() {
	p.mu.Lock()
	defer p.mu.Unlock()
	ended, next := p.flows.expire(time.Now())
	for _, one := range ended {
		p.close(one.session, "")
	}
	if p.armed = next > 0 && !p.ended; p.armed {
		p.timer.Reset(next)
	}
}

// Review makes clients whose endpoint or backend is no longer served begin new sessions. Replies that are in flight are
// still forwarded.
func (p *UDP) Review() {
	p.mu.Lock()
	defer p.mu.Unlock()
	now, leaving := time.Now(), false
	for _, one := range p.flows.each() { // any order: each by itself
		switch {
		case p.route.Stays(one.session):
		case one.session.Conn == nil:
			p.flows.end(one)
		default:
			p.flows.leave(one, now)
			leaving = true
		}
	}
	if leaving && !p.ended {
		p.armed = true
		p.timer.Reset(p.flows.leaving)
	}
}

// Stop closes the port and all sessions. There is no end of datagrams for which it could wait.
func (p *UDP) Stop() {
	p.cancel()
	_ = p.conn.Close()
	p.mu.Lock()
	p.ended = true
	p.timer.Stop()
	for _, state := range p.flows.states {
		for e := state.Front(); e != nil; e = state.Front() {
			if one, ok := e.Value.(*flow); ok && p.flows.end(one) {
				p.close(one.session, "")
			}
		}
	}
	p.mu.Unlock()
	p.wg.Wait()
}
