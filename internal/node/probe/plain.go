package probe

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"carob/internal/core/podlife"
)

// plainTarget is where the request of an action goes without TLS, if that is an address and not a name.
func plainTarget(action *corev1.HTTPGetAction, host string, port int) (netip.AddrPort, bool) {
	if action.Scheme != "" && !strings.EqualFold(string(action.Scheme), "http") {
		return netip.AddrPort{}, false
	}
	addr, err := netip.ParseAddr(host)
	if err != nil || addr.Zone() != "" || addr.Is4In6() || addr.String() != host {
		return netip.AddrPort{}, false
	}
	return netip.AddrPortFrom(addr, uint16(port)), plainPath(action.Path)
}

// plainPath reports whether net/http sends a path as it is written.
func plainPath(path string) bool {
	if !strings.HasPrefix(path, "/") || strings.HasPrefix(path, "//") {
		return false
	}
	query := false
	for i := range len(path) {
		switch c := path[i]; {
		case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', '0' <= c && c <= '9':
		case strings.IndexByte("/-._~", c) >= 0:
		case c == '?' && !query && i+1 < len(path):
			query = true
		case query && strings.IndexByte("=&", c) >= 0:
		default:
			return false
		}
	}
	return true
}

// plainRequest is the text of the request that net/http sends for a plain target.
func plainRequest(ctx context.Context, action *corev1.HTTPGetAction, c *corev1.Container, host string,
	to netip.AddrPort) ([]byte, error) {
	if len(action.HTTPHeaders) == 0 {
		text := make([]byte, 0, 256)
		text = append(text, "GET "...)
		text = append(text, action.Path...)
		text = append(text, " HTTP/1.1\r\nHost: "...)
		text = to.AppendTo(text)
		return append(text, "\r\nUser-Agent: "+userAgent+"\r\nConnection: close\r\nAccept: */*\r\n\r\n"...), nil
	}
	req, err := Request(ctx, action, c, host, userAgent)
	if err != nil {
		return nil, err
	}
	return requestText(req)
}

// requestText is what net/http sends with keep-alives disabled.
func requestText(req *http.Request) ([]byte, error) {
	if err := checkHeader(req.Header); err != nil {
		return nil, err
	}
	plain := *req
	plain.Close = true
	var text bytes.Buffer
	if err := plain.Write(&text); err != nil {
		return nil, err
	}
	return text.Bytes(), nil
}

// plainGet sends a request on a socket of its own, and reads the answer. An answer that is not as simple as most are
// is left to net/http, with its connection.
func plainGet(ctx context.Context, p *poller, t Target, action *corev1.HTTPGetAction, host string, to netip.AddrPort,
	timeout time.Duration) (podlife.ProbeVerdict, string) {
	failed := func(err error) (podlife.ProbeVerdict, string) {
		if errors.Is(err, context.DeadlineExceeded) {
			err = fmt.Errorf("%w (Client.Timeout exceeded while awaiting headers)", err)
		}
		target := "http://" + to.String() + action.Path
		return podlife.ProbeFailure, (&url.Error{Op: "Get", URL: target, Err: err}).Error()
	}
	text, err := plainRequest(ctx, action, t.Container, host, to)
	if err != nil {
		return failed(err)
	}
	s, err := open(to, timeout)
	if err != nil {
		return failed(err)
	}
	defer s.close()
	if err := s.send(ctx, p, text); err != nil {
		return failed(err)
	}
	for n := 0; ; {
		more, err := s.receive(ctx, p, s.answer[n:])
		switch {
		case err == nil:
			n += more
		case ctx.Err() == nil && n > 0 && errors.Is(err, context.DeadlineExceeded):
			return resume(ctx, t, action, s, n) // which says what was missing
		case bytes.Contains(s.answer[:n], []byte("\r\n\r\n")):
			return podlife.ProbeFailure, err.Error() // while reading the body
		default:
			return failed(err)
		}
		switch code, body, state := simpleAnswer(s.answer[:n]); {
		case state == answered:
			return verdict(code, body)
		case state == unclear, more == 0, n == len(s.answer):
			return resume(ctx, t, action, s, n)
		}
	}
}

