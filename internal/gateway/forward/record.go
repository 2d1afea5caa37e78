package forward

import (
	"sync/atomic"
	"time"

	"carob/internal/core/httproute"
)

// Counter is a counter of Prometheus.
type Counter interface{ Add(n float64) }

// Record follows a connection that is passed on, or a session of UDP, to its end.
type Record struct {
	Protocol string // TLS, TCP, UDP
	Client   string
	Host     string // server name (SNI) that a TLS client requests
	Source   *httproute.Source
	Rule     string
	Backend  httproute.Ref
	Endpoint string // the last one that was tried
	Attempts int
	Began    time.Time

	// BytesIn and BytesOut count those from the client and to it, Connections what endpoints have got, Retries attempts
	// at further endpoints.
	BytesIn, BytesOut, Connections, Retries Counter
	// Log gets the line of the access log; nil: there is none.
	Log func(*Line)

	in, out atomic.Int64
	why     atomic.Pointer[string]
}

// Tried records an attempt at an endpoint.
func (r *Record) Tried(b *httproute.Backend, endpoint string) {
	r.Backend, r.Endpoint = b.Ref, endpoint
	if r.Attempts++; r.Attempts > 1 {
		r.Retries.Add(1)
	}
}

// moved counts bytes from the client and to it.
func (r *Record) moved(in, out int64) {
	if in > 0 {
		r.in.Add(in)
		r.BytesIn.Add(float64(in))
	}
	if out > 0 {
		r.out.Add(out)
		r.BytesOut.Add(float64(out))
	}
}

// Problem records why the gateway refuses or ends it; the first reason counts.
func (r *Record) Problem(why string) {
	if why != "" {
		r.why.CompareAndSwap(nil, &why)
	}
}

// Line is a line of the access log.
type Line struct {
	Time     string  `json:"time"` // when it began
	Client   string  `json:"client"`
	Protocol string  `json:"protocol"`
	Host     string  `json:"host,omitempty"`
	BytesIn  int64   `json:"bytesIn"`
	BytesOut int64   `json:"bytesOut"`
	Seconds  float64 `json:"seconds"`
	Route    string  `json:"route"` // KIND/NAMESPACE/NAME
	Rule     string  `json:"rule,omitempty"`
	Backend  string  `json:"backend,omitempty"` // NAMESPACE/NAME:PORT
	Endpoint string  `json:"endpoint,omitempty"`
	Attempts int     `json:"attempts,omitempty"`
	Problem  string  `json:"problem,omitempty"`
}

// End writes the line, without its time. It must be called once.
func (r *Record) End() {
	if r.Log == nil {
		return
	}
	line := Line{Client: r.Client, Protocol: r.Protocol, Host: r.Host, BytesIn: r.in.Load(), BytesOut: r.out.Load(),
		Seconds: time.Since(r.Began).Seconds(), Rule: r.Rule, Endpoint: r.Endpoint, Attempts: r.Attempts,
		Route: r.Source.Kind + "/" + r.Source.Namespace + "/" + r.Source.Name}
	if r.Backend.Name != "" {
		line.Backend = r.Backend.String()
	}
	if why := r.why.Load(); why != nil {
		line.Problem = *why
	}
	r.Log(&line)
}
