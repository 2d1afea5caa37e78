package gateway

import (
	"bytes"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"

	"carob/internal/base/testwait"
	"carob/internal/core/routing"
)

// misbehaviour is what a model server does with a connection on which it has read a request.
type misbehaviour func(c *net.TCPConn)

func sentText(text string) misbehaviour {
	return func(c *net.TCPConn) { _, _ = io.WriteString(c, text) }
}

// floods writes a text again and again, until the other side has had enough, which it must have soon.
func floods(t *testing.T, before, again string) misbehaviour {
	return func(c *net.TCPConn) {
		_, _ = io.WriteString(c, before)
		part, sent := bytes.Repeat([]byte(again), 1+4096/len(again)), 0
		for {
			n, err := c.Write(part)
			if err != nil {
				return
			}
			if sent += n; sent > 64<<20 { // more than all buffers of the system
				t.Errorf("the gateway has read %d bytes of %.40q", sent, before+again)
				return
			}
		}
	}
}

// Whatever a model server sends instead of an answer, the client gets a clear status, or sees that the answer is not
// whole. A server gets the request once if there is no other, little of what it sends is read, and its answers to other
// requests reach their clients.
func TestHostileModelServer(t *testing.T) {
	const (
		ok      = "HTTP/1.1 200 OK\r\n"
		chunked = ok + "Transfer-Encoding: chunked\r\n\r\n"
		events  = ok + "Content-Type: text/event-stream\r\n\r\n"
	)
	never := func(before, again string) misbehaviour { return floods(t, before, again) }
	all := []struct {
		what   string
		does   misbehaviour
		status int
		text   string // of an answer with status 200
		cut    bool   // the client sees that it is not whole
	}{
		{"nothing", sentText(""), 502, "", false},
		{"no HTTP", sentText("SSH-2.0-OpenSSH_10.0\r\n"), 502, "", false},
		{"zeros without end", never("", "\x00"), 502, "", false},
		{"a status without end", never("HTTP/1.1 200 ", "O"), 502, "", false},
		{"a field without end", never(ok+"X: ", "x"), 502, "", false},
		{"fields without end", never(ok, "X: y\r\n"), 502, "", false},
		{"hints without end", never("", "HTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\n"), 502, "", false},
		{"processing without end", never("", "HTTP/1.1 102 Processing\r\n\r\n"), 502, "", false},
		{"another protocol", sentText("HTTP/1.1 101 x\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n"), 502, "", false},
		{"status 0", sentText("HTTP/1.1 000 x\r\nContent-Length: 0\r\n\r\n"), 502, "", false},
		{"status 99", sentText("HTTP/1.1 099 x\r\nContent-Length: 0\r\n\r\n"), 502, "", false},
		{"status 1000", sentText("HTTP/1.1 1000 x\r\nContent-Length: 0\r\n\r\n"), 502, "", false},
		{"a negative length", sentText(ok + "Content-Length: -1\r\n\r\n"), 502, "", false},
		{"a length that overflows", sentText(ok + "Content-Length: 18446744073709551621\r\n\r\nhello"), 502, "", false},
		{"two lengths", sentText(ok + "Content-Length: 5\r\nContent-Length: 6\r\n\r\nhello!"), 502, "", false},
		{"an unknown encoding", sentText(ok + "Transfer-Encoding: gzip\r\n\r\nhello"), 502, "", false},
		{"a name with a space", sentText(ok + "X y: z\r\nContent-Length: 5\r\n\r\nhello"), 200, "hello", false},
		{"less than announced", sentText(ok + "Content-Length: 500\r\n\r\nhello"), 200, "hello", true},
		{"more than announced", never(ok+"Content-Length: 5\r\n\r\nhello", ok+"\r\n"), 200, "hello", false},
		{"a large chunk", sentText(chunked + "7fffffffffffffff\r\nhello"), 200, "hello", true},
		{"a chunk that overflows", sentText(chunked + "fffffffffffffffff\r\nhello"), 502, "", false},
		{"a line of a chunk without end", never(chunked+"5;", "x"), 502, "", false},
		{"chunks that do not end", sentText(chunked + "5\r\nhello\r\n"), 200, "hello", true},
		{"trailers without end", never(chunked+"5\r\nhello\r\n0\r\n", "X: y\r\n"), 200, "hello", true},
		{"reset before the answer", func(c *net.TCPConn) { _ = c.SetLinger(0) }, 502, "", false},
		{"reset before the first token", func(c *net.TCPConn) {
			_, _ = io.WriteString(c, events)
			_ = c.SetLinger(0)
		}, 502, "", false},
		{"half closed before the answer", func(c *net.TCPConn) {
			_ = c.CloseWrite()
			_, _ = io.Copy(io.Discard, c) // until the gateway closes it
		}, 502, "", false},
	}
	l := newInferenceLab(t)
	var requests atomic.Int64
	l.server(1, func(w http.ResponseWriter, r *http.Request) {
		var i int
		if _, err := fmt.Sscanf(r.URL.Path, "/case/%d", &i); err != nil {
			answering(w, r)
			return
		}
		requests.Add(1)
		_, _ = io.Copy(io.Discard, r.Body)
		conn, _, err := http.NewResponseController(w).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		defer conn.Close()
		all[i].does(conn.(*net.TCPConn))
	})
	l.serveNow()
	for i, c := range all {
		requests.Store(0)
		res, text, err := l.post(fmt.Sprintf("/case/%d", i), strings.NewReader(`{"model":"m"}`))
		if c.cut && res == nil {
			res, text = &http.Response{StatusCode: c.status}, c.text // even the beginning was not sent
		}
		if res == nil || res.StatusCode != c.status || c.status == 200 && text != c.text || (err != nil) != c.cut {
			t.Errorf("%s: %v, %q, %v", c.what, res, text, err)
		}
		if res != nil && res.Header["X y"] != nil {
			t.Errorf("%s: the client got a field whose name is not valid", c.what)
		}
		if n := requests.Load(); n != 1 {
			t.Errorf("%s: the server got the request %d times", c.what, n)
		}
		status, fine, _ := l.get("POST", "x", "/v1/completions", strings.NewReader(`{"model":"m"}`))
		want(t, "after "+c.what, status, fine, 200, `"got":"{\"model\":\"m\"}"`)
	}
	testwait.For(t, "nothing is left", func() bool {
		return l.bodies.Used() == 0 && l.seen.figures.inFlight.Load() == 0
	})
}

