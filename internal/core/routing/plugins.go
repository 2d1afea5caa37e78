package routing

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
)

// plugin is one entry of a configuration, under the name of upstream's type.
type plugin struct {
	name, kind string
	filter     filter
	scorer     scorer
	picker     *picker
	handler    *handler
	prefix     *prefixConfig
	precise    *Precise
	saturation *saturation
	extraction *extraction
	source     *Source
	decider    *decider
	session    string // the header of session affinity
	producer   string // prefix-cache-scorer: the plugin whose index it uses; empty: its own
}

// Limits of parameters: a configuration must not make the picker slow or large.
const (
	mostBlocks   = 1 << 14
	mostCapacity = 1 << 22
	mostColds    = 1 << 20
)

// inFlight names the plugin that counts what is in flight, of which there is one.
type inFlight struct {
	InFlightLoadProducerName string `json:"inFlightLoadProducerName"`
}

// RoleLabel of a pod is its role in disaggregated serving: prefill, decode, or several, such as prefill-decode.
const RoleLabel = "llm-d.ai/role"

// makePlugin makes a plugin of a type with its parameters.
func makePlugin(kind string, params json.RawMessage) (*plugin, error) {
	p := &plugin{kind: kind}
	into := func(v any) error {
		if len(params) == 0 || string(params) == "null" {
			return nil
		}
		if err := strict(params, v); err != nil {
			return fmt.Errorf("parameters: %w", err)
		}
		return nil
	}
	for _, group := range []func(*plugin, func(any) error) (bool, error){scorerPlugin, latencyPlugin, filterPlugin,
		pickerPlugin, detectorPlugin, disaggregationPlugin, otherPlugin} {
		if known, err := group(p, into); known || err != nil {
			return p, err
		}
	}
	return nil, fmt.Errorf("the plugin type %q is not known", kind)
}

func scorerPlugin(p *plugin, into func(any) error) (bool, error) {
	none := &struct{}{}
	switch p.kind {
	case "queue-scorer":
		p.scorer = queueScorer{}
		return true, into(&struct { // parameters of the prefix cache, which llm-d's guide set here, without effect
			HashBlockSize          int `json:"hashBlockSize"`
			MaxPrefixBlocksToMatch int `json:"maxPrefixBlocksToMatch"`
			LRUCapacityPerServer   int `json:"lruCapacityPerServer"`
		}{})
	case "kv-cache-utilization-scorer":
		p.scorer = cacheScorer{}
		return true, into(none)
	case "running-requests-size-scorer":
		p.scorer = runningScorer{}
		return true, into(none)
	case "lora-affinity-scorer":
		p.scorer = adapterScorer{}
		return true, into(none)
	case "session-affinity-scorer":
		p.scorer = sessionScorer{}
		return true, p.affinity(into)
	case "active-request-scorer":
		c := struct {
			RequestTimeout string `json:"requestTimeout"`
			inFlight
		}{}
		if err := into(&c); err != nil {
			return true, err
		}
		// Requests are counted until they end, so no timeout is needed. The value is still validated.
		if _, err := time.ParseDuration(c.RequestTimeout); c.RequestTimeout != "" && err != nil {
			return true, fmt.Errorf("requestTimeout: %w", err)
		}
		p.scorer = activeScorer{}
		return true, nil
	case "load-aware-scorer":
		c := loadAwareScorer{Threshold: 128}
		if err := into(&c); err != nil {
			return true, err
		}
		if c.Threshold <= 0 {
			return true, fmt.Errorf("threshold is %d, not above 0", c.Threshold)
		}
		p.scorer = c
		return true, nil
	case "token-load-scorer":
		c := struct {
			tokenScorer
			inFlight
		}{tokenScorer: tokenScorer{QueueThresholdTokens: 4 << 20}}
		if err := into(&c); err != nil {
			return true, err
		}
		if c.QueueThresholdTokens <= 0 {
			c.QueueThresholdTokens = 4 << 20
		}
		p.scorer = c.tokenScorer
		return true, nil
	case "least-work-scorer": // carob's own
		c := defaultWork()
		if err := into(&c); err != nil {
			return true, err
		}
		if !(c.UncachedWeight >= 0 && c.UncachedWeight <= 1000 && c.RunningTokens >= 0 && c.RunningTokens <= 1e6) {
			return true, fmt.Errorf("uncachedWeight is %g, runningTokens is %g; not between 0 and 1000, 0 and 1e6",
				c.UncachedWeight, c.RunningTokens)
		}
		p.scorer = c
		return true, nil
	case "no-hit-lru-scorer":
		c := struct {
			PrefixPluginType string `json:"prefixPluginType"`
			PrefixPluginName string `json:"prefixPluginName"`
			LRUSize          int    `json:"lruSize"`
		}{}
		if err := into(&c); err != nil {
			return true, err
		}
		if c.LRUSize < 0 || c.LRUSize > mostColds {
			return true, fmt.Errorf("lruSize is %d, not between 0 and %d", c.LRUSize, mostColds)
		}
		p.scorer = coldScorer{}
		return true, nil
	case "precise-prefix-cache-scorer":
		c, err := readPrecise(into)
		p.precise, p.scorer = c, preciseScorer{}
		return true, err
	case "precise-prefix-cache-producer": // for prefix-cache-scorer
		c, err := readPrecise(into)
		p.precise = c
		return true, err
	case "prefix-cache-scorer", "approx-prefix-cache-producer":
		c, producer, err := readPrefix(into)
		if err != nil {
			return true, err
		}
		p.prefix, p.producer = c, producer
		if p.kind == "prefix-cache-scorer" {
			p.scorer = prefixScorer{length: c.MatchLengthWeight}
		}
		return true, nil
	}
	return false, nil
}

