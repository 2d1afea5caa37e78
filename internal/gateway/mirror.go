package gateway

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"sync"
	"time"

	"carob/internal/core/httproute"
	"carob/internal/gateway/proxy"
)

// Limits of copies of requests.
const (
	mirrorsAtOnce = 256
	mirrorTime    = 10 * time.Second
	mirrorBody    = 256 << 10 // bytes; a request with a larger body, or one of unknown length, is not copied
)

// mirrors sends copies of requests. A copy never delays the request: copies above the limits are dropped.
type mirrors struct {
	slots chan struct{}
	wg    sync.WaitGroup
}

func newMirrors() *mirrors { return &mirrors{slots: make(chan struct{}, mirrorsAtOnce)} }

// send copies a request as its backend gets it. A body is read here, before the backend gets it.
func (m *mirrors) send(s *site, to *httproute.Mirror, out *http.Request, x *exchange) {
	p, _ := s.pools.Get(to.Backend.Ref)
	if p == nil || to.Backend.Invalid != "" || to.Denominator <= 0 ||
		randomBelow(int64(to.Denominator)) >= int64(to.Numerator) {
		return
	}
	endpoints := *p.endpoints.Load()
	content, ok := x.mirrored(out)
	if !ok {
		return
	}
	if len(endpoints) == 0 {
		return
	}
	select {
	case m.slots <- struct{}{}:
	default:
		return
	}
	ctx, cancel := context.WithTimeout(proxy.WithoutEarly(context.WithoutCancel(out.Context())), mirrorTime)
	clone := out.Clone(ctx)
	clone.Body, clone.GetBody, clone.Trailer = http.NoBody, nil, nil
	if content != nil {
		clone.Body = io.NopCloser(bytes.NewReader(content))
	}
	m.wg.Go(func() {
		defer func() { cancel(); <-m.slots }()
		m.deliver(clone, p, &to.Backend)
	})
}

// mirrored reads the body of a request for a copy; nil: it has none. ok is false if the request is not copied.
func (x *exchange) mirrored(out *http.Request) (content []byte, ok bool) {
	if out.Body == nil || out.Body == http.NoBody {
		return nil, true
	}
	if out.ContentLength <= 0 || out.ContentLength > mirrorBody {
		return nil, false
	}
	if x.body == nil { // of an inference request: it is in memory
		again, err := out.GetBody()
		if err != nil {
			return nil, false
		}
		defer again.Close()
		content, err = io.ReadAll(again)
		return content, err == nil
	}
	content, err := io.ReadAll(io.LimitReader(x.body.ReadCloser, out.ContentLength))
	if err != nil {
		return nil, false
	}
	x.body.ReadCloser = readAgain{io.MultiReader(bytes.NewReader(content), x.body.ReadCloser), x.body.ReadCloser}
	return content, true
}

type readAgain struct {
	io.Reader
	io.Closer
}

func (m *mirrors) deliver(req *http.Request, p *pool, b *httproute.Backend) {
	targets, err := p.pick.Pick(req.Context(), &Facts{Request: req, Backend: b}, *p.endpoints.Load())
	if err != nil || len(targets) == 0 || !targets[0].begin() {
		return
	}
	defer targets[0].end()
	how := mode{protocol: b.Protocol}
	req.URL.Scheme = "http"
	if b.TLS != nil {
		how.secure, how.tls = true, *b.TLS
		req.URL.Scheme = "https"
	}
	tr, err := targets[0].transport(how)
	if err != nil {
		return
	}
	req.URL.Host = targets[0].Address.String()
	for i := range b.Filters.Request {
		proxy.Change(req.Header, &b.Filters.Request[i], &req.Host)
	}
	res, err := tr.RoundTrip(req)
	if err != nil {
		return
	}
	_, _ = io.Copy(io.Discard, io.LimitReader(res.Body, mirrorBody))
	_ = res.Body.Close()
}
