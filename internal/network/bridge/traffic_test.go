package bridge

import (
	"io"
	"net"
	"testing"

	"carob/internal/base/netns"
	"carob/internal/network"
)

// BenchmarkTraffic measures what the rules cost: bytes of one TCP connection, and requests and
// answers of one byte.
func BenchmarkTraffic(b *testing.B) {
	n := open(b, testConfig(b))
	attach := func(name string) network.Attachment {
		at, err := n.Attach(b.Context(), network.Pod{UID: name, SandboxID: name})
		if err != nil {
			b.Fatal(err)
		}
		return at
	}
	client, server := attach("client"), attach("server")
	for name, way := range map[string]struct{ from, to, addr string }{
		"pod→pod":  {client.NetNS, server.NetNS, server.IPs[0].String()},
		"host→pod": {"/proc/thread-self/ns/net", server.NetNS, server.IPs[0].String()},
		"pod→host": {client.NetNS, "/proc/thread-self/ns/net", n.v4.gateway().String()},
	} {
		connect := func(b *testing.B, serve func(net.Conn)) net.Conn {
			var l net.Listener
			if err := netns.Do(way.to,
				func() (err error) {
					l, err = net.Listen("tcp", net.JoinHostPort(way.addr, "0"))
					return err
				}); err != nil {
				b.Fatal(err)
			}
			b.Cleanup(func() { _ = l.Close() })
			accepted := make(chan struct{})
			defer func() { <-accepted }()
			go func() {
				c, err := l.Accept()
				close(accepted)
				if err == nil {
					serve(c)
					_ = c.Close()
				}
			}()
			var c net.Conn
			if err := netns.Do(way.from,
				func() (err error) { c, err = net.Dial("tcp", l.Addr().String()); return err }); err != nil {
				b.Fatal(err)
			}
			b.Cleanup(func() { _ = c.Close() })
			return c
		}
		b.Run(name+"/bytes", func(b *testing.B) {
			c := connect(b, func(c net.Conn) {
				buf := make([]byte, 1<<17)
				for {
					if _, err := c.Read(buf); err != nil {
						return
					}
				}
			})
			chunk := make([]byte, 1<<17)
			b.SetBytes(int64(len(chunk)))
			for b.Loop() {
				if _, err := c.Write(chunk); err != nil {
					b.Fatal(err)
				}
			}
		})
		b.Run(name+"/requests", func(b *testing.B) {
			c := connect(b, func(c net.Conn) { _, _ = io.Copy(c, c) })
			buf := make([]byte, 1)
			for b.Loop() {
				if _, err := c.Write(buf); err != nil {
					b.Fatal(err)
				}
				if _, err := io.ReadFull(c, buf); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
