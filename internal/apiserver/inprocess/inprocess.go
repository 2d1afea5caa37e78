// Package inprocess lets carob's own parts be clients of the API server by a function call: no TCP,
// no TLS, no certificate, and a protobuf body that is passed on unchanged. The apiserver package
// creates the configurations. Requests from the network cannot use it, because the caller's
// identity is a value in the request's context and not a header.
package inprocess

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/audit"
	"k8s.io/apiserver/pkg/authentication/serviceaccount"
	"k8s.io/apiserver/pkg/authentication/user"
	apirequest "k8s.io/apiserver/pkg/endpoints/request"
	restclient "k8s.io/client-go/rest"
)

// host is in the URLs of requests; it is never resolved.
const host = "http://carob.invalid"

// ClientConfig returns a client configuration whose requests handler answers (see WithUser), made
// by the given user.
func ClientConfig(handler http.Handler, name string, groups ...string) *restclient.Config {
	info := &user.DefaultInfo{Name: name, Groups: slices.Clone(groups)}
	if namespace, _, err := serviceaccount.SplitUsername(name); err == nil {
		info.Groups = append(info.Groups, serviceaccount.MakeGroupNames(namespace)...)
	}
	if !slices.Contains(info.Groups, user.AllAuthenticated) {
		info.Groups = append(info.Groups, user.AllAuthenticated)
	}
	return &restclient.Config{
		Host:      host,
		Transport: &transport{handler: handler, user: info},
		UserAgent: UserAgent("carob"),
		QPS:       -1,
		ContentConfig: restclient.ContentConfig{
			ContentType:        runtime.ContentTypeProtobuf,
			AcceptContentTypes: runtime.ContentTypeProtobuf + "," + runtime.ContentTypeJSON,
		},
	}
}

// UserAgent is client-go's default user agent with the name of a component instead of the executable
// file's. The API server stores the name as the manager of the fields that the component writes.
func UserAgent(component string) string {
	_, version, _ := strings.Cut(restclient.DefaultKubernetesUserAgent(), "/")
	return component + "/" + version
}

type userKey struct{}

// WithUser passes on requests made through ClientConfig with their user, and rejects all others.
func WithUser(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		info, ok := r.Context().Value(userKey{}).(user.Info)
		if !ok {
			http.Error(w, "not an in-process request", http.StatusUnauthorized)
			return
		}
		next.ServeHTTP(w, r.WithContext(apirequest.WithUser(r.Context(), info)))
	})
}

// Is reports whether ctx belongs to an in-process request.
func Is(ctx context.Context) bool { return ctx.Value(userKey{}) != nil }

// transport is the http.RoundTripper of one user.
type transport struct {
	handler http.Handler
	user    user.Info
}

// alone is a context without the values of its parent, such as the user, the audit event, and the warnings of the
// request that it belongs to.
type alone struct{ context.Context }

// Value implements context.Context.
func (alone) Value(any) any { return nil }

var errUpgrade = errors.New("an in-process client cannot upgrade a connection")

// RoundTrip implements http.RoundTripper. Most requests run completely on the caller's goroutine; a
// long-running one (a watch, a followed log) gets a goroutine and a body that is read while it is
// written.
func (t *transport) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.Header.Get("Upgrade") != "" {
		return nil, errUpgrade
	}
	ctx := r.Context()
	if audit.AuditContextFrom(ctx) != nil {
		ctx = alone{ctx} // the server itself is the client, while it handles a request
	}
	ctx = context.WithValue(ctx, userKey{}, t.user)
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if lasts(r) {
		return t.stream(ctx, r)
	}
	w := &buffered{header: http.Header{}, status: http.StatusOK}
	t.handler.ServeHTTP(w, serverRequest(ctx, r))
	closeBody(r)
	// A handler ends early, with what it has, when its caller has gone.
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	return response(r, w.status, w.header, io.NopCloser(&w.body), int64(w.body.Len())), nil
}

func lasts(r *http.Request) bool {
	q := r.URL.RawQuery
	return strings.Contains(q, "watch=") || strings.Contains(q, "follow=") || strings.HasSuffix(r.URL.Path, "/proxy") ||
		strings.Contains(r.URL.Path, "/proxy/")
}

// serverRequest turns a client's request into a server's.
func serverRequest(ctx context.Context, r *http.Request) *http.Request {
	in := r.WithContext(ctx)
	in.Header = r.Header.Clone()
	in.RequestURI = r.URL.RequestURI()
	in.RemoteAddr = "127.0.0.1:0"
	in.Host = r.URL.Host
	in.Proto, in.ProtoMajor, in.ProtoMinor = "HTTP/2.0", 2, 0
	if in.Body == nil {
		in.Body = http.NoBody
	}
	return in
}

