package server_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"testing"
	"time"

	"carob/internal/base/testwait"
	"carob/internal/gateway/server"
)

// The context of a request ends with it, and so does all that was derived from it before, during, and after its end.
func TestRequestContext(t *testing.T) {
	type key struct{}
	var ctx, derived, timed context.Context
	ran := make(chan string, 10)
	var stopped, kept func() bool
	l := newLab(t, http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		ctx = r.Context()
		if ctx.Err() != nil {
			t.Error("the context has ended:", ctx.Err())
		}
		own, ok := ctx.(interface{ AfterFunc(f func()) func() bool })
		if !ok {
			t.Fatal("the context has no AfterFunc")
		}
		stopped = own.AfterFunc(func() { ran <- "stopped" })
		kept = own.AfterFunc(func() { ran <- "own" })
		if !stopped() || stopped() {
			t.Error("a function was not stopped, or twice")
		}
		if r.URL.Path == "/done" {
			if _, ok := <-afterwards(ctx); !ok {
				t.Error("the context has ended")
			}
		}
		derived = context.WithValue(ctx, key{}, 1)
		var cancel context.CancelFunc
		timed, cancel = context.WithTimeout(derived, time.Hour)
		context.AfterFunc(timed, func() { ran <- "timed"; cancel() })
		context.AfterFunc(derived, func() { ran <- "derived" })
	}))
	for _, path := range []string{"/", "/done"} {
		c, r := l.dial(t)
		_, _ = io.WriteString(c, "GET "+path+" HTTP/1.1\r\nHost: x\r\n\r\n")
		if res, err := http.ReadResponse(r, nil); err != nil || res.StatusCode != http.StatusOK {
			t.Fatal(res, err)
		}
		got := map[string]bool{}
		for range 3 {
			got[<-ran] = true
		}
		if !got["own"] || !got["timed"] || !got["derived"] {
			t.Errorf("%s: ran: %v", path, got)
		}
		for i, c := range []context.Context{ctx, derived, timed} {
			<-c.Done()
			if !errors.Is(c.Err(), context.Canceled) || !errors.Is(context.Cause(c), context.Canceled) {
				t.Errorf("%s: context %d: %v", path, i, c.Err())
			}
		}
		if kept() || derived.Value(key{}) != 1 || derived.Value("other") != nil {
			t.Errorf("%s: a function that ran was stopped, or a value is another", path)
		}
		late := make(chan struct{})
		stop := context.AfterFunc(ctx, func() { close(late) })
		if <-late; stop() {
			t.Error("a late function was stopped")
		}
		select {
		case more := <-ran:
			t.Errorf("%s: %s ran, or ran again", path, more)
		default:
		}
	}
}

// afterwards yields if the context has not ended.
func afterwards(ctx context.Context) <-chan struct{} {
	out := make(chan struct{}, 1)
	select {
	case <-ctx.Done():
		close(out)
	default:
		out <- struct{}{}
	}
	return out
}

// The end of the server's context is that of the requests, also of those that come later.
func TestServerContext(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	begun := make(chan struct{}, 1)
	l := newLab(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		begun <- struct{}{}
		<-r.Context().Done()
		_, _ = fmt.Fprint(w, r.Context().Err())
	}), func(s *server.Server) { s.Context = ctx })
	c, r := l.dial(t)
	for i := range 2 {
		_, _ = io.WriteString(c, "GET / HTTP/1.1\r\nHost: x\r\n\r\n")
		<-begun
		if i == 0 {
			cancel()
		}
		res, err := http.ReadResponse(r, nil)
		if err != nil {
			t.Fatal(err)
		}
		if text, _ := io.ReadAll(res.Body); string(text) != context.Canceled.Error() {
			t.Errorf("request %d: %q", i, text)
		}
	}
}

// Drain waits for a connection that has sent nothing yet, and for a request that is not whole; not for one that is
// being served, and at most as long as its context.
func TestDrain(t *testing.T) {
	begun, release := make(chan struct{}), make(chan struct{})
	l := newLab(t, http.HandlerFunc(func(http.ResponseWriter, *http.Request) { begun <- struct{}{}; <-release }))
	drained := func(ctx context.Context) <-chan struct{} {
		over := make(chan struct{})
		go func() { defer close(over); l.Drain(ctx) }()
		return over
	}
	c, r := l.dial(t)
	testwait.For(t, "the connection", func() bool { return !l.Settled() })
	short, cancel := context.WithCancel(t.Context())
	never := drained(short)
	cancel()
	<-never
	over := drained(t.Context())
	_, _ = io.WriteString(c, "GET / HTTP/1.1\r\n")
	if l.Settled() {
		t.Error("half a head counts as a request that is served")
	}
	_, _ = io.WriteString(c, "Host: x\r\n\r\n")
	<-begun
	<-over
	<-drained(t.Context()) // again
	close(release)
	res, err := http.ReadResponse(r, nil)
	if err != nil || !res.Close {
		t.Errorf("the connection stays open: %v", err)
	}
}
