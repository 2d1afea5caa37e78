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
			say(p, i%5, now, Stats{Waiting: i % 9, CacheUse: 0.1})
			p.Next(now)
			p.Expire(now.Add(time.Hour))
		}
	})
}
