package routing

import (
	"errors"
	"fmt"
	"strings"
	"time"
)

// Precise is the configuration of precise-prefix-cache-scorer: KV events of the servers define which blocks of
// prompts are in their KV caches.
type Precise struct {
	// Topic is the beginning of the topics that are subscribed to: kv@POD@MODEL.
	Topic string
	// Port is where the first rank of a server publishes its events; the port of rank n is Port+n.
	Port int
	// BlockTokens is the length of a block; 0: as reported by servers.
	BlockTokens int
	// Keep is how long the blocks of a sent prompt count as cached before the server reports them; 0: not at
	// all.
	Keep time.Duration
	// Fast and Slow are the weights, 0 to 1, of a block in the memory of the GPU and of one
	// elsewhere.
	Fast, Slow float64
}

// The defaults of llm-d.
const (
	eventTopic  = "kv@"
	eventPort   = 5557
	guessTime   = 2 * time.Second
	longestKeep = time.Minute
	slowWeight  = 0.8
	// A subscription is one short frame of ZMTP, at most 255 bytes: a one and the topic.
	longestTopic = 254
)

// preciseSpec are the parameters of llm-d's scorer. Parameters for its threads, tokenizers and hashes are accepted
// but not used: carob gets tokens from the servers, and computes hashes from the tokens in the events.
type preciseSpec struct {
	TokenProcessorConfig tokenProcessor `json:"tokenProcessorConfig"`
	IndexerConfig        struct {
		TokenProcessorConfig tokenProcessor `json:"tokenProcessorConfig"` // older versions have it here
		KVBlockIndexConfig   *struct {
			InMemoryConfig         *map[string]any `json:"inMemoryConfig"`
			CostAwareMemoryConfig  *map[string]any `json:"costAwareMemoryConfig"`
			RedisConfig            *map[string]any `json:"redisConfig"`
			ValkeyConfig           *map[string]any `json:"valkeyConfig"`
			EnableMetrics          bool            `json:"enableMetrics"`
			MaxPrefixTokensToMatch int             `json:"maxPrefixTokensToMatch"`
			MetricsLoggingInterval any             `json:"metricsLoggingInterval"`
		} `json:"kvBlockIndexConfig"`
		KVCacheBackendConfigs []struct {
			Name   string  `json:"name"`
			Weight float64 `json:"weight"`
		} `json:"kvCacheBackendConfigs"`
		TokenizersPoolConfig map[string]any `json:"tokenizersPoolConfig"`
	} `json:"indexerConfig"`
	KVEventsConfig struct {
		ZMQEndpoint        string `json:"zmqEndpoint"`
		TopicFilter        string `json:"topicFilter"`
		Concurrency        int    `json:"concurrency"`
		EngineType         string `json:"engineType"`
		DiscoverPods       *bool  `json:"discoverPods"`
		PodDiscoveryConfig struct {
			PodLabelSelector string `json:"podLabelSelector"`
			PodNamespace     string `json:"podNamespace"`
			SocketPort       int    `json:"socketPort"`
		} `json:"podDiscoveryConfig"`
	} `json:"kvEventsConfig"`
	SpeculativeIndexing *bool  `json:"speculativeIndexing"`
	SpeculativeTTL      string `json:"speculativeTTL"`
}

type tokenProcessor struct {
	BlockSize       int    `json:"blockSize"`
	BlockSizeTokens int    `json:"blockSizeTokens"`
	HashSeed        string `json:"hashSeed"`
}

