package server

import (
	"fmt"
	"net"
	"net/http"
	"net/textproto"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/net/http/httpguts"
)

// outBytes is the size of the buffer for the head of a response, and the first bytes of its body.
const outBytes = 4 << 10

// pendingBytes of a body of unknown length are kept: if it ends there, its length is known, as with net/http.
const pendingBytes = 2 << 10

var outs = sync.Pool{New: func() any { return new(make([]byte, 0, outBytes)) }}

// response is the http.ResponseWriter of one request.
type response struct {
	c       *conn
	of      *request
	request *http.Request
	left    *body // of the request
	header  http.Header
	// patience is how long a part of the body, or of the response, may take; 0: the handler has not called Parts.
	patience time.Duration

	out     *[]byte // the head and what follows, not written yet; nil: there is no head
	pending []byte  // the beginning of a body of unknown length: the whole body, perhaps
	status  int     // 0: none yet
	typed   bool    // the type of the content needs not be found
	length  int64   // of the body, as the handler announced it; -1: unknown
	sent    int64   // bytes of the body
	begun   bool    // the head is complete
	chunked bool
	closing bool // the connection ends after the response
	broken  bool // the body is not as announced: the connection ends, so that the client notices
	failed  error
}

// Header implements http.ResponseWriter.
func (w *response) Header() http.Header {
	if w.header == nil {
		w.header = http.Header{}
	}
	return w.header
}

// Adopt takes a header that the handler does not use any more, unless this one has fields already.
func (w *response) Adopt(h http.Header) bool {
	if len(w.header) > 0 || w.status != 0 {
		return false
	}
	w.header = h
	return true
}

// noBody reports whether responses with this status have no body (RFC 9110, 6.4.1).
func noBody(status int) bool {
	return status < http.StatusOK || status == http.StatusNoContent || status == http.StatusNotModified
}

// WriteHeader implements http.ResponseWriter.
func (w *response) WriteHeader(status int) {
	switch {
	case w.status != 0:
		return
	case status < 100 || status > 999 || status == http.StatusSwitchingProtocols:
		panic(fmt.Sprintf("the status %d cannot be sent", status))
	case status < http.StatusOK:
		line := statusLine(nil, status)
		line = appendFields(line, w.header, func(name string) bool {
			return name == "Content-Length" || name == "Transfer-Encoding" || name == "Connection"
		})
		w.write(append(line, "\r\n"...), nil)
		return
	}
	w.status = status
	w.out, _ = outs.Get().(*[]byte)
	h := w.Header()
	w.length = -1
	if text := h.Get("Content-Length"); text != "" && !(noBody(status)) {
		n, err := strconv.ParseInt(text, 10, 64)
		if err != nil || n < 0 {
			h.Del("Content-Length")
		} else {
			w.length = n
		}
	}
	w.closing = w.request.Close || httpguts.HeaderValuesContainsToken(h["Connection"], "close") ||
		w.c.server.closing.Load() || w.left.unread()
	b := statusLine((*w.out)[:0], status)
	b = appendFields(b, h, func(name string) bool {
		switch name {
		case "Connection", "Transfer-Encoding":
			return true
		case "Content-Length":
			return w.length < 0
		case "Content-Type":
			return status == http.StatusNotModified
		}
		return false
	})
	if h["Date"] == nil {
		b = append(b, "Date: "...)
		b = time.Now().UTC().AppendFormat(b, http.TimeFormat)
		b = append(b, "\r\n"...)
	}
	if w.closing {
		b = append(b, "Connection: close\r\n"...)
	}
	_, has := h["Content-Type"]
	w.typed = has || h.Get("Content-Encoding") != "" || noBody(status)
	*w.out = b
}

func statusLine(b []byte, status int) []byte {
	b = append(b, "HTTP/1.1 "...)
	b = strconv.AppendInt(b, int64(status), 10)
	b = append(b, ' ')
	if text := http.StatusText(status); text != "" {
		b = append(b, text...)
	} else {
		b = append(b, "status code "...)
		b = strconv.AppendInt(b, int64(status), 10)
	}
	return append(b, "\r\n"...)
}

// appendFields appends the fields of a header. Names that are not valid are left out, as those of trailers are, and
// line breaks in values become spaces.
func appendFields(b []byte, h http.Header, without func(name string) bool) []byte {
	for name, values := range h {
		if without != nil && without(name) || !httpguts.ValidHeaderFieldName(name) {
			continue
		}
		for _, v := range values {
			if strings.ContainsAny(v, "\r\n") {
				v = strings.NewReplacer("\r", " ", "\n", " ").Replace(v)
			}
			b = append(b, name...)
			b = append(b, ": "...)
			b = append(b, textproto.TrimString(v)...)
			b = append(b, "\r\n"...)
		}
	}
	return b
}

// begin completes the head. all: the pending bytes are the whole body.
func (w *response) begin(first []byte, all bool) {
	if w.begun {
		return
	}
	w.begun = true
	b := *w.out
	if len(w.pending) > 0 {
		first = w.pending
	}
	if !w.typed && len(first) > 0 {
		b = append(b, "Content-Type: "...)
		b = append(b, http.DetectContentType(first)...)
		b = append(b, "\r\n"...)
	}
	head := w.request.Method == http.MethodHead
	switch {
	case noBody(w.status), w.length >= 0, head && len(w.pending) == 0:
	case all && w.header["Trailer"] == nil:
		b = append(b, "Content-Length: "...)
		b = strconv.AppendInt(b, int64(len(w.pending)), 10)
		b = append(b, "\r\n"...)
	case !head:
		w.chunked = true
		b = append(b, "Transfer-Encoding: chunked\r\n"...)
	}
	*w.out = append(b, "\r\n"...)
	if len(w.pending) > 0 {
		w.part(w.pending)
		w.pending = nil
	}
}

