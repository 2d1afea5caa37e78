package probe

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"carob/internal/core/podlife"
)

// netHTTPProbe is a probe as http.Client would make it.
func netHTTPProbe(t *testing.T, to Target, action *corev1.HTTPGetAction, timeout time.Duration) string {
	t.Helper()
	req, err := Request(t.Context(), action, to.Container, to.PodIP, userAgent)
	if err != nil {
		return fmt.Sprint(podlife.ProbeError, ": ", err)
	}
	res, err := (&http.Client{Transport: Transport(), CheckRedirect: SameHost, Timeout: timeout}).Do(req)
	if err != nil {
		return fmt.Sprint(podlife.ProbeFailure, ": ", err)
	}
	defer res.Body.Close()
	body, err := io.ReadAll(io.LimitReader(res.Body, maxOutput))
	if err != nil {
		return fmt.Sprint(podlife.ProbeFailure, ": ", err)
	}
	v, text := verdict(res.StatusCode, body)
	return fmt.Sprint(v, ": ", text)
}

// Probes of servers with all kinds of answers have the verdict and the text of net/http (L5.21–23), whether an answer
// comes at once, in two parts, or byte by byte.
func TestPlainAsNetHTTP(t *testing.T) {
	more := map[string]string{
		"large body":        "HTTP/1.1 200 OK\r\nContent-Length: 20000\r\n\r\n" + strings.Repeat("x", 20000),
		"body of a page":    "HTTP/1.1 200 OK\r\nContent-Length: 5000\r\n\r\n" + strings.Repeat("x", 5000),
		"large failure":     "HTTP/1.1 500 No\r\nContent-Length: 20000\r\n\r\n" + strings.Repeat("x", 20000),
		"code of 6 ciphers": "HTTP/1.1 200200 OK\r\nContent-Length: 2\r\n\r\nok",
		"code 600":          "HTTP/1.1 600 Odd\r\nContent-Length: 2\r\n\r\nok",
		"code 099":          "HTTP/1.1 099 Odd\r\nContent-Length: 2\r\n\r\nok",
		"code only":         "HTTP/1.1 200\r\nContent-Length: 2\r\n\r\nok",
		"version":           "HTTP/2.0 200 OK\r\nContent-Length: 2\r\n\r\nok",
		"negative length":   "HTTP/1.1 200 OK\r\nContent-Length: -2\r\n\r\nok",
		"signed length":     "HTTP/1.1 200 OK\r\nContent-Length: +2\r\n\r\nok",
		"same lengths":      "HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 2\r\n\r\nok",
		"length list":       "HTTP/1.1 200 OK\r\nContent-Length: 2, 2\r\n\r\nok",
		"huge length":       "HTTP/1.1 200 OK\r\nContent-Length: 99999999999999999999\r\n\r\nok",
		"folded":            "HTTP/1.1 200 OK\r\nA: b\r\n c\r\nContent-Length: 2\r\n\r\nok",
		"space in name":     "HTTP/1.1 200 OK\r\nA b: c\r\nContent-Length: 2\r\n\r\nok",
		"binary value":      "HTTP/1.1 200 OK\r\nA: \x01\x80\r\nContent-Length: 2\r\n\r\nok",
		"bare newlines":     "HTTP/1.1 200 OK\nContent-Length: 2\n\nok",
		"mixed newlines":    "HTTP/1.1 200 OK\r\nContent-Length: 2\n\nok\r\n\r\n",
		"more than said":    "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok and more",
		"to the directory":  "HTTP/1.1 301 Moved\r\nLocation: /dir/\r\nContent-Length: 0\r\n\r\n",
	}
	maps.Copy(more, answers)
	for name, answer := range more {
		for _, step := range []int{len(answer), len(answer)/2 + 1, 1} {
			if step == 1 && len(answer) > 1000 {
				continue
			}
			t.Run(fmt.Sprint(name, " in steps of ", step), func(t *testing.T) {
				t.Parallel()
				addr := serveInSteps(t, answer, step, false)
				to, port := target(addr)
				action := &corev1.HTTPGetAction{Path: "/path?q=1", Port: port}
				v, text := Run(t.Context(), to, &corev1.Probe{TimeoutSeconds: 60,
					ProbeHandler: corev1.ProbeHandler{HTTPGet: action}})
				sameText(t, addr.String(), fmt.Sprint(v, ": ", text), netHTTPProbe(t, to, action, time.Minute))
			})
		}
	}
	for name, timeout := range waits {
		t.Run(name+", and hangs", func(t *testing.T) {
			t.Parallel()
			addr := serveInSteps(t, answers[name], len(answers[name])+1, true)
			to, port := target(addr)
			action := &corev1.HTTPGetAction{Path: "/path?q=1", Port: port}
			want := make(chan string, 1)
			go func() { want <- netHTTPProbe(t, to, action, timeout) }()
			v, text := httpGet(t.Context(), to, action, timeout)
			sameText(t, addr.String(), fmt.Sprint(v, ": ", text), <-want)
		})
	}
}

