package routing

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Config is a validated EndpointPickerConfig. It is immutable.
type Config struct {
	profiles   []profile
	decode     int            // index of the profile that serves; the only one, unless disaggregated
	prefill    int            // index of the profile that computes prompts; -1: none
	by         decider        // whether another server computes a prompt
	labels     []*labelFilter // at most 64
	prefix     prefixConfig
	precise    *Precise // nil: not configured
	saturation saturation
	extraction extraction
	source     Source
	session    string      // header; empty: no session affinity
	flow       *flowConfig // nil: no flow control
	start      *flowConfig // of requests that wait for the first server of a pool, also without flow control
}

// profile is a way to choose endpoints: filters, then scorers, then a picker.
type profile struct {
	name    string
	filters []filter
	scorers []weighted
	picker  picker
}

// weighted is a scorer and its weight.
type weighted struct {
	scorer scorer
	weight float64
}

// flowConfig is flow control: how many requests wait, where, and how long.
type flowConfig struct {
	mostRequests, mostBytes int64 // in all bands; 0: no limit
	ttl                     time.Duration
	empty                   time.Duration // instead of ttl for requests that come while the pool has no endpoint
	bands                   []bandConfig  // by priority, highest first
	other, negative         bandConfig    // for priorities without a band; negative: those below 0
}

type bandConfig struct {
	priority                int
	mostRequests, mostBytes int64 // 0: no limit
	fair                    bool  // round robin among flows; false: one queue for all
	order                   order
}

// order is the order within a flow.
type order uint8

const (
	arrival order = iota
	earliestDeadline
	firstToken // received + the requested time to the first token
)

// The limits of a band and the time to live in a queue, by default (2.4).
const (
	bandRequests = 5000
	bandBytes    = 1 << 30
	requestTTL   = 60 * time.Second
)

// The groups and versions of the configuration that are accepted; all have the same fields.
const (
	configKind  = "EndpointPickerConfig"
	configGroup = "inference.networking.x-k8s.io/v1alpha1"
	llmdGroup   = "llm-d.ai/v1alpha1"
	llmdStable  = "llm-d.ai/v1"
)

// MaxConfig is the maximum size of a configuration, in bytes.
const MaxConfig = 1 << 20

// The document. Fields have upstream's names.
type document struct {
	APIVersion         string          `json:"apiVersion"`
	Kind               string          `json:"kind"`
	Metadata           json.RawMessage `json:"metadata"` // of no effect: the file is no object of the API
	FeatureGates       []string        `json:"featureGates"`
	Plugins            []pluginSpec    `json:"plugins"`
	SchedulingProfiles []profileSpec   `json:"schedulingProfiles"`
	SaturationDetector *detectorSpec   `json:"saturationDetector"`
	DataLayer          *dataLayerSpec  `json:"dataLayer"`
	Data               *dataLayerSpec  `json:"data"` // its older name
	FlowControl        *flowSpec       `json:"flowControl"`
	Parser             *pluginRef      `json:"parser"`
	RequestHandler     *requestHandler `json:"requestHandler"`
}

type pluginSpec struct {
	Name       string          `json:"name"`
	Type       string          `json:"type"`
	Parameters json.RawMessage `json:"parameters"`
}

type profileSpec struct {
	Name    string `json:"name"`
	Plugins []struct {
		PluginRef string   `json:"pluginRef"`
		Weight    *float64 `json:"weight"`
	} `json:"plugins"`
}

// detectorSpec names a detector, or has the thresholds of the default one (before v1.5.0 of upstream).
type detectorSpec struct {
	PluginRef string `json:"pluginRef"`
	thresholds
}

type thresholds struct {
	QueueDepthThreshold       *int             `json:"queueDepthThreshold"`
	KVCacheUtilThreshold      *float64         `json:"kvCacheUtilThreshold"`
	MetricsStalenessThreshold *metav1.Duration `json:"metricsStalenessThreshold"`
}

type pluginRef struct {
	PluginRef string `json:"pluginRef"`
}

