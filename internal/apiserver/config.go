package apiserver

import (
	"context"
	"crypto/tls"
	"net"
	"net/netip"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"carob/internal/apiserver/audit"
	"carob/internal/base/pki"
)

// Config is what the API server needs to run. All fields without "optional"
// must be set.
type Config struct {
	// DataDir is the product's data directory; embedded etcd lives in its etcd
	// subdirectory (made with mode 0700 when missing).
	DataDir string
	// Listener is where the API is served by TLS. The server owns and closes it.
	Listener net.Listener
	// AdvertiseAddress is the address that the kubernetes Service in the default
	// namespace points to; the listener's when the zero value.
	AdvertiseAddress netip.Addr
	// EtcdServers, when not empty, are the client URLs of an etcd cluster to use
	// instead of the embedded one; EtcdTLS (optional) is for https ones.
	EtcdServers []string
	EtcdTLS     *tls.Config
	// UnsafeNoFsync lets embedded etcd skip syncing to disk (tests, throw-away clusters).
	UnsafeNoFsync bool
	// ServiceCIDRs are the ranges of service addresses: one, or one of each family, the
	// default family first; 10.96.0.0/16 when empty.
	ServiceCIDRs []netip.Prefix
	// NodePorts are the lowest and highest port given to services; 30000-32767 when zero.
	NodePorts [2]int
	// PKI holds the certificate authority and the keys made from it.
	PKI *pki.PKI
	// Audit says what is recorded of requests; optional.
	Audit audit.Config
	// EncryptionConfig is a file with an EncryptionConfiguration; optional.
	EncryptionConfig string
	// AuthenticationConfig is a file with an AuthenticationConfiguration; optional.
	AuthenticationConfig string
	// AdmissionConfig is a file with an AdmissionConfiguration; optional.
	AdmissionConfig string
	// Undriven are kinds whose objects are stored and nothing happens, with a warning
	// for who makes one over the network; optional.
	Undriven map[schema.GroupResource]string
	// Measure is called before metrics are read, so that other parts bring theirs up to date; optional.
	Measure func()
	// Profiling serves /debug/pprof, and empties the metrics on DELETE.
	Profiling bool
	// NodeDialer reaches a node's agent (host:port in addr, as its Node object
	// says) for log, exec, attach, port-forward and proxy; net.Dialer when nil.
	NodeDialer func(ctx context.Context, nodeName, addr string) (net.Conn, error)
}
