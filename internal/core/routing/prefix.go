package routing

import "fmt"

// prefixConfig defines how prompts are split and the size of the index.
type prefixConfig struct {
	AutoTune               bool    `json:"autoTune"`
	BlockSize              int     `json:"blockSize"`     // characters, of an older version: as upstream, ignored
	HashBlockSize          int     `json:"hashBlockSize"` // the same in an even older version
	BlockSizeTokens        int     `json:"blockSizeTokens"`
	MaxPrefixBlocksToMatch int     `json:"maxPrefixBlocksToMatch"`
	MaxPrefixTokensToMatch int     `json:"maxPrefixTokensToMatch"`
	LRUCapacityPerServer   int     `json:"lruCapacityPerServer"`
	MatchLengthWeight      float64 `json:"matchLengthWeight"`
}

// The defaults of the approximate index (2.4): blocks of 16 tokens, but at least 64, at most 131,072 tokens of a
// prompt.
const (
	blockTokens  = 16
	leastBlock   = 64
	promptTokens = 131072
	lruCapacity  = 31250
)

// mostPairs limits the blocks in the index of a pool for all endpoints together: 2 million, of about 10 bytes in long
// prompts, and about 100 in prompts of one block. Pools with more than 64 endpoints have a lower limit for each.
const mostPairs = 2 << 20

func defaultPrefix() prefixConfig {
	return prefixConfig{AutoTune: true, BlockSizeTokens: blockTokens, LRUCapacityPerServer: lruCapacity}
}

// readPrefix reads the parameters of prefix-cache-scorer. producer is the plugin whose index it uses; empty: its own.
func readPrefix(into func(any) error) (out *prefixConfig, producer string, err error) {
	spec := struct {
		prefixConfig
		Producer string `json:"prefixMatchInfoProducerName"`
	}{prefixConfig: defaultPrefix()}
	spec.BlockSizeTokens = 0
	if err := into(&spec); err != nil {
		return nil, "", err
	}
	c := &spec.prefixConfig
	if c.BlockSizeTokens == 0 {
		c.BlockSizeTokens = blockTokens
	}
	switch {
	case c.BlockSizeTokens < 0 || c.BlockSizeTokens > 1<<16:
		return nil, "", fmt.Errorf("blockSizeTokens is %d, not between 1 and 65536", c.BlockSizeTokens)
	case c.MaxPrefixBlocksToMatch < 0 || c.MaxPrefixBlocksToMatch > mostBlocks:
		return nil, "", fmt.Errorf("maxPrefixBlocksToMatch is %d, not between 0 and %d", c.MaxPrefixBlocksToMatch, mostBlocks)
	case c.MaxPrefixTokensToMatch < 0 || c.MaxPrefixTokensToMatch > mostBlocks*leastBlock:
		return nil, "", fmt.Errorf("maxPrefixTokensToMatch is %d, not between 0 and %d", c.MaxPrefixTokensToMatch,
			mostBlocks*leastBlock)
	case c.LRUCapacityPerServer < 0 || c.LRUCapacityPerServer > mostCapacity:
		return nil, "", fmt.Errorf("lruCapacityPerServer is %d, not between 0 and %d", c.LRUCapacityPerServer, mostCapacity)
	case !(c.MatchLengthWeight >= 0 && c.MatchLengthWeight <= 1):
		return nil, "", fmt.Errorf("matchLengthWeight is %g, not between 0 and 1", c.MatchLengthWeight)
	}
	if c.LRUCapacityPerServer == 0 {
		c.LRUCapacityPerServer = lruCapacity
	}
	return c, spec.Producer, nil
}

// hasher returns the hasher for the configuration and the servers' block size.
func (c *prefixConfig) hasher(serverBlock int) Hasher {
	tokens := c.BlockSizeTokens
	if c.AutoTune && serverBlock > 0 {
		tokens = min(serverBlock, 1<<16)
	}
	if c.AutoTune {
		tokens = max(tokens, leastBlock)
	}
	most := promptTokens / tokens
	switch {
	case c.MaxPrefixTokensToMatch > 0:
		most = c.MaxPrefixTokensToMatch / tokens
	case c.MaxPrefixBlocksToMatch > 0:
		most = c.MaxPrefixBlocksToMatch
	}
	return Hasher{block: tokens * bytesPerToken, most: min(most, mostBlocks)}
}
