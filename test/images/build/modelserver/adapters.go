package main

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"
)

// adapters are the LoRA adapters of a server, as vLLM has them: those of running requests have a slot each, an adapter
// stays in its slot until another one needs it, and to load one takes time in which no prompt is computed.
type adapters struct {
	known map[string]bool
	most  int           // slots
	load  time.Duration // time to load an adapter

	mu      sync.Mutex
	slots   []string       // adapters in their slots, the one used last at the end
	running map[string]int // requests that have a slot
	waiting map[string]int // requests that wait for one
	freed   chan struct{}  // closed when a slot may have become free
	loaded  int            // adapters, in all
	now     func() time.Time
}

func newAdapters(names []string, most int, load time.Duration) *adapters {
	a := &adapters{known: map[string]bool{}, most: most, load: load, running: map[string]int{},
		waiting: map[string]int{}, freed: make(chan struct{}), now: time.Now}
	for _, n := range names {
		a.known[n] = true
	}
	return a
}

// acquire waits until the adapter of a model has a slot; missing: it must be loaded into it. The caller releases it.
// A model without an adapter needs no slot.
func (a *adapters) acquire(ctx context.Context, model string) (missing bool, err error) {
	if !a.known[model] {
		return false, nil
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.count(a.waiting, model, 1)
	defer a.count(a.waiting, model, -1)
	for {
		if missing, ok := a.take(model); ok {
			return missing, nil
		}
		freed := a.freed
		a.mu.Unlock()
		select {
		case <-freed:
			a.mu.Lock()
		case <-ctx.Done():
			a.mu.Lock()
			return false, ctx.Err()
		}
	}
}

// take takes the slot of an adapter, a free one, or that of the adapter that has not been used for the longest time;
// false: requests run with all of them. The lock is held.
func (a *adapters) take(model string) (missing, ok bool) {
	at := slices.Index(a.slots, model)
	if missing = at < 0; missing && len(a.slots) >= a.most {
		if at = slices.IndexFunc(a.slots, func(n string) bool { return a.running[n] == 0 }); at < 0 {
			return false, false
		}
	}
	if at >= 0 {
		a.slots = slices.Delete(a.slots, at, at+1)
	}
	if a.slots = append(a.slots, model); missing {
		a.loaded++
	}
	a.count(a.running, model, 1)
	return missing, true
}

// release ends a request.
func (a *adapters) release(model string) {
	if !a.known[model] {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.count(a.running, model, -1); a.running[model] == 0 {
		close(a.freed)
		a.freed = make(chan struct{})
	}
}

// count changes a number of requests. The lock is held.
func (a *adapters) count(of map[string]int, model string, by int) {
	if of[model] += by; of[model] == 0 {
		delete(of, model)
	}
}

// metrics returns vLLM's series of adapters, and how many were loaded; empty for a server without adapters.
func (a *adapters) metrics() string {
	if len(a.known) == 0 {
		return ""
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	names := func(of map[string]int) string { return strings.Join(slices.Sorted(maps.Keys(of)), ",") }
	return fmt.Sprintf("vllm:lora_requests_info{max_lora=\"%d\",running_lora_adapters=\"%s\","+
		"waiting_lora_adapters=\"%s\"} %f\nmodelserver:adapters_loaded_total %d\n", a.most, names(a.running),
		names(a.waiting), float64(a.now().UnixMilli())/1000, a.loaded)
}
