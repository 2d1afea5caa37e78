package inference

import (
	"encoding/binary"
	"time"

	"carob/internal/core/routing"
	"carob/internal/sim/fakeapi"
)

// Known is about KV events: broken connections, late and lost messages, restarted servers.
const Known fakeapi.Invariant = "of a server whose KV events all arrived as many blocks are known as it has, and of " +
	"others no block that it has said it removed, or may have removed unheard (2.4)"

// blockTokens is the block size of the twins.
const blockTokens = 64

// tokensOf makes a token of every four bytes.
func tokensOf(text string) []uint32 {
	out := make([]uint32, 0, len(text)/4)
	for ; len(text) >= 4; text = text[4:] {
		out = append(out, binary.LittleEndian.Uint32([]byte(text)))
	}
	return out
}

// published is the state of a server's KV events: its messages, and the subscription of the pool.
type published struct {
	number     uint64      // of the next message
	ref        routing.Ref // the pool's reference to it, while subscribed
	subscribed bool        // the pool is subscribed
	since      uint64      // connections before this one
}

// follow subscribes the pool to all its servers, a moment after they were added.
func (w *world) follow() {
	if !w.precise {
		return
	}
	for _, ref := range w.pool.Refs() {
		s := w.of(ref)
		if s == nil || s.ended || s.subscribed && s.ref == ref {
			continue
		}
		s.subscribed, s.ref = true, ref
		s.since++
		w.pool.Following(ref)
	}
}

// loseEvents ends the connection to a server.
func (w *world) loseEvents(s *server) {
	if s.subscribed {
		s.subscribed = false
		s.since++
		w.pool.Unfollowed(s.ref)
	}
}

// publish publishes the changes of a cache by a prompt: removed blocks, then stored ones.
func (w *world) publish(s *server, r *request, before map[uint64]bool) {
	if !w.precise {
		return
	}
	var all []routing.BlockEvent
	gone := routing.BlockEvent{Kind: routing.BlocksRemoved}
	for hash := range before { // any order: removed together
		if s.cache[hash] == nil {
			gone.Blocks = append(gone.Blocks, hash)
		}
	}
	if len(gone.Blocks) > 0 {
		all = append(all, gone)
	}
	come := routing.BlockEvent{Kind: routing.BlocksStored, BlockTokens: blockTokens, Adapter: r.facts.Target}
	for i, hash := range r.facts.Prefix {
		if s.cache[hash] == nil {
			break
		}
		if before[hash] {
			come.Parent, come.HasParent = hash, true
			continue
		}
		come.Blocks = append(come.Blocks, hash)
		come.Tokens = append(come.Tokens, r.text[i*blockTokens:(i+1)*blockTokens]...)
	}
	if len(come.Blocks) > 0 {
		all = append(all, come)
	}
	if len(all) == 0 {
		return
	}
	number := s.number
	s.number++
	if !s.subscribed || w.troubled && w.one(60) { // lost
		if w.sabotage.Unnumbered {
			s.number--
		}
		return
	}
	ref, since := s.ref, s.since
	s.last = s.last.Add(time.Duration(w.IntN(10)) * time.Millisecond)
	if s.last.Before(w.now) {
		s.last = w.now
	}
	w.at(s.last, func() { // in order
		if s.since != since {
			return
		}
		w.pool.Message(ref, number, true)
		for i := range all {
			w.pool.Event(ref, r.facts.Model, &all[i])
		}
		w.checkKnown(s, number)
	})
}

// checkKnown checks the index for a server whose event has just arrived.
func (w *world) checkKnown(s *server, number uint64) {
	c := w.pool.CacheState(s.ref)
	if number+1 != s.number {
		return // more messages follow
	}
	if c.Whole && c.Blocks != len(s.cache) {
		fakeapi.Break(Known, "%d blocks are known, the server has %d", c.Blocks, len(s.cache))
	}
	if c.Blocks > len(s.cache) {
		fakeapi.Break(Known, "%d blocks are known, the server has only %d", c.Blocks, len(s.cache))
	}
}
