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
	// maxUnauthenticatedConns is how many connections may be open without an authenticated request.
	maxUnauthenticatedConns = 1000
	// maxUnauthenticatedRequests is how many requests may be in flight on all of them together.
	maxUnauthenticatedRequests = 4 * maxStreams
	// unauthenticatedWriteTime is the time limit for an unauthenticated client to read an answer.
	unauthenticatedWriteTime = 10 * time.Second
	// maxAnonymousRequests is how many anonymous requests are handled at once, after
	// authentication.
	maxAnonymousRequests = 64
)

// unauthenticatedConns are the connections on which no request has been authenticated yet. Their
// number and requests are limited, and one more than allowed closes another one of them: a client
// with a credential gets in, however many connections, handshakes, and streams others hold open.
//
//	accepted ──first authenticated request──▶ known: no longer counted here
//	accepted ──too many connections, or too many requests──▶ closed: first one of the source with the most
type unauthenticatedConns struct {
	maxOpen, maxRequests int

	mu       sync.Mutex
	open     map[net.Conn]*connection
	order    *list.List // of *connection, the oldest first
	requests int        // in flight on all
}

// connection is one of them. unauthenticatedConns.mu protects its fields.
type connection struct {
	of         *unauthenticatedConns
	conn       net.Conn
	source     netip.Prefix
	place      *list.Element
	handshaken bool // it has sent a request: the handshake is complete
	known      bool // a request was authenticated, or it is closed
	requests   int  // in flight
}

func newUnauthenticatedConns(maxOpen, maxRequests int) *unauthenticatedConns {
	return &unauthenticatedConns{maxOpen: maxOpen, maxRequests: maxRequests, open: map[net.Conn]*connection{},
		order: list.New()}
}

type connectionKey struct{}

// accept implements http.Server.ConnContext.
func (g *unauthenticatedConns) accept(ctx context.Context, conn net.Conn) context.Context {
	n := &connection{of: g, conn: conn, source: sourceOf(conn.RemoteAddr())}
	g.mu.Lock()
	n.place = g.order.PushBack(n)
	g.open[conn] = n
	var out *connection
	if len(g.open) > g.maxOpen {
		out = g.leastWelcome()
		g.remove(out)
	}
	g.mu.Unlock()
	if out != nil {
		closeNow(out.conn)
	}
	return context.WithValue(ctx, connectionKey{}, n)
}

// changed implements http.Server.ConnState.
func (g *unauthenticatedConns) changed(conn net.Conn, state http.ConnState) {
	if state != http.StateActive && state != http.StateClosed && state != http.StateHijacked {
		return
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	n := g.open[conn]
	switch {
	case n == nil:
	case state == http.StateActive:
		n.handshaken = true
	default:
		g.remove(n)
	}
}

// remove removes a connection from the list. Call with mu held.
func (g *unauthenticatedConns) remove(n *connection) {
	if n.known {
		return
	}
	n.known = true
	delete(g.open, n.conn)
	g.order.Remove(n.place)
	g.requests -= n.requests
}

// leastWelcome returns the connection to close for a new one: of the source with the most
// connections, one without a complete handshake, otherwise the oldest. Call with mu held.
func (g *unauthenticatedConns) leastWelcome() *connection {
	count := map[netip.Prefix]int{}
	for _, n := range g.open {
		count[n.source]++
	}
	var out *connection
	for e := g.order.Front(); e != g.order.Back(); e = e.Next() { // never the newest
		n := e.Value.(*connection)
		if out == nil || count[n.source] > count[out.source] ||
			n.source == out.source && out.handshaken && !n.handshaken {
			out = n
		}
	}
	return out
}

// busiest returns the connection with the most requests in flight. Call with mu held.
func (g *unauthenticatedConns) busiest() *connection {
	var out *connection
	for _, n := range g.open {
		if out == nil || n.requests > out.requests {
			out = n
		}
	}
	return out
}

// watched counts the requests of these connections around next, and discards what they sent and
// no handler read.
func (g *unauthenticatedConns) watched(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		n, ok := r.Context().Value(connectionKey{}).(*connection)
		if !ok || !n.enter() {
			next.ServeHTTP(w, r)
			return
		}
		defer n.leave()
		next.ServeHTTP(w, r)
		if n.isKnown() {
			return
		}
		_ = r.Body.Close() // frees the buffer of received data; later data is not kept
		if r.ProtoMajor == 2 {
			// The server would do this afterwards, when a client that reads nothing is no longer
			// counted.
			n.hurry(w)
			_ = http.NewResponseController(w).Flush() // otherwise the stream is reset
		}
	})
}

// enter counts a request, and reports whether its connection is unauthenticated. One request too
// many closes the connection with the most.
func (n *connection) enter() bool {
	g := n.of
	g.mu.Lock()
	if n.known {
		g.mu.Unlock()
		return false
	}
	n.requests++
	g.requests++
	var out *connection
	if g.requests > g.maxRequests {
		out = g.busiest()
		g.remove(out)
	}
	g.mu.Unlock()
	if out != nil {
		closeNow(out.conn)
	}
	return true
}

func (n *connection) leave() {
	n.of.mu.Lock()
	defer n.of.mu.Unlock()
	if !n.known {
		n.requests--
		n.of.requests--
	}
}

func (n *connection) isKnown() bool {
	n.of.mu.Lock()
	defer n.of.mu.Unlock()
	return n.known
}

// welcome marks the connection of r, whose answer is w, as authenticated.
func (n *connection) welcome(w http.ResponseWriter, r *http.Request) {
	n.of.mu.Lock()
	before := n.known
	n.of.remove(n)
	n.of.mu.Unlock()
	if !before && r.ProtoMajor == 1 {
		_ = http.NewResponseController(w).SetWriteDeadline(time.Time{}) // set for an earlier request
	}
}

// hurry limits how long the answer waits for its reader.
func (n *connection) hurry(w http.ResponseWriter) {
	// the connections of this server have deadlines
	_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(unauthenticatedWriteTime))
}

// closeNow closes a connection without the TLS close message, which would wait for the client.
func closeNow(conn net.Conn) {
	if t, ok := conn.(*tls.Conn); ok {
		conn = t.NetConn()
	}
	_ = conn.Close() // it may already be closed
}

// sourceOf returns the source of an address: for IPv6, the /64 that one client usually has.
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

// limitAnonymous passes requests of authenticated users to users, and anonymous ones, which may do
// little, to next: few at once, and without waiting.
func limitAnonymous(users, next http.Handler) http.Handler {
	taken := make(chan struct{}, maxAnonymousRequests)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		n, counted := r.Context().Value(connectionKey{}).(*connection)
		u, ok := apirequest.UserFrom(r.Context())
		if ok && u.GetName() != user.Anonymous && !slices.Contains(u.GetGroups(), user.AllUnauthenticated) {
			if counted {
				n.welcome(w, r)
			}
			users.ServeHTTP(w, r)
			return
		}
		if counted && !n.isKnown() {
			n.hurry(w)
		}
		if isProbe(r.URL.Path) { // anonymous requests must not keep a load balancer from its health checks
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
