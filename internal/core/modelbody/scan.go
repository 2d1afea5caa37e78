// Package modelbody reads the bodies of inference requests and answers as far as a gateway needs them: the name of the
// model, where the prompt is, whether the answer is streamed, and how many tokens were used. A request is read once,
// piece by piece, in the buffer that it is forwarded from; nothing of it is copied except the model's name.
//
// It accepts the same objects as encoding/json, except duplicate model fields, which two parsers could interpret
// differently, and nesting deeper than MaxDepth.
//
// Contract: docs/spec/inference-gateway.md, 2.3; RFC 8259.
package modelbody

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"unicode/utf8"
)

// Limits of a body.
const (
	MaxDepth = 1000
	MaxModel = 256 // bytes of a model's name
)

// Errors of a body.
var (
	errNotObject = errors.New("the body is not a JSON object")
	errSyntax    = errors.New("the body is not valid JSON")
	errDepth     = errors.New("the body is nested too deeply")
	errTwice     = errors.New("the body names the model twice")
	errModel     = errors.New("the model is not a string, or too long")
	errShort     = errors.New("the body ends too early")
)

// Span is a part of the body: from its first byte to the one after its last.
type Span struct{ From, To int }

// Empty reports whether the part is missing.
func (s Span) Empty() bool { return s.To <= s.From }

// Of returns the part.
func (s Span) Of(body []byte) []byte { return body[s.From:s.To] }

// Facts are the parts of a request body that a gateway reads.
type Facts struct {
	Model    string
	HasModel bool
	// ModelAt is the JSON string with the name, with its quotes.
	ModelAt Span
	// Prompt has the parts that the answer depends on, in the order in which servers join them: tools, system, prompt
	// or messages.
	Prompt [3]Span
	// Salt keeps tenants that share a prompt from sharing its cache.
	Salt      string
	Stream    bool
	Usage     bool // the client requests the usage at the end of a stream
	MaxTokens int  // of the answer; 0: not set
}

type state uint8

const (
	start state = iota
	value
	firstKey   // after {
	firstValue // after [
	key        // after , in an object
	colon
	after // a value
	text
	escape
	hex
	literal
	minus
	zero
	digits
	point
	fraction
	exponent
	sign
	power
	end
)

// Scanner reads a body. The zero value is ready.
type Scanner struct {
	Facts
	at     int
	state  state
	depth  int
	arrays [MaxDepth/64 + 1]uint64 // bit per depth: an array, not an object
	isKey  bool
	left   int    // hex digits to come
	word   string // rest of a literal
	begin  int    // of the text that is read
	name   Span   // of the key at depth 1
	models int    // fields that a server may read as the model
	value  int    // begin of the value at depth 1
}

// Scan continues in body, which begins as in the previous call and may have grown. The error is one
// of the errors above.
func (s *Scanner) Scan(body []byte) error {
	for s.at < len(body) {
		if s.state == text {
			if s.skip(body); s.at == len(body) {
				break
			}
		}
		if err := s.step(body, body[s.at]); err != nil {
			return fmt.Errorf("%w (byte %d)", err, s.at)
		}
		s.at++
	}
	return nil
}

// Done reports whether the object has ended. Only white space may follow.
func (s *Scanner) Done() bool { return s.state == end }

// Close announces the end of the body.
func (s *Scanner) Close() error {
	if s.state != end {
		return errShort
	}
	return nil
}

// skip goes to the next byte that has a meaning in a string: eight bytes at once, then one by one. Prompts are
// hundreds of kilobytes long, and nearly all of their bytes are skipped.
func (s *Scanner) skip(body []byte) {
	const ones, highs = 0x0101010101010101, 0x8080808080808080
	for len(body)-s.at >= 8 {
		w := binary.LittleEndian.Uint64(body[s.at:])
		quote, slash := w^(ones*'"'), w^(ones*'\\')
		// The high bit of a byte is set where x-1 borrows: this byte, or one before it, is a match.
		if ((w-ones*' ')&^w|(quote-ones)&^quote|(slash-ones)&^slash)&highs != 0 {
			break
		}
		s.at += 8
	}
	for s.at < len(body) {
		if c := body[s.at]; c == '"' || c == '\\' || c < ' ' {
			return
		}
		s.at++
	}
}

