package probe

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"regexp"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

const okAnswer = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"

// answers are what servers may send, by name.
var answers = map[string]string{
	"nothing":               "",
	"ok":                    okAnswer,
	"until the end":         "HTTP/1.0 200 OK\r\n\r\nall",
	"chunks":                "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n",
	"half a chunk":          "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n9\r\nok",
	"a chunk of no length":  "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n-1\r\nok",
	"half a body":           "HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nok",
	"not HTTP":              "SSH-2.0-OpenSSH_9.2\r\n",
	"half a line":           "HTTP/1.1 20",
	"half a header":         "HTTP/1.1 200 OK\r\nA: b\r\n",
	"a header without name": "HTTP/1.1 200 OK\r\n: b\r\n\r\n",
	"two lengths":           "HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nok",
	"early":                 "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n" + okAnswer,
	"switches":              "HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\n\r\nbytes",
	"often early":           strings.Repeat("HTTP/1.1 100 Continue\r\n\r\n", 99) + okAnswer,
	"no content":            "HTTP/1.1 204 No Content\r\n\r\n",
	"error":                 "HTTP/1.1 503 Service Unavailable\r\nContent-Length: 4\r\n\r\nbusy",
	"redirects elsewhere":   "HTTP/1.1 302 Found\r\nLocation: http://other/\r\nContent-Length: 2\r\n\r\nno",
	"redirects nowhere":     "HTTP/1.1 302 Found\r\nContent-Length: 2\r\n\r\nno",
	"redirects badly":       "HTTP/1.1 302 Found\r\nLocation: http://[\r\nContent-Length: 2\r\n\r\nno",
	"redirects itself":      "HTTP/1.1 302 Found\r\nLocation: /again\r\nContent-Length: 2\r\n\r\nno",
	"a long header":         "HTTP/1.1 200 OK\r\nA: " + strings.Repeat("x", maxHeader) + "\r\n\r\n",
}

// waits are answers that leave the client waiting. Where a part of the answer must have come before, there is more
// time.
var waits = map[string]time.Duration{"nothing": 500 * time.Millisecond, "half a header": 500 * time.Millisecond,
	"half a body": 2 * time.Second}

// Servers with invalid responses, and the results of net/http (L5.21–23): the probe's own client returns the same.
func TestAsNetHTTP(t *testing.T) {
	for name, answer := range answers {
		t.Run(name, func(t *testing.T) {
			addr := serve(t, answer, false)
			sameText(t, addr, oneRequestText(t.Context(), addr, nil, time.Minute),
				netHTTPText(t.Context(), addr, nil, time.Minute))
		})
		timeout, hangs := waits[name]
		if !hangs {
			continue
		}
		t.Run(name+", and hangs", func(t *testing.T) {
			t.Parallel()
			addr := serve(t, answer, true)
			want := make(chan string, 1)
			go func() { want <- netHTTPText(t.Context(), addr, nil, timeout) }()
			sameText(t, addr, oneRequestText(t.Context(), addr, nil, timeout), <-want)
		})
	}
	t.Run("refuses", func(t *testing.T) {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		addr := l.Addr().String()
		l.Close()
		sameText(t, addr, oneRequestText(t.Context(), addr, nil, time.Minute),
			netHTTPText(t.Context(), addr, nil, time.Minute))
	})
	for name, header := range map[string]http.Header{
		"a value of two lines": {"A": {"b\r\nHost: other"}}, "a name of two lines": {"A\r\nB": {"c"}},
		"no user agent": {"User-Agent": {""}},
	} {
		t.Run(name, func(t *testing.T) {
			addr := serve(t, okAnswer, false)
			sameText(t, addr, oneRequestText(t.Context(), addr, header, time.Minute),
				netHTTPText(t.Context(), addr, header, time.Minute))
		})
	}
	t.Run("aborted", func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		addr := serve(t, "HTTP/1.1 ", true)
		time.AfterFunc(10*time.Millisecond, cancel)
		if got := oneRequestText(ctx, addr, nil, time.Minute); strings.HasPrefix(got, "200") {
			t.Errorf("got %q", got)
		}
	})
}

// Whatever the path of a probe is, its request goes to the container or fails, as with net/http: a path that is parsed
// as a URL without a host must not reach the node's own addresses.
func TestRequestsOfHostilePaths(t *testing.T) {
	addr := serve(t, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok", false)
	host, text, err := net.SplitHostPort(addr)
	if err != nil {
		t.Fatal(err)
	}
	port := intstr.Parse(text)
	for path, reaches := range map[string]bool{
		"/": true, "x": true, "?a=b": true, "//other.example/x": true, "http://u:p@other.example:1/x": true,
		"%zz": true, "/a b": true, "\x00": true, "/\r\nHost: other": true, "#f": true,
		"a:b": false, "http:b": false, "http:127.0.0.1": false,
	} {
		t.Run(fmt.Sprintf("%q", path), func(t *testing.T) {
			get := func(via http.RoundTripper) string {
				req, err := Request(t.Context(), &corev1.HTTPGetAction{Path: path, Port: port}, &corev1.Container{},
					host, "test")
				if err != nil {
					return err.Error()
				}
				res, err := (&http.Client{Transport: via, CheckRedirect: SameHost}).Do(req)
				if err != nil {
					return err.Error()
				}
				defer res.Body.Close()
				return res.Status
			}
			got := get(oneRequest{})
			sameText(t, addr, got, get(Transport()))
			if (got == "200 OK") != reaches {
				t.Errorf("got %q", got)
			}
		})
	}
}

func sameText(t *testing.T, addr, got, want string) {
	t.Helper()
	ports := regexp.MustCompile(`127\.0\.0\.1:\d+->`) // of the client
	got, want = ports.ReplaceAllString(got, ""), ports.ReplaceAllString(want, "")
	if got != want {
		t.Errorf("%s: got %q, net/http says %q", addr, got, want)
	}
}

// serve answers each request with the same bytes, and closes the connection or leaves it open.
func serve(t *testing.T, answer string, hang bool) (addr string) {
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
				_, _ = io.WriteString(conn, answer) // the client may have had enough
				if hang {
					_, _ = io.Copy(io.Discard, in)
				}
			}()
		}
	}()
	return l.Addr().String()
}

func oneRequestText(ctx context.Context, addr string, h http.Header, timeout time.Duration) string {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	return text(ctx, &http.Client{Transport: oneRequest{}, CheckRedirect: SameHost}, addr, h)
}

func netHTTPText(ctx context.Context, addr string, h http.Header, timeout time.Duration) string {
	return text(ctx, &http.Client{Transport: Transport(), CheckRedirect: SameHost, Timeout: timeout}, addr, h)
}

func text(ctx context.Context, c *http.Client, addr string, h http.Header) string {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+addr+"/path?q=1", nil)
	if err != nil {
		return err.Error()
	}
	if h != nil {
		req.Header = h
	}
	res, err := c.Do(req)
	if err != nil {
		return err.Error()
	}
	defer res.Body.Close()
	b, err := io.ReadAll(io.LimitReader(res.Body, maxOutput))
	if err != nil {
		return res.Status + ": " + string(b) + ": " + err.Error()
	}
	return res.Status + ": " + string(b)
}
