package routing

import (
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// first returns the first server of an empty pool.
func first(pod string) []Endpoint {
	return []Endpoint{{Address: netip.MustParseAddrPort("10.0.0.1:8000"), Pod: types.UID(pod), Ready: true}}
}

// Requests for a pool without a server wait while an autoscaler is active: until the server is ready, which may
// happen late, twice, or never. Without an autoscaler they are refused at once.
func TestStart(t *testing.T) {
	r := &Request{Model: "m", Bytes: 100}
	hold := func(p *Pool, at time.Time) Ticket {
		t.Helper()
		if d, again := p.Decide(r, at), p.Decide(r, at); d.Verdict != Hold || again != d {
			t.Fatalf("%s %s, then %s", d.Verdict, d.Reason, again.Verdict)
		}
		return p.Enqueue(r, at)
	}
	refused := func(p *Pool, at time.Time, why Reason) {
		t.Helper()
		if d := p.Decide(r, at); d.Verdict != Refuse || d.Reason != why {
			t.Fatalf("%s %s", d.Verdict, d.Reason)
		}
	}
	p := NewPool(DefaultConfig())
	refused(p, begin, NoEndpoints) // no autoscaler is active
	p.HeldRead(begin)
	one, two := hold(p, begin), hold(p, begin.Add(time.Second))
	f := p.Figures(begin.Add(time.Second))
	if all, wakes, ok := Measures("inference_pool_requests", &f, nil); !ok || !wakes || len(all) != 1 ||
		all[0].Value != 2 || !f.Starting {
		t.Errorf("%+v %v %v", all, wakes, ok)
	}
	if ticket, _ := p.Next(begin.Add(2 * time.Second)); ticket != 0 {
		t.Error("a request continues without a server")
	}
	// Late, and twice: the pod is replaced before both requests have continued. They do not wait
	// for its metrics.
	late := begin.Add(50 * time.Second)
	p.SetEndpoints(first("one"))
	ticket, d := p.Next(late)
	if ticket != one || d.Verdict != Serve {
		t.Errorf("%d %s", ticket, d.Verdict)
	}
	p.SetEndpoints(first("two"))
	p.SetEndpoints(first("two"))
	if ticket, d = p.Next(late); ticket != two || d.Verdict != Serve || p.Endpoint(d.Chosen[0]).Pod != "two" {
		t.Errorf("%d %s", ticket, d.Verdict)
	}
	if d := p.Decide(r, late); d.Verdict != Serve {
		t.Errorf("with a server: %s", d.Verdict)
	}
	// Never: each request is refused after its own timeout.
	p.SetEndpoints(nil)
	p.HeldRead(late)
	three := hold(p, late)
	if ticket, _, next := p.Expire(late.Add(59 * time.Second)); ticket != 0 || !next.Equal(late.Add(time.Minute)) {
		t.Errorf("%d %s", ticket, next)
	}
	if ticket, why, _ := p.Expire(late.Add(time.Minute)); ticket != three || why != NoEndpoints {
		t.Errorf("%d %s", ticket, why)
	}
	// The autoscaler is no longer active.
	refused(p, late.Add(heldReadTime), NoEndpoints)
}

// The number of requests that wait for the first server is limited, and a configuration sets their
// timeout.
func TestStartIsBounded(t *testing.T) {
	p := NewPool(config(t, `"schedulingProfiles": [{"name": "a"}], "flowControl": {"maxRequests": "2",
		"maxBytes": "1k", "noEndpointRequestTTL": "10m"}`))
	p.HeldRead(begin)
	small, large := &Request{Bytes: 10}, &Request{Bytes: 1 << 20}
	if d := p.Decide(large, begin); d.Reason != Saturated {
		t.Errorf("a large request: %s %s", d.Verdict, d.Reason)
	}
	for range 2 {
		p.Enqueue(small, begin)
	}
	if d := p.Decide(small, begin); d.Reason != Saturated {
		t.Errorf("a third request: %s %s", d.Verdict, d.Reason)
	}
	if _, _, next := p.Expire(begin); !next.Equal(begin.Add(10 * time.Minute)) {
		t.Error(next)
	}
	subset := &Request{Subset: []netip.AddrPort{netip.MustParseAddrPort("10.0.0.9:1")}}
	if d := p.Decide(subset, begin); d.Verdict != Refuse {
		t.Errorf("a subset: %s", d.Verdict)
	}
}

// Each metric has a value, except averages while no server has reported metrics.
func TestMeasures(t *testing.T) {
	names := MeasureNames()
	if !slices.IsSorted(names) {
		t.Error(names)
	}
	p := NewPool(DefaultConfig())
	p.SetEndpoints(first("one"))
	f := p.Figures(begin)
	for _, name := range names {
		all, _, ok := Measures(name, &f, []ServerLoad{{"one", 3}})
		average := strings.HasPrefix(name, "inference_pool_average")
		if !ok || (len(all) == 0) != average {
			t.Errorf("%s: %v", name, all)
		}
	}
	ref := p.Refs()[0]
	p.Scraping(ref, begin)
	p.Observe(ref, Stats{At: begin, Waiting: 3, Running: 4, CacheUse: 0.5})
	f = p.Figures(begin)
	for name, want := range map[string]float64{"inference_pool_average_kv_cache_utilization": 0.5,
		"inference_pool_average_queue_size": 3, "inference_pool_queue_size": 3, "inference_pool_requests": 7,
		"inference_pool_average_running_requests": 4, "inference_pool_ready_pods": 1} {
		if all, _, _ := Measures(name, &f, nil); len(all) != 1 || all[0].Value != want {
			t.Errorf("%s: %v, not %g", name, all, want)
		}
	}
	if _, _, ok := Measures("inference_pool_x", &f, nil); ok {
		t.Error("a metric that is not there")
	}
}
