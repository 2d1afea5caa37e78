package inference

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/cespare/xxhash/v2"

	"carob/internal/core/routing"
)

// KV events, as vLLM publishes them: a message has the topic kv@POD@MODEL, a sequence number of 8 bytes, and a batch in
// MessagePack: [time, [event, …], rank], or a map of these. An event is an array [tag, field, …], whose last fields may
// be missing, or (vLLM #42892) a map with the tag under "type". The message is untrusted input: depth, lengths, and
// numbers are checked before they are used.

const (
	mostDepth      = 32
	mostGroup      = 1 << 10
	mostBlockSize  = 1 << 16
	mostEvents     = 1 << 16 // of a batch, and blocks of an event
	mostBlockParts = 128     // blocks of an event; longer ones are cut, so that no lock is held for long
)

var (
	errEnds   = errors.New("the batch ends too early")
	errDeep   = errors.New("the batch is nested too deeply")
	errMany   = errors.New("the batch has too many events or blocks")
	errFormat = errors.New("the batch is not of KV events")
)

// pack reads MessagePack (https://github.com/msgpack/msgpack/blob/master/spec.md).
type pack struct {
	b  []byte
	at int
}

// kind of the next value.
type kind uint8

const (
	packNil kind = iota
	packBool
	packInt
	packFloat
	packText // or bytes
	packArray
	packMap
	packExt
)

// head is the beginning of a value: its kind, its number, or how many bytes or values follow.
type head struct {
	kind kind
	n    uint64 // of packInt: the number, negative ones in two's complement; of others: the length
	f    float64
	neg  bool
}

func (p *pack) take(n uint64) ([]byte, error) {
	if n > uint64(len(p.b)-p.at) { //nolint:gosec // not negative
		return nil, errEnds
	}
	from := p.at
	p.at += int(n) //nolint:gosec // limited
	return p.b[from:p.at], nil
}

func (p *pack) number(size uint64) (n uint64, err error) {
	b, err := p.take(size)
	for _, c := range b {
		n = n<<8 | uint64(c)
	}
	return n, err
}

// head reads the beginning of a value. An array or a map has at least one byte for each of its values.
func (p *pack) head() (h head, err error) {
	first, err := p.take(1)
	if err != nil {
		return h, err
	}
	c := first[0]
	switch {
	case c < 0x80:
		return head{kind: packInt, n: uint64(c)}, nil
	case c < 0x90:
		h = head{kind: packMap, n: uint64(c & 15)}
	case c < 0xa0:
		h = head{kind: packArray, n: uint64(c & 15)}
	case c < 0xc0:
		return head{kind: packText, n: uint64(c & 31)}, nil
	case c >= 0xe0:
		return head{kind: packInt, n: uint64(int64(int8(c))), neg: true}, nil //nolint:gosec // two's complement
	default:
		if h, err = p.long(c); err != nil {
			return h, err
		}
	}
	if h.kind == packArray || h.kind == packMap {
		if h.n > uint64(len(p.b)-p.at) { //nolint:gosec // not negative
			return h, errEnds
		}
	}
	return h, nil
}

// long reads the rest of a head whose first byte names a kind only.
func (p *pack) long(c byte) (h head, err error) {
	size := func(k kind, bytes uint64) (head, error) {
		n, err := p.number(bytes)
		return head{kind: k, n: n}, err
	}
	switch c {
	case 0xc0:
		return head{kind: packNil}, nil
	case 0xc2, 0xc3:
		return head{kind: packBool, n: uint64(c & 1)}, nil
	case 0xc4, 0xc5, 0xc6:
		return size(packText, 1<<(c-0xc4))
	case 0xd9, 0xda, 0xdb:
		return size(packText, 1<<(c-0xd9))
	case 0xc7, 0xc8, 0xc9:
		h, err = size(packExt, 1<<(c-0xc7))
		h.n++ // and its type
		return h, err
	case 0xd4, 0xd5, 0xd6, 0xd7, 0xd8:
		return head{kind: packExt, n: 1 + 1<<(c-0xd4)}, nil
	case 0xca:
		n, err := p.number(4)
		return head{kind: packFloat, f: float64(math.Float32frombits(uint32(n)))}, err //nolint:gosec // 4 bytes
	case 0xcb:
		n, err := p.number(8)
		return head{kind: packFloat, f: math.Float64frombits(n)}, err
	case 0xcc, 0xcd, 0xce, 0xcf:
		return size(packInt, 1<<(c-0xcc))
	case 0xd0, 0xd1, 0xd2, 0xd3:
		bytes := uint64(1) << (c - 0xd0)
		h, err = size(packInt, bytes)
		shift := 64 - 8*bytes
		h.n = uint64(int64(h.n<<shift) >> shift) //nolint:gosec // two's complement
		h.neg = int64(h.n) < 0                   //nolint:gosec // two's complement
		return h, err
	case 0xdc, 0xdd:
		return size(packArray, 2<<(c-0xdc))
	case 0xde, 0xdf:
		return size(packMap, 2<<(c-0xde))
	}
	return h, errFormat // 0xc1 is never used
}

