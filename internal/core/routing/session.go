package routing

import (
	"fmt"
	"strings"
)

// sessionHeader is the header of session affinity without a configured one, as llm-d's.
const sessionHeader = "x-session-token"

// SessionHeader is the header that carries Endpoint.Session, encoded as base64, in responses and in the next request of
// the client; empty: there is no session affinity.
func (c *Config) SessionHeader() string { return c.session }

// affinity reads the parameters of session affinity.
func (p *plugin) affinity(into func(any) error) error {
	c := struct {
		Algorithm  string `json:"algorithm"`
		HeaderName string `json:"headerName"`
	}{"encoded_endpoint_header", sessionHeader}
	if err := into(&c); err != nil {
		return err
	}
	if c.HeaderName == "" {
		c.HeaderName = sessionHeader
	}
	switch {
	case c.Algorithm != "encoded_endpoint_header":
		return fmt.Errorf("algorithm is %q; only encoded_endpoint_header is supported", c.Algorithm)
	case strings.ContainsFunc(c.HeaderName, func(r rune) bool {
		return r != '-' && r != '_' && (r < '0' || r > '9') && (r|0x20 < 'a' || r|0x20 > 'z')
	}) || len(c.HeaderName) > 128:
		return fmt.Errorf("headerName is %q, which is not the name of a header", c.HeaderName)
	}
	p.session = c.HeaderName
	return nil
}

type sessionScorer struct{}

func (sessionScorer) score(v *view, out []float64) {
	clear(out)
	served, ok := v.session()
	if !ok {
		return
	}
	for i, slot := range v.at {
		if slot == served {
			out[i] = 1
		}
	}
}

// session returns the endpoint of the request's session.
func (v *view) session() (slot int32, ok bool) {
	if v.r.Session != "" {
		slot, ok = v.p.session[v.r.Session]
	}
	return slot, ok
}

// sessionFilter keeps the endpoint of the session. If it is not a candidate, all stay.
type sessionFilter struct{}

func (sessionFilter) keep(v *view) {
	served, ok := v.session()
	if !ok {
		return
	}
	same := func(slot int32) bool { return slot == served }
	if v.anyFits(same) {
		v.keepIf(same)
	}
}