func latencyPlugin(p *plugin, into func(any) error) (bool, error) {
	switch p.kind {
	case "latency-scorer":
		c := latencyScorer{TTFTWeight: 0.8, TPOTWeight: 0.2, HeadroomSelectionStrategy: "least", CompositeKVWeight: 1,
			CompositeQueueWeight: 1, CompositePrefixWeight: 1}
		if err := into(&c); err != nil {
			return true, err
		}
		return true, p.latency(c)
	case "predicted-latency-scorer": // the older one, which also chooses by headroom
		c := struct {
			HeadroomTTFTWeight        float64 `json:"headroomTTFTWeight"`
			HeadroomTPOTWeight        float64 `json:"headroomTPOTWeight"`
			HeadroomSelectionStrategy string  `json:"headroomSelectionStrategy"`
			CompositeKVWeight         float64 `json:"compositeKVWeight"`
			CompositeQueueWeight      float64 `json:"compositeQueueWeight"`
			CompositePrefixWeight     float64 `json:"compositePrefixWeight"`
			StreamingMode             bool    `json:"streamingMode"`
		}{0.8, 0.2, "least", 1, 1, 1, false}
		if err := into(&c); err != nil {
			return true, err
		}
		return true, p.latency(latencyScorer{c.HeadroomTTFTWeight, c.HeadroomTPOTWeight, c.HeadroomSelectionStrategy,
			c.CompositeKVWeight, c.CompositeQueueWeight, c.CompositePrefixWeight})
	case "predicted-latency-producer": // always on; parameters tune upstream's own model
		return true, into(&struct{}{})
	case "inflight-load-producer": // always on
		return true, into(&struct {
			Producer string `json:"prefixMatchInfoProducerName"`
		}{})
	case "slo-headroom-tier-filter":
		c := headroomFilter{EpsilonExploreNeg: 0.01}
		if err := into(&c); err != nil {
			return true, err
		}
		if !(c.EpsilonExploreNeg >= 0 && c.EpsilonExploreNeg <= 1) {
			return true, fmt.Errorf("epsilonExploreNeg is %g, not between 0 and 1", c.EpsilonExploreNeg)
		}
		p.filter = c
		return true, nil
	case "prefix-cache-affinity-filter":
		f, err := readAffinity(into)
		p.filter = f
		return true, err
	}
	return false, nil
}