// readPrecise reads the parameters of precise-prefix-cache-scorer.
func readPrecise(into func(any) error) (*Precise, error) {
	var c preciseSpec
	if err := into(&c); err != nil {
		return nil, err
	}
	out := &Precise{Topic: c.KVEventsConfig.TopicFilter, Port: c.KVEventsConfig.PodDiscoveryConfig.SocketPort,
		Keep: guessTime, Fast: 1, Slow: slowWeight}
	for _, t := range []tokenProcessor{c.TokenProcessorConfig, c.IndexerConfig.TokenProcessorConfig} {
		if size := max(t.BlockSizeTokens, t.BlockSize); out.BlockTokens == 0 {
			out.BlockTokens = size
		}
	}
	if out.Topic == "" {
		out.Topic = eventTopic
	}
	if out.Port == 0 {
		out.Port = eventPort
	}
	events := &c.KVEventsConfig
	switch {
	case events.ZMQEndpoint != "" || events.DiscoverPods != nil && !*events.DiscoverPods:
		return nil, errors.New("kvEventsConfig.zmqEndpoint and discoverPods: false are not supported: carob connects to " +
			"each server of the pool at podDiscoveryConfig.socketPort, so servers must bind it (tcp://*:PORT)")
	case events.EngineType != "" && events.EngineType != DefaultEngine:
		return nil, fmt.Errorf("kvEventsConfig.engineType is %q; only the events of vllm are read", events.EngineType)
	case len(out.Topic) > longestTopic:
		return nil, fmt.Errorf("kvEventsConfig.topicFilter is longer than %d bytes", longestTopic)
	case out.Port < 1 || out.Port > 65535:
		return nil, fmt.Errorf("kvEventsConfig.podDiscoveryConfig.socketPort is %d, not between 1 and 65535", out.Port)
	case out.BlockTokens < 0 || out.BlockTokens > 1<<16:
		return nil, fmt.Errorf("tokenProcessorConfig.blockSizeTokens is %d, not between 1 and 65536", out.BlockTokens)
	}
	index := c.IndexerConfig.KVBlockIndexConfig
	if index != nil && (index.RedisConfig != nil || index.ValkeyConfig != nil) {
		return nil, errors.New("indexerConfig.kvBlockIndexConfig: carob keeps the index in memory, not in Redis or Valkey")
	}
	for i, b := range c.IndexerConfig.KVCacheBackendConfigs {
		if !(b.Weight >= 0 && b.Weight <= 1) {
			return nil, fmt.Errorf("indexerConfig.kvCacheBackendConfigs[%d].weight is %g, not between 0 and 1", i, b.Weight)
		}
		switch strings.ToLower(b.Name) {
		case "gpu":
			out.Fast = b.Weight
		case "cpu": // and slower storage
			out.Slow = b.Weight
		default:
			return nil, fmt.Errorf("indexerConfig.kvCacheBackendConfigs[%d].name is %q, not gpu or cpu", i, b.Name)
		}
	}
	if text := c.SpeculativeTTL; text != "" {
		keep, err := time.ParseDuration(text)
		if err != nil {
			return nil, fmt.Errorf("speculativeTTL: %w", err)
		}
		if keep < 0 || keep > longestKeep {
			return nil, fmt.Errorf("speculativeTTL is %s, not between 0 and %s", keep, longestKeep)
		}
		if keep > 0 {
			out.Keep = keep
		}
	}
	if on := c.SpeculativeIndexing; on != nil && !*on {
		out.Keep = 0
	}
	return out, nil
}

// Precise returns the configuration of precise-prefix-cache-scorer; nil: it is not configured.
func (c *Config) Precise() *Precise { return c.precise }

// usePrecise creates the index of KV events for the configuration. A changed configuration starts with an empty
// index: each server has to be followed anew.
func (p *Pool) usePrecise() {
	c := p.config.precise
	switch {
	case c == nil:
		p.blocks, p.precise = nil, nil
	case p.precise == nil || *p.precise != *c:
		p.blocks, p.precise = newBlockIndex(c.BlockTokens, c.Keep), c
		p.blocks.grow(len(p.ends))
	}
}

// Following announces a new connection to a server's KV events. Its cache is unknown until its first event.
func (p *Pool) Following(ref Ref) {
	if p.blocks != nil && p.at(ref) != nil {
		p.blocks.begin(int(ref.slot))
	}
}

// Unfollowed announces the end of a connection: the state of the server's cache is removed.
func (p *Pool) Unfollowed(ref Ref) {
	if p.blocks != nil && p.at(ref) != nil {
		gaps := p.blocks.servers[ref.slot].gaps
		p.blocks.drop(int(ref.slot))
		p.blocks.servers[ref.slot].gaps = gaps
	}
}

