package routing

import (
	"fmt"
	"math"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

var begin = time.Date(2026, 11, 23, 0, 0, 0, 0, time.UTC)

// servers returns n ready endpoints.
func servers(n int) []Endpoint {
	out := make([]Endpoint, 0, n)
	for i := range n {
		a := netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, byte(i >> 8), byte(i)}), 8000)
		out = append(out, Endpoint{Address: a, Pod: types.UID(fmt.Sprint("u", i)), Ready: true,
			Name: types.NamespacedName{Namespace: "n", Name: fmt.Sprint("p", i)}})
	}
	return out
}

// config reads a configuration with plugins and weights by type, such as {"queue-scorer": 1}.
func config(t testing.TB, text string) *Config {
	t.Helper()
	c, err := ParseConfig([]byte(`{"apiVersion": "inference.networking.x-k8s.io/v1alpha1", "kind": "EndpointPickerConfig", ` +
		text + `}`))
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// pool makes a pool of n endpoints.
func pool(c *Config, n int) *Pool {
	p := NewPool(c)
	p.SetEndpoints(servers(n))
	return p
}

// setStats sets the metrics of endpoint i.
func setStats(p *Pool, i int, now time.Time, s Stats) {
	ref := p.Refs()[i]
	p.Scraping(ref, now)
	s.At = now
	p.Observe(ref, s)
}

func chosen(t testing.TB, p *Pool, r *Request, now time.Time) string {
	t.Helper()
	d := p.Decide(r, now)
	if d.Verdict != Serve {
		t.Fatalf("the request is not served: %s %s", d.Verdict, d.Reason)
	}
	return p.Endpoint(d.Chosen[0]).Name.Name
}

// The server with the shortest queue and the emptiest cache gets the request (2.4).
func TestLeastLoaded(t *testing.T) {
	p := pool(DefaultConfig(), 3)
	setStats(p, 0, begin, Stats{Waiting: 4, CacheUse: 0.1})
	setStats(p, 1, begin, Stats{Waiting: 0, CacheUse: 0.2})
	setStats(p, 2, begin, Stats{Waiting: 2, CacheUse: 0.1})
	for seed := range uint64(20) {
		if got := chosen(t, p, &Request{Model: "m", Random: seed}, begin); got != "p1" {
			t.Fatalf("%s was chosen", got)
		}
	}
}

// serve decides, sends, and returns the name of the endpoint and the flight.
func serve(t testing.TB, p *Pool, r *Request, now time.Time) (string, Flight) {
	t.Helper()
	d := p.Decide(r, now)
	if d.Verdict != Serve {
		t.Fatalf("the request is not served: %s %s", d.Verdict, d.Reason)
	}
	return p.Endpoint(d.Chosen[0]).Name.Name, p.Sent(d.Chosen[0], r, now)
}

func prompt(p *Pool, text string) []uint64 { return p.Hasher().Hash(nil, "m", "", []byte(text)) }

// Each scorer alone prefers the endpoint that it should.
func TestScorers(t *testing.T) {
	long := strings.Repeat("a long prompt that is sent again and again ", 100)
	for _, c := range []struct {
		plugin string
		state  func(p *Pool)
		r      Request
		want   string
	}{
		{"queue-scorer", func(p *Pool) {
			setStats(p, 0, begin, Stats{Waiting: 3})
			setStats(p, 1, begin, Stats{Waiting: 2})
		}, Request{}, "p1"},
		{"running-requests-size-scorer", func(p *Pool) { setStats(p, 0, begin, Stats{Running: 3}) }, Request{}, "p1"},
		{"kv-cache-utilization-scorer", func(p *Pool) { setStats(p, 0, begin, Stats{CacheUse: 0.3}) }, Request{}, "p1"},
		{"load-aware-scorer", func(p *Pool) { setStats(p, 0, begin, Stats{Waiting: 3}) }, Request{}, "p1"},
		{"lora-affinity-scorer", func(p *Pool) { // running it before room for it
			setStats(p, 0, begin, Stats{MaxAdapters: 4})
			setStats(p, 1, begin, Stats{MaxAdapters: 1, Active: []string{"sql"}})
		}, Request{Model: "chat", Target: "sql"}, "p1"},
		{"lora-affinity-scorer", func(p *Pool) { // room for it before waiting for it
			setStats(p, 0, begin, Stats{MaxAdapters: 1, Queued: []string{"sql"}})
			setStats(p, 1, begin, Stats{MaxAdapters: 4, Active: []string{"a", "b"}})
		}, Request{Model: "sql"}, "p1"},
		{"lora-affinity-scorer", func(p *Pool) { // waiting for it before no room
			setStats(p, 0, begin, Stats{MaxAdapters: 1, Active: []string{"a"}})
			setStats(p, 1, begin, Stats{MaxAdapters: 1, Queued: []string{"sql"}})
		}, Request{Model: "sql"}, "p1"},
		{"prefix-cache-scorer", func(p *Pool) {
			p.Sent(p.Refs()[1], &Request{Prefix: prompt(p, long), Bytes: len(long)}, begin)
		}, Request{Prefix: prompt(pool(DefaultConfig(), 0), long[:2000]+"another end")}, "p1"},
		{"session-affinity-scorer", func(*Pool) {}, Request{Session: "n/p1"}, "p1"},
		{"active-request-scorer", func(p *Pool) { p.Sent(p.Refs()[0], &Request{}, begin) }, Request{}, "p1"},
		{"token-load-scorer", func(p *Pool) {
			p.Sent(p.Refs()[0], &Request{PromptTokens: 9000}, begin)
			p.Sent(p.Refs()[1], &Request{PromptTokens: 10}, begin)
			p.Sent(p.Refs()[1], &Request{PromptTokens: 10}, begin)
		}, Request{}, "p1"},
		{"least-work-scorer", func(p *Pool) { // tokens of prompts, not their number
			p.Sent(p.Refs()[0], &Request{PromptTokens: 9000}, begin)
			p.Sent(p.Refs()[1], &Request{PromptTokens: 10}, begin)
			p.Sent(p.Refs()[1], &Request{PromptTokens: 10}, begin)
		}, Request{PromptTokens: 100}, "p1"},
		{"least-work-scorer", func(p *Pool) { // requests of others
			setStats(p, 0, begin, Stats{Waiting: 2})
			p.Sent(p.Refs()[1], &Request{PromptTokens: 100}, begin)
		}, Request{PromptTokens: 100}, "p1"},
		{"least-work-scorer", func(p *Pool) { setStats(p, 0, begin, Stats{Running: 1}) }, Request{}, "p1"},
		{"least-work-scorer", func(p *Pool) { // a cached prompt, although something waits there
			p.Sent(p.Refs()[1], &Request{Prefix: prompt(p, long), Bytes: len(long)}, begin)
		}, Request{Prefix: prompt(pool(DefaultConfig(), 0), long[:4000]+"another end"), Bytes: 4011}, "p1"},
		{"least-work-scorer", func(p *Pool) { // not if the wait is longer than computing it again
			p.Sent(p.Refs()[0], &Request{Prefix: prompt(p, long), Bytes: len(long)}, begin)
			p.Sent(p.Refs()[0], &Request{PromptTokens: 3000}, begin)
		}, Request{Prefix: prompt(pool(DefaultConfig(), 0), long[:4000]+"another end"), Bytes: 4011}, "p1"},
		{"no-hit-lru-scorer", func(p *Pool) { p.Sent(p.Refs()[0], &Request{Prefix: prompt(p, long)}, begin) },
			Request{Prefix: prompt(pool(DefaultConfig(), 0), strings.ToUpper(long))}, "p1"},
		{"latency-scorer", func(p *Pool) {
			for i, took := range []time.Duration{400 * time.Millisecond, 50 * time.Millisecond} {
				for range 8 {
					f := p.Sent(p.Refs()[i], &Request{PromptTokens: 100}, begin)
					p.FirstToken(&f, begin.Add(took))
					p.Ended(&f, Answered, 10, begin.Add(2*took))
				}
			}
		}, Request{PromptTokens: 100}, "p1"},
	} {
		t.Run(c.plugin, func(t *testing.T) {
			p := pool(config(t, `"plugins": [{"type": "`+c.plugin+`"}]`), 2)
			for i := range 2 {
				setStats(p, i, begin, Stats{})
			}
			c.state(p)
			for seed := range uint64(10) {
				c.r.Random = seed
				if got := chosen(t, p, &c.r, begin.Add(time.Millisecond)); got != c.want {
					t.Fatalf("%s was chosen, not %s", got, c.want)
				}
			}
		})
	}
}

// A client's requested time to the first token: endpoints that meet it come first, the slowest of them first, so that
// the fast ones stay free for other requests.
func TestRequestedTimeToFirstToken(t *testing.T) {
	p := pool(config(t, `"plugins": [{"type": "slo-headroom-tier-filter", "parameters": {"epsilonExploreNeg": 0}},
		{"type": "latency-scorer", "parameters": {"tpotWeight": 0}}]`), 3)
	for i, took := range []time.Duration{20, 200, 2000} {
		for range 8 {
			f := p.Sent(p.Refs()[i], &Request{PromptTokens: 100}, begin)
			p.FirstToken(&f, begin.Add(took*time.Millisecond))
			p.Ended(&f, Answered, 0, begin.Add(took*time.Millisecond))
		}
	}
	for ttft, want := range map[time.Duration]string{time.Second: "p1", 100 * time.Millisecond: "p0",
		time.Millisecond: "p0"} {
		if got := chosen(t, p, &Request{PromptTokens: 100, TTFT: ttft, TPOT: time.Second}, begin); got != want {
			t.Errorf("for %s %s was chosen, not %s", ttft, got, want)
		}
	}
}

// Endpoints of a subset only, whatever their load (2.1); none: a clear refusal.
func TestSubset(t *testing.T) {
	p := pool(DefaultConfig(), 4)
	all := servers(4)
	for range 20 {
		r := &Request{Subset: []netip.AddrPort{netip.AddrPortFrom(all[2].Address.Addr(), 0)}}
		if got, _ := serve(t, p, r, begin); got != "p2" {
			t.Fatalf("%s was chosen", got)
		}
	}
	for _, subset := range [][]netip.AddrPort{{}, {netip.MustParseAddrPort("10.9.9.9:8000")},
		{netip.AddrPortFrom(all[2].Address.Addr(), 1)}} {
		if d := p.Decide(&Request{Subset: subset}, begin); d.Verdict != Refuse || d.Reason != NoEndpoints {
			t.Errorf("%v: %s %s", subset, d.Verdict, d.Reason)
		}
	}
	p.SetEndpoints(nil)
	if d := p.Decide(&Request{}, begin); d.Verdict != Refuse || d.Reason.Status() != 503 {
		t.Errorf("an empty pool: %s %s", d.Verdict, d.Reason)
	}
}

// Endpoints that are draining or not ready get no requests; removed endpoints leave no state, and a new pod with the
// same address is a new server.
func TestRemovedEndpoints(t *testing.T) {
	p := pool(DefaultConfig(), 3)
	all := servers(3)
	old := p.Refs()[0]
	_, flight := serve(t, p, &Request{Prefix: prompt(p, strings.Repeat("x", 4096))}, begin)
	all[0].Draining, all[1].Ready = true, false
	p.SetEndpoints(all)
	for seed := range uint64(30) {
		if got := chosen(t, p, &Request{Random: seed}, begin); got != "p2" {
			t.Fatalf("%s was chosen", got)
		}
	}
	p.Ended(&flight, Answered, 0, begin)
	p.Ended(&flight, Answered, 0, begin)
	all = servers(3)
	all[0].Pod, all[0].Name.Name = "another", "new"
	p.SetEndpoints(all)
	if p.Endpoint(old) != nil {
		t.Error("the old pod is still there")
	}
	p.Scraping(old, begin)
	p.Observe(old, Stats{At: begin, Waiting: 100})
	f := p.Sent(old, &Request{}, begin) // it was removed at that moment
	p.FirstToken(&f, begin)
	p.Ended(&f, Failed, 0, begin)
	ref, _ := p.Find(all[0].Address)
	if s, n := p.Stats(ref); n != 0 || s.Waiting != 0 {
		t.Errorf("the new pod has the old one's metrics: %+v, %d requests", s, n)
	}
	p.SetEndpoints(nil)
	if p.index.pairs != 0 || len(p.index.at) != 0 {
		t.Errorf("%d blocks of removed servers are stored", p.index.pairs)
	}
}

// Requests between two scrapes count, those that the scrape includes do not count twice.
func TestSentSinceTheScrape(t *testing.T) {
	p := pool(config(t, `"plugins": [{"type": "queue-scorer"}]`), 2)
	at := begin
	setStats(p, 0, at, Stats{Running: 5})
	setStats(p, 1, at, Stats{Waiting: 2, Running: 5})
	queue := func(i int) float64 {
		p.work.candidates(p, &Request{}, at)
		return p.work.queue(p.live[i])
	}
	var flights []Flight
	for range 3 {
		flights = append(flights, p.Sent(p.Refs()[0], &Request{}, at))
	}
	if got := queue(0); got != 3 {
		t.Errorf("queue %g, 3 were sent", got)
	}
	for i := range flights {
		p.FirstToken(&flights[i], at)
	}
	at = at.Add(50 * time.Millisecond)
	p.Scraping(p.Refs()[0], at)
	at = at.Add(time.Millisecond)
	flights = append(flights, p.Sent(p.Refs()[0], &Request{}, at)) // while the scrape is on its way
	p.Observe(p.Refs()[0], Stats{At: at.Add(-time.Millisecond), Waiting: 1, Running: 7})
	if got := queue(0); got != 2 {
		t.Errorf("queue %g: the server reported 1, 1 was sent since", got)
	}
	for i := range flights {
		p.Ended(&flights[i], Answered, 0, at)
	}
	if got := queue(0); got != 1 {
		t.Errorf("queue %g after all have ended, the server reported 1", got)
	}
	// The result of an outdated scrape is ignored.
	p.Observe(p.Refs()[0], Stats{At: begin, Waiting: 90})
	if got := queue(0); got != 1 {
		t.Errorf("queue %g by an old answer", got)
	}
	// A server that reports an empty queue is not trusted while it has 9 requests of this gateway.
	for range 9 {
		f := p.Sent(p.Refs()[0], &Request{}, at)
		p.FirstToken(&f, at)
	}
	at = at.Add(time.Second)
	setStats(p, 0, at, Stats{})
	if got := queue(0); got != 9 {
		t.Errorf("queue %g, it has 9 requests", got)
	}
}

// Sheddable requests are refused while no server has room, or while there are no metrics; others are not
// (2.4).
func TestSaturation(t *testing.T) {
	for _, c := range []struct {
		name  string
		stats []Stats
		age   time.Duration
		shed  bool
	}{
		{"room", []Stats{{Waiting: 4, CacheUse: 0.7}, {}}, 0, false},
		{"one has room", []Stats{{Waiting: 50}, {Waiting: 4}}, 0, false},
		{"queues", []Stats{{Waiting: 5}, {Waiting: 6}}, 0, true},
		{"caches", []Stats{{CacheUse: 0.8}, {CacheUse: 0.9}}, 0, true},
		{"queue and cache", []Stats{{Waiting: 9}, {CacheUse: 0.9}}, 0, true},
		{"stale", []Stats{{}, {}}, 300 * time.Millisecond, true},
	} {
		p := pool(DefaultConfig(), 2)
		p.SetPace(50 * time.Millisecond)
		for i, s := range c.stats {
			setStats(p, i, begin, s)
		}
		for _, priority := range []int{Sheddable, Standard, Critical} {
			d := p.Decide(&Request{Priority: priority}, begin.Add(c.age))
			if shed := d.Verdict == Refuse; shed != (c.shed && priority < 0) || shed && d.Reason.Status() != 429 {
				t.Errorf("%s: a request of priority %d: %s %s", c.name, priority, d.Verdict, d.Reason)
			}
		}
	}
}

// A pool of servers without metrics also serves sheddable requests, until it has many requests.
func TestServersWithoutMetrics(t *testing.T) {
	p := pool(DefaultConfig(), 2)
	for i := range 2 * unscrapedRequests {
		if d := p.Decide(&Request{Priority: Sheddable}, begin); d.Verdict != Serve {
			t.Fatalf("request %d: %s", i, d.Reason)
		}
		serve(t, p, &Request{}, begin)
	}
	if d := p.Decide(&Request{Priority: Sheddable}, begin); d.Reason != Saturated {
		t.Errorf("%d requests at 2 servers: %s", 2*unscrapedRequests, d.Verdict)
	}
	setStats(p, 0, begin, Stats{Waiting: 9}) // one has metrics, those of the other are stale
	if d := p.Decide(&Request{Priority: Sheddable}, begin); d.Reason != Saturated {
		t.Errorf("one is full, one is stale: %s", d.Verdict)
	}
}

// The concurrency detector reacts at once.
func TestConcurrency(t *testing.T) {
	p := pool(config(t, `"plugins": [{"type": "concurrency-detector", "parameters": {"maxConcurrency": 2}}],
		"saturationDetector": {"pluginRef": "concurrency-detector"}`), 2)
	var last Flight
	for i := range 4 {
		if d := p.Decide(&Request{Priority: -1}, begin); d.Verdict != Serve {
			t.Fatalf("request %d: %s", i, d.Reason)
		}
		_, last = serve(t, p, &Request{}, begin)
	}
	if d := p.Decide(&Request{Priority: -1}, begin); d.Reason != Saturated {
		t.Errorf("4 requests at 2 servers for 2: %s %s", d.Verdict, d.Reason)
	}
	p.Ended(&last, Answered, 0, begin)
	if d := p.Decide(&Request{Priority: -1}, begin); d.Verdict != Serve {
		t.Errorf("3 requests at 2 servers for 2: %s", d.Reason)
	}
}

// With equal scores, the server with the fewest requests is chosen.
func TestTies(t *testing.T) {
	p := pool(config(t, `"plugins": [{"type": "max-score-picker"}]`), 3)
	p.Sent(p.Refs()[0], &Request{}, begin)
	p.Sent(p.Refs()[2], &Request{}, begin)
	for seed := range uint64(20) {
		if got := chosen(t, p, &Request{Random: seed}, begin); got != "p1" {
			t.Fatalf("%s was chosen", got)
		}
	}
}

// Servers with equal scores and equally many requests take turns: the one that got its last request first is the first
// to be free. By chance, one of four would often get two in a row.
func TestTiesTakeTurns(t *testing.T) {
	p := pool(DefaultConfig(), 4)
	seen := map[string]int{}
	for i := range 12 {
		r := &Request{PromptTokens: 1000, Random: mix(uint64(i))} //nolint:gosec // small
		name, _ := serve(t, p, r, begin)
		if before, again := seen[name]; again && i-before != 4 {
			t.Fatalf("%s got requests %d and %d", name, before, i)
		}
		seen[name] = i
	}
	p.SetEndpoints(servers(5)) // a new one
	if got := chosen(t, p, &Request{PromptTokens: 1000}, begin); got != "p4" {
		t.Errorf("%s was chosen, not the one that has nothing", got)
	}
}

// Requests of this gateway are never taken for requests of others, whatever happened to them between the scrape and its
// result, or since: their tokens are known. Those of others are.
func TestRequestsOfOthers(t *testing.T) {
	p := pool(DefaultConfig(), 1)
	ref := p.Refs()[0]
	var own []Flight
	send := func(n int) {
		for range n {
			own = append(own, p.Sent(ref, &Request{PromptTokens: 10}, begin))
		}
	}
	send(10)
	p.Scraping(ref, begin.Add(1))
	send(2)
	for i := range 3 { // after the server has counted them
		p.Ended(&own[i], Answered, 1, begin.Add(2))
	}
	p.Observe(ref, Stats{At: begin.Add(1), Waiting: 8, Running: 4})
	send(5)
	for i := range own[3:9] {
		p.FirstToken(&own[3+i], begin.Add(3))
	}
	if n := p.loads[ref.slot].foreign; n != 0 {
		t.Errorf("%d of its own requests count as those of others", n)
	}
	p.Scraping(ref, begin.Add(4))
	p.Observe(ref, Stats{At: begin.Add(4), Waiting: 9, Running: 9}) // 14 of them are its own
	if n := p.loads[ref.slot].foreign; n != 4 {
		t.Errorf("%d of others wait, not 4", n)
	}
	p.Scraping(ref, begin.Add(5))
	p.Observe(ref, Stats{At: begin.Add(5), Waiting: 1, Running: 99})
	if n := p.loads[ref.slot].foreign; n != 1 {
		t.Errorf("%d of others wait, not 1", n)
	}
}

// A small difference in work does not count in full: a server that has the adapter is preferred to one with a little
// less work, but not to one with much less.
func TestSmallDifferences(t *testing.T) {
	for tokens, want := range map[int]string{100: "p0", 10_000: "p1"} {
		p := pool(DefaultConfig(), 2)
		setStats(p, 0, begin, Stats{MaxAdapters: 1, Active: []string{"sql"}})
		setStats(p, 1, begin, Stats{MaxAdapters: 1, Active: []string{"other"}})
		p.Sent(p.Refs()[0], &Request{PromptTokens: tokens}, begin)
		if got := chosen(t, p, &Request{Model: "sql", PromptTokens: 1000}, begin); got != want {
			t.Errorf("%d tokens wait: %s was chosen, not %s", tokens, got, want)
		}
	}
}

// Ties are broken evenly, and the weighted picker follows the scores.
func TestPickers(t *testing.T) {
	for _, c := range []struct {
		text string
		want []float64 // of 20,000
	}{
		{`{"type": "max-score-picker"}`, []float64{0, 10000, 10000}},
		{`{"type": "random-picker"}`, []float64{6667, 6667, 6667}},
		{`{"type": "weighted-random-picker"}`, []float64{4000, 8000, 8000}},
	} {
		p := pool(config(t, `"plugins": [{"type": "kv-cache-utilization-scorer"}, `+c.text+`]`), 3)
		setStats(p, 0, begin, Stats{CacheUse: 0.6})
		setStats(p, 1, begin, Stats{CacheUse: 0.2})
		setStats(p, 2, begin, Stats{CacheUse: 0.2})
		got := map[string]float64{}
		for seed := range uint64(20000) {
			got[chosen(t, p, &Request{Random: mix(seed)}, begin)]++
		}
		for i, want := range c.want {
			if n := got[fmt.Sprint("p", i)]; math.Abs(n-want) > 400 {
				t.Errorf("%s: p%d was chosen %g times, expected %g", c.text, i, n, want)
			}
		}
	}
}

// The decision lists the other endpoints to try, in the order of their scores, each once.
func TestOrder(t *testing.T) {
	p := pool(DefaultConfig(), 5)
	for i := range 5 {
		setStats(p, i, begin, Stats{Waiting: 10 - i})
	}
	d := p.Decide(&Request{}, begin)
	for i, want := range []string{"p4", "p3", "p2"} {
		if got := p.Endpoint(d.Chosen[i]).Name.Name; got != want {
			t.Errorf("%d: %s, want %s", i, got, want)
		}
	}
}

// Filters by label, and disaggregated prefill (llm-d.ai/role).
func TestDisaggregated(t *testing.T) {
	p := NewPool(config(t, `"plugins": [{"type": "prefill-filter"}, {"type": "decode-filter"}, {"type": "queue-scorer"},
		{"type": "pd-profile-handler", "parameters": {"threshold": 1000}}],
		"schedulingProfiles": [
			{"name": "prefill", "plugins": [{"pluginRef": "prefill-filter"}, {"pluginRef": "queue-scorer"}]},
			{"name": "decode", "plugins": [{"pluginRef": "decode-filter"}, {"pluginRef": "queue-scorer"}]}]`))
	all := servers(3)
	for i, role := range []string{"prefill", "decode", "both"} {
		all[i].Labels = map[string]string{RoleLabel: role}
	}
	p.SetEndpoints(all)
	long := strings.Repeat("z", 4096)
	r := &Request{Bytes: len(long), Prefix: prompt(p, long)}
	for seed := range uint64(20) {
		r.Random = seed
		d := p.Decide(r, begin)
		if name := p.Endpoint(d.Chosen[0]).Name.Name; name == "p0" || d.N != 2 {
			t.Fatalf("%s decodes, %d endpoints", name, d.N)
		}
		if d.HasPrefill && (d.Prefill == d.Chosen[0] || p.Endpoint(d.Prefill).Name.Name == "p1") ||
			!d.HasPrefill && p.Endpoint(d.Chosen[0]).Name.Name != "p2" {
			t.Fatalf("prefill: %t %+v", d.HasPrefill, d)
		}
	}
	if d := p.Decide(&Request{Bytes: 400}, begin); d.HasPrefill {
		t.Error("a short prompt is computed by another server")
	}
	name, _ := serve(t, p, r, begin)
	r.Subset = []netip.AddrPort{all[map[string]int{"p1": 1, "p2": 2}[name]].Address}
	if d := p.Decide(r, begin); d.HasPrefill {
		t.Error("a prompt that is in the cache is computed by another server")
	}
	all[1].Labels, all[2].Labels = map[string]string{RoleLabel: "prefill"}, map[string]string{RoleLabel: "prefill"}
	p.SetEndpoints(all)
	if d := p.Decide(&Request{}, begin); d.Reason != NoEndpoints {
		t.Errorf("nobody decodes: %s", d.Verdict)
	}
}

// Names of adapters that no server reports any more are forgotten: one server that makes up others each time does not
// take the room of the names of others.
func TestMadeUpAdapters(t *testing.T) {
	p := pool(config(t, `"plugins": [{"type": "lora-affinity-scorer"}]`), 3)
	now, made := begin, 0
	for range mostAdapters/(2*mostPerServer) + 200 {
		var names [2][]string
		for i := range names {
			for range mostPerServer {
				names[i] = append(names[i], strconv.Itoa(made))
				made++
			}
		}
		now = now.Add(time.Millisecond)
		setStats(p, 0, now, Stats{Active: names[0], Queued: names[1]})
		if made == 2*mostPerServer {
			setStats(p, 1, now, Stats{Active: []string{"early"}, MaxAdapters: 1})
		}
	}
	if len(p.names) > mostAdapters {
		t.Errorf("%d names are kept", len(p.names))
	}
	setStats(p, 2, now, Stats{Active: []string{"late"}, MaxAdapters: 1})
	for model, want := range map[string]string{"early": "p1", "late": "p2", strconv.Itoa(made - 1): "p0"} {
		if got := chosen(t, p, &Request{Model: model, Random: 1}, now); got != want {
			t.Errorf("a request for the adapter %s goes to %s, not %s", model, got, want)
		}
	}
}

// thousand returns the pool of the benchmark, with all metrics that the default configuration uses.
func thousand() (*Pool, []Request) {
	p := pool(DefaultConfig(), 1000)
	p.SetPace(time.Second)
	for i := range 1000 {
		setStats(p, i, begin, Stats{Waiting: i * 7 % 11, Running: i % 50, CacheUse: float64(i*13%100) / 100})
	}
	system := strings.Repeat("You are a helpful assistant. ", 300)
	requests := make([]Request, 256)
	for i := range requests {
		text := system + strings.Repeat(fmt.Sprint("question ", i%100), 200+i%50)
		requests[i] = Request{Model: "m", Bytes: len(text), Prefix: prompt(p, text), Random: mix(uint64(i))} //nolint:gosec
	}
	for i := range 4000 {
		p.Sent(p.Refs()[i%1000], &requests[i%len(requests)], begin)
	}
	return p, requests
}

// Deciding allocates nothing.
func TestAllocations(t *testing.T) {
	p, requests := thousand()
	i := 0
	if n := testing.AllocsPerRun(200, func() { i++; p.Decide(&requests[i%len(requests)], begin) }); n > 0 {
		t.Errorf("%g allocations for each decision", n)
	}
}

// BenchmarkDecide measures the pick with 1,000 endpoints and 256 prompts of 8 to 11 KB that share a
// beginning.
func BenchmarkDecide(b *testing.B) {
	p, requests := thousand()
	b.ReportAllocs()
	took := make([]time.Duration, 0, 1<<16)
	i := 0
	for b.Loop() {
		i++
		start := time.Now()
		p.Decide(&requests[i%len(requests)], begin)
		if len(took) < cap(took) {
			took = append(took, time.Since(start))
		}
	}
	slices.Sort(took)
	b.ReportMetric(float64(took[len(took)/2].Nanoseconds()), "p50-ns")
	b.ReportMetric(float64(took[len(took)*99/100].Nanoseconds()), "p99-ns")
}

func BenchmarkSent(b *testing.B) {
	p, requests := thousand()
	refs := p.Refs()
	b.ReportAllocs()
	i := 0
	for b.Loop() {
		i++
		f := p.Sent(refs[i%1000], &requests[i%len(requests)], begin)
		p.Ended(&f, Answered, 0, begin)
	}
}
