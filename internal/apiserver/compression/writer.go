package compression

import (
	"bufio"
	"errors"
	"net/http"
	"sync"

	"github.com/klauspost/compress/gzip"
)

const (
	// longest is the length in bytes of the longest answer that is not compressed, as in the library.
	longest = 128 << 10
	// A first write of at most this length begins an answer that is written in parts; a longer one shows the length
	// of the answer. The library has the same rule.
	partial = 4
	// chunk is how many compressed bytes are sent at once. A compressor writes about 250 at a time.
	chunk = 32 << 10
)

// A compressor is used again: it needs about a megabyte.
type compressor struct {
	gzip *gzip.Writer
	out  *bufio.Writer
}

var compressors = sync.Pool{New: func() any {
	c := &compressor{out: bufio.NewWriterSize(nil, chunk)}
	c.gzip, _ = gzip.NewWriterLevel(c.out, gzip.BestSpeed) // the level is valid
	return c
}}

var buffers = sync.Pool{New: func() any { return new([]byte) }}

// writer sends an answer, compressed if it is long. It is used by one goroutine.
type writer struct {
	http.ResponseWriter
	status  int
	decided bool        // the header is sent
	held    *[]byte     // the beginning of an answer in parts whose length is not known yet; nil: none
	gzip    *compressor // nil: the answer is not compressed
}

// Unwrap implements responsewriter.UserProvidedDecorator.
func (w *writer) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// WriteHeader implements http.ResponseWriter. The header of a successful answer is sent when it is known whether the
// answer is compressed.
func (w *writer) WriteHeader(status int) {
	switch {
	case w.decided || status < http.StatusOK:
		w.ResponseWriter.WriteHeader(status)
	case w.status != 0: // the first one counts
	case status != http.StatusOK || w.Header().Get(contentEncoding) != "":
		w.decided = true
		w.ResponseWriter.WriteHeader(status)
	default:
		w.status = status
	}
}

// Write implements io.Writer.
func (w *writer) Write(p []byte) (int, error) {
	if !w.decided && w.status == 0 {
		w.WriteHeader(http.StatusOK)
	}
	if w.decided {
		return w.write(p)
	}
	if w.held == nil && len(p) > partial {
		w.decide(len(p) > longest)
		return w.write(p)
	}
	if w.held == nil {
		w.held, _ = buffers.Get().(*[]byte)
	}
	if len(*w.held)+len(p) <= longest {
		*w.held = append(*w.held, p...)
		return len(p), nil
	}
	w.decide(true)
	if err := w.release(); err != nil {
		return 0, err
	}
	return w.write(p)
}

// Flush sends everything that was written to the client, because the handler has called it.
func (w *writer) Flush() {
	// The flusher of net/http reports no errors either; the next write does.
	_ = w.send()
	if w.gzip != nil {
		_ = errors.Join(w.gzip.gzip.Flush(), w.gzip.out.Flush())
	}
	if f, ok := w.ResponseWriter.(http.Flusher); ok {
		f.Flush()
	}
}

// close sends the rest of the answer.
func (w *writer) close() error {
	if w.status == 0 {
		return nil // nothing was written, or everything already sent
	}
	if err := w.send(); err != nil || w.gzip == nil {
		return err
	}
	c := w.gzip
	w.gzip = nil
	err := errors.Join(c.gzip.Close(), c.out.Flush())
	c.out.Reset(nil)
	compressors.Put(c)
	return err
}

// send sends what is held, uncompressed.
func (w *writer) send() error {
	if !w.decided {
		w.decide(false)
	}
	return w.release()
}

// decide sends the header.
func (w *writer) decide(compressed bool) {
	if w.status == 0 {
		w.status = http.StatusOK
	}
	w.decided = true
	if compressed {
		w.Header().Set(contentEncoding, encoding)
		w.Header().Add("Vary", acceptEncoding)
		w.Header().Del(contentLength)
		w.gzip, _ = compressors.Get().(*compressor)
		w.gzip.out.Reset(w.ResponseWriter)
		w.gzip.gzip.Reset(w.gzip.out)
	}
	w.ResponseWriter.WriteHeader(w.status)
}

// release writes what is held.
func (w *writer) release() error {
	if w.held == nil {
		return nil
	}
	held := w.held
	w.held = nil
	_, err := w.write(*held)
	*held = (*held)[:0]
	buffers.Put(held)
	return err
}

func (w *writer) write(p []byte) (int, error) {
	if w.gzip != nil {
		return w.gzip.gzip.Write(p)
	}
	return w.ResponseWriter.Write(p)
}
