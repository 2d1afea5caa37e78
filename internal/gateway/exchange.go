package gateway

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httputil"
	"net/url"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/net/http/httpguts"

	"carob/internal/core/gatewayplan"
	"carob/internal/core/httproute"
	"carob/internal/gateway/certs"
	"carob/internal/gateway/proxy"
	"carob/internal/gateway/resend"
	"carob/internal/gateway/spans"
)

// errNoEndpoints is the reason of a response with status 503.
var errNoEndpoints = errors.New("no endpoint is ready")

// site is what one port serves. It is immutable: a change creates a new one.
type site struct {
	table   *httproute.Table
	port    int32
	tls     bool
	raw     bool // all connections are passed to the first of streams
	certs   *certs.Set
	clients *gatewayplan.ClientAuth
	streams []gatewayplan.Stream
	names   gatewayplan.StreamIndex // of streams
	pools   poolMap

	users    atomic.Int64 // requests
	replaced atomic.Bool
	emptied  chan struct{} // signalled when a replaced site has lost its last user
}

// exchange is one request that is proxied to a backend.
type exchange struct {
	rec     *seenRequest // nil: not recorded
	site    *site
	in      *http.Request
	path    string // clean
	moved   bool   // it is not the one that was sent
	met     httproute.Result
	backend *httproute.Backend
	targets []*Target
	body    *resend.Body
	mirror  *mirrors
	fields  proxy.Fields
	matched httproute.Request
	// began waits for the beginning of a response's body; nil: a response begins with its header. Its error is one of
	// the attempt.
	began func(*http.Response) error
}

// ServeHTTP serves one request.
func (s *site) ServeHTTP(w http.ResponseWriter, r *http.Request, mirrors *mirrors) {
	host, hostOK := httproute.Host(r.Host)
	sent := r.URL.EscapedPath()
	if sent == "" && r.URL.Host != "" {
		sent = "/" // http://example.com (RFC 9110, 4.2.3)
	}
	path, moved, pathOK := httproute.CleanPath(sent)
	// HTTP/2 may carry a space in a query, with which a request line of HTTP/1.1 would end early.
	if !hostOK || !pathOK || r.Method == http.MethodConnect || strings.Contains(r.URL.RawQuery, " ") {
		refuse(w, r, http.StatusBadRequest)
		return
	}
	// A connection that was opened for the name of one listener must not reach another's routes (RFC 9110, 15.5.20).
	if r.TLS != nil && r.TLS.ServerName != "" && !s.table.SameListener(strings.ToLower(r.TLS.ServerName), host) {
		http.Error(w, "Misdirected Request", http.StatusMisdirectedRequest)
		return
	}
	x := &exchange{rec: seenOf(w), site: s, in: r, path: path, moved: moved || r.URL.Path == "", mirror: mirrors,
		fields: proxy.Fields{Request: r}}
	x.matched = httproute.Request{Host: host, Path: path, Method: r.Method, Fields: &x.fields}
	met, ok := s.table.Find(&x.matched)
	if !ok || met.Rule.NotFound {
		refuse(w, r, http.StatusNotFound)
		return
	}
	x.met = met
	x.rec.met(&met)
	if s.answered(w, x, host) {
		return
	}
	x.backend = met.Rule.Choose(randomBelow(met.Rule.TotalWeight()))
	if x.backend == nil || x.backend.Invalid != "" {
		refuse(w, r, http.StatusInternalServerError)
		return
	}
	if s.answeredBy(w, x, &x.backend.Filters, host) {
		return
	}
	x.proxy(w)
}

func randomBelow(n int64) int64 {
	if n <= 1 {
		return 0
	}
	return rand.Int64N(n)
}

// answered responds to a request that no backend gets.
func (s *site) answered(w http.ResponseWriter, x *exchange, host string) bool {
	if limit := x.met.Rule.MaxBody; limit > 0 {
		if x.in.ContentLength > limit {
			refuse(w, x.in, http.StatusRequestEntityTooLarge)
			return true
		}
		x.in.Body = http.MaxBytesReader(w, x.in.Body, limit)
	}
	return s.answeredBy(w, x, &x.met.Rule.Filters, host)
}

func (s *site) answeredBy(w http.ResponseWriter, x *exchange, f *httproute.Filters, host string) bool {
	if c := f.CORS; c != nil && x.in.Method == http.MethodOptions && x.in.Header.Get("Origin") != "" &&
		x.in.Header.Get("Access-Control-Request-Method") != "" {
		for _, h := range c.Preflight(x.in.Header.Get("Origin"), x.in.Header.Get("Access-Control-Request-Method"),
			x.in.Header.Get("Access-Control-Request-Headers")) {
			w.Header().Set(h.Name, h.Value)
		}
		w.WriteHeader(http.StatusNoContent)
		return true
	}
	if r := f.Redirect; r != nil {
		scheme := "http"
		if s.tls {
			scheme = "https"
		}
		w.Header().Set("Location", r.Location(scheme, host, s.port, x.path, x.in.URL.RawQuery, x.met.Met))
		w.WriteHeader(r.Status)
		return true
	}
	return false
}

