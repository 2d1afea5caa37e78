package inference

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"carob/internal/core/routing"
)

// Load is a workload whose requests share beginnings.
type Load struct {
	Servers, Tenants int
	Prefix, Question int // tokens
	Answer           int // tokens, on average
	PerSecond        float64
	Warm, Long       time.Duration // the time before Warm is not measured
	Blocks           int           // of the cache of each server, 64 tokens each
	Slow             int           // number of servers that are four times slower
	Adapters         int           // adapter names in requests; 0: the base model
	Capacity         int           // tokens in the KV cache of each server; 0: no limit
	Burst            int           // requests that come at once; 0: one
	// Spread: questions have Question tokens times or divided by up to this, at random; 0: all have Question.
	Spread     int
	RoundRobin bool
	Most       int             // requests that run at once; 0: 64
	Fast       int             // how many times faster the servers are; 0: once
	Config     *routing.Config // nil: the default
}

// Report holds the results of a load for its clients.
type Report struct {
	Requests, Answered int
	P50, P90, P99      time.Duration // time to the first token
	Rate               float64       // responses in a second, of all requests
	Hits               float64       // part of the tokens of prompts that was in a cache
}

// Measure runs a load without faults.
func Measure(seed uint64, l Load) Report {
	w := &world{Rand: rand.New(rand.NewPCG(seed, 17)), now: begin, robin: -1, //nolint:gosec // a simulation
		settled: true,
		held:    map[routing.Ticket]*request{}, turns: map[*request]map[string]int{}}
	if l.RoundRobin {
		w.robin = 0
	}
	c := l.Config
	if c == nil {
		c = routing.DefaultConfig()
	}
	w.precise = c.Precise() != nil
	w.pool = routing.NewPool(c)
	w.pool.SetPace(pace)
	for i := range l.Servers {
		s := w.server()
		s.most, s.capacity, s.blocks, s.slots = 64, 1<<20, l.Blocks, 2
		if n := time.Duration(max(l.Fast, 1)); n > 1 {
			s.overhead, s.perToken, s.each = s.overhead/n, s.perToken/n, s.each/n
		}
		if l.Most > 0 {
			s.most = l.Most
		}
		if l.Capacity > 0 {
			s.capacity = l.Capacity
		}
		if i < l.Slow {
			s.slow = 4
		}
	}
	w.updatePool()
	w.repeat(pace, w.scrape)
	prefixes := make([]string, l.Tenants)
	for i := range prefixes {
		prefixes[i] = text(fmt.Sprint("tenant ", i), l.Prefix)
	}
	end := begin.Add(l.Long)
	var next func()
	requested := 0
	next = func() {
		wait := w.ExpFloat64() / l.PerSecond * float64(time.Second)
		if l.Burst > 0 && requested%l.Burst > 0 {
			wait = 0
		} else if l.Burst > 0 {
			wait *= float64(l.Burst)
		}
		w.after(time.Duration(wait), func() {
			if w.now.After(end) {
				return
			}
			requested++
			tenant := w.IntN(l.Tenants)
			question := l.Question
			if l.Spread > 0 {
				question = int(float64(question) * math.Pow(float64(l.Spread), 2*w.Float64()-1))
			}
			prompt := prefixes[tenant] + text(fmt.Sprint("question ", requested), question)
			r := &request{tokens: len(prompt) / 4, answer: 1 + w.IntN(2*l.Answer), came: w.now}
			r.facts = routing.Request{Model: "base", Bytes: len(prompt), Random: w.Uint64(), Received: w.now}
			if l.Adapters > 0 {
				r.facts.Target = fmt.Sprint("adapter", tenant%l.Adapters)
			}
			r.facts.Prefix = w.pool.Hasher().Hash(nil, r.facts.Target, "", []byte(prompt))
			r.text = tokensOf(prompt)
			r.facts.Blocks = w.pool.TokenHasher().Hash(model(&r.facts), "", r.text)
			w.send(r)
			next()
		})
	}
	next()
	w.until(begin.Add(l.Warm))
	w.ttft, w.cached, w.prompts = nil, 0, 0
	w.until(end)
	w.run(end.Add(time.Hour), w.over)
	out := Report{Requests: requested, Answered: w.answered, Rate: float64(w.answered) / w.now.Sub(begin).Seconds()}
	slices.Sort(w.ttft)
	if n := len(w.ttft); n > 0 {
		out.P50, out.P90, out.P99 = w.ttft[n/2], w.ttft[n*9/10], w.ttft[n*99/100]
		out.Hits = float64(w.cached) / float64(w.prompts)
	}
	return out
}

// text returns a text with the given number of tokens of four bytes.
func text(what string, tokens int) string {
	return strings.Repeat(what+" ", tokens*4/(len(what)+1)+1)[:tokens*4]
}

// turn chooses the next server by round robin.
func (w *world) turn(d *routing.Decision) {
	refs := w.pool.Refs()
	d.Chosen[0], d.N = refs[w.robin%len(refs)], 1
	w.robin++
}