// serveInSteps answers each request with the same bytes, step of them at a time.
func serveInSteps(t *testing.T, answer string, step int, hang bool) net.Addr {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer conn.Close()
				in := bufio.NewReader(conn)
				if _, err := http.ReadRequest(in); err != nil {
					return
				}
				for rest := answer; rest != ""; rest = rest[min(step, len(rest)):] {
					if _, err := io.WriteString(conn, rest[:min(step, len(rest))]); err != nil {
						return // the client has had enough
					}
				}
				if hang {
					_, _ = io.Copy(io.Discard, in)
				}
			}()
		}
	}()
	return l.Addr()
}

// The text of a request is that of net/http, whatever the action has, or is left to it.
func TestPlainRequest(t *testing.T) {
	plain := 0
	for _, path := range []string{"", "/", "/healthz", "/a/b-c._~", "/a?b=c&d=e", "/?", "/?a?b", "/a?b#c", "/%41", "/a b",
		"//host/x", "/a//b", "/../x", "/a;b", "/ä", "/a\r\nB: c", "a", "http://other/x", "/a:b", "/*", "/+", "/?a=%zz"} {
		for _, host := range []string{"127.0.0.1", "10.1.2.3", "::1", "fd00::1:2", "FD00::1", "fe80::1%lo",
			"::ffff:1.2.3.4", "localhost", "", "127.1"} {
			for _, headers := range [][]corev1.HTTPHeader{nil, {{Name: "X", Value: "1"}, {Name: "host", Value: "h"}},
				{{Name: "Accept", Value: ""}, {Name: "User-Agent", Value: "me"}}, {{Name: "Connection", Value: "Upgrade"}}} {
				action := &corev1.HTTPGetAction{Path: path, Port: intstr.FromInt32(80), HTTPHeaders: headers}
				to, ok := plainTarget(action, host, 80)
				if !ok {
					continue
				}
				plain++
				got, err := plainRequest(t.Context(), action, &corev1.Container{}, host, to)
				if err != nil {
					t.Fatal(err)
				}
				req, err := Request(t.Context(), action, &corev1.Container{}, host, userAgent)
				if err != nil {
					t.Fatal(err)
				}
				want, err := requestText(req)
				if err != nil || string(got) != string(want) {
					t.Errorf("%q to %q: got %q, net/http sends %q, %v", path, host, got, want, err)
				}
				if "http://"+to.String()+path != req.URL.String() {
					t.Errorf("%q to %q: net/http's URL is %q", path, host, req.URL)
				}
			}
		}
	}
	if plain < 60 {
		t.Errorf("only %d requests are plain", plain)
	}
}

// What simpleAnswer takes for an answer is the same to net/http.
func FuzzSimpleAnswer(f *testing.F) {
	for _, answer := range answers {
		if len(answer) < 1000 {
			f.Add([]byte(answer))
		}
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		code, body, state := simpleAnswer(b)
		if state != answered {
			return
		}
		res, err := http.ReadResponse(bufio.NewReader(bytes.NewReader(b)), &http.Request{Method: http.MethodGet})
		if err != nil {
			t.Fatalf("%q: net/http says %v", b, err)
		}
		want, err := io.ReadAll(io.LimitReader(res.Body, maxOutput))
		if err != nil || res.StatusCode != code || !bytes.Equal(body, want) {
			t.Fatalf("%q: got %d %q, net/http says %d %q, %v", b, code, body, res.StatusCode, want, err)
		}
	})
}

