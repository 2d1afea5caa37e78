package routing

import (
	"fmt"
	"os"
	"strings"
	"testing"
)

// profilesOf are scheduling profiles: each is its name and its plugins, by comma.
func profilesOf(all ...string) string {
	var out []string
	for _, one := range all {
		name, list, _ := strings.Cut(one, ": ")
		var refs []string
		for ref := range strings.SplitSeq(list, ", ") {
			refs = append(refs, fmt.Sprintf(`{"pluginRef": %q}`, ref))
		}
		out = append(out, fmt.Sprintf(`{"name": %q, "plugins": [%s]}`, name, strings.Join(refs, ", ")))
	}
	return `"schedulingProfiles": [` + strings.Join(out, ", ") + `]`
}

// typesOf are plugins without parameters.
func typesOf(list string) string {
	var out []string
	for kind := range strings.SplitSeq(list, ", ") {
		out = append(out, fmt.Sprintf(`{"type": %q}`, kind))
	}
	return strings.Join(out, ", ")
}

// What the guides of llm-d, and KServe, configure is read, in the forms of all their releases.
func TestConfigsOfGuides(t *testing.T) {
	const roles = "prefill-filter, decode-filter, max-score-picker"
	for guide, text := range map[string]string{
		"optimized-baseline": `"plugins": [` + typesOf("token-load-scorer, inflight-load-producer") + `,
			{"type": "approx-prefix-cache-producer", "parameters": {"maxPrefixTokensToMatch": 40960}},
			{"type": "prefix-cache-affinity-filter", "parameters": {"affinityThreshold": 0.8,
			"maxTokensInFlightPenalty": 286720, "maxTTFTPenaltyMs": 0}}],` +
			profilesOf("default: prefix-cache-affinity-filter, token-load-scorer"),
		"pd-disaggregation": `"plugins": [` + typesOf("always-disagg-pd-decider, token-load-scorer, "+roles+
			", inflight-load-producer, active-request-scorer") + `,
			{"type": "disagg-profile-handler", "parameters": {"deciders": {"prefill": "always-disagg-pd-decider"}}},
			{"type": "prefix-cache-affinity-filter", "parameters": {"peakPrefillThroughput": 33821}}],` +
			profilesOf("prefill: prefill-filter, prefix-cache-affinity-filter, token-load-scorer, max-score-picker",
				"decode: decode-filter, active-request-scorer, max-score-picker"),
		"wide-ep": `"plugins": [` + typesOf("disagg-headers-handler, always-disagg-pd-decider, queue-scorer, "+roles) + `,
			{"type": "disagg-profile-handler", "parameters": {"deciderPluginName": "always-disagg-pd-decider"}}],` +
			profilesOf("prefill: prefill-filter, queue-scorer", "decode: decode-filter, active-request-scorer"),
		"precise-prefix-cache-routing": `"plugins": [{"type": "tokenizer", "parameters": {"modelName": "m",
			"udsTokenizerConfig": {"socketFile": "/tmp/tokenizer.socket"}}},` + typesOf("endpoint-notification-source, "+
			"metrics-data-source, core-metrics-extractor, decode-filter, no-hit-lru-scorer") + `,
			{"type": "precise-prefix-cache-scorer", "parameters": {"tokenProcessorConfig": {"blockSize": 64},
			"indexerConfig": {"tokenizersPoolConfig": {"modelName": "m", "workersCount": 24, "uds": {"socketFile": "/a"}}},
			"kvEventsConfig": {"topicFilter": "kv@", "concurrency": 8, "discoverPods": true}}}],
			"dataLayer": {"sources": [{"pluginRef": "endpoint-notification-source", "extractors": [
			{"pluginRef": "precise-prefix-cache-scorer"}]}]},` +
			profilesOf("default: decode-filter, tokenizer, precise-prefix-cache-scorer, no-hit-lru-scorer"),
		"predicted-latency": `"plugins": [` + typesOf("predicted-latency-producer, latency-scorer, "+
			"weighted-random-picker") + `, {"type": "prefix-cache-affinity-filter", "name": "loose", "parameters": {
			"affinityThreshold": 0.8, "ttftSource": "latencyPredictor", "maxTTFTPenaltyMs": 5000}}],` +
			profilesOf("default: loose, latency-scorer, weighted-random-picker"),
		"tiered-prefix-cache": `"plugins": [{"type": "approx-prefix-cache-producer", "name": "cpu", "parameters": {
			"autoTune": false, "lruCapacityPerServer": 82000}}, {"type": "prefix-cache-scorer", "name": "of-cpu",
			"parameters": {"prefixMatchInfoProducerName": "cpu"}}],` + profilesOf("default: of-cpu, queue-scorer"),
		"llm-d 0.3": `"plugins": [` + typesOf("prefill-header-handler, "+roles) + `, {"type": "queue-scorer",
			"parameters": {"hashBlockSize": 5, "maxPrefixBlocksToMatch": 256, "lruCapacityPerServer": 31250}},
			{"type": "pd-profile-handler", "parameters": {"threshold": 0, "hashBlockSize": 5}}],` +
			profilesOf("prefill: prefill-filter, queue-scorer, max-score-picker",
				"decode: decode-filter, queue-scorer, max-score-picker"),
		"an older data layer": `"metadata": {"name": "default-config"}, "featureGates": ["dataLayer"], "plugins": [` +
			typesOf("metrics-data-source, core-metrics-extractor, queue-scorer") + `], "data": {"sources": [
			{"pluginRef": "metrics-data-source", "extractors": [{"pluginRef": "core-metrics-extractor"}]}]}`,
		"KServe": `"plugins": [` + typesOf("single-profile-handler, prefix-cache-scorer, load-aware-scorer, "+
			"max-score-picker") + `],` + profilesOf("default: prefix-cache-scorer, load-aware-scorer, max-score-picker"),
		"KServe, disaggregated": `"plugins": [` + typesOf("prefill-header-handler, queue-scorer, "+roles) + `,
			{"type": "pd-profile-handler", "parameters": {"threshold": 0}}],` +
			profilesOf("prefill: prefill-filter, queue-scorer", "decode: decode-filter, queue-scorer"),
	} {
		c, err := ParseConfig([]byte(`{` + head + `, ` + text + `}`))
		if err != nil {
			t.Errorf("%s: %v", guide, err)
			continue
		}
		if two := strings.Contains(text, `"name": "prefill"`); two != (c.prefill >= 0) || two && c.by.never {
			t.Errorf("%s: the profile of prompts is %d, %+v", guide, c.prefill, c.by)
		}
	}
}

