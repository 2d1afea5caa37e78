// Package proxyheader reads the PROXY headers (versions 1 and 2) with which connections of load balancers begin.
package proxyheader

import (
	"net"
	"net/netip"
	"slices"
	"time"

	"github.com/pires/go-proxyproto"
)

// proxied is a connection of a load balancer, which begins with a PROXY header that has the client's address.
type proxied struct {
	*proxyproto.Conn
	raw net.Conn
}

// CloseWrite ends one direction.
func (p *proxied) CloseWrite() error {
	if w, ok := p.raw.(interface{ CloseWrite() error }); ok {
		return w.CloseWrite()
	}
	return p.raw.Close()
}

// Raw is the connection that was given to Conn.
func (p *proxied) Raw() net.Conn { return p.raw }

// Unwrap is the same, for server.Reset.
func (p *proxied) Unwrap() net.Conn { return p.raw }

// RemoteAddr is the address of the client. A header with another one than that of a TCP connection, such as the path of
// a socket, which may be any bytes, counts as one without an address: the load balancer is the client.
func (p *proxied) RemoteAddr() net.Addr {
	if tcp, ok := p.Conn.RemoteAddr().(*net.TCPAddr); ok {
		return tcp
	}
	return p.raw.RemoteAddr()
}

// Conn returns a connection whose PROXY header is read, with its first bytes, if a load balancer has made it; it then
// ends without a header, or if the header takes longer than patience. From other clients, a header is not accepted,
// because any client could claim any address with it.
func Conn(c net.Conn, loadBalancers []netip.Prefix, patience time.Duration) net.Conn {
	if len(loadBalancers) == 0 {
		return c
	}
	tcp, ok := c.RemoteAddr().(*net.TCPAddr)
	if !ok {
		return c
	}
	peer := tcp.AddrPort().Addr().Unmap().WithZone("")
	if !slices.ContainsFunc(loadBalancers, func(p netip.Prefix) bool { return p.Contains(peer) }) {
		return c
	}
	return &proxied{proxyproto.NewConn(c, proxyproto.WithPolicy(proxyproto.REQUIRE),
		proxyproto.SetReadHeaderTimeout(patience)), c}
}
