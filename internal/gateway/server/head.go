package server

import (
	"bytes"
	"context"
	"net/http"
	"net/textproto"
	"net/url"
	"strconv"
	"strings"

	"golang.org/x/net/http/httpguts"
)

// mostFields is how many header fields a request may have that this package serves.
const mostFields = 100

// served are the methods of requests that this package serves.
func served(method string) bool {
	switch method {
	case http.MethodGet, http.MethodHead, http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete,
		http.MethodOptions:
		return true
	}
	return false
}

// blank has what all requests have that this package serves.
var blank = &http.Request{Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1, Body: http.NoBody}

// parse reads a request line and a header, with the empty line at the end. ok is false for a request that net/http
// must serve: one that is not valid, or that uses anything but the plain form of HTTP/1.1. Two parsers can interpret
// only such requests differently.
func parse(ctx context.Context, head []byte) (r *http.Request, ok bool) {
	text := string(head[:len(head)-len("\r\n\r\n")])
	line, rest, _ := strings.Cut(text, "\r\n")
	method, target, found := strings.Cut(line, " ")
	target, version, more := strings.Cut(target, " ")
	if !found || !more || version != "HTTP/1.1" || !served(method) || !plainTarget(target) {
		return nil, false
	}
	to, err := url.ParseRequestURI(target)
	if err != nil {
		return nil, false
	}
	r = blank.WithContext(ctx) // a copy
	r.Method, r.URL, r.RequestURI = method, to, target
	n := strings.Count(rest, "\r\n") + 1
	if n > mostFields {
		return nil, false
	}
	r.Header = make(http.Header, n)
	values := make([]string, 0, n)
	for rest != "" {
		line, rest, _ = strings.Cut(rest, "\r\n")
		name, value, found := strings.Cut(line, ":")
		value = strings.Trim(value, " \t") // TrimString also removes line breaks
		if !found || !httpguts.ValidHeaderFieldName(name) || !httpguts.ValidHeaderFieldValue(value) {
			return nil, false
		}
		key := textproto.CanonicalMIMEHeaderKey(name)
		if !field(r, key, value) {
			return nil, false
		}
		if key == "Host" {
			continue
		}
		if have := r.Header[key]; have != nil {
			r.Header[key] = append(have, value)
			continue
		}
		values = append(values, value)
		r.Header[key] = values[len(values)-1 : len(values) : len(values)]
	}
	return r, r.Host != ""
}

// plainTarget reports whether a target is a path, and perhaps a query.
func plainTarget(target string) bool {
	if target == "" || target[0] != '/' {
		return false
	}
	for _, c := range []byte(target) {
		if c <= ' ' || c >= 0x7f {
			return false
		}
	}
	return true
}

// field takes one header field, and reports whether this package serves requests with it.
func field(r *http.Request, key, value string) bool {
	switch key {
	case "Host":
		if r.Host != "" || value == "" || !httpguts.ValidHostHeader(value) {
			return false
		}
		r.Host = value
	case "Content-Length":
		if r.Header[key] != nil || len(value) == 0 || len(value) > 18 || strings.Trim(value, "0123456789") != "" {
			return false
		}
		n, err := strconv.ParseInt(value, 10, 64)
		if err != nil {
			return false
		}
		r.ContentLength = n
	case "Connection":
		if strings.EqualFold(value, "close") {
			r.Close = true
			return true
		}
		return strings.EqualFold(value, "keep-alive")
	case "Transfer-Encoding", "Upgrade", "Expect", "Trailer", "Pragma", "Http2-Settings":
		return false
	}
	return true
}

// isRequest reports whether bytes may be the beginning of a request of HTTP/1.0, or a later version. net/http waits for
// more than one line of HTTP/0.9 has.
func isRequest(b []byte) bool {
	line, _, whole := bytes.Cut(b, []byte("\n"))
	return (len(b) == 0 || b[0] == '\r' || httpguts.IsTokenRune(rune(b[0]))) &&
		(!whole || bytes.Contains(line, []byte(" HTTP/")))
}

// odd reports whether the beginning of a head is that of a request which this package does not serve: the end that
// headEnd finds may never come. Its lines end with LF alone, its first one names another version, or none. from is how
// much of it was searched before.
func odd(b []byte, from int) bool {
	if from == 0 && !isRequest(b) {
		return true
	}
	first := bytes.IndexByte(b, '\n')
	if first >= from && !bytes.HasSuffix(b[:first], []byte(" HTTP/1.1\r")) {
		return true
	}
	for first >= 0 && from < len(b) {
		i := bytes.IndexByte(b[from:], '\n')
		if i < 0 {
			return false
		}
		from += i + 1
		if from < 2 || b[from-2] != '\r' {
			return true
		}
	}
	return false
}

// headEnd returns the length of a head, with the empty line at its end; 0: it is not complete. from is how much of it
// was searched before.
func headEnd(b []byte, from int) int {
	from = max(from-3, 0)
	i := bytes.Index(b[from:], []byte("\r\n\r\n"))
	if i < 0 {
		return 0
	}
	return from + i + 4
}
