package proxy

import (
	"net/http"
	"net/url"
	"strings"
)

// Fields has the headers and query parameters of a request, for matches.
type Fields struct {
	Request *http.Request
	query   url.Values
}

// Header implements httproute.Fields.
func (f *Fields) Header(name string) (string, bool) {
	if name == "Host" {
		return f.Request.Host, true
	}
	switch v := f.Request.Header[name]; len(v) {
	case 0:
		return "", false
	case 1:
		return v[0], true
	default:
		return strings.Join(v, ","), true
	}
}

// Query implements httproute.Fields.
func (f *Fields) Query(name string) (string, bool) {
	if f.query == nil {
		f.query = f.Request.URL.Query()
	}
	if v := f.query[name]; len(v) > 0 {
		return v[0], true
	}
	return "", false
}