// Write implements http.ResponseWriter.
func (w *response) Write(p []byte) (int, error) {
	if w.status == 0 {
		w.WriteHeader(http.StatusOK)
	}
	switch {
	case w.failed != nil:
		return 0, w.failed
	case len(p) == 0:
		return 0, nil
	case noBody(w.status):
		return 0, http.ErrBodyNotAllowed
	case w.length >= 0 && w.sent+int64(len(p)) > w.length:
		w.broken = true
		return 0, http.ErrContentLength
	}
	w.sent += int64(len(p))
	if !w.begun && w.length < 0 && len(w.pending)+len(p) <= pendingBytes {
		w.pending = append(w.pending, p...)
		return len(p), nil
	}
	w.begin(p, false)
	w.part(p)
	if w.failed != nil {
		return 0, w.failed
	}
	return len(p), nil
}

// part sends a part of the body.
func (w *response) part(p []byte) {
	switch {
	case w.request.Method == http.MethodHead:
	case w.chunked:
		*w.out = strconv.AppendInt(*w.out, int64(len(p)), 16)
		*w.out = append(*w.out, "\r\n"...)
		w.append(p)
		*w.out = append(*w.out, "\r\n"...)
	default:
		w.append(p)
	}
}

// append sends bytes with what was not written yet, or keeps them if they are few.
func (w *response) append(p []byte) {
	switch {
	case len(*w.out)+len(p)+2 > outBytes:
		w.write(*w.out, p)
		*w.out = (*w.out)[:0]
	case w.sent == w.length: // the client need not wait for the end of the handler
		*w.out = append(*w.out, p...)
		w.flush()
	default:
		*w.out = append(*w.out, p...)
	}
}

func (w *response) flush() {
	if w.out != nil && len(*w.out) > 0 {
		w.write(*w.out, nil)
		*w.out = (*w.out)[:0]
	}
}

// write sends bytes, and more behind them.
func (w *response) write(first, more []byte) {
	if w.failed != nil {
		return
	}
	w.limit()
	var err error
	if len(more) == 0 {
		_, err = w.c.tcp.Write(first)
	} else {
		all := net.Buffers{first, more}
		_, err = all.WriteTo(w.c.tcp)
	}
	if err != nil {
		w.failed = fmt.Errorf("write to the client: %w", err)
		w.c.fail()
	}
}

// limit sets the deadline of a write, unless it was set a short time ago, also by another request.
func (w *response) limit() {
	limit := w.patience
	if limit == 0 {
		limit = w.c.server.IdleTime
	}
	if now := time.Now(); now.Sub(w.c.written) > limit/sameTime {
		w.c.written = now
		_ = w.c.tcp.SetWriteDeadline(now.Add(limit))
	}
}

// FlushError sends what was written.
func (w *response) FlushError() error {
	if w.status == 0 {
		w.WriteHeader(http.StatusOK)
	}
	w.begin(nil, false)
	w.flush()
	return w.failed
}

// Flush implements http.Flusher.
func (w *response) Flush() { _ = w.FlushError() }

// whole is for Whole.
func (w *response) whole() func() {
	if w.left == nil {
		return func() {}
	}
	return w.left.stop
}

// finish sends the rest of the response, and reports whether it is complete.
func (w *response) finish() bool {
	if w.status == 0 {
		w.WriteHeader(http.StatusOK)
	}
	w.begin(nil, true)
	w.broken = w.broken || w.length >= 0 && w.sent != w.length && w.request.Method != http.MethodHead
	if w.chunked {
		*w.out = append(*w.out, "0\r\n"...)
		*w.out = appendFields(*w.out, w.trailer(), nil)
		*w.out = append(*w.out, "\r\n"...)
	}
	w.flush()
	return w.failed == nil && !w.broken
}

// trailer returns the fields that follow the body: those that the field Trailer announced, and those with a prefix.
func (w *response) trailer() http.Header {
	var out http.Header
	set := func(name string, values []string) {
		if out == nil {
			out = http.Header{}
		}
		out[name] = values
	}
	for name, values := range w.header {
		if plain, ok := strings.CutPrefix(name, http.TrailerPrefix); ok && httpguts.ValidTrailerHeader(plain) {
			set(textproto.CanonicalMIMEHeaderKey(plain), values)
		}
	}
	for _, list := range w.header["Trailer"] {
		for name := range strings.SplitSeq(list, ",") {
			name = textproto.CanonicalMIMEHeaderKey(textproto.TrimString(name))
			if values := w.header[name]; values != nil && httpguts.ValidTrailerHeader(name) {
				set(name, values)
			}
		}
	}
	return out
}

// release returns the buffer.
func (w *response) release() {
	if w.out != nil && cap(*w.out) <= 2*outBytes {
		*w.out = (*w.out)[:0]
		outs.Put(w.out)
	}
	w.out = nil
}
