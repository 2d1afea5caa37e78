package httproute

import "strconv"

// Ref refers to a port of a Service, or to an InferencePool.
type Ref struct {
	Namespace, Name string
	Port            int32
	UDP             bool // the port is one of UDP
	// Pool is the API group of an InferencePool, which has no port; empty: a Service.
	Pool string
}

// String returns namespace/name:port of a Service, with /UDP for one of UDP, or inferencepool.GROUP/namespace/name.
func (r Ref) String() string {
	if r.Pool != "" {
		return "inferencepool." + r.Pool + "/" + r.Namespace + "/" + r.Name
	}
	text := r.Namespace + "/" + r.Name + ":" + strconv.Itoa(int(r.Port))
	if r.UDP {
		text += "/UDP"
	}
	return text
}

// Protocol is the protocol of a backend.
type Protocol int

// The protocols. The zero value is HTTP/1.1.
const (
	HTTP1 Protocol = iota
	H2C            // HTTP/2 without TLS: gRPC, and the application protocol kubernetes.io/h2c
)

// BackendTLS defines how a backend is verified. It is compared by value.
type BackendTLS struct {
	Insecure bool   // any certificate is accepted: the backend-protocol HTTPS of an Ingress
	Name     string // the server's name, for SNI and its certificate
	CA       string // PEM; empty: the well-known CAs of the host
	SANs     string // further names, one of which must be in the certificate, separated by NUL; "uri:" or "dns:" each
	Cert     string // PEM of the client's certificate and key
	H2       bool   // HTTP/2 only, for gRPC
}

// Backend is one of the backends of a rule, with its weight.
type Backend struct {
	Ref      Ref
	Weight   int32
	Protocol Protocol
	TLS      *BackendTLS // nil: none
	Filters  Filters
	// Invalid is why requests for this backend are answered with 500; empty when it is valid.
	Invalid string
}

// Choose returns the backend for a number in [0, TotalWeight), or nil.
func (r *Rule) Choose(n int64) *Backend {
	for i := range r.Backends {
		if n -= int64(r.Backends[i].Weight); n < 0 {
			return &r.Backends[i]
		}
	}
	return nil
}

// TotalWeight is the sum of the weights of a rule's backends.
func (r *Rule) TotalWeight() (sum int64) {
	for i := range r.Backends {
		sum += int64(r.Backends[i].Weight)
	}
	return sum
}
