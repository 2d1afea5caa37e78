package modelbody

import (
	"bytes"
	"encoding/json"
)

// Sizes of the parts of an answer that are kept to find the usage in.
const (
	headBytes = 2 << 10
	tailBytes = 8 << 10
)

// Usage is how many tokens a request used, according to the server.
type Usage struct{ Input, Output, Cached int }

// Answer keeps the beginning and the end of an answer, where servers report the usage, with bounded memory: JSON, or
// events (SSE), the last of which report it. The zero value is ready.
type Answer struct {
	head, tail []byte
	Bytes      int64
}

// Write keeps of p what may be needed. It is not an io.Writer, because it cannot fail.
func (a *Answer) Write(p []byte) {
	a.Bytes += int64(len(p))
	if room := headBytes - len(a.head); room > 0 {
		n := min(room, len(p))
		a.head = append(a.head, p[:n]...)
	}
	if len(p) >= tailBytes {
		a.tail = append(a.tail[:0], p[len(p)-tailBytes:]...)
		return
	}
	if over := len(a.tail) + len(p) - 2*tailBytes; over > 0 { // rarely: a move of the kept part
		a.tail = a.tail[:copy(a.tail, a.tail[len(a.tail)-tailBytes:])]
	}
	a.tail = append(a.tail, p...)
}

// counts has the names of OpenAI's completions, its responses, and Anthropic's messages.
type counts struct {
	Prompt     int `json:"prompt_tokens"`
	Completion int `json:"completion_tokens"`
	In         int `json:"input_tokens"`
	Out        int `json:"output_tokens"`
	CacheRead  int `json:"cache_read_input_tokens"`
	Details    struct {
		Cached int `json:"cached_tokens"`
	} `json:"prompt_tokens_details"`
	InDetails struct {
		Cached int `json:"cached_tokens"`
	} `json:"input_tokens_details"`
}

// Usage returns the usage in the answer. Implausible numbers become 0.
func (a *Answer) Usage() (u Usage) {
	tries := mostTries
	if a.Bytes > int64(len(a.head)) { // otherwise both are the whole answer
		u.find(a.tail, &tries) // the end is more recent
	}
	u.find(a.head, &tries)
	return u
}

// mostTries is how many values are read: servers may send one with each token, but the last ones say all.
const mostTries = 32

// find reads the last usages in a part of an answer, until the numbers are known.
func (u *Usage) find(part []byte, tries *int) {
	usageKey := []byte(`"usage"`)
	for *tries > 0 && (u.Input == 0 || u.Output == 0) {
		at := bytes.LastIndex(part, usageKey)
		if at < 0 {
			return
		}
		value := part[at+len(usageKey):]
		part = part[:at]
		if at > 0 && part[at-1] == '\\' {
			continue // of a text
		}
		rest, ok := bytes.CutPrefix(bytes.TrimLeft(value, " \t\r\n"), []byte(":"))
		if !ok {
			continue
		}
		*tries--
		var c counts
		if json.Unmarshal(object(bytes.TrimLeft(rest, " \t\r\n")), &c) != nil {
			continue
		}
		take(&u.Input, c.Prompt, c.In)
		take(&u.Output, c.Completion, c.Out)
		take(&u.Cached, c.Details.Cached, c.InDetails.Cached, c.CacheRead)
	}
}

// object returns the JSON object at the beginning of b, or nothing.
func object(b []byte) []byte {
	depth, text := 0, false
	for i := 0; i < len(b); i++ {
		switch c := b[i]; {
		case text && c == '\\':
			i++
		case c == '"':
			text = !text
		case text:
		case c == '{':
			depth++
		case c == '}':
			depth--
		}
		if depth == 0 {
			return b[:i+1]
		}
	}
	return nil
}

// mostTokens is more than any answer has.
const mostTokens = 1 << 30

// take sets a number that is not known yet.
func take(to *int, from ...int) {
	if *to != 0 {
		return
	}
	for _, n := range from {
		if n > 0 && n < mostTokens {
			*to = n
		}
	}
}
