package routing

import (
	"strings"
	"testing"
	"time"
)

const head = `"apiVersion": "inference.networking.x-k8s.io/v1alpha1", "kind": "EndpointPickerConfig"`

// Unknown or invalid parts are errors that name them.
func TestConfigErrors(t *testing.T) {
	for _, c := range []struct{ text, want string }{
		{`{`, "unexpected EOF"},
		{`{} x`, "after the end"},
		{`{"kind": "Pod", "apiVersion": "v1"}`, "Pod of v1"},
		{`{` + head + `, "plugin": []}`, `unknown field "plugin"`},
		{`{` + head + `, "featureGates": ["teleport"]}`, `featureGates[0]: "teleport"`},
		{`{` + head + `, "plugins": [{"type": "magic-scorer"}]}`, `"magic-scorer" is not known`},
		{`{` + head + `, "plugins": [{"type": "queue-scorer", "parameters": {"x": 1}}]}`, `unknown field "x"`},
		{`{` + head + `, "plugins": [{"type": "queue-scorer"}, {"type": "queue-scorer"}]}`, "two plugins"},
		{`{` + head + `, "schedulingProfiles": [{"name": "a", "plugins": [{"pluginRef": "nobody"}]}]}`, `"nobody"`},
		{`{` + head + `, "schedulingProfiles": [{"name": "a"}, {"name": "a"}]}`, "two profiles"},
		{`{` + head + `, "schedulingProfiles": [{"name": "a"}, {"name": "b"}]}`, "profile handler"},
		{`{` + head + `, "schedulingProfiles": [{"plugins": []}]}`, "no name"},
		{`{` + head + `, "schedulingProfiles": [{"name": "a", "plugins": [{"pluginRef": "queue-scorer", "weight": -1}]}]}`,
			"weight"},
		{`{` + head + `, "schedulingProfiles": [{"name": "a", "plugins": [{"pluginRef": "openai-parser"}]}]}`, "neither"},
		{`{` + head + `, "schedulingProfiles": [{"name": "a", "plugins": [{"pluginRef": "max-score-picker"},
			{"pluginRef": "random-picker"}]}]}`, "picker already"},
		{`{` + head + `, "saturationDetector": {"pluginRef": "queue-scorer"}}`, "detects no saturation"},
		{`{` + head + `, "parser": {"pluginRef": "queue-scorer"}}`, "parses no requests"},
		{`{` + head + `, "dataLayer": {"sources": [{"pluginRef": "queue-scorer"}]}}`, "not a source"},
		{`{` + head + `, "plugins": [{"type": "pd-profile-handler"}], "schedulingProfiles": [{"name": "decode"}]}`, "needs"},
		{`{` + head + `, "plugins": [{"type": "by-label", "parameters": {"label": "a"}}]}`, "no endpoint can pass"},
		{`{` + head + `, "plugins": [{"type": "by-label-selector", "parameters": {"matchExpressions": [
			{"key": "a", "operator": "Near"}]}}]}`, "not a valid"},
		{`{` + head + `, "plugins": [{"type": "prefix-cache-scorer", "parameters": {"blockSizeTokens": -1}}]}`,
			"blockSizeTokens"},
		{precise(`"kvEventsConfig": {"zmqEndpoint": "tcp://*:5557"}`), "servers must bind it"},
		{precise(`"kvEventsConfig": {"discoverPods": false}`), "servers must bind it"},
		{precise(`"kvEventsConfig": {"engineType": "sglang"}`), "only the events of vllm"},
		{precise(`"kvEventsConfig": {"podDiscoveryConfig": {"socketPort": 65536}}`), "socketPort is 65536"},
		{precise(`"tokenProcessorConfig": {"blockSizeTokens": 1000000}`), "blockSizeTokens is 1000000"},
		{precise(`"indexerConfig": {"kvBlockIndexConfig": {"redisConfig": {}}}`), "not in Redis"},
		{precise(`"indexerConfig": {"kvCacheBackendConfigs": [{"name": "tape"}]}`), "not gpu or cpu"},
		{precise(`"indexerConfig": {"kvCacheBackendConfigs": [{"name": "cpu", "weight": 2}]}`), "weight is 2"},
		{precise(`"speculativeTTL": "2h"`), "speculativeTTL is 2h"},
		{precise(`"kvEvents": {}`), "kvEvents"},
		{`{` + head + `, "plugins": [{"type": "core-metrics-extractor", "parameters": {"defaultEngine": "x"}}]}`,
			"no engine"},
		{`{` + head + `, "plugins": [{"type": "core-metrics-extractor", "parameters": {"engineConfigs": [
			{"name": "x", "queuedRequestsSpec": "a b"}]}}]}`, "not a series"},
		{`{` + head + `, "plugins": [{"type": "core-metrics-extractor", "parameters": {"engineConfigs": [
			{"name": "x"}]}}]}`, "is needed"},
		{`{` + head + `, "saturationDetector": {"queueDepthThreshold": 0}}`, "queueDepthThreshold"},
		{`{` + head + `, "plugins": [{"type": "prefix-cache-scorer", "parameters": {"lruCapacityPerServer": 99999999}}]}`,
			"lruCapacityPerServer"},
		{`{` + head + `, "plugins": [{"type": "utilization-detector", "parameters": {"kvCacheUtilThreshold": 2}}]}`,
			"kvCacheUtilThreshold"},
		{`{` + head + `, "plugins": [{"type": "concurrency-detector", "parameters": {"concurrencyMode": "x"}}]}`,
			"concurrencyMode"},
		{`{` + head + `, "plugins": [{"type": "random-picker", "parameters": {"maxNumOfEndpoints": 0}}]}`,
			"maxNumOfEndpoints"},
		{`{` + head + `, "plugins": [{"type": "least-work-scorer", "parameters": {"uncachedWeight": -1}}]}`,
			"uncachedWeight"},
		{`{` + head + `, "plugins": [{"type": "least-work-scorer", "parameters": {"runningTokens": 1e7}}]}`,
			"runningTokens"},
		{`{` + head + `, "flowControl": {"maxBytes": "-1"}}`, "flowControl.maxBytes"},
		{with("metrics-data-source", `"scheme": "ftp"`), `scheme is "ftp"`},
		{with("metrics-data-source", `"path": "metrics"`), `path is "metrics"`},
		{with("metrics-data-source", `"path": "/a?b"`), `path is "/a?b"`},
		{with("session-affinity-scorer", `"algorithm": "session_id_header"`), "only encoded_endpoint_header"},
		{with("session-affinity-scorer", `"headerName": "a b"`), "not the name of a header"},
		{`{` + head + `, "plugins": [{"type": "session-affinity-scorer"}, {"type": "session-affinity-filter",
			"parameters": {"headerName": "x-mine"}}]}`, "that of another plugin"},
		{with("disagg-profile-handler", `"deciders": {"encode": "x"}`), "deciders.encode is not supported"},
		{with("disagg-profile-handler", `"profiles": {"decode": "prefill"}`), "must differ"},
		{with("disagg-profile-handler", `"deciders": {"prefill": "queue-scorer"}`), "does not decide"},
		{with("prefix-based-pd-decider", `"nonCachedTokens": -1`), "nonCachedTokens"},
		{with("prefix-cache-scorer", `"prefixMatchInfoProducerName": "queue-scorer"`), "no index of prompts"},
		{`{` + head + `, "dataLayer": {"sources": [{"pluginRef": "endpoint-notification-source",
			"extractors": [{"pluginRef": "core-metrics-extractor"}]}]}}`, "uses no notifications"},
		{`{` + head + `, "flowControl": {"priorityBands": [{"priority": 1}, {"priority": 1}]}}`, "two bands"},
		{`{` + head + `, "flowControl": {"defaultRequestTTL": "-1s"}}`, "defaultRequestTTL"},
		{`{` + head + `, "flowControl": {"defaultPriorityBand": {"fairnessPolicyRef": "fcfs-ordering-policy"}}}`,
			"not a fairness policy"},
		{`{` + head + `, "flowControl": {"defaultPriorityBand": {"orderingPolicyRef": "queue-scorer"}}}`,
			"not an ordering policy"},
		{strings.Repeat(" ", MaxConfig+1), "bytes"},
	} {
		if _, err := ParseConfig([]byte(c.text)); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%.200s: %v, want %q", c.text, err, c.want)
		}
	}
}