// Message announces a message with events: number counts the messages of a server. After a gap, the state of the
// server is removed. readable: the events follow; otherwise they are lost.
func (p *Pool) Message(ref Ref, number uint64, readable bool) {
	if p.blocks == nil || p.at(ref) == nil || !p.blocks.servers[ref.slot].following {
		return
	}
	p.blocks.number(int(ref.slot), number)
	if v := &p.blocks.servers[ref.slot]; !readable {
		p.blocks.empty(int(ref.slot))
		v.whole = false
		v.gaps++
	}
}

// Event applies an event of the last Message. model is the name in its topic.
func (p *Pool) Event(ref Ref, model string, e *BlockEvent) {
	if p.blocks != nil && p.at(ref) != nil && p.blocks.servers[ref.slot].received {
		p.blocks.take(int(ref.slot), model, e)
	}
}

// TokenHasher returns the hasher to compare prompts with KV events. Its Block is 0 while there is nothing to compare
// with.
func (p *Pool) TokenHasher() TokenHasher {
	if p.blocks == nil {
		return TokenHasher{}
	}
	for _, slot := range p.live {
		if p.blocks.fits(p.blocks.servers[slot]) {
			return TokenHasher{p.blocks.size}
		}
	}
	return TokenHasher{}
}

// CacheState is the state of a server's cache according to its KV events.
type CacheState struct {
	Following bool // there is a connection
	Received  bool // an event has arrived since
	Whole     bool // all of its blocks are known
	Full      bool // it has more blocks than the limit
	Blocks    int
	Gaps      int // how often messages were missed
	Tokens    int // of a block, as reported by the server
	Wrong     int // expected tokens of a block if Tokens differs; else 0
}

// CacheState returns the state of a server's cache; zero without precise-prefix-cache-scorer.
func (p *Pool) CacheState(ref Ref) (c CacheState) {
	if p.blocks == nil || p.at(ref) == nil {
		return c
	}
	v := &p.blocks.servers[ref.slot]
	c = CacheState{Following: v.following, Received: v.received, Whole: v.whole, Full: v.full, Blocks: len(v.blocks),
		Gaps: v.gaps, Tokens: v.size}
	if v.size != 0 && v.size != p.blocks.size {
		c.Wrong = p.blocks.size
	}
	return c
}

// known writes, for each endpoint, how many blocks of a request's prompt it has, in blocks of Prefix, and returns the
// maximum. For endpoints with complete events, only these count; for those whose first events were missed, events and
// sent prompts; for others, sent prompts. exact is the cached part of the prompt, 0 to 1, weighted by its tier.
func (p *Pool) known(r *Request, lengths []int32, exact []float64, now time.Time) (longest int) {
	longest = p.index.match(r.Prefix, lengths)
	if p.blocks == nil {
		return longest
	}
	n, all := float64(len(r.Prefix)), float64(len(r.Blocks))
	for _, slot := range p.live {
		if exact[slot] = 0; n > 0 {
			exact[slot] = float64(lengths[slot]) / n
		}
	}
	if len(r.Blocks) == 0 {
		return longest
	}
	p.blocks.tick(now)
	found, behind := p.work.found[:len(lengths)], p.work.behind[:len(lengths)]
	p.blocks.match(r.Blocks, found, behind)
	longest = 0
	for _, slot := range p.live {
		if p.blocks.usable(int(slot)) {
			length := int32(n * float64(found[slot]) / all)
			part := (p.precise.Fast*float64(found[slot]-behind[slot]) + p.precise.Slow*float64(behind[slot])) / all
			if !p.blocks.servers[slot].whole {
				length, part = max(length, lengths[slot]), max(part, exact[slot])
			}
			lengths[slot], exact[slot] = length, part
		}
		longest = max(longest, int(lengths[slot]))
	}
	return longest
}

// preciseScorer prefers servers that have the prompt in their cache according to their events.
type preciseScorer struct{}

func (preciseScorer) score(v *view, out []float64) {
	v.prefix()
	for i, slot := range v.at {
		out[i] = v.exact[slot]
	}
}
