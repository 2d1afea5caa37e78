package routing

import (
	"errors"
	"fmt"
	"slices"
	"strings"
)

// Metric is a series of a model server: a name, and labels that it must have. With Read, the value is in this
// label.
type Metric struct {
	Name   string
	Labels []MetricLabel
	Read   string
}

// MetricLabel is a label that a series must have.
type MetricLabel struct{ Name, Value string }

// Engine has the names of a model server's load metrics (2.3). A Metric without a name is not
// available.
type Engine struct {
	Name                    string
	Waiting, Running, Cache Metric
	OldCache                Metric // of older versions
	BlockTokens, Blocks     Metric
	Adapters                string // an info series like vllm:lora_requests_info
}

// DefaultEngine is the engine of pods without a label.
const DefaultEngine = "vllm"

// engines are the built-in engines.
func engines() []Engine {
	named := func(name string) Metric { return Metric{Name: name} }
	with := func(name, label, value string) Metric {
		return Metric{Name: name, Labels: []MetricLabel{{label, value}}}
	}
	const requests, cache = "nv_trt_llm_request_metrics", "nv_trt_llm_kv_cache_block_metrics"
	triton := Engine{Name: "triton-tensorrt-llm", Waiting: with(requests, "request_type", "waiting"),
		Running: with(requests, "request_type", "scheduled"), Cache: with(cache, "kv_cache_block_type", "fraction"),
		BlockTokens: with(cache, "kv_cache_block_type", "tokens_per"), Blocks: with(cache, "kv_cache_block_type", "max")}
	short := triton
	short.Name = "triton"
	return []Engine{
		{Name: DefaultEngine, Waiting: named("vllm:num_requests_waiting"), Running: named("vllm:num_requests_running"),
			Cache: named("vllm:kv_cache_usage_perc"), OldCache: named("vllm:gpu_cache_usage_perc"),
			BlockTokens: Metric{Name: "vllm:cache_config_info", Read: "block_size"},
			Blocks:      Metric{Name: "vllm:cache_config_info", Read: "num_gpu_blocks"}, Adapters: "vllm:lora_requests_info"},
		{Name: "sglang", Waiting: named("sglang:num_queue_reqs"), Running: named("sglang:num_running_reqs"),
			Cache:       named("sglang:token_usage"),
			BlockTokens: Metric{Name: "sglang:cache_config_info", Read: "page_size"},
			Blocks:      Metric{Name: "sglang:cache_config_info", Read: "num_pages"}},
		{Name: "trtllm-serve", Waiting: named("trtllm_num_requests_waiting"),
			Running: named("trtllm_num_requests_running"), Cache: named("trtllm_kv_cache_utilization"),
			BlockTokens: named("trtllm_kv_cache_tokens_per_block"), Blocks: named("trtllm_kv_cache_max_blocks")},
		triton, short,
	}
}

// extraction defines how the engine of a pod is found, and how its metrics are read.
type extraction struct {
	label   string // of the pod; empty: EngineLabel, then OldEngineLabel
	other   string // without the label
	engines []Engine
}

func defaultExtraction() extraction { return extraction{other: DefaultEngine, engines: engines()} }

// Engine returns the engine of a pod by its labels. An unknown one is treated like the default;
// known reports whether it is known.
func (c *Config) Engine(labels map[string]string) (e *Engine, name string, known bool) {
	x := &c.extraction
	keys := []string{EngineLabel, OldEngineLabel}
	if x.label != "" {
		keys = []string{x.label}
	}
	name = x.other
	for _, key := range keys {
		if v := labels[key]; v != "" {
			name = v
			break
		}
	}
	find := func(name string) int {
		return slices.IndexFunc(x.engines, func(e Engine) bool { return e.Name == name })
	}
	if i := find(name); i >= 0 {
		return &x.engines[i], name, true
	}
	return &x.engines[find(x.other)], name, false
}

// engineSpec is an engine in the parameters of core-metrics-extractor.
type engineSpec struct {
	Name                    string `json:"name"`
	QueuedRequestsSpec      string `json:"queuedRequestsSpec"`
	RunningRequestsSpec     string `json:"runningRequestsSpec"`
	KVUsageSpec             string `json:"kvUsageSpec"`
	LoRASpec                string `json:"loraSpec"`
	CacheInfoSpec           string `json:"cacheInfoSpec"`
	CacheBlockSizeLabelName string `json:"cacheBlockSizeLabelName"`
	CacheNumBlocksLabelName string `json:"cacheNumBlocksLabelName"`
	CacheBlockSizeSpec      string `json:"cacheBlockSizeSpec"`
	CacheNumBlocksSpec      string `json:"cacheNumBlocksSpec"`
}