// resume has net/http read the rest of an answer whose first n bytes have come, and follow its redirects.
func resume(ctx context.Context, t Target, action *corev1.HTTPGetAction, s *socket,
	n int) (podlife.ProbeVerdict, string) {
	conn, err := s.conn()
	if err != nil {
		return podlife.ProbeFailure, err.Error()
	}
	begun := &begunRequest{conn: conn, came: bytes.Clone(s.answer[:n])}
	defer begun.abandon()
	limited, cancel := context.WithDeadline(ctx, s.end)
	defer cancel()
	return get(limited, t, action, begun)
}

// begunRequest is the transport of a request that has been sent, and of those that follow it.
type begunRequest struct {
	conn net.Conn // nil: its answer is read
	came []byte   // of the answer
}

// RoundTrip implements http.RoundTripper.
func (b *begunRequest) RoundTrip(req *http.Request) (*http.Response, error) {
	if b.conn == nil {
		return oneRequest{}.RoundTrip(req)
	}
	conn := b.conn
	b.conn = nil
	return roundTrip(req, func(req *http.Request) (*http.Response, error) {
		return readAnswer(req, conn, io.MultiReader(bytes.NewReader(b.came), conn), nil)
	})
}

func (b *begunRequest) abandon() {
	if b.conn != nil {
		_ = b.conn.Close()
	}
}

// answerState is what simpleAnswer has found so far.
type answerState int

const (
	partial  answerState = iota // more has to come
	answered                    // all is there
	unclear                     // net/http has to read it
)

// simpleAnswer reads an answer of HTTP/1.1 with a length, and neither a redirect nor an interim one. Whatever else
// there is, or could be, is unclear.
func simpleAnswer(b []byte) (code int, body []byte, state answerState) {
	const version = "HTTP/1.1 "
	head, body, complete := bytes.Cut(b, []byte("\r\n\r\n"))
	if !complete {
		return 0, nil, partial
	}
	line, head, _ := bytes.Cut(head, []byte("\r\n"))
	if len(line) < len(version)+4 || string(line[:len(version)]) != version || line[len(version)+3] != ' ' {
		return 0, nil, unclear
	}
	for _, c := range line[len(version) : len(version)+3] {
		if c < '0' || c > '9' {
			return 0, nil, unclear
		}
		code = code*10 + int(c-'0')
	}
	if code < 200 || code == http.StatusNoContent || code >= 300 && code < 400 || code >= 600 || !visible(line) {
		return 0, nil, unclear
	}
	length := -1
	for len(head) > 0 {
		line, head, _ = bytes.Cut(head, []byte("\r\n"))
		name, value, found := bytes.Cut(line, []byte(":"))
		if !found || !simpleName(name) || !visible(value) {
			return 0, nil, unclear
		}
		switch {
		case bytes.EqualFold(name, []byte("Content-Length")):
			n, err := strconv.ParseUint(string(bytes.Trim(value, " ")), 10, 31)
			if err != nil || length >= 0 {
				return 0, nil, unclear
			}
			length = int(n)
		case bytes.EqualFold(name, []byte("Transfer-Encoding")), bytes.EqualFold(name, []byte("Trailer")):
			return 0, nil, unclear
		}
	}
	if length < 0 {
		return 0, nil, unclear
	}
	if want := min(length, maxOutput); len(body) >= want {
		return code, body[:want], answered
	}
	return 0, nil, partial
}

// simpleName reports whether a header's name has letters, digits, and hyphens only.
func simpleName(b []byte) bool {
	for _, c := range b {
		if (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') && (c < '0' || c > '9') && c != '-' {
			return false
		}
	}
	return len(b) > 0
}

// visible reports whether all of b are visible ASCII characters and spaces.
func visible(b []byte) bool {
	for _, c := range b {
		if c < ' ' || c > '~' {
			return false
		}
	}
	return true
}