type flowSpec struct {
	MaxBytes                    *resource.Quantity `json:"maxBytes"`
	MaxRequests                 *resource.Quantity `json:"maxRequests"`
	DefaultRequestTTL           *metav1.Duration   `json:"defaultRequestTTL"`
	NoEndpointRequestTTL        *metav1.Duration   `json:"noEndpointRequestTTL"`
	DefaultPriorityBand         *bandSpec          `json:"defaultPriorityBand"`
	DefaultNegativePriorityBand *bandSpec          `json:"defaultNegativePriorityBand"`
	PriorityBands               []bandSpec         `json:"priorityBands"`
	UsageLimitPolicyPluginRef   string             `json:"usageLimitPolicyPluginRef"`
	SaturationDetector          *pluginRef         `json:"saturationDetector"`
}

type bandSpec struct {
	Priority          int                `json:"priority"`
	MaxBytes          *resource.Quantity `json:"maxBytes"`
	MaxRequests       *resource.Quantity `json:"maxRequests"`
	FairnessPolicyRef string             `json:"fairnessPolicyRef"`
	OrderingPolicyRef string             `json:"orderingPolicyRef"`
}

// DefaultConfig is the configuration of pools without one: the least work until the first token. Upstream's picker
// spreads the lengths of queues between 0 and 2 and adds 3 for a cached prompt (2.4), so that a prompt that many
// clients send goes to one server however long its queue is.
func DefaultConfig() *Config {
	c, err := ParseConfig([]byte(`{"apiVersion": "` + configGroup + `", "kind": "` + configKind + `",
		"plugins": [{"type": "least-work-scorer"}, {"type": "kv-cache-utilization-scorer"},
			{"type": "lora-affinity-scorer"}],
		"schedulingProfiles": [{"name": "default", "plugins": [{"pluginRef": "least-work-scorer", "weight": 1},
			{"pluginRef": "kv-cache-utilization-scorer", "weight": 0.25},
			{"pluginRef": "lora-affinity-scorer", "weight": 0.5}]}]}`))
	if err != nil {
		panic("the default configuration is wrong: " + err.Error())
	}
	return c
}

// strict decodes JSON and refuses unknown fields.
func strict(text []byte, into any) error {
	d := json.NewDecoder(bytes.NewReader(text))
	d.DisallowUnknownFields()
	if err := d.Decode(into); err != nil {
		return err
	}
	if len(bytes.TrimSpace(text[d.InputOffset():])) > 0 {
		return errors.New("the configuration has data after the end of its document")
	}
	return nil
}

// ParseConfig reads an EndpointPickerConfig as JSON (YAML is converted by the caller). An
// unknown part is an error that names it: a picker that ignores a part of its configuration
// would not route as configured.
func ParseConfig(text []byte) (*Config, error) {
	if len(text) > MaxConfig {
		return nil, fmt.Errorf("the configuration has %d bytes, at most %d", len(text), MaxConfig)
	}
	var doc document
	if err := strict(text, &doc); err != nil {
		return nil, fmt.Errorf("read EndpointPickerConfig: %w", err)
	}
	if doc.Kind != configKind || !slices.Contains([]string{configGroup, llmdGroup, llmdStable}, doc.APIVersion) {
		return nil, fmt.Errorf("%s of %s is not %s of %s", doc.Kind, doc.APIVersion, configKind, configGroup)
	}
	b := builder{named: map[string]*plugin{}, c: &Config{prefill: -1, prefix: defaultPrefix(),
		saturation: defaultSaturation(), extraction: defaultExtraction(), source: defaultSource()}}
	for _, step := range []func(*document) error{b.plugins, b.profiles, b.detector, b.dataLayer, b.parsers, b.flow} {
		if err := step(&doc); err != nil {
			return nil, err
		}
	}
	return b.c, nil
}

// builder makes a Config from a document.
type builder struct {
	c     *Config
	named map[string]*plugin
	order []*plugin // in the order of the document
	// produced: the index of prompts has the parameters of approx-prefix-cache-producer, not those of its scorer.
	produced bool
}