// mostEngines is the maximum number of engines in a configuration.
const mostEngines = 64

// readExtraction reads the parameters of core-metrics-extractor.
func readExtraction(into func(any) error) (extraction, error) {
	x := defaultExtraction()
	c := struct {
		EngineLabelKey string       `json:"engineLabelKey"`
		DefaultEngine  string       `json:"defaultEngine"`
		EngineConfigs  []engineSpec `json:"engineConfigs"`
	}{}
	if err := into(&c); err != nil {
		return x, err
	}
	if len(c.EngineConfigs) > mostEngines {
		return x, fmt.Errorf("engineConfigs has %d entries, at most %d", len(c.EngineConfigs), mostEngines)
	}
	x.label = c.EngineLabelKey
	var own []Engine
	for i := range c.EngineConfigs {
		e, err := c.EngineConfigs[i].engine()
		if err != nil {
			return x, fmt.Errorf("engineConfigs[%d]: %w", i, err)
		}
		own = append(own, e)
	}
	x.engines = append(own, x.engines...) // the first of a name is used
	if c.DefaultEngine != "" {
		x.other = c.DefaultEngine
	}
	if !slices.ContainsFunc(x.engines, func(e Engine) bool { return e.Name == x.other }) {
		return x, fmt.Errorf("defaultEngine: there is no engine %q", x.other)
	}
	return x, nil
}

func (s *engineSpec) engine() (e Engine, err error) {
	if s.Name == "" {
		return e, errors.New("name is missing")
	}
	e.Name = s.Name
	info, size, number := s.CacheInfoSpec, s.CacheBlockSizeLabelName, s.CacheNumBlocksLabelName
	if size == "" {
		size = "block_size"
	}
	if number == "" {
		number = "num_gpu_blocks"
	}
	for _, m := range []struct {
		into *Metric
		text string
		read string
	}{{&e.Waiting, s.QueuedRequestsSpec, ""}, {&e.Running, s.RunningRequestsSpec, ""}, {&e.Cache, s.KVUsageSpec, ""},
		{&e.BlockTokens, info, size}, {&e.Blocks, info, number}, {&e.BlockTokens, s.CacheBlockSizeSpec, ""},
		{&e.Blocks, s.CacheNumBlocksSpec, ""}} {
		if m.text == "" {
			continue
		}
		if *m.into, err = parseMetric(m.text); err != nil {
			return e, err
		}
		m.into.Read = m.read
	}
	if s.LoRASpec != "" {
		adapters, err := parseMetric(s.LoRASpec)
		if err != nil || len(adapters.Labels) > 0 {
			return e, fmt.Errorf("loraSpec %q is not the name of a series", s.LoRASpec)
		}
		e.Adapters = adapters.Name
	}
	if e.Waiting.Name == "" && e.Cache.Name == "" {
		return e, errors.New("one of queuedRequestsSpec and kvUsageSpec is needed")
	}
	return e, nil
}

// parseMetric reads name{label=value,label="value"}.
func parseMetric(text string) (m Metric, err error) {
	wrong := fmt.Errorf("%q is not a series: name{label=\"value\",…}", text)
	name, rest, labels := strings.Cut(strings.TrimSpace(text), "{")
	if m.Name = strings.TrimSpace(name); !metricName(m.Name) {
		return m, wrong
	}
	if !labels {
		return m, nil
	}
	rest, ok := strings.CutSuffix(strings.TrimSpace(rest), "}")
	if !ok {
		return m, wrong
	}
	for pair := range strings.SplitSeq(rest, ",") {
		if strings.TrimSpace(pair) == "" {
			continue
		}
		label, value, ok := strings.Cut(pair, "=")
		label, value = strings.TrimSpace(label), strings.TrimSpace(value)
		if len(value) >= 2 && value[0] == '"' && value[len(value)-1] == '"' {
			value = value[1 : len(value)-1]
		}
		if !ok || !metricName(label) || value == "" || strings.ContainsAny(value, "\"\\~!{}") {
			return m, wrong
		}
		m.Labels = append(m.Labels, MetricLabel{label, value})
	}
	return m, nil
}

func metricName(s string) bool {
	for i, c := range s {
		if c != '_' && c != ':' && (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') && (i == 0 || c < '0' || c > '9') {
			return false
		}
	}
	return s != ""
}
