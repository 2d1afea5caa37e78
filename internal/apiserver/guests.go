package apiserver

import (
	"container/list"
	"context"
	"crypto/tls"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"sync"
	"time"

	"k8s.io/apiserver/pkg/authentication/user"
	apirequest "k8s.io/apiserver/pkg/endpoints/request"
)

const (
	// maxGuests is how many connections may be open on which nobody has been authenticated yet.
	maxGuests = 1000
	// maxGuestRequests is how many requests may be in flight on all of those together.
	maxGuestRequests = 4 * maxStreams
	// guestWriteTime bounds how long an answer to a stranger waits for its reader.
	guestWriteTime = 10 * time.Second
	// maxStrangers is how many requests of strangers are handled at once, behind authentication.
	maxStrangers = 64
)

// guests are the connections on which no request has been authenticated yet. What they
// may hold is bounded, and one more than fits pushes out one of them: whoever has a
// credential gets in, however many connections, handshakes and streams strangers hold open.
//
//	accepted ──first authenticated request──▶ known: no longer counted here
//	accepted ──too many connections, or too many requests──▶ closed: the source with the most goes first
type guests struct {
	maxOpen, maxRequests int

	mu       sync.Mutex
	open     map[net.Conn]*guest
	order    *list.List // of *guest, the oldest first
	requests int        // in flight on all
}

// guest is a connection. Its fields are guarded by guests.mu.
type guest struct {
	of       *guests
	conn     net.Conn
	source   netip.Prefix
	place    *list.Element
	spoke    bool // it has sent a request: its handshake is over
	known    bool // somebody has been authenticated, or it is closed
	requests int  // in flight
}

func newGuests(maxOpen, maxRequests int) *guests {
	return &guests{maxOpen: maxOpen, maxRequests: maxRequests, open: map[net.Conn]*guest{}, order: list.New()}
}

type guestKey struct{}

// accept implements http.Server.ConnContext.
func (g *guests) accept(ctx context.Context, conn net.Conn) context.Context {
	n := &guest{of: g, conn: conn, source: sourceOf(conn.RemoteAddr())}
	g.mu.Lock()
	n.place = g.order.PushBack(n)
	g.open[conn] = n
	var out *guest
	if len(g.open) > g.maxOpen {
		out = g.leastWelcome()
		g.remove(out)
	}
	g.mu.Unlock()
	if out != nil {
		closeNow(out.conn)
	}
	return context.WithValue(ctx, guestKey{}, n)
}

// changed implements http.Server.ConnState.
func (g *guests) changed(conn net.Conn, state http.ConnState) {
	if state != http.StateActive && state != http.StateClosed && state != http.StateHijacked {
		return
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	n := g.open[conn]
	switch {
	case n == nil:
	case state == http.StateActive:
		n.spoke = true
	default:
		g.remove(n)
	}
}

// remove takes a connection off the list. Call with mu held.
func (g *guests) remove(n *guest) {
	if n.known {
		return
	}
	n.known = true
	delete(g.open, n.conn)
	g.order.Remove(n.place)
	g.requests -= n.requests
}

// leastWelcome is the connection to close for a new one: of the source that has the most,
// one that has not even finished its handshake, else the oldest. Call with mu held.
func (g *guests) leastWelcome() *guest {
	count := map[netip.Prefix]int{}
	for _, n := range g.open {
		count[n.source]++
	}
	var out *guest
	for e := g.order.Front(); e != g.order.Back(); e = e.Next() { // never the newest
		n := e.Value.(*guest)
		if out == nil || count[n.source] > count[out.source] || n.source == out.source && out.spoke && !n.spoke {
			out = n
		}
	}
	return out
}

// greedy is the connection with the most requests in flight. Call with mu held.
func (g *guests) greedy() *guest {
	var out *guest
	for _, n := range g.open {
		if out == nil || n.requests > out.requests {
			out = n
		}
	}
	return out
}

// watched counts the requests of guests around next, and drops what they sent and nobody read.
func (g *guests) watched(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		n, ok := r.Context().Value(guestKey{}).(*guest)
		if !ok || !n.enter() {
			next.ServeHTTP(w, r)
			return
		}
		defer n.leave()
		next.ServeHTTP(w, r)
		if n.isKnown() {
			return
		}
		_ = r.Body.Close() // the buffer of what has come is free, what still comes is not kept
		if r.ProtoMajor == 2 {
			// What the server would do after this, where a client that reads nothing is not counted.
			n.hurry(w)
			_ = http.NewResponseController(w).Flush() // else the stream is reset
		}
	})
}

// enter counts a request, and reports whether it is a guest's. One too many closes
// the connection that has the most.
func (n *guest) enter() bool {
	g := n.of
	g.mu.Lock()
	if n.known {
		g.mu.Unlock()
		return false
	}
	n.requests++
	g.requests++
	var out *guest
	if g.requests > g.maxRequests {
		out = g.greedy()
		g.remove(out)
	}
	g.mu.Unlock()
	if out != nil {
		closeNow(out.conn)
	}
	return true
}