// with is a configuration with one plugin.
func with(kind, parameters string) string {
	return `{` + head + `, "plugins": [{"type": "` + kind + `", "parameters": {` + parameters + `}}]}`
}

// Configurations as llm-d's router has them (deploy/config of its repository) are read, and nothing of them is lost.
func TestConfigsOfTheRouter(t *testing.T) {
	const scores = `"plugins": [{"pluginRef": "prefill-filter"}, {"pluginRef": "max-score-picker"},
		{"pluginRef": "prefix-cache-scorer", "weight": 2}, {"pluginRef": "queue-scorer", "weight": 1}]`
	disaggregated := func(nonCached string) *Config {
		return config(t, `"plugins": [{"type": "approx-prefix-cache-producer", "parameters": {"blockSizeTokens": 16,
			"autoTune": false, "maxPrefixTokensToMatch": 4096, "lruCapacityPerServer": 1000}},
			{"type": "prefix-cache-scorer"}, {"type": "queue-scorer"}, {"type": "prefill-filter"},
			{"type": "decode-filter"}, {"type": "max-score-picker"},
			{"type": "prefix-based-pd-decider", "parameters": {"nonCachedTokens": `+nonCached+`}},
			{"type": "disagg-profile-handler", "parameters": {"deciders": {"prefill": "prefix-based-pd-decider"}}}],
			"schedulingProfiles": [{"name": "prefill", `+scores+`}, {"name": "decode", `+
			strings.Replace(scores, "prefill-filter", "decode-filter", 1)+`}]`)
	}
	c := disaggregated("16")
	if c.prefix.AutoTune || c.prefix.MaxPrefixTokensToMatch != 4096 || c.prefix.LRUCapacityPerServer != 1000 {
		t.Errorf("the index has not the parameters of its producer: %+v", c.prefix)
	}
	if c.profiles[c.prefill].name != "prefill" || c.profiles[c.decode].name != "decode" || c.by.uncached != 64 {
		t.Errorf("%+v", c)
	}
	if c := disaggregated("0"); c.prefill != -1 {
		t.Error("nonCachedTokens: 0 does not turn it off")
	}
	c = config(t, `"plugins": [{"type": "token-producer", "parameters": {"backend": "vllm", "vllm": {"url": "http://a"}}},
		{"type": "endpoint-notification-source"}, {"type": "metrics-data-source", "parameters": {"path": "/m",
		"families": ["a"]}}, {"type": "core-metrics-extractor"}, {"type": "single-profile-handler"},
		{"type": "precise-prefix-cache-producer", "parameters": {"tokenProcessorConfig": {"blockSize": 64},
		"indexerConfig": {"kvBlockIndexConfig": {"enableMetrics": true}}}},
		{"type": "prefix-cache-scorer", "parameters": {"prefixMatchInfoProducerName": "precise-prefix-cache-producer"}}],
		"dataLayer": {"sources": [{"pluginRef": "metrics-data-source",
			"extractors": [{"pluginRef": "core-metrics-extractor"}]},
		{"pluginRef": "endpoint-notification-source", "extractors": [{"pluginRef": "precise-prefix-cache-producer"}]}]},
		"requestHandler": {"parsers": [{"pluginRef": "anthropic-parser"}, {"pluginRef": "vllmhttp-parser"}]}`)
	if c.precise == nil || c.precise.BlockTokens != 64 || c.Source().Path != "/m" || len(c.profiles[0].scorers) != 1 {
		t.Fatalf("%+v", c)
	}
	if c.profiles[0].scorers[0].scorer != (preciseScorer{}) {
		t.Errorf("prefix-cache-scorer uses %T", c.profiles[0].scorers[0].scorer)
	}
	if _, err := ParseConfig([]byte(`{"apiVersion": "llm-d.ai/v1", "kind": "EndpointPickerConfig"}`)); err != nil {
		t.Error(err)
	}
}