// post sends a request on a connection of its own, and returns the answer; err: not all of it has arrived.
func (l *inferenceLab) post(path string, body io.Reader) (*http.Response, string, error) {
	l.t.Helper()
	r, err := http.NewRequestWithContext(l.t.Context(), http.MethodPost, "http://"+l.http+path, body)
	if err != nil {
		l.t.Fatal(err)
	}
	r.Host, r.Close = "x", true
	res, err := http.DefaultClient.Do(r)
	if err != nil {
		return nil, "", err
	}
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	return res, string(text), err
}

// Informational responses are limited for servers of HTTP/2, too.
func TestHintsWithoutEndOfHTTP2(t *testing.T) {
	l := newInferenceLab(t)
	var hints atomic.Int64
	l.server(1, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/hints" {
			answering(w, r)
			return
		}
		for r.Context().Err() == nil && hints.Add(1) < 100_000 {
			w.WriteHeader(http.StatusEarlyHints)
		}
	})
	l.h2cPool()
	l.serveNow()
	res, _, err := l.post("/hints", strings.NewReader(`{"model":"m"}`))
	if err != nil || res.StatusCode != http.StatusBadGateway || hints.Load() >= 100_000 {
		t.Errorf("after %d hints: %v %v", hints.Load(), res, err)
	}
}

// A server may answer before it has read a large request, and end the connection: the client gets the answer.
func TestModelServerAnswersEarly(t *testing.T) {
	l := newInferenceLab(t)
	l.server(1, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/metrics" {
			answering(w, r)
			return
		}
		w.Header().Set("Connection", "close")
		w.WriteHeader(http.StatusTeapot)
		_, _ = io.WriteString(w, "no")
	})
	l.serveNow()
	for range 10 {
		res, text, err := l.post("/", strings.NewReader(`{"model":"m","prompt":"`+strings.Repeat("x", 5<<20)+`"}`))
		if err != nil || res.StatusCode != http.StatusTeapot || text != "no" {
			t.Fatalf("%v %q %v", res, text, err)
		}
	}
	testwait.For(t, "all bytes are given back", func() bool { return l.bodies.Used() == 0 })
}

// A pool whose servers all refuse connections has the status and the reason of a pool without servers.
func TestNoModelServerListens(t *testing.T) {
	l := newInferenceLab(t)
	l.server(1, answering)
	l.pods[0].Status.PodIP = "127.79.255.254" // without a listener
	l.serveNow()
	res, _, err := l.post("/", strings.NewReader(`{"model":"m"}`))
	if err != nil || res.StatusCode != http.StatusServiceUnavailable ||
		res.Header.Get(routing.ReasonHeader) != string(routing.NoEndpoints) {
		t.Errorf("%v %v", res, err)
	}
}