func (n *guest) leave() {
	n.of.mu.Lock()
	defer n.of.mu.Unlock()
	if !n.known {
		n.requests--
		n.of.requests--
	}
}

func (n *guest) isKnown() bool {
	n.of.mu.Lock()
	defer n.of.mu.Unlock()
	return n.known
}

// welcome says that somebody has been authenticated by r, whose answer is w.
func (n *guest) welcome(w http.ResponseWriter, r *http.Request) {
	n.of.mu.Lock()
	before := n.known
	n.of.remove(n)
	n.of.mu.Unlock()
	if !before && r.ProtoMajor == 1 {
		_ = http.NewResponseController(w).SetWriteDeadline(time.Time{}) // that of an earlier request
	}
}

// hurry bounds how long the answer waits for its reader.
func (n *guest) hurry(w http.ResponseWriter) {
	_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(guestWriteTime)) // the connections of this server have deadlines
}

// closeNow closes a connection without a farewell, which would wait for its reader.
func closeNow(conn net.Conn) {
	if t, ok := conn.(*tls.Conn); ok {
		conn = t.NetConn()
	}
	_ = conn.Close() // it may be closed already
}

// sourceOf is whom an address belongs to: of IPv6 a client has a /64 to itself.
func sourceOf(a net.Addr) netip.Prefix {
	p, err := netip.ParseAddrPort(a.String())
	if err != nil {
		return netip.Prefix{}
	}
	ip, bits := p.Addr().Unmap().WithZone(""), 64
	if ip.Is4() {
		bits = 32
	}
	out, err := ip.Prefix(bits)
	if err != nil {
		return netip.Prefix{}
	}
	return out
}

// rooms give each user a room of its own: how many of its requests with a limit in time
// are handled at once. The filter between take and free answers a request whose client has
// gone, while it goes on in a goroutine of its own: a client that took its requests back at
// once had any number of them. Nobody waits for the requests of another user here; behind
// it, priority and fairness has few requests executed.
type rooms struct {
	size int

	mu sync.Mutex
	of map[string]*room
}

type room struct {
	slots chan struct{}
	users int // requests that wait for a slot or have one; guarded by rooms.mu
}

func newRooms(size int) *rooms { return &rooms{size: size, of: map[string]*room{}} }

func (s *rooms) enter(name string) *room {
	s.mu.Lock()
	defer s.mu.Unlock()
	r := s.of[name]
	if r == nil {
		r = &room{slots: make(chan struct{}, s.size)}
		s.of[name] = r
	}
	r.users++
	return r
}

func (s *rooms) leave(name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	r := s.of[name]
	if r.users--; r.users == 0 {
		delete(s.of, name)
	}
}

// take lets a request wait for a slot of its user's, until its client goes.
func (s *rooms) take(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		name := userName(r)
		select {
		case s.enter(name).slots <- struct{}{}:
			next.ServeHTTP(w, r)
		case <-r.Context().Done():
			s.leave(name)
		}
	})
}

// free gives the slot back when all is done.
func (s *rooms) free(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		name := userName(r)
		defer func() {
			s.mu.Lock()
			taken := s.of[name].slots
			s.mu.Unlock()
			<-taken
			s.leave(name)
		}()
		next.ServeHTTP(w, r)
	})
}

func userName(r *http.Request) string {
	if u, ok := apirequest.UserFrom(r.Context()); ok {
		return u.GetName()
	}
	return ""
}

// sortUsers sends requests of authenticated users to users and those of strangers, who
// may do little, to next: few at once, without anybody having to wait.
func sortUsers(users, next http.Handler) http.Handler {
	taken := make(chan struct{}, maxStrangers)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		n, guest := r.Context().Value(guestKey{}).(*guest)
		u, ok := apirequest.UserFrom(r.Context())
		if ok && u.GetName() != user.Anonymous && !slices.Contains(u.GetGroups(), user.AllUnauthenticated) {
			if guest {
				n.welcome(w, r)
			}
			users.ServeHTTP(w, r)
			return
		}
		if guest && !n.isKnown() {
			n.hurry(w)
		}
		if isProbe(r.URL.Path) { // strangers may not keep a load balancer from seeing that all is well
			next.ServeHTTP(w, r)
			return
		}
		select {
		case taken <- struct{}{}:
			defer func() { <-taken }()
			next.ServeHTTP(w, r)
		default:
			w.Header().Set("Retry-After", "1")
			http.Error(w, "Too many requests, please try again later.", http.StatusTooManyRequests)
		}
	})
}

func isProbe(path string) bool { return path == "/healthz" || path == "/livez" || path == "/readyz" }