// latency makes a plugin score by expected latency.
func (p *plugin) latency(c latencyScorer) error {
	for _, w := range []float64{c.TTFTWeight, c.TPOTWeight, c.CompositeKVWeight, c.CompositeQueueWeight,
		c.CompositePrefixWeight} {
		if !(w >= 0 && w <= 1e6) {
			return fmt.Errorf("a weight is %g, not between 0 and 1e6", w)
		}
	}
	if s := c.HeadroomSelectionStrategy; s != "least" && s != "most" {
		return fmt.Errorf("headroomSelectionStrategy is %q, not least or most", s)
	}
	p.scorer = c
	return nil
}

func filterPlugin(p *plugin, into func(any) error) (bool, error) {
	switch p.kind {
	case "decode-filter":
		p.filter = &labelFilter{label: RoleLabel, values: []string{"decode", "encode-decode", "prefill-decode", "both",
			"encode-prefill-decode"}, missing: true}
		return true, into(&struct{}{})
	case "prefill-filter":
		p.filter = &labelFilter{label: RoleLabel, values: []string{"prefill", "encode-prefill", "prefill-decode", "both",
			"encode-prefill-decode"}}
		return true, into(&struct{}{})
	case "active-request-filter":
		c := struct {
			MaxRequests     int64 `json:"maxRequests"`
			FallbackOnEmpty bool  `json:"fallbackOnEmpty"`
			inFlight
		}{}
		if err := into(&c); err != nil {
			return true, err
		}
		if c.MaxRequests <= 0 {
			return true, fmt.Errorf("maxRequests is %d, not above 0", c.MaxRequests)
		}
		p.filter = activeFilter{c.MaxRequests, c.FallbackOnEmpty}
		return true, nil
	case "session-affinity-filter":
		p.filter = sessionFilter{}
		return true, p.affinity(into)
	case "by-label":
		c := struct {
			Label         string   `json:"label"`
			ValidValues   []string `json:"validValues"`
			AllowsNoLabel bool     `json:"allowsNoLabel"`
		}{}
		if err := into(&c); err != nil {
			return true, err
		}
		if c.Label == "" {
			return true, errors.New("label is missing")
		}
		if len(c.ValidValues) == 0 && !c.AllowsNoLabel {
			return true, errors.New("validValues is empty, and allowsNoLabel is not set: no endpoint can pass")
		}
		p.filter = &labelFilter{label: c.Label, values: c.ValidValues, missing: c.AllowsNoLabel}
		return true, nil
	case "label-selector-filter", "by-label-selector":
		var c metav1.LabelSelector
		if err := into(&c); err != nil {
			return true, err
		}
		s, err := metav1.LabelSelectorAsSelector(&c)
		if err != nil {
			return true, fmt.Errorf("parameters: %w", err)
		}
		p.filter = &labelFilter{selector: s}
		return true, nil
	}
	return false, nil
}

func pickerPlugin(p *plugin, into func(any) error) (bool, error) {
	kinds := map[string]pickerKind{"max-score-picker": maxScore, "random-picker": anyScore,
		"weighted-random-picker": weightedRandom}
	kind, ok := kinds[p.kind]
	if !ok {
		return false, nil
	}
	c := struct {
		MaxNumOfEndpoints int `json:"maxNumOfEndpoints"`
	}{1}
	if err := into(&c); err != nil {
		return true, err
	}
	if c.MaxNumOfEndpoints < 1 {
		return true, fmt.Errorf("maxNumOfEndpoints is %d, not above 0", c.MaxNumOfEndpoints)
	}
	p.picker = &picker{kind: kind, reported: min(c.MaxNumOfEndpoints, MostChosen)}
	return true, nil
}