// What is refused is refused with the messages in docs/inference.md.
func TestRefusedParts(t *testing.T) {
	text, err := os.ReadFile("../../../docs/inference.md")
	if err != nil {
		t.Fatal(err)
	}
	documented := strings.Join(strings.Fields(string(text)), " ")
	for text, want := range map[string]string{
		with("disagg-profile-handler", `"deciders": {"encode": "x"}`): "deciders.encode is not supported: the server that " +
			"decodes encodes images and sound",
		with("session-affinity-scorer", `"algorithm": "session_id_header"`): `algorithm is "session_id_header"; only ` +
			"encoded_endpoint_header is supported",
		precise(`"kvEventsConfig": {"zmqEndpoint": "tcp://*:5557"}`): "kvEventsConfig.zmqEndpoint and discoverPods: " +
			"false are not supported: carob connects to each server",
		precise(`"kvEventsConfig": {"engineType": "sglang"}`): `kvEventsConfig.engineType is "sglang"; only the events ` +
			"of vllm are read",
		precise(`"indexerConfig": {"kvBlockIndexConfig": {"redisConfig": {}}}`): "indexerConfig.kvBlockIndexConfig: " +
			"carob keeps the index in memory, not in Redis or Valkey",
		`{` + head + `, "flowControl": {"enableEviction": true}}`: `read EndpointPickerConfig: json: unknown field ` +
			`"enableEviction"`,
		`{` + head + `, "flowControl": {"usageLimitPolicyPluginRef": "priority-holdback-policy"}}`: "flowControl." +
			`usageLimitPolicyPluginRef: there is no plugin "priority-holdback-policy"`,
		with("static-usage-limit-policy", `"threshold": 0.5`): "threshold is 0.5; only 1, which limits nothing, is supported",
		with("prefix-cache-affinity-filter", `"prefillCalibrationFile": "/a"`): "parameters: json: unknown field " +
			`"prefillCalibrationFile"`,
		with("inflight-load-producer", `"addEstimatedOutputTokens": true`): "parameters: json: unknown field " +
			`"addEstimatedOutputTokens"`,
		with("program-aware-fairness", ``): `the plugin type "program-aware-fairness" is not known`,
	} {
		if _, err := ParseConfig([]byte(text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, not %q", err, want)
		}
		if !strings.Contains(documented, want) {
			t.Errorf("docs/inference.md has not %q", want)
		}
	}
}

// A cached prompt stays at its server until that has more work than others, by the limit that is configured: in tokens,
// or in the time that a configured throughput takes for them.
func TestAffinityUntilSaturated(t *testing.T) {
	text := strings.Repeat("a long prompt that is sent again and again ", 100)
	for _, c := range []struct {
		parameters string
		tokens     int // in flight at the server that has the prompt
		stays      bool
	}{
		{`"maxTTFTPenaltyMs": 0`, 1e6, true},
		{`"maxTTFTPenaltyMs": 0, "maxTokensInFlightPenalty": 20000`, 19000, true},
		{`"maxTTFTPenaltyMs": 0, "maxTokensInFlightPenalty": 20000`, 21000, false},
		{`"peakPrefillThroughput": 1000`, 17000, true}, // at most 18 s
		{`"peakPrefillThroughput": 1000`, 19000, false},
		{`"peakPrefillThroughput": 1000, "maxTTFTPenaltyMs": 2000`, 1900, true},
		{`"peakPrefillThroughput": 1000, "maxTTFTPenaltyMs": 2000`, 2100, false},
		{`"ttftSource": "prefillThroughput", "maxTTFTPenaltyMs": 1000`, 15000, true}, // upstream's constant
		{`"ttftSource": "prefillThroughput", "maxTTFTPenaltyMs": 1000`, 17000, false},
		{`"ttftSource": "latencyPredictor", "explorationProbability": 0`, 1e6, true}, // nothing was observed yet
	} {
		p := pool(config(t, `"plugins": [{"type": "prefix-cache-affinity-filter", "parameters": {`+c.parameters+`}},
			{"type": "active-request-scorer"}]`), 2)
		setStats(p, 0, begin, Stats{})
		setStats(p, 1, begin, Stats{})
		first := &Request{Model: "m", Bytes: len(text), Prefix: prompt(p, text), Random: 1}
		home, f := serve(t, p, first, begin)
		p.FirstToken(&f, begin) // none of its tokens are in flight any more
		for _, ref := range p.Refs() {
			if p.Endpoint(ref).Name.Name == home {
				p.Sent(ref, &Request{Model: "m", Bytes: c.tokens * bytesPerToken}, begin)
			}
		}
		again := *first
		if got := chosen(t, p, &again, begin); (got == home) != c.stays {
			t.Errorf("%s, %d tokens: %s was chosen, %s has the prompt", c.parameters, c.tokens, got, home)
		}
	}
	for parameters, want := range map[string]string{
		`"ttftSource": "oracle"`:             "ttftSource",
		`"peakPrefillThroughput": -1`:        "peakPrefillThroughput",
		`"maxTokensInFlightPenalty": -1`:     "maxTokensInFlightPenalty",
		`"maxTTFTPenaltyMs": -1`:             "maxTTFTPenaltyMs",
		`"explorationProbability": 2`:        "explorationProbability",
		`"affinityThreshold": 2`:             "affinityThreshold",
		`"prefillCalibrationFile": "/a.yml"`: "prefillCalibrationFile",
	} {
		text := with("prefix-cache-affinity-filter", parameters)
		if _, err := ParseConfig([]byte(text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", parameters, err)
		}
	}
}

// A server with more requests than configured gets none, unless all have as many and the filter may be left out then.
func TestActiveRequestFilter(t *testing.T) {
	for fallback, want := range map[string]Verdict{"true": Serve, "false": Refuse} {
		p := pool(config(t, `"plugins": [{"type": "active-request-filter", "parameters": {"maxRequests": 1,
			"fallbackOnEmpty": `+fallback+`}}, {"type": "random-picker"}]`), 2)
		refs := p.Refs()
		setStats(p, 0, begin, Stats{})
		setStats(p, 1, begin, Stats{})
		busy := &Request{Model: "m"}
		p.Sent(refs[0], busy, begin)
		p.Sent(refs[0], busy, begin)
		for i := range 20 {
			r := &Request{Model: "m", Random: mix(uint64(i))} //nolint:gosec // small
			if d := p.Decide(r, begin); d.Verdict != Serve || d.Chosen[0] != refs[1] {
				t.Fatalf("%+v", d)
			}
		}
		p.Sent(refs[1], busy, begin)
		p.Sent(refs[1], busy, begin)
		if d := p.Decide(busy, begin); d.Verdict != want {
			t.Errorf("all are busy, fallback %s: %+v", fallback, d)
		}
	}
	if _, err := ParseConfig([]byte(with("active-request-filter", ""))); err == nil {
		t.Error("a filter without a limit was read")
	}
}
