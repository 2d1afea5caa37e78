package http1

import (
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"

	"golang.org/x/net/http/httpguts"
)

// notSent are header fields that the client itself derives from the request, in any case.
func notSent(name string) bool {
	switch len(name) {
	case len("Host"):
		return strings.EqualFold(name, "Host")
	case len("Trailer"):
		return strings.EqualFold(name, "Trailer")
	case len("Content-Length"):
		return strings.EqualFold(name, "Content-Length")
	case len("Transfer-Encoding"):
		return strings.EqualFold(name, "Transfer-Encoding")
	}
	return false
}

// appendHead appends a request line and a header as in RFC 9112. Each part is validated: none may contain its own
// delimiter.
func appendHead(b []byte, r *http.Request) ([]byte, error) {
	method := r.Method
	if method == "" {
		method = http.MethodGet
	}
	if !httpguts.ValidHeaderFieldName(method) { // also a token
		return nil, fmt.Errorf("the method %q is not valid", method)
	}
	uri := r.URL.RequestURI()
	if strings.IndexFunc(uri, func(c rune) bool { return c <= ' ' || c == 0x7f }) >= 0 {
		return nil, errors.New("the target of the request has a space or a control character")
	}
	host := r.Host
	if host == "" {
		host = r.URL.Host
	}
	host, err := httpguts.PunycodeHostPort(host)
	if err != nil || !httpguts.ValidHostHeader(host) {
		return nil, fmt.Errorf("the host %q is not valid", r.Host)
	}
	b = append(b, method...)
	b = append(b, ' ')
	b = append(b, uri...)
	b = append(b, " HTTP/1.1\r\nHost: "...)
	b = append(b, host...)
	b = append(b, "\r\n"...)
	for name, values := range r.Header { // any order
		if notSent(name) {
			continue
		}
		if !httpguts.ValidHeaderFieldName(name) {
			return nil, fmt.Errorf("the name %q of a header field is not valid", name)
		}
		for _, v := range values {
			if !httpguts.ValidHeaderFieldValue(v) {
				return nil, fmt.Errorf("the value of the header field %q is not valid", name)
			}
			if v == "" && name == "User-Agent" {
				continue // net/http's value for "none"
			}
			b = append(b, name...)
			b = append(b, ": "...)
			b = append(b, v...)
			b = append(b, "\r\n"...)
		}
	}
	switch {
	case r.Body != nil && r.Body != http.NoBody:
		b = append(b, "Content-Length: "...)
		b = strconv.AppendInt(b, r.ContentLength, 10)
		b = append(b, "\r\n"...)
	case method == http.MethodPost || method == http.MethodPut || method == http.MethodPatch:
		b = append(b, "Content-Length: 0\r\n"...)
	}
	return append(b, "\r\n"...), nil
}