func detectorPlugin(p *plugin, into func(any) error) (bool, error) {
	switch p.kind {
	case "utilization-detector":
		s := defaultSaturation()
		c := struct {
			thresholds
			Headroom *float64 `json:"headroom"`
		}{}
		if err := into(&c); err != nil {
			return true, err
		}
		if c.Headroom != nil {
			s.headroom = *c.Headroom
		}
		if err := s.set(c.thresholds); err != nil {
			return true, err
		}
		if !(s.headroom >= 0 && s.headroom <= 1e6) {
			return true, fmt.Errorf("headroom is %g, below 0", s.headroom)
		}
		p.saturation, p.filter = &s, loadFilter{s}
		return true, nil
	case "concurrency-detector":
		c := struct {
			MaxConcurrency      int64   `json:"maxConcurrency"`
			Headroom            float64 `json:"headroom"`
			ConcurrencyMode     string  `json:"concurrencyMode"`
			MaxTokenConcurrency int64   `json:"maxTokenConcurrency"`
			inFlight
		}{100, 0, "requests", 1_000_000, inFlight{}}
		if err := into(&c); err != nil {
			return true, err
		}
		switch {
		case c.MaxConcurrency <= 0 || c.MaxTokenConcurrency <= 0:
			return true, errors.New("maxConcurrency and maxTokenConcurrency must be above 0")
		case !(c.Headroom >= 0 && c.Headroom <= 1e6):
			return true, fmt.Errorf("headroom is %g, below 0", c.Headroom)
		}
		s := saturation{headroom: c.Headroom}
		switch c.ConcurrencyMode {
		case "requests":
			s.requests = float64(c.MaxConcurrency)
		case "tokens":
			s.tokens = float64(c.MaxTokenConcurrency)
		case "hybrid":
			s.requests, s.tokens = float64(c.MaxConcurrency), float64(c.MaxTokenConcurrency)
		default:
			return true, fmt.Errorf("concurrencyMode is %q, not requests, tokens or hybrid", c.ConcurrencyMode)
		}
		p.saturation, p.filter = &s, loadFilter{s}
		return true, nil
	}
	return false, nil
}

// otherPlugin accepts the types without an effect here: their function is always active, or the
// gateway implements it.
func otherPlugin(p *plugin, into func(any) error) (bool, error) {
	switch p.kind {
	case "single-profile-handler":
		p.handler = &handler{}
	case "metrics-data-source":
		return true, p.dataSource(into)
	case "endpoint-notification-source": // carob follows all endpoints
	case "token-producer", "tokenizer": // tokens come from the servers of the pool
		return true, into(&map[string]any{})
	case "core-metrics-extractor":
		x, err := readExtraction(into)
		p.extraction = &x
		return true, err
	case "data-parallel-profile-handler": // ranks are endpoints: the gateway sends to their own ports
		p.handler = &handler{}
		return true, into(&struct {
			PrimaryPort int `json:"primaryPort"`
		}{})
	case "fcfs-ordering-policy", "edf-ordering-policy", "slo-deadline-ordering-policy",
		"global-strict-fairness-policy", "round-robin-fairness-policy", "openai-parser", "anthropic-parser",
		"vllmhttp-parser", "passthrough-parser", "vllmgrpc-parser":
	case "static-usage-limit-policy":
		c := struct {
			Threshold float64 `json:"threshold"`
		}{1}
		if err := into(&c); err != nil {
			return true, err
		}
		if c.Threshold != 1 {
			return true, fmt.Errorf("threshold is %g; only 1, which limits nothing, is supported", c.Threshold)
		}
		return true, nil
	default:
		return false, nil
	}
	return true, into(&struct{}{})
}

// labelFilter keeps endpoints by their labels.
type labelFilter struct {
	label    string
	values   []string
	missing  bool // endpoints without the label match
	selector labels.Selector
	bit      uint64 // in end.fits
}

func (f *labelFilter) fits(set map[string]string) bool {
	if f.selector != nil {
		return f.selector.Matches(labels.Set(set))
	}
	value, there := set[f.label]
	if !there {
		return f.missing
	}
	return slices.Contains(f.values, value)
}