func space(c byte) bool { return c == ' ' || c == '\n' || c == '\r' || c == '\t' }

func (s *Scanner) inArray() bool { return s.arrays[s.depth/64]&(1<<(s.depth%64)) != 0 }

func (s *Scanner) step(body []byte, c byte) error {
	switch s.state {
	case text:
		return s.inText(body, c)
	case escape:
		switch c {
		case 'u':
			s.state, s.left = hex, 4
		case '"', '\\', '/', 'b', 'f', 'n', 'r', 't':
			s.state = text
		default:
			return errSyntax
		}
		return nil
	case hex:
		if (c < '0' || c > '9') && (c|0x20 < 'a' || c|0x20 > 'f') {
			return errSyntax
		}
		if s.left--; s.left == 0 {
			s.state = text
		}
		return nil
	case literal:
		if s.word[0] != c {
			return errSyntax
		}
		if s.word = s.word[1:]; s.word == "" {
			return s.ended(body, s.at+1)
		}
		return nil
	case minus, zero, digits, point, fraction, exponent, sign, power:
		more, err := s.number(c)
		if more || err != nil {
			return err
		}
		if err := s.ended(body, s.at); err != nil { // c comes after the number
			return err
		}
	case start, value, firstKey, firstValue, key, colon, after, end:
	}
	if space(c) {
		return nil
	}
	return s.structure(body, c)
}

func (s *Scanner) inText(body []byte, c byte) error {
	switch {
	case c == '\\':
		s.state = escape
	case c < ' ':
		return errSyntax
	case c == '"' && s.isKey:
		if s.depth == 1 {
			s.name = Span{s.begin, s.at + 1}
		}
		s.state = colon
	case c == '"':
		return s.ended(body, s.at+1)
	}
	return nil
}

// structure reads a byte between values.
func (s *Scanner) structure(body []byte, c byte) error {
	switch s.state { //nolint:exhaustive // the others are within a value
	case start:
		if c != '{' {
			return errNotObject
		}
		return s.open(c)
	case firstKey, key:
		switch {
		case c == '"':
			s.isKey, s.begin, s.state = true, s.at, text
			return nil
		case c == '}' && s.state == firstKey:
			return s.shut(body)
		}
	case colon:
		if c == ':' {
			s.state = value
			return nil
		}
	case firstValue:
		if c == ']' {
			return s.shut(body)
		}
		return s.first(c)
	case value:
		return s.first(c)
	case after:
		switch {
		case c == ',' && s.inArray():
			s.state = value
			return nil
		case c == ',':
			s.state = key
			return nil
		case c == ']' && s.inArray(), c == '}' && !s.inArray():
			return s.shut(body)
		}
	}
	return errSyntax
}

// first reads the first byte of a value.
func (s *Scanner) first(c byte) error {
	if s.depth == 1 {
		s.value = s.at
	}
	switch {
	case c == '{' || c == '[':
		return s.open(c)
	case c == '"':
		s.isKey, s.begin, s.state = false, s.at, text
	case c == 't':
		s.word, s.state = "rue", literal
	case c == 'f':
		s.word, s.state = "alse", literal //nolint:misspell // the rest of false
	case c == 'n':
		s.word, s.state = "ull", literal
	case c == '-':
		s.state = minus
	case c == '0':
		s.state = zero
	case c > '0' && c <= '9':
		s.state = digits
	default:
		return errSyntax
	}
	return nil
}

func (s *Scanner) open(c byte) error {
	if s.depth == MaxDepth {
		return errDepth
	}
	s.depth++
	bit := uint64(1) << (s.depth % 64)
	if s.arrays[s.depth/64] &^= bit; c == '[' {
		s.arrays[s.depth/64] |= bit
		s.state = firstValue
		return nil
	}
	s.state = firstKey
	return nil
}

