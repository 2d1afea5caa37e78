package main

import (
	"bytes"
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
	burst               int           // requests that come at once; 0: one
	adapters            int           // LoRA adapters that requests are for, each as often; 0: the base model
	pause               time.Duration // after the first token, instead of the time of a longer answer
}

// workloads: the first is that of the published comparisons (docs/spec/inference-gateway.md, 4).
var workloads = []workload{
	{name: "shared prefixes", tenants: 70, shared: 6000, own: 1200, answer: 10, rate: 50},
	{name: "bursts", tenants: 20, shared: 1000, own: 200, answer: 20, rate: 80, burst: 40},
	{name: "long prompts", tenants: 4, shared: 200, own: 12_000, answer: 10, rate: 8},
	{name: "adapters", tenants: 48, shared: 500, own: 500, answer: 10, rate: 100, adapters: 12,
		pause: 100 * time.Millisecond},
}

// result is what came of a workload.
type result struct {
	first, took []time.Duration // of each request
	rate        float64         // answers in a second
	sent        int             // requests, also those of the first third
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
		tenant, model := r.IntN(w.tenants), "m"
		if w.adapters > 0 {
			model = fmt.Sprint("lora-", tenant%w.adapters)
		}
		req := request(prefix, fmt.Sprintf(`{"model":%q,"stream":true,"max_tokens":%d,"prompt":"%s%s"}`, model, w.answer,
			beginnings[tenant], question))
		if w.pause > 0 {
			req = bytes.Replace(req, []byte("/v1/completions"), fmt.Appendf(nil, "/v1/completions?pause=%s", w.pause), 1)
		}
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-time.After(time.Until(next)):
		}
		counts := next.Sub(began) > warm
		out.sent = i + 1
		flying.Go(func() {
			c := &conn{at: at[i%len(at)]}
			defer c.close()
			got, err := c.roundTrip(req)
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