func closeBody(r *http.Request) {
	if r.Body != nil {
		_ = r.Body.Close() // a reader of carob's client; RoundTrip must close it
	}
}

func response(r *http.Request, status int, header http.Header, body io.ReadCloser, length int64) *http.Response {
	return &http.Response{Status: http.StatusText(status), StatusCode: status, Proto: "HTTP/2.0", ProtoMajor: 2,
		Header: header, Body: body,
		ContentLength: length, Request: r}
}

// buffered is the http.ResponseWriter of a request that is not long-running.
type buffered struct {
	header http.Header
	status int
	body   bytes.Buffer
	wrote  bool
}

func (w *buffered) Header() http.Header { return w.header }
func (w *buffered) Flush()              {}

// CloseNotify is there for the same reason as streamed's.
func (w *buffered) CloseNotify() <-chan bool { return nil }

func (w *buffered) WriteHeader(status int) {
	if !w.wrote {
		w.wrote, w.status = true, status
	}
}

func (w *buffered) Write(p []byte) (int, error) {
	w.wrote = true
	return w.body.Write(p)
}

// stream starts the request and returns when the handler has sent its header.
//
//	handler: WriteHeader/Write ─> Flush (header is out) ─> Write ... ─> returns (body ends)
//	caller:  RoundTrip waits ───────────┘ reads ... Close ─> request context ends
func (t *transport) stream(ctx context.Context, r *http.Request) (*http.Response, error) {
	inner, cancel := context.WithCancel(ctx) // also ends with the handler
	w := &streamed{header: http.Header{}, sent: make(chan struct{}), cancel: cancel}
	w.more.L = &w.mu
	go func() {
		defer w.finish()
		defer closeBody(r)
		t.handler.ServeHTTP(w, serverRequest(inner, r))
	}()
	select {
	case <-w.sent:
		return response(r, w.status, w.sentHeader, w, -1), nil
	case <-ctx.Done():
		cancel()
		return nil, ctx.Err()
	}
}

// streamed is the http.ResponseWriter of a long-running request and the body of its response.
// Written bytes wait in one buffer: an API server's watch writes one event at a time, and the
// reader takes everything at once.
type streamed struct {
	header http.Header
	cancel context.CancelFunc

	mu         sync.Mutex
	more       sync.Cond
	status     int
	sentHeader http.Header
	sent       chan struct{} // closed with the first flush, write, or end
	buf        bytes.Buffer
	done       bool // the handler has returned
	closed     bool // the reader has gone
}

// maxBuffered limits what may wait for a reader; the writer then waits.
const maxBuffered = 1 << 20

func (w *streamed) Header() http.Header { return w.header }

// CloseNotify never fires: the request's context ends when the reader disconnects. The library's
// wrappers pass Flush on only for writers that have this method.
func (w *streamed) CloseNotify() <-chan bool { return nil }

func (w *streamed) WriteHeader(status int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.status == 0 {
		w.status = status
	}
}

// send lets RoundTrip return. mu is held.
func (w *streamed) send() {
	if w.sentHeader != nil {
		return
	}
	if w.status == 0 {
		w.status = http.StatusOK
	}
	w.sentHeader = w.header.Clone()
	if w.sentHeader == nil {
		w.sentHeader = http.Header{}
	}
	close(w.sent)
}

func (w *streamed) Flush() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.send()
}

func (w *streamed) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.send()
	for w.buf.Len() > maxBuffered && !w.closed {
		w.more.Wait()
	}
	if w.closed {
		return 0, io.ErrClosedPipe
	}
	n, err := w.buf.Write(p)
	w.more.Broadcast()
	return n, err
}

func (w *streamed) finish() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.done = true
	w.send()
	w.more.Broadcast()
	w.cancel()
}

func (w *streamed) Read(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for w.buf.Len() == 0 && !w.done && !w.closed {
		w.more.Wait()
	}
	if w.closed {
		return 0, http.ErrBodyReadAfterClose
	}
	if w.buf.Len() == 0 {
		return 0, io.EOF
	}
	n, err := w.buf.Read(p)
	if w.buf.Len() == 0 && w.buf.Cap() > 64<<10 {
		w.buf = bytes.Buffer{} // the memory of a burst is not kept for the rest of a watch
	}
	w.more.Broadcast()
	return n, err
}

func (w *streamed) Close() error {
	w.mu.Lock()
	w.closed = true
	w.more.Broadcast()
	w.mu.Unlock()
	w.cancel()
	return nil
}
