package inference

import (
	"os"
	"testing"
	"time"

	"carob/internal/core/routing"
	"carob/internal/sim/fakeapi"
	"carob/internal/sim/simtest"
)

const long = 25 * time.Second

// INFERENCE_SEEDS=N runs N seeds.
func TestSeeds(t *testing.T) {
	simtest.Seeds(t, "INFERENCE_SEEDS", 12, func(seed uint64) error { return Run(seed, long, Sabotage{}) })
}

// Each invariant can be broken, and the checks report it.
func TestChecksFindSabotage(t *testing.T) {
	simtest.Breaks(t, map[fakeapi.Invariant]Sabotage{
		Members: {Endpoints: func(all []routing.Endpoint) {
			for i := range all {
				all[i].Ready, all[i].Draining = true, false
			}
		}},
		Order:    {Request: func(r *routing.Request) { r.Priority = 0 }},
		Bounded:  {Limits: 20},
		Ends:     {Lose: true},
		Fair:     {Request: func(r *routing.Request) { r.FairnessID = "all" }},
		Accounts: {Forget: true},
		Once:     {Retry: true},
		InTime:   {Late: true},
		Works:    {Idle: true},
		Starts:   {Uninformed: true},
		Known:    {Unnumbered: true},
		Same: {Decision: func(first bool, d *routing.Decision) {
			if first {
				d.Score++
			}
		}},
	}, func(seed uint64, sabotage Sabotage) error { return Run(seed, long, sabotage) })
}

// shared is the load of the field's benchmarks, smaller: tenants, each with a long beginning of its own.
func shared() Load {
	return Load{Servers: 4, Tenants: 70, Prefix: 6000, Question: 1200, Answer: 100, PerSecond: 5, Warm: time.Minute,
		Long: 2 * time.Minute, Blocks: 2500}
}

