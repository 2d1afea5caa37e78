package inference

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"time"

	"carob/internal/core/routing"
)

// The wait before another connection to a server whose KV events cannot be read.
const (
	firstPause   = time.Second
	longestRetry = 30 * time.Second
)

// follower reads the KV events of one endpoint, until stop is called.
type follower struct {
	stop    context.CancelFunc
	config  routing.Precise
	problem error // of the last connection, or of the last message
}

// events is where an endpoint publishes its KV events: as vLLM, the port of a data-parallel rank is Port+rank.
func (f *follower) events(e *routing.Endpoint) (netip.AddrPort, error) {
	port := f.config.Port + e.Rank
	if port > 65535 {
		return netip.AddrPort{}, fmt.Errorf("the port of rank %d would be %d", e.Rank, port)
	}
	return netip.AddrPortFrom(e.Address.Addr(), uint16(port)), nil //nolint:gosec // checked
}

// followEvents starts and ends followers. Without precise-prefix-cache-scorer there are none. The lock is held.
func (p *Pool) followEvents() {
	want := p.config.Precise()
	there := map[routing.Ref]bool{}
	if want != nil {
		for _, ref := range p.state.Refs() {
			there[ref] = true
			if f := p.followers[ref]; f != nil {
				if f.config == *want {
					continue
				}
				f.stop()
			}
			ctx, stop := context.WithCancel(p.ctx)
			f := &follower{stop: stop, config: *want}
			p.followers[ref] = f
			at, err := f.events(p.state.Endpoint(ref))
			if err != nil {
				f.problem = err
				continue
			}
			p.scraping.Add(1)
			go p.subscribeTo(ctx, ref, at, f)
		}
	}
	for ref, f := range p.followers {
		if !there[ref] {
			f.stop()
			delete(p.followers, ref)
		}
	}
}

// subscribeTo follows the KV events of an endpoint until ctx ends. The wait for an event ends with the connection: TCP
// keepalive detects within half a minute that the other end is gone.
func (p *Pool) subscribeTo(ctx context.Context, ref routing.Ref, at netip.AddrPort, f *follower) {
	defer p.scraping.Done()
	pause := firstPause
	for {
		received, err := p.subscription(ctx, ref, at, f)
		p.mu.Lock()
		if p.followers[ref] == f {
			p.state.Unfollowed(ref)
			f.problem = fmt.Errorf("follow the KV events at %s: %w", at, err)
		}
		p.mu.Unlock()
		if ctx.Err() != nil {
			return
		}
		switch {
		case errors.Is(err, errSlow):
			pause = longestRetry
		case received:
			pause = firstPause
		}
		timer := time.NewTimer(pause - pause/10 + rand.N(pause/5))
		pause = min(2*pause, longestRetry)
		select {
		case <-ctx.Done():
			timer.Stop()
			return
		case <-timer.C:
		}
	}
}

// subscription is one connection. received means that a message has arrived.
func (p *Pool) subscription(ctx context.Context, ref routing.Ref, at netip.AddrPort, f *follower) (
	received bool, err error,
) {
	dialer := net.Dialer{Timeout: scrapeTimeout, KeepAliveConfig: net.KeepAliveConfig{Enable: true,
		Idle: 15 * time.Second, Interval: 5 * time.Second, Count: 3}}
	conn, err := dialer.DialContext(ctx, "tcp", at.String())
	if err != nil {
		return false, err
	}
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { _ = conn.Close() })()
	from, err := subscribe(ctx, conn, f.config.Topic)
	if err != nil {
		return false, err
	}
	p.mu.Lock()
	if p.followers[ref] == f {
		p.state.Following(ref)
		f.problem = nil
	}
	p.mu.Unlock()
	for {
		if err := from.next(ctx, func(frames [][]byte) {
			received = true
			p.message(ref, f, frames)
		}); err != nil {
			return received, err
		}
	}
}

var errFrames = errors.New("a message has not the three frames topic, number, and batch")

// message handles a message of an endpoint. An unreadable message counts as a gap: the known state of the endpoint is
// dropped.
func (p *Pool) message(ref routing.Ref, f *follower, frames [][]byte) {
	var events []routing.BlockEvent
	var number uint64
	model, err := "", errFrames
	if len(frames) == 3 && len(frames[1]) == 8 {
		number = binary.BigEndian.Uint64(frames[1])
		model = modelOf(string(frames[0]))
		events, err = readBatch(frames[2])
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.followers[ref] != f {
		return
	}
	if f.problem = err; err != nil {
		f.problem = fmt.Errorf("read KV events: %w", err)
	}
	p.state.Message(ref, number, err == nil)
	for i := range events {
		if i > 0 && i%4 == 0 { // requests are picked between the parts of a long message
			p.mu.Unlock()
			p.mu.Lock()
			if p.followers[ref] != f {
				return
			}
		}
		p.state.Event(ref, model, &events[i])
	}
}
