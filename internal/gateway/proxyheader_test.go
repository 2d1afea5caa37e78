package gateway

import (
	"bytes"
	"fmt"
	"io"
	"net"
	"net/netip"
	"strings"
	"testing"

	"github.com/pires/go-proxyproto"
)

// rawRequest sends bytes to a port and returns what comes back until the end.
func rawRequest(t *testing.T, to string, sent string) string {
	t.Helper()
	c, err := net.Dial("tcp", to)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, err := io.WriteString(c, sent); err != nil {
		return ""
	}
	out, _ := io.ReadAll(c) // a reset is an answer, too
	return string(out)
}

func v2(t *testing.T, from string) string {
	t.Helper()
	h := proxyproto.HeaderProxyFromAddrs(2, net.TCPAddrFromAddrPort(netip.MustParseAddrPort(from)),
		net.TCPAddrFromAddrPort(netip.MustParseAddrPort("192.0.2.1:80")))
	var b bytes.Buffer
	if _, err := h.WriteTo(&b); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

func TestProxyProtocol(t *testing.T) {
	l := newLab(t)
	l.cfg.Proxies = []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}
	l.service("web", "", at(echo(t, "web").URL, "p1"))
	l.ingress("web.example", nil, "/=web")
	l.update()
	const request = "GET / HTTP/1.1\r\nHost: web.example\r\nX-Forwarded-For: 6.6.6.6\r\nConnection: close\r\n\r\n"
	for what, c := range map[string]struct{ header, from string }{
		"v1":         {"PROXY TCP4 198.51.100.7 192.0.2.1 4000 80\r\n", "198.51.100.7"},
		"v1 of IPv6": {"PROXY TCP6 2001:db8::7 2001:db8::1 4000 80\r\n", "2001:db8::7"},
		"v2":         {v2(t, "198.51.100.8:4000"), "198.51.100.8"},
		"unknown":    {"PROXY UNKNOWN\r\n", "127."},
	} {
		got := rawRequest(t, l.http, c.header+request)
		if !strings.Contains(got, fmt.Sprintf("xff=[%q]", c.from)) && !strings.Contains(got, `xff=["`+c.from) {
			t.Errorf("%s: no X-Forwarded-For %s in %q", what, c.from, got)
		}
	}
	for what, header := range map[string]string{
		"no header": "", "no address": "PROXY TCP4 here 192.0.2.1 1 80\r\n", "too long": "PROXY TCP4 " +
			strings.Repeat("1", 300) + "\r\n", "no end": "PROXY TCP4 1.1.1.1 1.1.1.1 1 2",
		"v2, cut": v2(t, "198.51.100.8:4000")[:20], "version 3": "\r\n\r\n\x00\r\nQUIT\n\x31\x11\x00\x0c" +
			strings.Repeat("x", 12),
	} {
		if got := rawRequest(t, l.http, header+request); strings.Contains(got, "web GET") {
			t.Errorf("%s: answered with %q", what, got)
		}
	}
	// The others are served.
	if got := rawRequest(t, l.http, "PROXY TCP4 198.51.100.7 192.0.2.1 4000 80\r\n"+request); !strings.Contains(got,
		"200 OK") {
		t.Errorf("after bad headers: %q", got)
	}
}

// A client outside of the trusted ranges cannot claim an address.
func TestProxyHeaderOfUntrustedClients(t *testing.T) {
	l := newLab(t)
	l.cfg.Proxies = []netip.Prefix{netip.MustParsePrefix("203.0.113.0/24")}
	l.service("web", "", at(echo(t, "web").URL, "p1"))
	l.ingress("web.example", nil, "/=web")
	l.update()
	const request = "GET / HTTP/1.1\r\nHost: web.example\r\nConnection: close\r\n\r\n"
	for _, header := range []string{"PROXY TCP4 198.51.100.7 192.0.2.1 4000 80\r\n", v2(t, "198.51.100.7:4000")} {
		if got := rawRequest(t, l.http, header+request); !strings.HasPrefix(got, "HTTP/1.1 400") {
			t.Errorf("a stranger's header: %q", got)
		}
	}
	if got := rawRequest(t, l.http, request); !strings.Contains(got, `xff=["127.`) {
		t.Errorf("without a header: %q", got)
	}
}
