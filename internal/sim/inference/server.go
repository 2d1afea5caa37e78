package inference

import (
	"container/list"
	"net/netip"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"carob/internal/core/routing"
)

// server is a twin of a model server: prompts are computed one after the other, without what is in the cache; then each
// request gets a token every few milliseconds. The number of parallel requests is limited; the others wait.
type server struct {
	pod      types.UID
	address  netip.AddrPort
	most     int           // requests that run at once
	overhead time.Duration // of each prompt
	perToken time.Duration // of a prompt that is not in the cache
	each     time.Duration // for a token of an answer
	capacity int           // tokens in the KV cache
	slots    int           // adapters

	cache     map[uint64]*list.Element // blocks of prompts
	used      *list.List               // most recently used first
	blocks    int                      // that fit
	running   []*job
	waiting   []*job
	busy      time.Time // until when prompts are computed
	ended     bool
	draining  bool
	loading   bool // not ready yet
	condition condition
	slow      int // times slower
	published
	last time.Time // when the last message arrives
}

// condition defines how a server responds to scrapes.
type condition int

const (
	truthful     condition = iota
	unresponsive           // not at all
	late                   // with old numbers
	boaster                // it always reports no load
)

// job is a request at a server.
type job struct {
	r     *request
	at    *server
	sent  time.Time
	first time.Time // zero: no token yet
	over  bool
}

// hit returns how many blocks of a prompt are in the cache, and adds all of them.
func (s *server) hit(blocks []uint64) (n int) {
	for n < len(blocks) && s.cache[blocks[n]] != nil {
		n++
	}
	for _, block := range slices.Backward(blocks) {
		if e := s.cache[block]; e != nil {
			s.used.MoveToFront(e)
			continue
		}
		s.cache[block] = s.used.PushFront(block)
		if s.used.Len() > s.blocks {
			last := s.used.Back()
			if hash, ok := last.Value.(uint64); ok {
				delete(s.cache, hash)
			}
			s.used.Remove(last)
		}
	}
	return n
}

// tokens returns the tokens of the running requests.
func (s *server) tokens() (n int) {
	for _, j := range s.running {
		n += j.r.tokens
	}
	return n
}

// stats returns the metrics of a server.
func (s *server) stats() routing.Stats {
	out := routing.Stats{Waiting: len(s.waiting), Running: len(s.running), BlockTokens: 64, Blocks: s.blocks,
		MaxAdapters: s.slots, CacheUse: min(1, float64(s.tokens())/float64(s.capacity))}
	seen := map[string]bool{}
	for i, all := range [][]*job{s.running, s.waiting} {
		for _, j := range all {
			if a := j.r.facts.Target; a != "" && !seen[a] {
				seen[a] = true
				if i == 0 {
					out.Active = append(out.Active, a)
				} else {
					out.Queued = append(out.Queued, a)
				}
			}
		}
	}
	if s.condition == boaster {
		out.Waiting, out.Running, out.CacheUse = 0, 0, 0
	}
	return out
}

// admit starts the jobs that fit.
func (w *world) admit(s *server) {
	for len(s.waiting) > 0 && len(s.running) < s.most && (len(s.running) == 0 ||
		s.tokens()+s.waiting[0].r.tokens <= s.capacity) {
		j := s.waiting[0]
		s.waiting = s.waiting[1:]
		s.running = append(s.running, j)
		before := map[uint64]bool{}
		if w.precise {
			for hash := range s.cache {
				before[hash] = true
			}
		}
		cached := s.hit(j.r.facts.Prefix) * 64
		w.publish(s, j.r, before)
		w.cached += min(cached, j.r.tokens)
		w.prompts += j.r.tokens
		if s.busy.Before(w.now) {
			s.busy = w.now
		}
		took := s.overhead + time.Duration(max(j.r.tokens-cached, 0))*s.perToken
		s.busy = s.busy.Add(took * time.Duration(s.slow))
		w.at(s.busy, func() { w.firstToken(j) })
	}
}

func (w *world) firstToken(j *job) {
	if j.over {
		return
	}
	j.first = w.now
	w.began(j)
	each := j.at.each * time.Duration(j.at.slow) * time.Duration(j.at.most+len(j.at.running)) / time.Duration(j.at.most)
	w.at(w.now.Add(each*time.Duration(j.r.answer)), func() { w.done(j, routing.Answered) })
}

// done ends a job at its server.
func (w *world) done(j *job, how routing.Outcome) {
	if j.over {
		return
	}
	j.over = true
	j.at.running = without(j.at.running, j)
	j.at.waiting = without(j.at.waiting, j)
	w.admit(j.at)
	w.ended(j, how)
}

func without(all []*job, j *job) []*job {
	out := all[:0:0]
	for _, o := range all {
		if o != j {
			out = append(out, o)
		}
	}
	return out
}

// kill ends a server and all its requests.
func (w *world) kill(s *server) {
	s.ended = true
	w.loseEvents(s)
	jobs := append(append([]*job(nil), s.running...), s.waiting...)
	s.running, s.waiting = nil, nil
	for _, j := range jobs {
		if !j.over {
			j.over = true
			w.failed(j)
		}
	}
}
