package gateway

import (
	"slices"
	"sync/atomic"

	"carob/internal/core/httproute"
)

func (p *port) enter() *site { return enter(&p.site) }

// enter returns the site that serves a request; leave must be called when the request has ended. A site that was
// replaced while it was entered is left at once, so that the code that replaces a site finds all requests in it.
func enter(current *atomic.Pointer[site]) *site {
	for {
		s := current.Load()
		s.users.Add(1)
		if current.Load() == s {
			return s
		}
		s.leave()
	}
}

// leave ends a request. The last one of a replaced site releases its pools.
func (s *site) leave() {
	if s.users.Add(-1) == 0 && s.replaced.Load() {
		poke(s.emptied)
	}
}

// retire records that a site has been replaced, or its port closed: requests in it still use its pools.
func (g *Gateway) retire(s *site) {
	s.replaced.Store(true)
	g.old = append(g.old, s)
}

// release empties the pools that no route refers to and no request can use any more. The lock is held.
func (g *Gateway) release() {
	old := g.old[:0]
	for _, s := range g.old {
		if s.users.Load() == 0 {
			continue
		}
		old = append(old, s)
	}
	clear(g.old[len(old):])
	g.old = old
	for ref, p := range g.retired {
		if !slices.ContainsFunc(old, func(s *site) bool { _, has := s.pools.Get(ref); return has }) {
			delete(g.retired, ref)
			g.traffic.set(p, nil)
			p.served.Load().close(nil)
		}
	}
}

// known is the pool of a backend, which may have been retired; nil: there is none. The lock is held.
func (g *Gateway) known(ref httproute.Ref) *pool {
	if p, known := g.pools.Get(ref); known {
		return p
	}
	p := g.retired[ref]
	delete(g.retired, ref)
	return p
}
