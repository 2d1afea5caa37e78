package gateway

import (
	"encoding/binary"
	"io"
	"net"
	"net/netip"
	"path/filepath"
	"strings"
	"testing"
)

// header2 is a PROXY header of version 2: the command, the family, and what follows with the length that is said.
func header2(command, family byte, length int, rest string) string {
	b := append([]byte("\r\n\r\n\x00\r\nQUIT\n"), 0x20|command, family)
	return string(binary.BigEndian.AppendUint16(b, uint16(length))) + rest
}

// halfClosed sends bytes and the end to a port, and returns what comes back.
func halfClosed(t *testing.T, to string, sent string) string {
	t.Helper()
	c, err := net.Dial("tcp", to)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, err := io.WriteString(c, sent); err != nil {
		return ""
	}
	if tcp, ok := c.(*net.TCPConn); ok {
		_ = tcp.CloseWrite() // it may be reset already
	}
	out, _ := io.ReadAll(c) // a reset is an answer, too
	return string(out)
}

// Headers of version 2 with further fields, without addresses, of sockets without a port, and with lengths that are not
// true: a connection is served with the address of its header or of its peer, or closed, and the log has one line for
// each request.
func TestProxyProtocolVersion2(t *testing.T) {
	l := newLab(t)
	l.cfg.Proxies = []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}
	path := filepath.Join(t.TempDir(), "access.log")
	logsTo(t, l, path)
	l.service("web", "", at(echo(t, "web").URL, "p1"))
	l.ingress("web.example", nil, "/=web")
	l.update()
	const request = "GET / HTTP/1.1\r\nHost: web.example\r\nX-Forwarded-For: 6.6.6.6\r\nConnection: close\r\n\r\n"
	const four = "\xc6\x33\x64\x07\xc0\x00\x02\x01\x0f\xa0\x00\x50" // 198.51.100.7:4000 to 192.0.2.1:80
	tlv := func(kind byte, value string) string {
		return string(binary.BigEndian.AppendUint16([]byte{kind}, uint16(len(value)))) + value
	}
	alpn, id := tlv(1, "h2"), tlv(5, "an\r\nid")
	unix := "/tmp/\r\n{\"evil\":1}" + strings.Repeat("\x00", 216)
	served := 0
	for what, c := range map[string]struct{ header, from string }{
		"fields":                 {header2(1, 0x11, 12+len(alpn)+len(id), four+alpn+id), "198.51.100.7"},
		"an empty field":         {header2(1, 0x11, 12+3, four+tlv(0xee, "")), "198.51.100.7"},
		"a field of 4,000 bytes": {header2(1, 0x11, 12+4003, four+tlv(0xee, strings.Repeat("x", 4000))), "198.51.100.7"},
		"local":                  {header2(0, 0, 0, ""), "127."},
		"local, with an address": {header2(0, 0x11, 12, four), "127."},
		"local, with fields":     {header2(0, 0, len(id), id), "127."},
	} {
		got := rawRequest(t, l.http, c.header+request)
		if !strings.Contains(got, `xff=["`+c.from) || strings.Contains(got, "6.6.6.6") {
			t.Errorf("%s: no X-Forwarded-For %s in %.300q", what, c.from, got)
		}
		served++
	}
	for what, header := range map[string]string{ // the client ends its side: nothing more comes
		"a proxy without addresses":   header2(1, 0, 0, ""),
		"a field of 60 KB":            header2(1, 0x11, 12+60003, four+tlv(0xee, strings.Repeat("x", 60000))),
		"too short for its addresses": header2(1, 0x11, 4, four[:4]),
		"longer than what is sent":    header2(1, 0x11, 0xffff, four),
		"shorter than what is sent":   header2(1, 0x11, 11, four),
		"a command that is not known": header2(7, 0x11, 12, four),
		"a family that is not known":  header2(1, 0x71, 12, four),
		"version 1 in version 2":      "PROXY TCP4 198.51.100.7 192.0.2.1 4000 80\r\n"[:13] + header2(1, 0x11, 12, four),
		"cut in its fields":           header2(1, 0x11, 200, four+alpn),
		"an IPv4 address for IPv6":    header2(1, 0x21, 12, four),
	} {
		if got := halfClosed(t, l.http, header+request); strings.Contains(got, "web GET") {
			t.Errorf("%s: answered with %.300q", what, got)
		}
	}
	// The path of a socket is no address of a client.
	if got := rawRequest(t, l.http, header2(1, 0x31, 216, unix[:216])+request); strings.Contains(got, "evil") ||
		strings.Contains(got, "6.6.6.6") {
		t.Errorf("a socket of Unix: %.300q", got)
	} else if !strings.Contains(got, `xff=["127.`) {
		t.Errorf("a socket of Unix: %.300q", got)
	}
	served++
	for _, line := range logLines(t, path, served) {
		if _, err := netip.ParseAddrPort(line.Client); err != nil {
			t.Errorf("the client of a line: %v", err)
		}
	}
}