// A prompt is computed by another server if enough of it is not cached where it is answered.
func TestDeciders(t *testing.T) {
	for _, c := range []struct {
		decider string
		bytes   int
		want    bool
	}{
		{`{"type": "always-disagg-pd-decider"}`, 4, true},
		{`{"type": "prefix-based-pd-decider", "parameters": {"nonCachedTokens": 100}}`, 399, false},
		{`{"type": "prefix-based-pd-decider", "parameters": {"nonCachedTokens": 100}}`, 400, true},
		{`{"type": "prefix-based-pd-decider", "parameters": {"nonCachedTokens": 1, "promptTokens": 101}}`, 400, false},
		{`{"type": "prefix-based-pd-decider"}`, 1 << 20, false},
	} {
		kind, _, _ := strings.Cut(strings.TrimPrefix(c.decider, `{"type": "`), `"`)
		p := pool(config(t, `"plugins": [`+c.decider+`, {"type": "disagg-profile-handler", "parameters": {"deciders": {
			"prefill": "`+kind+`"}, "profiles": {"prefill": "p", "decode": "d"}}}],
			"schedulingProfiles": [{"name": "p", "plugins": [{"pluginRef": "prefill-filter"}]},
			{"name": "d", "plugins": [{"pluginRef": "decode-filter"}]}]`), 2)
		all := servers(2)
		all[0].Labels = map[string]string{RoleLabel: "prefill"}
		p.SetEndpoints(all)
		if d := p.Decide(&Request{Bytes: c.bytes, Random: 1}, begin); d.HasPrefill != c.want {
			t.Errorf("%s, %d bytes: %+v", c.decider, c.bytes, d)
		}
	}
}

