package apiserver

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"testing"
	"testing/synctest"

	"k8s.io/apiserver/pkg/authentication/user"
	apirequest "k8s.io/apiserver/pkg/endpoints/request"
)

// visitor is a connection from an address.
type visitor struct {
	net.Conn
	from   string
	closed bool
}

func (v *visitor) RemoteAddr() net.Addr {
	a, err := net.ResolveTCPAddr("tcp", v.from)
	if err != nil {
		panic(err)
	}
	return a
}

func (v *visitor) Close() error {
	v.closed = true
	return nil
}

func of(ctx context.Context) *connection { return ctx.Value(connectionKey{}).(*connection) }

// A connection too many closes one of the source with the most, first one without a complete
// handshake.
func TestNewConnectionClosesAnOldOne(t *testing.T) {
	const alone, crowd, six, sixToo = "192.0.2.1:1", "192.0.2.2:1", "[2001:db8::1]:1", "[2001:db8::ffff]:2"
	for _, c := range []struct {
		name       string
		from       []string
		handshaken []int // with complete handshakes
		out        int   // whose connection is closed for one more
	}{
		{"the oldest of a crowd", []string{alone, crowd, crowd}, []int{0, 1, 2}, 1},
		{"one without a handshake", []string{crowd, crowd, crowd}, []int{0, 2}, 1},
		{"one of a crowd goes before one that is alone", []string{alone, crowd, crowd}, []int{1, 2}, 1},
		{"a network is one source", []string{"192.0.2.7:1", six, sixToo}, []int{0, 1, 2}, 1},
		{"the oldest where all are alone", []string{crowd, "192.0.2.7:1", six}, nil, 0},
	} {
		g := newUnauthenticatedConns(3, 100)
		var all []*visitor
		for i, from := range c.from {
			v := &visitor{from: from}
			g.accept(t.Context(), v)
			for _, s := range c.handshaken {
				if s == i {
					g.changed(v, http.StateActive)
				}
			}
			all = append(all, v)
		}
		last := &visitor{from: "192.0.2.9:1"}
		g.accept(t.Context(), last)
		for i, v := range append(all, last) {
			if v.closed != (i == c.out) {
				t.Errorf("%s: connection %d closed: %v", c.name, i, v.closed)
			}
		}
	}
}

// For any sequence of connections, the limits hold, authenticated ones are never closed, and
// nothing is counted twice.
func TestUnauthenticatedConnectionsAreBounded(t *testing.T) {
	const most, requests = 5, 20
	g := newUnauthenticatedConns(most, requests)
	type conn struct {
		*visitor
		*connection
		inside int
		known  bool
	}
	var all []*conn
	for i := range 20_000 {
		if len(all) < 3 || rand.IntN(10) == 0 {
			v := &visitor{from: fmt.Sprintf("192.0.2.%d:%d", rand.IntN(3), 1+i%60_000)}
			all = append(all, &conn{visitor: v, connection: of(g.accept(t.Context(), v))})
		}
		c := all[rand.IntN(len(all))]
		switch rand.IntN(6) {
		case 0, 1, 2:
			if c.enter() {
				c.inside++
			} else if !c.known && !c.closed {
				t.Fatal("a connection without a user is not counted")
			}
		case 3:
			if c.inside > 0 {
				c.inside--
				c.leave()
			}
		case 4:
			g.changed(c.visitor, http.StateActive)
		case 5:
			if !c.closed && rand.IntN(4) == 0 {
				c.welcome(httptest.NewRecorder(), &http.Request{ProtoMajor: 2})
				c.visitor.closed, c.known = false, true
			} else if rand.IntN(8) == 0 {
				g.changed(c.visitor, http.StateClosed)
				c.visitor.closed = true
			}
		}
		sum := 0
		for _, c := range all {
			if c.known && c.visitor.closed && c.connection.requests > requests {
				t.Fatal("somebody known was closed")
			}
			if _, open := g.open[c.visitor]; open {
				sum += c.inside
			}
		}
		if len(g.open) > most || g.order.Len() != len(g.open) || g.requests != sum || sum > requests {
			t.Fatalf("step %d: %d connections, %d in order, %d requests of %d", i, len(g.open), g.order.Len(),
				g.requests, sum)
		}
	}
}

// requestAs is a request of a user.
func requestAs(ctx context.Context, name string, groups ...string) *http.Request {
	return httptest.NewRequest(http.MethodGet, "/api",
		nil).WithContext(apirequest.WithUser(ctx, &user.DefaultInfo{Name: name, Groups: groups}))
}

// Requests of a user above its limit wait; others do not, and no state is left of users without
// requests.
func TestRooms(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, release := newUserLimits(2), make(chan struct{})
		served := make(chan string, 10)
		h := s.take(s.free(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			served <- userName(r)
			if userName(r) == "greedy" {
				<-release
			}
		})))
		for range 3 {
			go h.ServeHTTP(httptest.NewRecorder(), requestAs(t.Context(), "greedy"))
		}
		synctest.Wait()
		gone, cancel := context.WithCancel(t.Context())
		go h.ServeHTTP(httptest.NewRecorder(), requestAs(gone, "greedy"))
		synctest.Wait()
		if len(served) != 2 {
			t.Fatalf("%d requests of one user are served", len(served))
		}
		h.ServeHTTP(httptest.NewRecorder(), requestAs(t.Context(), "other")) // returns
		cancel()
		synctest.Wait()
		close(release)
		synctest.Wait()
		if len(served) != 4 || len(s.of) != 0 {
			t.Errorf("%d were served, %d limits are left", len(served), len(s.of))
		}
	})
}

// Anonymous requests share a small limit and do not wait; probes and users are not affected.
func TestAnonymousRequestsShareALimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		release := make(chan struct{})
		defer close(release)
		inside := 0
		h := limitAnonymous(http.HandlerFunc(func(w http.ResponseWriter,
			_ *http.Request) {
			w.WriteHeader(http.StatusAccepted)
		}),
			http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
				if !isProbe(r.URL.Path) {
					inside++
					<-release
				}
			}))
		get := func(path, name string, groups ...string) *httptest.ResponseRecorder {
			w, r := httptest.NewRecorder(), requestAs(t.Context(), name, groups...)
			r.URL.Path = path
			h.ServeHTTP(w, r)
			return w
		}
		for range maxAnonymousRequests {
			go get("/version", user.Anonymous, user.AllUnauthenticated)
			synctest.Wait()
		}
		if inside != maxAnonymousRequests {
			t.Fatalf("%d anonymous requests are served at once", inside)
		}
		if w := get("/version", user.Anonymous, user.AllUnauthenticated); w.Code != http.StatusTooManyRequests ||
			w.Header().Get("Retry-After") == "" {
			t.Errorf("one more: %d %v", w.Code, w.Header())
		}
		if w := get("/readyz", user.Anonymous, user.AllUnauthenticated); w.Code != http.StatusOK {
			t.Errorf("a probe: %d", w.Code)
		}
		if w := get("/version", "ann", user.AllAuthenticated); w.Code != http.StatusAccepted {
			t.Errorf("a user: %d", w.Code)
		}
	})
}
