package routing

import (
	"encoding/binary"
	"net/netip"
	"slices"
	"time"

	"github.com/cespare/xxhash/v2"
)

// DefaultFairnessID is the flow of requests without a fairness ID (2.4).
const DefaultFairnessID = "default-flow"

// Priorities of the criticalities of InferenceModel v1alpha2. An InferenceObjective has any number; a negative one is
// sheddable (1.3, 1.4).
const (
	Critical  = 1
	Standard  = 0
	Sheddable = -1
)

// Request has the facts of a request that a decision may use. All of it may come from a client: nothing is trusted.
type Request struct {
	// Model is what the client requested, Target the name in the request to the server (after
	// InferenceModel or InferenceModelRewrite); empty: Model. Target is an adapter's name if a
	// server reports such an adapter.
	Model, Target string
	// Priority of the request: higher first; below 0 it is refused while the pool is saturated.
	Priority int
	// FairnessID is the flow of the request within its priority; empty: DefaultFairnessID.
	FairnessID string
	// Session is the Endpoint.Session of the endpoint that served the session before; empty: none.
	Session string
	// Prefix are the hashes of the prompt's blocks, by Pool.Hasher, with Target as the model; nil: no prompt.
	Prefix []uint64
	// Blocks are the hashes of the prompt's tokens, by Pool.TokenHasher; nil: the tokens are not known.
	Blocks []uint64
	// Bytes of the body; for flow control, and to estimate tokens.
	Bytes int
	// PromptTokens is the length of the prompt; 0: a fourth of Bytes.
	PromptTokens int
	// Streaming: the answer is sent token by token.
	Streaming bool
	// TTFT and TPOT are the latencies that the client requests: time to the first token, and per token after
	// it; 0: nothing.
	TTFT, TPOT time.Duration
	// Subset are the only endpoints that may be chosen; nil: all; empty: none. Port 0 means all
	// ports of an address (x-gateway-destination-endpoint-subset, 2.1).
	Subset []netip.AddrPort
	// Received is when the request arrived; for the order in a queue.
	Received time.Time
	// Deadline is the client's deadline; zero: none.
	Deadline time.Time
	// Random is a random number: ties are broken with it.
	Random uint64
}

// target returns the model name in the request to the server.
func (r *Request) target() string {
	if r.Target != "" {
		return r.Target
	}
	return r.Model
}

// tokens returns the length of the prompt.
func (r *Request) tokens() int64 {
	if r.PromptTokens > 0 {
		return int64(r.PromptTokens)
	}
	return int64(r.Bytes / bytesPerToken)
}

// bytesPerToken is the estimate that upstream makes without a tokenizer.
const bytesPerToken = 4

// Hasher splits a prompt into blocks and chains their hashes: two prompts have as many equal hashes as they have
// equal blocks at the beginning. It may be used while the Pool it came from changes, and by many goroutines.
type Hasher struct {
	block int // bytes
	most  int // blocks
}

// Hash appends the hashes of the blocks of a prompt to dst. The model, the salt (cache_salt of the body: tenants that
// must not share a cache), and everything before a block are part of its hash. A block that is not full has none.
// The parts are hashed as if they were one text; they are not kept.
func (h Hasher) Hash(dst []uint64, model, salt string, parts ...[]byte) []uint64 {
	if h.block <= 0 {
		return dst
	}
	var d xxhash.Digest
	var last [8]byte
	d.Reset()
	_, _ = d.WriteString(model)
	binary.LittleEndian.PutUint64(last[:], uint64(len(model)))
	_, _ = d.Write(last[:])
	_, _ = d.WriteString(salt)
	binary.LittleEndian.PutUint64(last[:], d.Sum64())
	limit, room := len(dst)+h.most, h.block
	size := 0
	for _, part := range parts {
		size += len(part)
	}
	dst = slices.Grow(dst, min(size/h.block, h.most))
	d.Reset()
	for _, part := range parts {
		for len(part) >= room {
			if len(dst) == limit {
				return dst
			}
			_, _ = d.Write(part[:room])
			_, _ = d.Write(last[:])
			sum := d.Sum64()
			dst = append(dst, sum)
			binary.LittleEndian.PutUint64(last[:], sum)
			d.Reset()
			part, room = part[room:], h.block
		}
		_, _ = d.Write(part)
		room -= len(part)
	}
	return dst
}