// shut ends an object or an array.
func (s *Scanner) shut(body []byte) error {
	if s.depth--; s.depth == 0 {
		s.state = end
		return nil
	}
	return s.ended(body, s.at+1)
}

// number reads on in a number; more: c belongs to it.
func (s *Scanner) number(c byte) (more bool, err error) {
	digit := c >= '0' && c <= '9'
	next := s.state
	switch s.state {
	case minus:
		switch {
		case c == '0':
			next = zero
		case digit:
			next = digits
		default:
			return false, errSyntax
		}
	case zero, digits:
		switch {
		case digit && s.state == digits:
		case c == '.':
			next = point
		case c|0x20 == 'e':
			next = exponent
		default:
			return false, nil
		}
	case point, fraction:
		switch {
		case digit:
			next = fraction
		case s.state == fraction && c|0x20 == 'e':
			next = exponent
		case s.state == point:
			return false, errSyntax
		default:
			return false, nil
		}
	default: // exponent, sign, power
		switch {
		case digit:
			next = power
		case s.state == exponent && (c == '+' || c == '-'):
			next = sign
		case s.state != power:
			return false, errSyntax
		default:
			return false, nil
		}
	}
	s.state = next
	return true, nil
}

// ended is called when a value has ended before the byte to.
func (s *Scanner) ended(body []byte, to int) error {
	s.state = after
	if s.depth != 1 {
		return nil
	}
	return s.field(body, Span{s.value, to})
}

// smallField is the size of a field that is decoded.
const smallField = 4 << 10

// decode decodes a small value, as encoding/json does. The usual ones need no parser.
func decode(value []byte, into any) bool {
	switch to := into.(type) {
	case *string:
		plain := value[0] == '"' && bytes.IndexByte(value, '\\') < 0 && utf8.Valid(value)
		if n := len(value); n <= smallField && plain {
			*to = string(value[1 : n-1])
			return true
		}
	case *int:
		if len(value) < 10 && value[0] >= '0' && value[0] <= '9' {
			if n, err := strconv.Atoi(string(value)); err == nil {
				*to = n
				return true
			}
		}
	case *bool:
		if string(value) == "true" || string(value) == "false" {
			*to = value[0] == 't'
			return true
		}
	}
	return len(value) <= smallField && json.Unmarshal(value, into) == nil
}

// field notes a field of the body.
func (s *Scanner) field(body []byte, v Span) error {
	name := s.name.Of(body)
	if len(name) > 64 {
		return nil
	}
	plain := string(name[1 : len(name)-1])
	if strings.Contains(plain, `\`) && json.Unmarshal(name, &plain) != nil {
		return nil //nolint:nilerr // the name of another field
	}
	small := func(into any) bool { return decode(v.Of(body), into) }
	if strings.EqualFold(plain, "model") { // servers in Go take the last one, whatever its case
		if s.models++; s.models > 1 {
			return errTwice
		}
	}
	switch plain {
	case "model":
		if body[v.From] != '"' || v.To-v.From > 6*MaxModel+2 || !small(&s.Model) || len(s.Model) > MaxModel ||
			!utf8.Valid(v.Of(body)) {
			return errModel
		}
		s.HasModel, s.ModelAt = true, v
	case "tools":
		s.Prompt[0] = v
	case "system", "instructions":
		s.Prompt[1] = v
	case "prompt", "messages", "input", "token_ids":
		s.Prompt[2] = v
	case "cache_salt":
		_ = small(&s.Salt)
	case "stream":
		_ = small(&s.Stream)
	case "stream_options":
		var o struct {
			IncludeUsage bool `json:"include_usage"`
		}
		s.Usage = small(&o) && o.IncludeUsage
	case "max_tokens", "max_completion_tokens", "max_output_tokens":
		_ = small(&s.MaxTokens)
	}
	return nil
}

// Rewritten returns the parts of a body with another model: the new one is between them.
func (f *Facts) Rewritten(body []byte, model string) (before, name, rest []byte) {
	quoted, err := json.Marshal(model)
	if err != nil || !f.HasModel {
		return body, nil, nil
	}
	return body[:f.ModelAt.From], quoted, body[f.ModelAt.To:]
}
