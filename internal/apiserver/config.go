package apiserver

import (
	"context"
	"crypto/tls"
	"net"
	"net/netip"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"carob/internal/apiserver/audit"
	"carob/internal/base/pki"
	"carob/internal/base/tracing"
)

// Config is what the API server needs to run. All fields without "optional"
// must be set.
type Config struct {
	// DataDir is carob's data directory; embedded etcd uses its etcd subdirectory (created with
	// mode 0700 if it is missing).
	DataDir string
	// Listener serves the API with TLS. The server owns and closes it.
	Listener net.Listener
	// AdvertiseAddress is the endpoint of the kubernetes Service in the default namespace; the zero
	// value means the listener's address.
	AdvertiseAddress netip.Addr
	// EtcdServers, if not empty, are the client URLs of an etcd cluster to use instead of the
	// embedded one; EtcdTLS (optional) is for https URLs.
	EtcdServers []string
	EtcdTLS     *tls.Config
	// UnsafeNoFsync lets embedded etcd skip syncing to disk (tests, temporary clusters).
	UnsafeNoFsync bool
	// ServiceCIDRs are the ranges of service addresses: one, or one of each family, the default
	// family first; 10.96.0.0/16 if empty.
	ServiceCIDRs []netip.Prefix
	// NodePorts are the lowest and highest port of services; 30000-32767 if zero.
	NodePorts [2]int
	// PKI has the certificate authority and its keys.
	PKI *pki.PKI
	// Audit configures which requests are recorded; optional.
	Audit audit.Config
	// EncryptionConfig is a file with an EncryptionConfiguration; optional.
	EncryptionConfig string
	// AuthenticationConfig is a file with an AuthenticationConfiguration; optional.
	AuthenticationConfig string
	// Traces exports spans of requests; nil: there are none.
	Traces tracing.Provider
	// AdmissionConfig is a file with an AdmissionConfiguration; optional.
	AdmissionConfig string
	// StoredOnly are kinds whose objects are stored without any effect; creating one over the network
	// returns a warning. Optional.
	StoredOnly map[schema.GroupResource]string
	// Measure is called before metrics are read, so that other parts bring theirs up to date; optional.
	Measure func()
	// DefinitionChanged, optional, is called for each custom resource definition that is served,
	// with its labels, and for each that is gone, with nil. It must not wait.
	DefinitionChanged func(name string, labels map[string]string)
	// Profiling serves /debug/pprof, and empties the metrics on DELETE.
	Profiling bool
	// NodeDialer connects to a node's agent (host:port in addr, from its Node object) for log,
	// exec, attach, port-forward, and proxy; net.Dialer if nil.
	NodeDialer func(ctx context.Context, nodeName, addr string) (net.Conn, error)
}
