package modelbody

import "bytes"

// Usage is how many tokens a request used, according to the server.
type Usage struct{ Input, Output, Cached int }

// usageKey is the name of the usage in answers, with its quotes. Within a text the quotes have a backslash before them.
const usageKey = `"usage"`

// usageBytes is the maximum size of a usage. The rest of a longer object is read as if it were outside of one.
const usageBytes = 4 << 10

// mostTokens is more than any answer has.
const mostTokens = 1 << 30

// Answer finds the usage in the bytes of an answer while they pass: JSON, or events (SSE), wherever the usage is. It
// keeps a few bytes. Where an answer has more than one usage, as one for each token, the last one counts, and numbers
// that it does not have are those of the ones before. The zero value is ready.
type Answer struct {
	Bytes int64
	usage Usage

	last   [len(usageKey)]byte // the bytes before, while a name is searched
	kept   int                 // of last
	at     place
	object object
}

// place is where in an answer the next byte is.
type place uint8

const (
	outside place = iota
	atColon       // after the name
	atValue       // after the colon
	within        // the usage
)

// Usage returns the usage in the answer. Implausible numbers become 0.
func (a *Answer) Usage() Usage { return a.usage }

// Write reads a part of the answer. It is not an io.Writer, because it cannot fail.
func (a *Answer) Write(p []byte) {
	a.Bytes += int64(len(p))
	for len(p) > 0 {
		if a.at == outside {
			p = a.search(p)
			continue
		}
		c := p[0]
		switch {
		case a.at == within:
			if ended := a.object.step(c); ended {
				a.take(&a.object.counts)
				a.at = outside
			} else if a.object.bytes == usageBytes {
				a.at = outside
			}
		case c == ' ' || c == '\t' || c == '\r' || c == '\n':
		case a.at == atColon && c == ':':
			a.at = atValue
		case a.at == atValue && c == '{':
			a.at, a.object = within, object{depth: 1}
		default: // null, or not a name
			a.at = outside
			continue
		}
		p = p[1:]
	}
}

// search reads up to the end of the next name, or everything.
func (a *Answer) search(p []byte) (rest []byte) {
	if a.kept > 0 { // the name may have begun in the part before
		var both [2 * len(usageKey)]byte
		n := copy(both[:], a.last[:a.kept])
		n += copy(both[n:], p[:min(len(p), len(usageKey)-1)])
		if i := bytes.Index(both[:n], []byte(usageKey)); i >= 0 {
			end := i + len(usageKey) - a.kept
			a.found(i > 0 && both[i-1] == '\\')
			return p[end:]
		}
	}
	i := bytes.Index(p, []byte(usageKey))
	if i < 0 {
		a.keep(p)
		return nil
	}
	text := i > 0 && p[i-1] == '\\' || i == 0 && a.kept > 0 && a.last[a.kept-1] == '\\'
	a.found(text)
	return p[i+len(usageKey):]
}

// found notes a name, which is only text if a backslash is before it.
func (a *Answer) found(text bool) {
	a.kept = 0
	if !text {
		a.at = atColon
	}
}

// keep keeps the last bytes of what was searched.
func (a *Answer) keep(p []byte) {
	if len(p) >= len(a.last) {
		a.kept = copy(a.last[:], p[len(p)-len(a.last):])
		return
	}
	if over := a.kept + len(p) - len(a.last); over > 0 {
		a.kept = copy(a.last[:], a.last[over:a.kept])
	}
	a.kept += copy(a.last[a.kept:], p)
}

// take sets the numbers that a usage has. Cached tokens are a part of the input of the same usage.
func (a *Answer) take(c *counts) {
	if c.output > 0 {
		a.usage.Output = c.output
	}
	if c.input > 0 {
		a.usage.Input, a.usage.Cached = c.input, c.cached
	} else if c.cached > 0 {
		a.usage.Cached = c.cached
	}
}

// counts are the numbers of one usage; 0: unknown, or implausible.
type counts struct{ input, output, cached int }

// object reads the object with a usage byte by byte: numbers with the names of OpenAI's completions, its responses, and
// Anthropic's messages.
type object struct {
	counts counts
	bytes  int
	depth  int
	parent field // of depth 2
	field  field // of the value that comes next

	text, escaped bool
	name          [24]byte // the last text
	named         int      // its length; more than name has: it is cut
	number        int
	digits        progress
}

// field is what a number means.
type field uint8

const (
	other field = iota
	input
	output
	cached
	details
)

// progress is that of a number.
type progress uint8

const (
	before  progress = iota // the value has not begun
	reading                 // it has only digits
	over                    // it has ended, or is not a plain number
)

// step reads one byte, and reports whether it ends the object.
func (o *object) step(c byte) (ended bool) {
	o.bytes++
	if o.text {
		o.inText(c)
		return false
	}
	if c >= '0' && c <= '9' {
		if o.digits != over && o.number < mostTokens {
			o.digits, o.number = reading, o.number*10+int(c-'0')
		}
		return false
	}
	switch c {
	case '"':
		o.text, o.named = true, 0
	case ':':
		o.field, o.number, o.digits = o.means(), 0, before
		return false
	case ',', '}':
		if o.digits == reading {
			o.set()
		}
		o.field = other
		if c == '}' {
			o.depth--
		}
	case '{', '[':
		if o.depth++; o.depth == 2 {
			o.parent = o.field
		}
	case ']':
		o.depth--
	case ' ', '\t', '\r', '\n':
		return false
	}
	o.digits = over // a sign, a point, a word
	return o.depth == 0
}

// inText reads a byte of a text.
func (o *object) inText(c byte) {
	switch {
	case o.escaped:
		o.escaped = false
	case c == '\\':
		o.escaped = true
	case c == '"':
		o.text = false
		return
	}
	if o.named < len(o.name) {
		o.name[o.named] = c
	}
	o.named++
}

// means is the meaning of the value whose name was read last.
func (o *object) means() field {
	if o.named > len(o.name) {
		return other
	}
	switch name := o.name[:o.named]; {
	case o.depth == 2 && o.parent == details && string(name) == "cached_tokens":
		return cached
	case o.depth != 1:
		return other
	default:
		switch string(name) {
		case "prompt_tokens", "input_tokens":
			return input
		case "completion_tokens", "output_tokens":
			return output
		case "cache_read_input_tokens":
			return cached
		case "prompt_tokens_details", "input_tokens_details":
			return details
		}
	}
	return other
}

// set takes a number.
func (o *object) set() {
	if o.number == 0 || o.number >= mostTokens {
		return
	}
	switch o.field {
	case input:
		o.counts.input = o.number
	case output:
		o.counts.output = o.number
	case cached:
		o.counts.cached = o.number
	case other, details:
	}
}
