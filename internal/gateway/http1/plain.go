package http1

import (
	"bufio"
	"bytes"
	"io"
	"net/http"
	"net/textproto"
	"strconv"
	"strings"

	"golang.org/x/net/http/httpguts"
)

// mostFields is how many header fields a response may have that this package reads.
const mostFields = 100

// readPlain reads the head of a final response of known length, if all of the head has arrived and it is of the plain
// form that any two parsers understand in the same way. Otherwise it returns nil, and has read nothing: net/http reads
// the response.
func readPlain(b *bufio.Reader, r *http.Request) *http.Response {
	have, _ := b.Peek(b.Buffered())
	end := bytes.Index(have, []byte("\r\n\r\n"))
	if end < 0 || r.Method == http.MethodHead {
		return nil
	}
	res := parsePlain(string(have[:end]))
	if res == nil {
		return nil
	}
	_, _ = b.Discard(end + len("\r\n\r\n"))
	res.Request = r
	return res
}

// parsePlain parses a head without the empty line at its end.
func parsePlain(head string) *http.Response {
	line, rest, _ := strings.Cut(head, "\r\n")
	status, found := strings.CutPrefix(line, "HTTP/1.1 ")
	if !found || len(status) < 3 || len(status) > 3 && status[3] != ' ' || strings.ContainsAny(status, "\r\n") {
		return nil
	}
	code := 0
	for _, c := range []byte(status[:3]) {
		if c < '0' || c > '9' {
			return nil
		}
		code = code*10 + int(c-'0')
	}
	if code < http.StatusOK || code == http.StatusNoContent || code == http.StatusNotModified {
		return nil
	}
	n := strings.Count(rest, "\r\n") + 1
	if n > mostFields {
		return nil
	}
	res := &http.Response{Status: status, StatusCode: code, Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
		ContentLength: -1, Header: make(http.Header, n+1)} // one more: the server gives a type to each
	values := make([]string, 0, n)
	for rest != "" {
		line, rest, _ = strings.Cut(rest, "\r\n")
		name, value, found := strings.Cut(line, ":")
		value = strings.Trim(value, " \t")
		if !found || !httpguts.ValidHeaderFieldName(name) || !httpguts.ValidHeaderFieldValue(value) {
			return nil
		}
		key := textproto.CanonicalMIMEHeaderKey(name)
		switch key {
		case "Content-Length":
			if res.ContentLength >= 0 || len(value) == 0 || len(value) > 18 || strings.Trim(value, "0123456789") != "" {
				return nil
			}
			res.ContentLength, _ = strconv.ParseInt(value, 10, 64) // at most 18 digits
		case "Transfer-Encoding", "Trailer", "Connection", "Pragma", "Upgrade":
			return nil
		}
		if before := res.Header[key]; before != nil {
			res.Header[key] = append(before, value)
			continue
		}
		values = append(values, value)
		res.Header[key] = values[len(values)-1 : len(values) : len(values)]
	}
	if res.ContentLength < 0 {
		return nil
	}
	return res
}

// known is a body of known length.
type known struct {
	b    *bufio.Reader
	left int64
}

// Read implements io.Reader. The end comes with the last bytes.
func (k *known) Read(p []byte) (int, error) {
	if k.left == 0 {
		return 0, io.EOF
	}
	n, err := k.b.Read(p[:min(int64(len(p)), k.left)])
	switch k.left -= int64(n); {
	case k.left == 0:
		return n, io.EOF
	case err == io.EOF:
		err = io.ErrUnexpectedEOF
	}
	return n, err
}