func (b *builder) plugins(doc *document) error {
	for i, spec := range doc.Plugins {
		if spec.Name == "" {
			spec.Name = spec.Type
		}
		if b.named[spec.Name] != nil {
			return fmt.Errorf("plugins[%d]: there are two plugins %q", i, spec.Name)
		}
		p, err := makePlugin(spec.Type, spec.Parameters)
		if err != nil {
			return fmt.Errorf("plugins[%d] (%s): %w", i, spec.Name, err)
		}
		if producer := p.prefix != nil && p.scorer == nil; producer || p.prefix != nil && !b.produced {
			b.c.prefix, b.produced = *p.prefix, producer
		}
		p.name = spec.Name
		if err := b.use(p); err != nil {
			return fmt.Errorf("plugins[%d] (%s): %w", i, spec.Name, err)
		}
		b.named[spec.Name] = p
		b.order = append(b.order, p)
	}
	return nil
}

// use takes what a plugin configures for the whole pool.
func (b *builder) use(p *plugin) error {
	if p.precise != nil {
		b.c.precise = p.precise
	}
	if p.extraction != nil {
		b.c.extraction = *p.extraction
	}
	if p.source != nil {
		b.c.source = *p.source
	}
	if p.session != "" {
		if b.c.session != "" && b.c.session != p.session {
			return fmt.Errorf("headerName is %q, and that of another plugin %q", p.session, b.c.session)
		}
		b.c.session = p.session
	}
	return nil
}

// find returns a named plugin. A name that is not configured, but equals a type, stands for the
// type with its defaults.
func (b *builder) find(name, where string) (*plugin, error) {
	if p := b.named[name]; p != nil {
		return p, nil
	}
	p, err := makePlugin(name, nil)
	if err != nil {
		return nil, fmt.Errorf("%s: there is no plugin %q", where, name)
	}
	p.name = name
	return p, b.use(p)
}

func (b *builder) profiles(doc *document) error {
	if len(doc.SchedulingProfiles) == 0 {
		// All filters, scorers and pickers that are configured, as upstream does.
		var all profileSpec
		all.Name = "default"
		for _, p := range b.order {
			if p.filter != nil || p.scorer != nil || p.picker != nil {
				all.Plugins = append(all.Plugins, struct {
					PluginRef string   `json:"pluginRef"`
					Weight    *float64 `json:"weight"`
				}{PluginRef: p.name})
			}
		}
		doc.SchedulingProfiles = []profileSpec{all}
	}
	var handlers []*plugin
	for _, p := range b.order {
		if p.handler != nil {
			handlers = append(handlers, p)
		}
	}
	for i := range doc.SchedulingProfiles {
		spec := &doc.SchedulingProfiles[i]
		where := fmt.Sprintf("schedulingProfiles[%d]", i)
		if spec.Name == "" {
			return fmt.Errorf("%s has no name", where)
		}
		if slices.ContainsFunc(b.c.profiles, func(p profile) bool { return p.name == spec.Name }) {
			return fmt.Errorf("%s: there are two profiles %q", where, spec.Name)
		}
		made, err := b.profile(spec, where)
		if err != nil {
			return err
		}
		b.c.profiles = append(b.c.profiles, made)
	}
	switch {
	case len(handlers) > 1:
		return fmt.Errorf("there are two profile handlers: %s and %s", handlers[0].name, handlers[1].name)
	case len(handlers) == 1 && handlers[0].handler.disaggregated:
		return b.disaggregated(handlers[0].handler)
	case len(b.c.profiles) > 1:
		return errors.New("several scheduling profiles need a profile handler: disagg-profile-handler")
	}
	return nil
}