// skip reads a value of any kind.
func (p *pack) skip(depth int) error {
	if depth > mostDepth {
		return errDeep
	}
	h, err := p.head()
	if err != nil {
		return err
	}
	switch h.kind {
	case packText, packExt:
		_, err = p.take(h.n)
		return err
	case packMap:
		h.n *= 2
	case packArray:
	default:
		return nil
	}
	for range h.n {
		if err := p.skip(depth + 1); err != nil {
			return err
		}
	}
	return nil
}

// array reads the length of an array; that of nil is 0.
func (p *pack) array() (n uint64, err error) {
	h, err := p.head()
	if err != nil || h.kind == packNil {
		return 0, err
	}
	if h.kind != packArray {
		return 0, errFormat
	}
	return h.n, nil
}

// text reads a string; none: nil.
func (p *pack) text() (s string, none bool, err error) {
	h, err := p.head()
	if err != nil || h.kind == packNil {
		return "", true, err
	}
	if h.kind != packText {
		return "", false, errFormat
	}
	b, err := p.take(h.n)
	return string(b), false, err
}

// count reads a number between 0 and most; none: nil.
func (p *pack) count(most uint64) (n int, none bool, err error) {
	h, err := p.head()
	if err != nil || h.kind == packNil {
		return 0, true, err
	}
	if h.kind != packInt || h.neg || h.n > most {
		return 0, false, errFormat
	}
	return int(h.n), false, nil //nolint:gosec // limited
}

// hash reads a block's hash: a number, or bytes, of which the last eight count, as in llm-d.
func (p *pack) hash() (n uint64, none bool, err error) {
	h, err := p.head()
	switch {
	case err != nil || h.kind == packNil:
		return 0, true, err
	case h.kind == packInt:
		return h.n, false, nil
	case h.kind != packText || h.n == 0:
		return 0, false, errFormat
	}
	b, err := p.take(h.n)
	for _, c := range b[max(0, len(b)-8):] {
		n = n<<8 | uint64(c)
	}
	return n, false, err
}

// readBatch reads a batch.
func readBatch(b []byte) ([]routing.BlockEvent, error) {
	p := &pack{b: b}
	h, err := p.head()
	if err != nil {
		return nil, err
	}
	var out []routing.BlockEvent
	found := false
	for i := range h.n {
		name := ""
		switch h.kind {
		case packArray:
			if i == 1 {
				name = "events"
			}
		case packMap:
			if name, _, err = p.text(); err != nil {
				return nil, err
			}
		default:
			return nil, errFormat
		}
		if name != "events" || found {
			if err := p.skip(1); err != nil {
				return nil, err
			}
			continue
		}
		found = true
		n, err := p.array()
		if err != nil {
			return nil, err
		}
		for range n {
			if out, err = readEvent(p, out); err != nil {
				return nil, err
			}
			if len(out) > mostEvents {
				return nil, errMany
			}
		}
	}
	if !found || p.at != len(b) {
		return nil, errFormat
	}
	return out, nil
}

// The fields of events in arrays, in their order.
var (
	storedFields = []string{"block_hashes", "parent_block_hash", "token_ids", "block_size", "lora_id", "medium",
		"lora_name", "extra_keys", "group_idx", "kv_cache_spec_kind"}
	removedFields = []string{"block_hashes", "medium", "group_idx"}
)

// readEvent reads an event. Unknown tags and fields are skipped: newer servers may have more.
func readEvent(p *pack, out []routing.BlockEvent) ([]routing.BlockEvent, error) {
	h, err := p.head()
	if err != nil {
		return out, err
	}
	e := event{}
	var order []string
	for i := range h.n {
		name := ""
		switch {
		case h.kind == packArray && i == 0:
			name = "type"
		case h.kind == packArray:
			if int(i) <= len(order) { //nolint:gosec // limited
				name = order[i-1]
			}
		case h.kind == packMap:
			if name, _, err = p.text(); err != nil {
				return out, err
			}
		default:
			return out, errFormat
		}
		if err := e.field(p, name); err != nil {
			return out, fmt.Errorf("%s: %w", name, err)
		}
		if i == 0 && e.tag == "BlockStored" {
			order = storedFields
		} else if i == 0 && e.tag == "BlockRemoved" {
			order = removedFields
		}
	}
	if e.tag == "" {
		return out, errFormat
	}
	return e.parts(out)
}

// event is an event as received.
type event struct {
	tag string
	routing.BlockEvent
	extra []extraKeys
}

// extraKeys are what a block depends on in addition to its tokens.
type extraKeys struct {
	texts []string
	other uint64 // a hash of what is no text
}