// proxy sends the request to the backend and the response to the client.
func (x *exchange) proxy(w http.ResponseWriter) {
	of, known := x.site.pools.Get(x.backend.Ref)
	if !known {
		refuse(w, x.in, http.StatusInternalServerError)
		return
	}
	ctx := x.in.Context()
	if limit := x.met.Rule.Timeout; limit > 0 {
		timed, cancel := context.WithTimeout(ctx, limit)
		defer cancel()
		ctx = timed
	}
	if s := of.use(); s != nil {
		x.infer(ctx, w, s)
		return
	}
	if err := x.choose(ctx); err != nil {
		refuse(w, x.in, http.StatusServiceUnavailable)
		return
	}
	proxy.Serve(ctx, w, x.in, x)
}

// Rewrite makes the request that the backend gets.
func (x *exchange) Rewrite(pr *httputil.ProxyRequest) {
	x.change(pr)
	x.copies(pr.Out)
}

// change makes the request that the backend gets, before it is copied.
func (x *exchange) change(pr *httputil.ProxyRequest) {
	out := pr.Out
	out.URL.Scheme = "http"
	if x.backend.TLS != nil {
		out.URL.Scheme = "https"
	}
	out.URL.Host = x.targets[0].host
	out.URL.RawQuery = pr.In.URL.RawQuery // unchanged; matches have used the parsed form
	out.Host = pr.In.Host
	proxy.Forwarded(pr)
	if x.moved {
		setPath(out.URL, x.path)
	}
	for _, f := range []*httproute.Filters{&x.met.Rule.Filters, &x.backend.Filters} {
		for i := range f.Request {
			proxy.Change(out.Header, &f.Request[i], &out.Host)
			proxy.WithoutTrailers(out, &f.Request[i])
		}
		if f.Rewrite != nil {
			if f.Rewrite.Host != "" {
				out.Host = f.Rewrite.Host
			}
			if f.Rewrite.Path.Kind != httproute.KeepPath {
				setPath(out.URL, f.Rewrite.Path.Apply(x.path, x.met.Met))
			}
		}
	}
	if out.Body != nil && out.Body != http.NoBody {
		x.body = &resend.Body{ReadCloser: out.Body}
		if x.met.Rule.Retry != nil {
			x.body.Keep(out.ContentLength)
		}
		out.Body, out.GetBody = x.body.Attempt(), x.body.Again
	}
}

// copies sends copies of the request.
func (x *exchange) copies(out *http.Request) {
	for _, f := range []*httproute.Filters{&x.met.Rule.Filters, &x.backend.Filters} {
		for i := range f.Mirrors {
			x.mirror.send(x.site, &f.Mirrors[i], out, x)
		}
	}
}

// setPath sets an escaped path.
func setPath(u *url.URL, escaped string) {
	plain, err := url.PathUnescape(escaped)
	if err != nil {
		plain = escaped
	}
	u.Path, u.RawPath = plain, escaped
}

// Answer changes the response of the backend.
func (x *exchange) Answer(res *http.Response) {
	for _, f := range []*httproute.Filters{&x.met.Rule.Filters, &x.backend.Filters} {
		if f.CORS != nil {
			origin := x.in.Header.Get("Origin")
			for name := range res.Header {
				if strings.HasPrefix(name, "Access-Control-") {
					res.Header.Del(name) // the filter sends the response, not the backend
				}
			}
			for _, h := range f.CORS.Answer(origin) {
				if h.Name == "Vary" {
					res.Header.Add(h.Name, h.Value)
				} else {
					res.Header.Set(h.Name, h.Value)
				}
			}
		}
		for i := range f.Response {
			proxy.Change(res.Header, &f.Response[i], nil)
		}
	}
}

// Fail responds to a request for which no backend has responded.
func (x *exchange) Fail(w http.ResponseWriter, _ *http.Request, err error) {
	status := http.StatusBadGateway
	switch {
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, errReadTimeout):
		status = http.StatusGatewayTimeout
	case errors.Is(err, errNoEndpoints), isDial(err):
		status = http.StatusServiceUnavailable
	default:
		if tooLarge, ok := errors.AsType[*http.MaxBytesError](err); ok && tooLarge != nil {
			status = http.StatusRequestEntityTooLarge
		} else if x.body != nil {
			status = x.body.StatusOf(status)
		}
	}
	refuse(w, x.in, status)
}

// refuse answers a request itself. Log and metrics have the status also if it is one of gRPC.
func refuse(w http.ResponseWriter, r *http.Request, status int) {
	rec := seenOf(w)
	if rec == nil {
		proxy.Refuse(w, r, status, 0)
		return
	}
	proxy.Refuse(w, r, status, time.Since(rec.began))
	rec.status = status
}

func isDial(err error) bool {
	_, ok := errors.AsType[dialError](err)
	return ok
}

