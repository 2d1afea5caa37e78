package proxyheader

import (
	"bufio"
	"io"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

var everybody = []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}

// tcp is a pipe that says that it is a connection of TCP.
type tcp struct{ net.Conn }

func (tcp) RemoteAddr() net.Addr { return &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 1} }

func pipe() (client, server net.Conn) {
	client, server = net.Pipe()
	return client, tcp{server}
}

// A header that does not end, or never begins, ends the connection. One of version 1 must come at once.
func TestHeaderThatNeverEnds(t *testing.T) {
	for _, begin := range []string{"", "PROXY TCP4 198.51.100.7", "\r\n\r\n\x00\r\nQUIT\n\x21\x11\x00\xff\x01"} {
		synctest.Test(t, func(t *testing.T) {
			client, server := pipe()
			c := Conn(server, everybody, time.Minute)
			go func() { _, _ = io.WriteString(client, begin) }() // it arrives, or the other end is closed
			began := time.Now()
			n, err := c.Read(make([]byte, 10))
			if took := time.Since(began); err == nil || n > 0 || took > time.Minute {
				t.Errorf("%q: %d bytes, %v after %v", begin, n, err, took)
			}
			_, _ = client.Close(), c.Close()
		})
	}
}

// The path of a socket is no client's address.
func TestAddressOfASocket(t *testing.T) {
	client, server := pipe()
	defer client.Close()
	c := Conn(server, everybody, time.Minute)
	defer c.Close()
	go func() {
		_, _ = io.WriteString(client, "\r\n\r\n\x00\r\nQUIT\n\x21\x31\x00\xd8/tmp/\r\n\xff"+
			strings.Repeat("\x00", 208)+"x")
	}()
	if _, err := c.Read(make([]byte, 1)); err != nil || c.RemoteAddr().String() != "127.0.0.1:1" {
		t.Errorf("the client is %v (%v)", c.RemoteAddr(), err)
	}
}

// FuzzProxyHeader: whatever a load balancer sends, the connection is served or closed, and what is served has the
// address of the header.
func FuzzProxyHeader(f *testing.F) {
	f.Add([]byte("PROXY TCP4 198.51.100.7 192.0.2.1 4000 80\r\n"))
	f.Add([]byte("PROXY UNKNOWN\r\n"))
	f.Add([]byte("\r\n\r\n\x00\r\nQUIT\n\x21\x11\x00\x0c\x01\x02\x03\x04\x05\x06\x07\x08\x00\x50\x00\x50"))
	f.Add([]byte("\r\n\r\n\x00\r\nQUIT\n\x20\x00\xff\xff"))
	f.Add([]byte("\r\n\r\n\x00\r\nQUIT\n\x21\x31\x00\xd8/tmp/" + strings.Repeat("\x00", 211)))
	f.Fuzz(func(t *testing.T, header []byte) {
		const rest = "GET / HTTP/1.1\r\nHost: a\r\n\r\n"
		client, server := pipe()
		go func() {
			_, _ = client.Write(append(header, rest...))
			_ = client.Close()
		}()
		c, ok := Conn(server, everybody, 0).(*proxied)
		if !ok {
			t.Fatal("no header is expected")
		}
		defer c.Close()
		r, err := http.ReadRequest(bufio.NewReader(c))
		if err != nil {
			return
		}
		if h := c.ProxyHeader(); h == nil {
			t.Fatalf("%q was served without a header", header)
		}
		if _, tcp := c.RemoteAddr().(*net.TCPAddr); !tcp {
			t.Fatalf("%q has the client %v", header, c.RemoteAddr())
		}
		if r.Host == "" && r.URL.Host == "" {
			t.Logf("no host in %q", header)
		}
	})
}