// A socket that is never ready, one that is aborted, and one that is ready late or again (L5.20: timeouts).
func TestPoller(t *testing.T) {
	p, err := newPoller()
	if err != nil {
		t.Fatal(err)
	}
	defer p.epoll.Close()
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(pair[1])
	s := &socket{fd: pair[0], woken: make(chan struct{}, 1)}
	up := make(chan time.Time)
	close(up)
	if err := p.wait(t.Context(), s, unix.EPOLLIN, up); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("never: %v", err)
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if err := p.wait(ended, s, unix.EPOLLIN, nil); !errors.Is(err, context.Canceled) {
		t.Errorf("aborted: %v", err)
	}
	came := make(chan error, 1)
	go func() { came <- p.wait(t.Context(), s, unix.EPOLLIN, nil) }()
	for range 2 { // the second after it was read, or with it
		if _, err := unix.Write(pair[1], []byte("x")); err != nil {
			t.Fatal(err)
		}
		if err := <-came; err != nil {
			t.Error(err)
		}
		go func() { came <- p.wait(t.Context(), s, unix.EPOLLIN, nil) }()
	}
	if err := <-came; err != nil { // nothing was read
		t.Error(err)
	}
	for range 1000 { // ready and too late at once: none of them is left in the channel
		_ = p.wait(t.Context(), s, unix.EPOLLIN, up)
	}
	if len(s.woken) != 0 || len(p.waits) != 0 {
		t.Errorf("left: %d, %d", len(s.woken), len(p.waits))
	}
	unix.Close(pair[0])
	if err := p.wait(t.Context(), s, unix.EPOLLIN, nil); !errors.Is(err, unix.EBADF) && !errors.Is(err, unix.ENOENT) {
		t.Errorf("closed: %v", err)
	}
}

// A connection that is never accepted takes the probe's time; nothing is left of it.
func TestPlainIsNeverAccepted(t *testing.T) {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	loopback := &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}
	if err := errors.Join(unix.Bind(fd, loopback), unix.Listen(fd, 0)); err != nil {
		t.Fatal(err)
	}
	own, err := unix.Getsockname(fd)
	if err != nil {
		t.Fatal(err)
	}
	to := netip.AddrPortFrom(netip.MustParseAddr("127.0.0.1"), uint16(own.(*unix.SockaddrInet4).Port))
	for range 3 { // the queue holds one, and its SYN queue another one
		first, err := open(to, time.Minute)
		if err != nil {
			t.Fatal(err)
		}
		defer first.close()
	}
	v, text := httpGet(t.Context(), Target{Container: &corev1.Container{}, PodIP: "127.0.0.1"},
		&corev1.HTTPGetAction{Path: "/", Port: intstr.FromInt32(int32(to.Port()))}, 300*time.Millisecond)
	check(t, v, text, podlife.ProbeFailure, fmt.Sprintf(
		`Get "http://%s/": context deadline exceeded (Client.Timeout exceeded while awaiting headers)`, to))
	p, err := sockets()
	if err != nil {
		t.Fatal(err)
	}
	v, text = tcpConnect(t.Context(), p, to, 300*time.Millisecond)
	check(t, v, text, podlife.ProbeFailure, fmt.Sprintf("dial tcp %s: i/o timeout", to))
}

// A process that had too many files open when it made its first probe goes on with the sockets of the net package.
func TestWithoutPoller(t *testing.T) {
	made := sockets
	defer func() { sockets = made }()
	sockets = func() (*poller, error) { return nil, unix.EMFILE }
	to, port := target(serveInSteps(t, okAnswer, len(okAnswer), false))
	for _, handler := range []corev1.ProbeHandler{{HTTPGet: &corev1.HTTPGetAction{Path: "/", Port: port}},
		{TCPSocket: &corev1.TCPSocketAction{Port: port}}} {
		v, text := Run(t.Context(), to, &corev1.Probe{ProbeHandler: handler})
		if v != podlife.ProbeSuccess {
			t.Errorf("%s: %s", v, text)
		}
	}
}