// A session stays at its server: the filter has no other, the scorer prefers it.
func TestSessionAffinity(t *testing.T) {
	for _, kind := range []string{"session-affinity-filter", "session-affinity-scorer"} {
		c := config(t, `"plugins": [{"type": "`+kind+`", "parameters": {"headerName": "x-mine"}}]`)
		if c.SessionHeader() != "x-mine" {
			t.Errorf("%s: %q", kind, c.SessionHeader())
		}
		p := pool(c, 4)
		for i, ref := range p.Refs() {
			r := &Request{Session: p.Endpoint(ref).Session(), Random: mix(uint64(i))} //nolint:gosec // small
			d := p.Decide(r, begin)
			if d.Verdict != Serve || d.Chosen[0] != ref || kind == "session-affinity-filter" && d.N != 1 {
				t.Errorf("%s: %+v, want %v", kind, d, ref)
			}
			p.Sent(d.Chosen[0], r, begin)
		}
		if d := p.Decide(&Request{Session: "default/gone", Random: 1}, begin); d.Verdict != Serve || d.N != 3 {
			t.Errorf("%s, a session whose server is gone: %+v", kind, d)
		}
	}
}

// All parts of a configuration are read, with upstream's defaults.
func TestConfig(t *testing.T) {
	c := config(t, `"featureGates": ["flowControl"], "plugins": [{"name": "mine", "type": "queue-scorer"},
		{"type": "random-picker"}, {"type": "utilization-detector", "parameters": {"queueDepthThreshold": 9}}],
		"saturationDetector": {"pluginRef": "utilization-detector"},
		"flowControl": {"maxRequests": "1k", "priorityBands": [{"priority": -5, "maxRequests": "7"},
			{"priority": 9, "fairnessPolicyRef": "round-robin-fairness-policy", "orderingPolicyRef": "edf-ordering-policy"}]}`)
	if len(c.profiles) != 1 || len(c.profiles[0].scorers) != 1 || c.profiles[0].scorers[0].weight != 1 ||
		c.profiles[0].picker.kind != anyScore {
		t.Errorf("profiles: %+v", c.profiles)
	}
	if c.saturation.queue != 9 || c.saturation.cache != 0.8 || c.saturation.stale != 200*time.Millisecond {
		t.Errorf("saturation: %+v", c.saturation)
	}
	f := c.flow
	if f == nil || f.mostRequests != 1000 || f.ttl != time.Minute || !f.band(9).fair ||
		f.band(9).order != earliestDeadline || f.band(-5).mostRequests != 7 ||
		f.band(3).mostRequests != bandRequests || f.band(3).mostBytes != bandBytes {
		t.Errorf("flow control: %+v", f)
	}
	d := DefaultConfig()
	if d.flow != nil || len(d.profiles[0].scorers) != 3 || d.profiles[0].scorers[0].scorer != defaultWork() ||
		d.profiles[0].picker.kind != maxScore {
		t.Errorf("default: %+v", d)
	}
}

// A pool with any valid configuration decides without a panic.
func FuzzConfig(f *testing.F) {
	for _, kind := range []string{"queue-scorer", "prefix-cache-scorer", "latency-scorer", "by-label-selector",
		"no-hit-lru-scorer", "least-work-scorer", "concurrency-detector", "weighted-random-picker",
		"prefix-cache-affinity-filter"} {
		f.Add(`{` + head + `, "plugins": [{"type": "` + kind + `", "parameters": {}}]}`)
	}
	f.Add(`{` + head + `, "featureGates": ["flowControl"], "flowControl": {"maxRequests": 1}}`)
	f.Fuzz(func(t *testing.T, text string) {
		c, err := ParseConfig([]byte(text))
		if err != nil {
			return
		}
		p := pool(c, 5)
		now := begin
		for i := range 30 {
			now = now.Add(time.Millisecond)
			r := &Request{Model: "m", Bytes: 5000, Priority: i%3 - 1, Random: mix(uint64(i)), //nolint:gosec // small
				Prefix: prompt(p, strings.Repeat("p", 900+i))}
			switch d := p.Decide(r, now); d.Verdict {
			case Serve:
				fl := p.Sent(d.Chosen[0], r, now)
				p.FirstToken(&fl, now.Add(time.Millisecond))
			case Hold:
				p.Enqueue(r, now)
			case Refuse:
			}
			setStats(p, i%5, now, Stats{Waiting: i % 9, CacheUse: 0.1})
			p.Next(now)
			p.Expire(now.Add(time.Hour))
		}
	})
}
