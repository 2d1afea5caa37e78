package gateway

import (
	"net"
	"net/netip"
	"slices"

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

// behind reads the PROXY header of connections of load balancers, and closes those without one. From other clients, a
// header is not accepted, because any client could claim any address with it.
func behind(proxies []netip.Prefix, c net.Conn) net.Conn {
	if len(proxies) == 0 {
		return c
	}
	tcp, ok := c.RemoteAddr().(*net.TCPAddr)
	if !ok {
		return c
	}
	peer := tcp.AddrPort().Addr().Unmap().WithZone("")
	if !slices.ContainsFunc(proxies, func(p netip.Prefix) bool { return p.Contains(peer) }) {
		return c
	}
	return &proxied{proxyproto.NewConn(c, proxyproto.WithPolicy(proxyproto.REQUIRE),
		proxyproto.SetReadHeaderTimeout(headerTime)), c}
}
