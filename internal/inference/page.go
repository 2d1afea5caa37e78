package inference

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"strconv"

	"carob/internal/core/routing"
)

// Limits of a page of metrics. A page that exceeds them is refused.
const (
	mostPage     = 4 << 20 // bytes
	mostRequests = 1 << 20
	mostBlocks   = 1 << 28
	mostAdapters = 1024
	longestName  = 253 // of an adapter
	mostLabels   = 64
)

// nonsense is the limit above which a number is refused as impossible.
type nonsense struct{ metric, value string }

func (e nonsense) Error() string {
	return fmt.Sprintf("%s is %q, which makes no sense", e.metric, e.value)
}

// errNoLoad is a page without the numbers that are needed.
var errNoLoad = errors.New("neither the queue nor the cache is among the metrics: is the engine label right?")

// page reads the load of a server from its metrics in Prometheus's text format. Only the lines of the engine's metrics
// are parsed. Counts of several series (engines behind one port) are added, of their cache the fullest counts.
func page(text []byte, e *routing.Engine) (routing.Stats, error) {
	var s routing.Stats
	var r reading
	for len(text) > 0 {
		line := text
		if i := bytes.IndexByte(text, '\n'); i >= 0 {
			line, text = text[:i], text[i+1:]
		} else {
			text = nil
		}
		if len(line) == 0 || line[0] == '#' || line[0] == ' ' || line[0] == '\t' {
			continue
		}
		end := 0
		for end < len(line) && line[end] != '{' && line[end] != ' ' && line[end] != '\t' {
			end++
		}
		if end == 0 || end == len(line) {
			continue
		}
		if err := r.line(&s, e, line[:end], line[end:]); err != nil {
			return routing.Stats{}, err
		}
	}
	if !r.queue && !r.cache {
		return routing.Stats{}, errNoLoad
	}
	return s, nil
}

// reading is the state while a page is parsed.
type reading struct {
	queue, cache, newer bool
	latest              float64 // value of the newest series of adapters
	labels              [mostLabels]label
}

type label struct{ name, value []byte }

func (r *reading) line(s *routing.Stats, e *routing.Engine, name, rest []byte) error {
	is := func(m *routing.Metric) bool { return m.Name != "" && string(name) == m.Name }
	if !is(&e.Waiting) && !is(&e.Running) && !is(&e.Cache) && !is(&e.OldCache) && !is(&e.BlockTokens) &&
		!is(&e.Blocks) && (e.Adapters == "" || string(name) != e.Adapters) {
		return nil
	}
	labels, text, ok := r.split(rest)
	if !ok {
		return nonsense{string(name), clip(rest)}
	}
	if e.Adapters != "" && string(name) == e.Adapters {
		return r.adapters(s, labels, text)
	}
	for _, m := range []struct {
		*routing.Metric
		most float64
		set  func(float64)
	}{
		{&e.Waiting, mostRequests, func(x float64) { s.Waiting += int(x); r.queue = true }},
		{&e.Running, mostRequests, func(x float64) { s.Running += int(x) }},
		{&e.Cache, 1, func(x float64) {
			if !r.newer {
				s.CacheUse = 0
			}
			s.CacheUse, r.cache, r.newer = max(s.CacheUse, x), true, true
		}},
		{&e.OldCache, 1, func(x float64) {
			if !r.newer {
				s.CacheUse, r.cache = max(s.CacheUse, x), true
			}
		}},
		{&e.BlockTokens, 1 << 16, func(x float64) { s.BlockTokens = int(x) }},
		{&e.Blocks, mostBlocks, func(x float64) { s.Blocks = int(x) }},
	} {
		if !is(m.Metric) || !fits(labels, m.Labels) {
			continue
		}
		value := text
		if m.Read != "" {
			if value = find(labels, m.Read); len(value) == 0 || string(value) == "None" {
				continue
			}
		}
		x, err := strconv.ParseFloat(string(value), 64)
		rounded := m.most == 1 && x < 1.001 // a full cache
		if err != nil || bytes.ContainsAny(value, "_xXpP") || !(x >= 0) || x > m.most && !rounded {
			return nonsense{m.Name, clip(value)}
		}
		m.set(min(x, m.most))
	}
	if s.Waiting > mostRequests || s.Running > mostRequests {
		return nonsense{string(name), "a sum above " + strconv.Itoa(mostRequests)}
	}
	return nil
}