// send tries the endpoints in their order, until one can be connected to.
func (x *exchange) send(out *http.Request) (*http.Response, error) {
	upgrade := httpguts.HeaderValuesContainsToken(out.Header["Connection"], "Upgrade")
	m := mode{protocol: x.backend.Protocol, upgrade: upgrade}
	if x.backend.TLS != nil {
		m.secure, m.tls = true, *x.backend.TLS
	}
	err := errNoEndpoints
	for range attempts {
		begun := false
		for _, t := range x.targets {
			if !t.begin() {
				continue // it was removed since it was picked
			}
			begun = true
			var res *http.Response
			if res, err = x.attempt(out, t, m); err == nil {
				return res, nil
			}
			t.end()
			if !isDial(err) || out.Context().Err() != nil || x.body.Spent() {
				return nil, err
			}
			if x.body != nil {
				out.Body = x.body.Attempt()
			}
		}
		if begun {
			return nil, err
		}
		// All were removed since they were picked: the pool has others now.
		if again := x.choose(out.Context()); again != nil {
			return nil, again
		}
	}
	return nil, err
}

// choose calls the picker of the backend's pool.
func (x *exchange) choose(ctx context.Context) (err error) {
	p, _ := x.site.pools.Get(x.backend.Ref)
	endpoints := *p.endpoints.Load()
	if len(endpoints) == 0 {
		return errNoEndpoints
	}
	x.targets, err = p.pick.Pick(ctx, &Facts{Request: x.in, Source: x.met.Source, Backend: x.backend}, endpoints)
	if err == nil && len(x.targets) == 0 {
		err = errNoEndpoints
	}
	return err
}

// errReadTimeout is the error of a response that takes too long.
var errReadTimeout = errors.New("the backend did not answer in time")

func (x *exchange) attempt(out *http.Request, t *Target, m mode) (*http.Response, error) {
	x.rec.tried(x.backend, t)
	tr, err := t.transport(m)
	if err != nil {
		return nil, err
	}
	ctx, done := out.Context(), noop
	if limit := x.met.Rule.BackendTimeout; limit > 0 {
		timed, cancel := context.WithTimeout(ctx, limit)
		ctx, done = timed, cancel
	}
	if limit := x.met.Rule.ConnectTimeout; limit > 0 {
		ctx = context.WithValue(ctx, connectKey{}, limit)
	}
	var idle *idleLimit
	if limit := x.met.Rule.ReadTimeout; limit > 0 {
		cancellable, cancel := context.WithCancelCause(ctx)
		idle = newIdleLimit(limit, func() { cancel(errReadTimeout) })
		before := done
		ctx, done = cancellable, func() { idle.end(); cancel(nil); before() }
	}
	req := out
	if ctx != out.Context() {
		req = out.WithContext(ctx)
	}
	if idle != nil && x.body != nil {
		idle.send(req) // which is a copy
	}
	req, span := x.rec.attempt(req, t.Address)
	if req.URL.Host != t.host {
		u := *req.URL
		u.Host = t.host
		clone := *req
		clone.URL = &u
		req = &clone
	}
	res, err := tr.RoundTrip(proxy.WithTrailers(req, x.in))
	if err == nil && x.began != nil {
		if err = x.began(res); err != nil {
			_ = res.Body.Close()
		}
	}
	if err != nil {
		if cause := context.Cause(ctx); cause != nil && ctx.Err() != nil {
			err = cause
		}
		span.Failed(err)
		done()
		return nil, err
	}
	span.Answered(res.StatusCode)
	a := &attempted{done: done, target: t, span: span}
	a.Response = proxy.Response{ReadCloser: res.Body, End: a.end}
	if idle != nil {
		a.AfterRead = idle.restart
		idle.begun()
	}
	if rw, ok := res.Body.(io.ReadWriteCloser); ok && res.StatusCode == http.StatusSwitchingProtocols {
		res.Body = &proxy.Upgraded{Response: &a.Response, Writer: rw}
	} else {
		res.Body = &a.Response
	}
	return res, nil
}

func noop() {}

// attempted is the response to an attempt.
type attempted struct {
	proxy.Response
	done   func() // ends what waits for the response
	target *Target
	span   *spans.Attempt
	ended  atomic.Bool
}

// end is called when the body of the response is closed.
func (a *attempted) end() {
	if !a.ended.Swap(true) {
		a.done()
		a.target.end()
		a.span.End()
	}
}

// slowClient is how long a client may send nothing of a body, or read nothing of a response. Bodies of HTTP/2 without a
// length have no such limit.
const slowClient = 60 * time.Second

// serverTLS is what a port offers to clients, with protocols to choose from (ALPN).
func (s *site) serverTLS(hello *tls.ClientHelloInfo, protocols ...string) (*tls.Config, error) {
	cert, err := s.certs.Find(hello)
	if err != nil {
		return nil, err
	}
	cfg := &tls.Config{MinVersion: tls.VersionTLS12, NextProtos: protocols, Certificates: []tls.Certificate{*cert}}
	if s.clients != nil {
		if err := certs.RequireClients(cfg, s.clients); err != nil {
			return nil, err
		}
	}
	return cfg, nil
}
