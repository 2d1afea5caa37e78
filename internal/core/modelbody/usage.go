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
	parts := [][]byte{a.head, a.tail} // the end is more recent
	if a.Bytes <= int64(len(a.head)) {
		parts = parts[:1] // both are the whole answer
	}
	for _, part := range parts {
		for at := 0; ; {
			i := bytes.Index(part[at:], []byte(`"usage"`))
			if i < 0 {
				break
			}
			at += i + len(`"usage"`)
			if before := at - len(`"usage"`) - 1; before >= 0 && part[before] == '\\' {
				continue // of a text
			}
			rest, ok := bytes.CutPrefix(bytes.TrimLeft(part[at:], " \t\r\n"), []byte(":"))
			if !ok {
				continue
			}
			var c counts
			if json.NewDecoder(bytes.NewReader(rest)).Decode(&c) != nil {
				continue
			}
			take(&u.Input, c.Prompt, c.In)
			take(&u.Output, c.Completion, c.Out)
			take(&u.Cached, c.Details.Cached, c.InDetails.Cached, c.CacheRead)
		}
	}
	return u
}

// mostTokens is more than any answer has.
const mostTokens = 1 << 30

func take(to *int, from ...int) {
	for _, n := range from {
		if n > 0 && n < mostTokens {
			*to = n
		}
	}
}