func (e *event) field(p *pack, name string) (err error) {
	switch name {
	case "type":
		e.tag, _, err = p.text()
	case "block_hashes":
		n, err := p.array()
		if err != nil {
			return err
		}
		if n > mostEvents {
			return errMany
		}
		e.Blocks = make([]uint64, 0, n)
		for range n {
			hash, none, err := p.hash()
			if err != nil || none {
				return errors.Join(err, errFormat)
			}
			e.Blocks = append(e.Blocks, hash)
		}
	case "parent_block_hash":
		var none bool
		e.Parent, none, err = p.hash()
		e.HasParent = !none && e.Parent != 0 // llm-d's simulator sends 0 for none
	case "token_ids":
		n, err := p.array()
		if err != nil {
			return err
		}
		e.Tokens = make([]uint32, 0, n)
		for range n {
			token, none, err := p.count(math.MaxUint32)
			if err != nil || none {
				return errors.Join(err, errFormat)
			}
			e.Tokens = append(e.Tokens, uint32(token)) //nolint:gosec // limited
		}
	case "block_size":
		e.BlockTokens, _, err = p.count(mostBlockSize)
	case "lora_name":
		e.Adapter, _, err = p.text()
	case "medium":
		medium, none, err := p.text()
		e.Slow = !none && medium != "" && !strings.EqualFold(medium, "GPU")
		return err
	case "group_idx":
		e.Group, _, err = p.count(mostGroup)
	case "kv_cache_spec_kind":
		layers, none, err := p.text()
		e.Window = !none && layers != "" && !strings.Contains(layers, "full") && !strings.HasPrefix(layers, "mla")
		return err
	case "extra_keys":
		return e.keys(p)
	default:
		return p.skip(2)
	}
	return err
}

// keys reads the extra keys of all blocks.
func (e *event) keys(p *pack) error {
	n, err := p.array()
	if err != nil {
		return err
	}
	if n > mostEvents {
		return errMany
	}
	e.extra = make([]extraKeys, 0, n)
	for range n {
		m, err := p.array()
		if err != nil {
			return err
		}
		var k extraKeys
		for range m {
			from := p.at
			if err := p.skip(4); err != nil {
				return err
			}
			value := pack{b: p.b[from:p.at]}
			if text, none, err := value.text(); err == nil && !none {
				k.texts = append(k.texts, text)
			} else if !none {
				k.other = xxhash.Sum64(binary.LittleEndian.AppendUint64(slices.Clone(value.b), k.other)) | 1
			}
		}
		e.extra = append(e.extra, k)
	}
	return nil
}

// depends sets what a block depends on: the name of the adapter is known already, and one more text at the beginning of
// a prompt is its salt.
func (e *event) depends(i int) (out routing.BlockExtra) {
	if i >= len(e.extra) {
		return out
	}
	out.Other = e.extra[i].other
	for _, text := range e.extra[i].texts {
		switch {
		case text == e.Adapter && text != "":
		case out.Salt == "" && i == 0 && !e.HasParent:
			out.Salt = text
		default:
			out.Other = xxhash.Sum64String(text) ^ out.Other | 1
		}
	}
	return out
}

// parts makes events of at most mostBlockParts blocks.
func (e *event) parts(out []routing.BlockEvent) ([]routing.BlockEvent, error) {
	switch e.tag {
	case "AllBlocksCleared":
		return append(out, routing.BlockEvent{Kind: routing.BlocksCleared}), nil
	case "BlockRemoved":
		e.Kind, e.Tokens = routing.BlocksRemoved, nil
	case "BlockStored":
		e.Kind = routing.BlocksStored
	default:
		return out, nil
	}
	if n := len(e.Tokens); n > 0 && (e.BlockTokens == 0 || n != len(e.Blocks)*e.BlockTokens) {
		return out, errFormat
	}
	for from := 0; from < len(e.Blocks); from += mostBlockParts {
		to := min(from+mostBlockParts, len(e.Blocks))
		part := e.BlockEvent
		part.Blocks = e.Blocks[from:to]
		if from > 0 {
			part.Parent, part.HasParent = e.Blocks[from-1], true
		}
		if len(e.Tokens) > 0 {
			part.Tokens = e.Tokens[from*e.BlockTokens : to*e.BlockTokens]
		}
		if len(e.extra) > 0 {
			part.Extra = make([]routing.BlockExtra, 0, to-from)
			for i := from; i < to; i++ {
				part.Extra = append(part.Extra, e.depends(i))
			}
		}
		out = append(out, part)
	}
	return out, nil
}

// modelOf is the model in a topic kv@POD@MODEL; empty: there is none.
func modelOf(topic string) string {
	if parts := strings.SplitN(topic, "@", 3); len(parts) == 3 {
		return parts[2]
	}
	return ""
}