// affinity is another configuration: servers with the prompt in their cache, unless they would take much longer; then
// the least tokens to compute.
func affinity(t *testing.T) *routing.Config {
	t.Helper()
	c, err := routing.ParseConfig([]byte(`{"apiVersion": "inference.networking.x-k8s.io/v1alpha1",
		"kind": "EndpointPickerConfig", "plugins": [{"type": "prefix-cache-scorer"},
			{"type": "prefix-cache-affinity-filter", "parameters": {"affinityThreshold": 0.6, "maxTTFTPenaltyMs": 1500}},
			{"type": "token-load-scorer", "parameters": {"queueThresholdTokens": 100000}}],
		"schedulingProfiles": [{"name": "default", "plugins": [{"pluginRef": "prefix-cache-affinity-filter"},
			{"pluginRef": "token-load-scorer"}]}]}`))
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// byEvents is the default configuration with KV events instead of the index of sent prompts.
func byEvents(t *testing.T) *routing.Config {
	t.Helper()
	c, err := routing.ParseConfig([]byte(`{"apiVersion": "llm-d.ai/v1alpha1", "kind": "EndpointPickerConfig",
		"plugins": [{"type": "queue-scorer"}, {"type": "kv-cache-utilization-scorer"}, {"type": "precise-prefix-cache-scorer"}],
		"schedulingProfiles": [{"name": "default", "plugins": [{"pluginRef": "queue-scorer", "weight": 2},
			{"pluginRef": "kv-cache-utilization-scorer", "weight": 2}, {"pluginRef": "precise-prefix-cache-scorer",
			"weight": 3}]}]}`))
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// upstream is what llm-d recommends for the approximate prefix index.
func upstream(t *testing.T) *routing.Config {
	t.Helper()
	c, err := routing.ParseConfig([]byte(`{"apiVersion": "llm-d.ai/v1alpha1", "kind": "EndpointPickerConfig",
		"plugins": [{"type": "queue-scorer"}, {"type": "kv-cache-utilization-scorer"}, {"type": "prefix-cache-scorer"}],
		"schedulingProfiles": [{"name": "default", "plugins": [{"pluginRef": "queue-scorer", "weight": 2},
			{"pluginRef": "kv-cache-utilization-scorer", "weight": 2}, {"pluginRef": "prefix-cache-scorer",
			"weight": 3}]}]}`))
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// Where prompts share beginnings, half of the requests get their first token in less than a tenth of the time of round
// robin (a twin computes one prompt after the other, and with round robin they fall behind); without shared prompts it
// is not worse. Prompts of equal length that share nothing, and those that all servers have cached, leave nothing to
// gain: round robin is then the best order. INFERENCE_LOADS=1 runs all loads.
func TestLoads(t *testing.T) {
	for _, c := range []struct {
		name   string
		change func(*Load)
		less   float64 // the median, as a part of round robin's
		slow   float64 // the slowest tenth, as a part of round robin's
		short  bool
	}{
		{"shared prefixes", func(*Load) {}, 0.1, 0.1, true},
		{"nothing shared", func(l *Load) { l.Tenants, l.Prefix, l.Question = 1, 64, 2000 }, 1.01, 1.12, true},
		{"bursts", func(l *Load) {
			l.Tenants, l.Prefix, l.Question, l.Answer, l.PerSecond, l.Burst = 20, 1000, 200, 20, 8, 40
			l.Long = 5 * time.Minute
		}, 1.01, 1.12, true},
		{"long prompts", func(l *Load) {
			l.Tenants, l.Prefix, l.Question, l.Answer, l.PerSecond, l.Long = 4, 200, 12000, 10, 0.8, 10*time.Minute
		}, 1.01, 1.08, true},
		{"long prompts of different length", func(l *Load) {
			l.Tenants, l.Prefix, l.Question, l.Answer, l.PerSecond, l.Long = 4, 200, 6000, 10, 0.8, 10*time.Minute
			l.Spread = 8
		}, 0.8, 0.85, true},
		{"a prompt that many request", func(l *Load) { l.Tenants, l.PerSecond = 3, 10 }, 1.5, 1.5, true},
		{"long answers", func(l *Load) {
			l.Tenants, l.Prefix, l.Question, l.Answer, l.PerSecond, l.Spread = 50, 500, 100, 800, 15, 5
		}, 1.2, 1, false},
		{"a slow server", func(l *Load) { l.Slow, l.PerSecond = 1, 4 }, 0.1, 0.1, false},
		{"shared prefixes, by llm-d's weights", func(l *Load) { l.Config = upstream(t) }, 0.1, 0.1, false},
		{"shared prefixes, by affinity", func(l *Load) { l.Config = affinity(t) }, 0.1, 0.1, false},
		{"shared prefixes, by KV events", func(l *Load) { l.Config = byEvents(t) }, 0.1, 0.1, false},
		{"shared prefixes, fast servers", func(l *Load) { // many requests begin and end between two scrapes
			l.Fast, l.Most, l.PerSecond, l.Warm, l.Long = 10, 4, 50, 10*time.Second, 20*time.Second
		}, 0.135, 0.12, true},
		{"few requests", func(l *Load) { l.PerSecond = 1.5 }, 0.35, 1, false},
		{"large", func(l *Load) {
			l.Servers, l.Tenants, l.PerSecond, l.Long = 8, 150, 10, 3*time.Minute
		}, 0.1, 0.1, false},
	} {
		if !c.short && os.Getenv("INFERENCE_LOADS") == "" {
			continue
		}
		l := shared()
		c.change(&l)
		robin := l
		robin.RoundRobin = true
		got, other := Measure(1, l), Measure(1, robin)
		t.Logf("%s: %+v; round robin: %+v", c.name, got, other)
		if got.P50 > time.Duration(float64(other.P50)*c.less) || got.P90 > time.Duration(float64(other.P90)*c.slow) ||
			got.Hits < other.Hits-0.03 {
			t.Errorf("%s: %+v; round robin: %+v", c.name, got, other)
		}
		if got.Answered != got.Requests || got.Requests == 0 {
			t.Errorf("%s: %d of %d got a response", c.name, got.Answered, got.Requests)
		}
	}
}
