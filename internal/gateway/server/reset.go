package server

import (
	"crypto/tls"
	"net"
)

// Reset resets the TCP connection below a client's: not even TLS says that it has ended as it should.
func Reset(client net.Conn) {
	for client != nil {
		switch c := client.(type) {
		case *tls.Conn:
			client = c.NetConn()
		case interface{ Unwrap() net.Conn }:
			client = c.Unwrap()
		case *net.TCPConn:
			_ = c.SetLinger(0)
			_ = c.Close()
			return
		default:
			return
		}
	}
}