func (b *builder) profile(spec *profileSpec, where string) (profile, error) {
	out := profile{name: spec.Name}
	chosen := false
	for i, ref := range spec.Plugins {
		at := fmt.Sprintf("%s.plugins[%d]", where, i)
		p, err := b.find(ref.PluginRef, at)
		if err != nil {
			return out, err
		}
		if p.kind == "tokenizer" {
			continue // llm-d's older one was a part of profiles
		}
		if p.filter == nil && p.scorer == nil && p.picker == nil {
			return out, fmt.Errorf("%s: %s neither filters, nor scores, nor picks", at, p.kind)
		}
		if l, ok := p.filter.(*labelFilter); ok {
			if len(b.c.labels) == 64 {
				return out, fmt.Errorf("%s: there are more than 64 filters by label", at)
			}
			l.bit = 1 << len(b.c.labels)
			b.c.labels = append(b.c.labels, l)
		}
		if p.filter != nil {
			out.filters = append(out.filters, p.filter)
		}
		if p.scorer != nil {
			weight := 1.0
			if ref.Weight != nil {
				weight = *ref.Weight
			}
			if !(weight >= 0 && weight <= 1e6) {
				return out, fmt.Errorf("%s: the weight is %g, not between 0 and 1e6", at, weight)
			}
			scorer, err := b.scorer(p, at)
			if err != nil {
				return out, err
			}
			out.scorers = append(out.scorers, weighted{scorer, weight})
		}
		if p.picker != nil {
			if chosen {
				return out, fmt.Errorf("%s: the profile has a picker already", at)
			}
			out.picker, chosen = *p.picker, true
		}
	}
	if !chosen {
		// Without one in the profile the first one that is configured, else the highest score.
		out.picker = picker{kind: maxScore}
		if i := slices.IndexFunc(b.order, func(p *plugin) bool { return p.picker != nil }); i >= 0 {
			out.picker = *b.order[i].picker
		}
	}
	return out, nil
}

// scorer returns what a plugin scores by: prefix-cache-scorer may use the index of another plugin.
func (b *builder) scorer(p *plugin, where string) (scorer, error) {
	if p.producer == "" {
		return p.scorer, nil
	}
	from, err := b.find(p.producer, where)
	switch {
	case err != nil:
		return nil, err
	case from.precise != nil:
		return preciseScorer{}, nil
	case from.prefix == nil:
		return nil, fmt.Errorf("%s: %s has no index of prompts", where, from.kind)
	}
	return p.scorer, nil
}

func (b *builder) detector(doc *document) error {
	name, old := "", thresholds{}
	if doc.SaturationDetector != nil {
		name, old = doc.SaturationDetector.PluginRef, doc.SaturationDetector.thresholds
	}
	if doc.FlowControl != nil && doc.FlowControl.SaturationDetector != nil {
		name = doc.FlowControl.SaturationDetector.PluginRef
	}
	if name == "" {
		name = "utilization-detector"
	}
	p, err := b.find(name, "saturationDetector")
	if err != nil {
		return err
	}
	if p.saturation == nil {
		return fmt.Errorf("saturationDetector: %s detects no saturation", p.kind)
	}
	b.c.saturation = *p.saturation
	if old == (thresholds{}) {
		return nil
	}
	if b.c.saturation.queue == 0 {
		return fmt.Errorf("saturationDetector: %s has no thresholds of queue and cache", p.kind)
	}
	if err := b.c.saturation.set(old); err != nil {
		return fmt.Errorf("saturationDetector: %w", err)
	}
	return nil
}