// adapters reads vllm:lora_requests_info: its value is when it was written, the newest counts.
func (r *reading) adapters(s *routing.Stats, labels []label, text []byte) error {
	at, err := strconv.ParseFloat(string(text), 64)
	if err != nil || math.IsNaN(at) || math.IsInf(at, 0) || at < 0 {
		return nonsense{"vllm:lora_requests_info", clip(text)}
	}
	if at < r.latest {
		return nil
	}
	most := find(labels, "max_lora")
	n, err := strconv.Atoi(string(most))
	if len(most) > 0 && (err != nil || n < 0 || n > mostRequests) {
		return nonsense{"max_lora of vllm:lora_requests_info", clip(most)}
	}
	r.latest, s.MaxAdapters = at, n
	s.Active = adapterNames(find(labels, "running_lora_adapters"))
	s.Queued = adapterNames(find(labels, "waiting_lora_adapters"))
	return nil
}

// adapterNames returns the names in a list. Each is a string of its own: the list may have megabytes, and names stay.
func adapterNames(list []byte) (out []string) {
	for name := range bytes.SplitSeq(list, []byte(",")) {
		if name = bytes.TrimSpace(name); len(name) > 0 && len(name) <= longestName {
			if out = append(out, string(name)); len(out) == mostAdapters {
				break
			}
		}
	}
	return out
}

func fits(all []label, want []routing.MetricLabel) bool {
	for i := range want {
		if string(find(all, want[i].Name)) != want[i].Value {
			return false
		}
	}
	return true
}

func find(all []label, name string) []byte {
	for i := range all {
		if string(all[i].name) == name {
			return all[i].value
		}
	}
	return nil
}

// split cuts what follows the name of a series into labels and value. A timestamp after the value is dropped.
func (r *reading) split(rest []byte) (labels []label, value []byte, ok bool) {
	n := 0
	if rest[0] == '{' {
		rest = rest[1:]
		for {
			rest = bytes.TrimLeft(rest, " \t,")
			if len(rest) == 0 {
				return nil, nil, false
			}
			if rest[0] == '}' {
				rest = rest[1:]
				break
			}
			eq := bytes.IndexByte(rest, '=')
			if eq < 0 || n == mostLabels {
				return nil, nil, false
			}
			name := bytes.TrimSpace(rest[:eq])
			text, after, good := quoted(bytes.TrimLeft(rest[eq+1:], " \t"))
			if !good {
				return nil, nil, false
			}
			r.labels[n], rest = label{name, text}, after
			n++
		}
	}
	rest = bytes.TrimSpace(rest)
	if i := bytes.IndexAny(rest, " \t"); i >= 0 {
		rest = rest[:i]
	}
	return r.labels[:n], rest, len(rest) > 0
}

// quoted reads a label's value: \\, \" and \n are escaped.
func quoted(b []byte) (value, rest []byte, ok bool) {
	if len(b) == 0 || b[0] != '"' {
		return nil, nil, false
	}
	b = b[1:]
	var plain []byte
	for i := 0; i < len(b); i++ {
		switch b[i] {
		case '"':
			if plain != nil {
				return append(plain, b[:i]...), b[i+1:], true
			}
			return b[:i], b[i+1:], true
		case '\\':
			if i+1 == len(b) {
				return nil, nil, false
			}
			plain = append(plain, b[:i]...)
			switch b[i+1] {
			case 'n':
				plain = append(plain, '\n')
			case '\\', '"':
				plain = append(plain, b[i+1])
			default:
				plain = append(plain, '\\', b[i+1])
			}
			b = b[i+2:]
			i = -1
		}
	}
	return nil, nil, false
}

// clip shortens text of a page for an error message.
func clip(b []byte) string {
	return string(b[:min(len(b), 64)])
}
