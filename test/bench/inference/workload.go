package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"time"
)

// workload is a kind of requests. Its times are a tenth of those of the field's benchmarks, as the servers' are.
type workload struct {
	name                string
	tenants             int // whose prompts begin the same
	shared, own, answer int // tokens: of a tenant's beginning, of a question, of an answer
	rate                float64
	burst               int // requests that come at once; 0: one
}

// workloads: the first is that of the published comparisons (docs/spec/inference-gateway.md, 4).
var workloads = []workload{
	{name: "shared prefixes", tenants: 70, shared: 6000, own: 1200, answer: 10, rate: 50},
	{name: "bursts", tenants: 20, shared: 1000, own: 200, answer: 20, rate: 80, burst: 40},
	{name: "long prompts", tenants: 4, shared: 200, own: 12_000, answer: 10, rate: 8},
}

// result is what came of a workload.
type result struct {
	first, took []time.Duration // of each request
	rate        float64         // answers in a second
}

// send sends a workload to the addresses in turn. The first third warms caches up and does not count.
func (l *lab) send(ctx context.Context, w *workload, prefix string, at []string) (*result, error) {
	warm, long := time.Duration(l.scale*float64(6*time.Second)), time.Duration(l.scale*float64(12*time.Second))
	r := rand.New(rand.NewPCG(16, 16)) //nolint:gosec // a measurement
	beginnings := make([]string, w.tenants)
	for i := range beginnings {
		beginnings[i] = strings.Repeat(fmt.Sprintf("tenant %02d asks %s %s ", i, prefix, w.name), w.shared)[:w.shared*4]
	}
	var mu sync.Mutex
	out := &result{}
	var failed error
	var flying sync.WaitGroup
	began := time.Now()
	next := began
	for i := 0; ; i++ {
		if w.burst == 0 || i%w.burst == 0 {
			next = next.Add(time.Duration(r.ExpFloat64() * float64(max(w.burst, 1)) / w.rate * float64(time.Second)))
		}
		if next.Sub(began) > warm+long {
			break
		}
		question := strings.Repeat(fmt.Sprintf("question %06d ", i), w.own)[:w.own*4]
		req := request(prefix, fmt.Sprintf(`{"model":"m","stream":true,"max_tokens":%d,"prompt":"%s%s"}`, w.answer,
			beginnings[r.IntN(w.tenants)], question))
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-time.After(time.Until(next)):
		}
		counts := next.Sub(began) > warm
		flying.Go(func() {
			c := &conn{at: at[i%len(at)]}
			defer c.close()
			got, err := c.ask(req)
			mu.Lock()
			defer mu.Unlock()
			if err != nil || got.status != 200 {
				failed = fmt.Errorf("%d: %w", got.status, err)
			}
			if counts {
				out.first, out.took = append(out.first, got.first), append(out.took, got.took)
			}
		})
	}
	flying.Wait()
	out.rate = float64(len(out.took)) / (time.Since(began) - warm).Seconds()
	return out, failed
}