// flow reads flow control. As upstream, it is off without its feature gate.
func (b *builder) flow(doc *document) error {
	on := false
	for i, gate := range doc.FeatureGates {
		switch gate {
		case "flowControl":
			on = true
		case "dataLayer", "prepareDataPlugins", "experimentalDatalayer", "enableLegacyMetrics": // one way to scrape
		default:
			return fmt.Errorf("featureGates[%d]: %q is not known", i, gate)
		}
	}
	spec := doc.FlowControl
	if spec == nil {
		spec = &flowSpec{}
	}
	f := &flowConfig{ttl: requestTTL}
	var err error
	if f.mostRequests, err = limit(spec.MaxRequests, 0, "flowControl.maxRequests"); err != nil {
		return err
	}
	if f.mostBytes, err = limit(spec.MaxBytes, 0, "flowControl.maxBytes"); err != nil {
		return err
	}
	if spec.DefaultRequestTTL != nil && spec.DefaultRequestTTL.Duration != 0 {
		f.ttl = spec.DefaultRequestTTL.Duration
	}
	if f.ttl < 0 || f.ttl > 24*time.Hour {
		return fmt.Errorf("flowControl.defaultRequestTTL is %s, not between 0 and 24h", f.ttl)
	}
	f.empty = f.ttl
	if spec.NoEndpointRequestTTL != nil && spec.NoEndpointRequestTTL.Duration != 0 {
		f.empty = spec.NoEndpointRequestTTL.Duration
	}
	if f.empty < 0 || f.empty > 24*time.Hour {
		return fmt.Errorf("flowControl.noEndpointRequestTTL is %s, not between 0 and 24h", f.empty)
	}
	if ref := spec.UsageLimitPolicyPluginRef; ref != "" {
		p, err := b.find(ref, "flowControl.usageLimitPolicyPluginRef")
		if err != nil {
			return err
		}
		if p.kind != "static-usage-limit-policy" {
			return fmt.Errorf("flowControl.usageLimitPolicyPluginRef: %s is not a policy of usage limits", p.kind)
		}
	}
	if f.other, err = b.band(spec.DefaultPriorityBand, "flowControl.defaultPriorityBand"); err != nil {
		return err
	}
	f.negative = f.other
	if spec.DefaultNegativePriorityBand != nil {
		f.negative, err = b.band(spec.DefaultNegativePriorityBand, "flowControl.defaultNegativePriorityBand")
		if err != nil {
			return err
		}
	}
	for i := range spec.PriorityBands {
		at := fmt.Sprintf("flowControl.priorityBands[%d]", i)
		band, err := b.band(&spec.PriorityBands[i], at)
		if err != nil {
			return err
		}
		if slices.ContainsFunc(f.bands, func(o bandConfig) bool { return o.priority == band.priority }) {
			return fmt.Errorf("%s: there are two bands of priority %d", at, band.priority)
		}
		f.bands = append(f.bands, band)
	}
	slices.SortFunc(f.bands, func(a, b bandConfig) int { return b.priority - a.priority })
	if b.c.start = f; on {
		b.c.flow = f
	}
	return nil
}

func limit(q *resource.Quantity, otherwise int64, where string) (int64, error) {
	if q == nil || q.IsZero() {
		return otherwise, nil
	}
	if q.Sign() < 0 {
		return 0, fmt.Errorf("%s is %s, and must not be negative", where, q)
	}
	return q.Value(), nil
}

func (b *builder) band(spec *bandSpec, where string) (out bandConfig, err error) {
	if spec == nil {
		spec = &bandSpec{}
	}
	if spec.Priority > 1<<30 || spec.Priority < -1<<30 {
		return out, fmt.Errorf("%s.priority is %d, out of range", where, spec.Priority)
	}
	out.priority = spec.Priority
	if out.mostRequests, err = limit(spec.MaxRequests, bandRequests, where+".maxRequests"); err != nil {
		return out, err
	}
	if out.mostBytes, err = limit(spec.MaxBytes, bandBytes, where+".maxBytes"); err != nil {
		return out, err
	}
	if ref := spec.FairnessPolicyRef; ref != "" {
		p, err := b.find(ref, where+".fairnessPolicyRef")
		if err != nil {
			return out, err
		}
		switch p.kind {
		case "round-robin-fairness-policy":
			out.fair = true
		case "global-strict-fairness-policy":
		default:
			return out, fmt.Errorf("%s.fairnessPolicyRef: %s is not a fairness policy", where, p.kind)
		}
	}
	if ref := spec.OrderingPolicyRef; ref != "" {
		p, err := b.find(ref, where+".orderingPolicyRef")
		if err != nil {
			return out, err
		}
		switch p.kind {
		case "fcfs-ordering-policy":
		case "edf-ordering-policy":
			out.order = earliestDeadline
		case "slo-deadline-ordering-policy":
			out.order = firstToken
		default:
			return out, fmt.Errorf("%s.orderingPolicyRef: %s is not an ordering policy", where, p.kind)
		}
	}
	return out, nil
}
