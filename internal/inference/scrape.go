package inference

import (
	"bytes"
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/netip"
	"sync"
	"time"

	"carob/internal/core/routing"
)

// How often endpoints are scraped.
const (
	activePace    = 50 * time.Millisecond // as upstream
	perSecond     = 1000                  // scrapes of a pool, at most
	idlePace      = 5 * time.Second
	idleAfter     = 5 * time.Second // without a request
	scrapeTimeout = time.Second
	longestPause  = 2 * time.Second // between scrapes of a server that does not respond
	largestPause  = time.Second     // between scrapes of a server whose page has mostPage bytes
)

// NewTransport returns a transport for scraping: one connection for each server, kept open, never through a proxy.
// verify: certificates are verified.
func NewTransport(verify bool) http.RoundTripper {
	d := net.Dialer{Timeout: scrapeTimeout}
	return &http.Transport{DialContext: d.DialContext, MaxIdleConnsPerHost: 1, MaxConnsPerHost: 1,
		TLSClientConfig: &tls.Config{MinVersion: tls.VersionTLS12, InsecureSkipVerify: !verify},
		IdleConnTimeout: 30 * time.Second, DisableCompression: true, MaxResponseHeaderBytes: 64 << 10}
}

// pages are buffers for the metrics of servers.
var pages = sync.Pool{New: func() any { return new(bytes.Buffer) }}

// scrape reads the metrics of one server. size is that of the page.
func scrape(ctx context.Context, rt http.RoundTripper, at netip.AddrPort, from routing.Source,
	e *routing.Engine) (s routing.Stats, size int, err error) {
	ctx, cancel := context.WithTimeout(ctx, scrapeTimeout)
	defer cancel()
	scheme := "http://"
	if from.TLS {
		scheme = "https://"
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, scheme+at.String()+from.Path, nil)
	if err != nil {
		return routing.Stats{}, 0, fmt.Errorf("scrape %s: %w", at, err)
	}
	req.Header.Set("Accept", "text/plain;version=0.0.4")
	res, err := rt.RoundTrip(req) // follows no redirect
	if err != nil {
		return routing.Stats{}, 0, fmt.Errorf("scrape %s: %w", at, err)
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusOK {
		return routing.Stats{}, 0, fmt.Errorf("scrape %s: the answer is %d", at, res.StatusCode)
	}
	buf, ok := pages.Get().(*bytes.Buffer)
	if !ok {
		buf = new(bytes.Buffer)
	}
	buf.Reset()
	defer func() {
		if buf.Cap() <= 256<<10 { // a large page is rare, and its buffer must not stay
			pages.Put(buf)
		}
	}()
	done, err := readPage(ctx, buf, res.Body)
	if err != nil {
		return routing.Stats{}, 0, fmt.Errorf("scrape %s: %w", at, err)
	}
	defer done()
	if s, err = page(buf.Bytes(), e); err != nil {
		return routing.Stats{}, 0, fmt.Errorf("scrape %s: %w", at, err)
	}
	return s, buf.Len(), nil
}

// smallPage is the size of pages that are read at once; those of vLLM have 35 KB.
const smallPage = 256 << 10

// largePages are the places of pages above smallPage, which thousands of endpoints could send at once, slowly.
var largePages = make(chan struct{}, 16)

// readPage reads a page into buf, a large one when there is a place for it. done gives the place back. The wait ends
// with ctx.
func readPage(ctx context.Context, buf *bytes.Buffer, body io.Reader) (done func(), err error) {
	if _, err := buf.ReadFrom(io.LimitReader(body, smallPage)); err != nil {
		return nil, err
	}
	if buf.Len() < smallPage {
		return func() {}, nil
	}
	select {
	case largePages <- struct{}{}:
	case <-ctx.Done():
		return nil, fmt.Errorf("the page has more than %d bytes, as those of too many others: %w", smallPage, ctx.Err())
	}
	done = func() { <-largePages }
	if _, err = buf.ReadFrom(io.LimitReader(body, mostPage+1-smallPage)); err == nil && buf.Len() > mostPage {
		err = fmt.Errorf("the page has more than %d bytes", mostPage)
	}
	if err != nil {
		done()
		return nil, err
	}
	return done, nil
}

// scraper scrapes one endpoint, until stop is called.
type scraper struct {
	stop     context.CancelFunc
	failures int
	problem  error
	engine   *routing.Engine
	name     string // of the engine, by the pod's label
	source   routing.Source
	known    bool
}

// follow scrapes an endpoint until ctx ends.
func (p *Pool) follow(ctx context.Context, ref routing.Ref, at netip.AddrPort, s *scraper) {
	defer p.scraping.Done()
	e, rt := s.engine, p.transport
	if s.source.Verify {
		rt = p.verified
	}
	timer := time.NewTimer(rand.N(activePace)) // spread over the first period
	defer timer.Stop()
	for {
		var woken chan struct{}
		p.mu.Lock()
		if !p.active {
			woken = p.woken
		}
		p.mu.Unlock()
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
		case <-woken: // a request arrived after a quiet time
		}
		began := time.Now()
		p.mu.Lock()
		p.state.Scraping(ref, began)
		p.mu.Unlock()
		stats, size, err := scrape(ctx, rt, at, s.source, e)
		if ctx.Err() != nil {
			return
		}
		p.mu.Lock()
		pause := p.nextPause(time.Now())
		if s.problem = err; err == nil {
			s.failures = 0
			if size > smallPage { // to parse it costs up to a fifth of a second
				pause = max(pause, largestPause*time.Duration(size)/mostPage)
			}
			stats.At = began
			p.state.Observe(ref, stats)
			p.drain()
		} else {
			s.failures++
			p.figures.scrapeFailed(p.name)
			pause = max(pause, min(longestPause, activePace<<min(s.failures, 10)))
		}
		p.mu.Unlock()
		timer.Reset(pause - pause/10 + rand.N(pause/5+1))
	}
}

// nextPause returns the pause before the next scrape of an endpoint. After a time without requests it makes the pool
// inactive. p.mu is held.
func (p *Pool) nextPause(now time.Time) time.Duration {
	n := len(p.scrapers)
	active := max(activePace, time.Duration(n)*time.Second/perSecond)
	switch {
	case p.inFlight == 0 && p.state.Held() == 0 && now.Sub(p.lastUse) >= idleAfter:
		if p.active {
			p.active = false
			p.woken = make(chan struct{})
			p.state.SetPace(idlePace + scrapeTimeout)
		}
		return idlePace
	case now.Sub(p.woke) > 2*scrapeTimeout+active:
		p.state.SetPace(active) // every endpoint was scraped since requests arrive again
	}
	return active
}

// wake causes a scrape of all endpoints after a quiet time. The lock is held.
func (p *Pool) wake(now time.Time) {
	p.lastUse = now
	if !p.active {
		p.active, p.woke = true, now
		close(p.woken)
	}
}
