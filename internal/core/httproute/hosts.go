package httproute

import (
	"iter"
	"strings"
)

// hosts finds values by host name, the most specific first.
type hosts[T any] struct {
	exact    map[string]T
	wild     map[string]T // by suffix: ".example.com"
	oneLabel map[string]T // the same, for exactly one more label
	all      *T
	deepest  int // labels of the longest suffix
}

// get returns the value of a pattern, which it makes if there is none.
func (h *hosts[T]) get(p HostPattern, create func() T) T {
	if p.Name == "" {
		if h.all == nil {
			v := create()
			h.all = &v
		}
		return *h.all
	}
	m, key := h.mapOf(p)
	v, known := m[key]
	if !known {
		v = create()
		m[key] = v
	}
	return v
}

func (h *hosts[T]) add(p HostPattern, v T) {
	h.get(p, func() T { return v })
}

func (h *hosts[T]) mapOf(p HostPattern) (m map[string]T, key string) {
	at, key := &h.exact, p.Name
	if suffix, wild := strings.CutPrefix(p.Name, "*"); wild {
		at, key = &h.wild, suffix
		if p.OneLabel {
			at = &h.oneLabel
		}
		h.deepest = max(h.deepest, strings.Count(suffix, "."))
	}
	if *at == nil {
		*at = map[string]T{}
	}
	return *at, key
}

// find yields the values whose patterns match a host name.
func (h *hosts[T]) find(host string) iter.Seq[T] {
	return func(yield func(T) bool) {
		if v, ok := h.exact[host]; ok && host != "" && !yield(v) {
			return
		}
		if h.deepest > 0 && !h.suffixes(host, yield) {
			return
		}
		if h.all != nil {
			yield(*h.all)
		}
	}
}

// suffixes yields the values of wildcards, those with more characters first.
func (h *hosts[T]) suffixes(host string, yield func(T) bool) bool {
	at := strings.IndexByte(host, '.')
	for first := true; at > 0; first = false {
		suffix := host[at:]
		if first {
			if v, ok := h.oneLabel[suffix]; ok && !yield(v) {
				return false
			}
		}
		if v, ok := h.wild[suffix]; ok && !yield(v) {
			return false
		}
		next := strings.IndexByte(suffix[1:], '.')
		if next < 0 {
			break
		}
		at += 1 + next
	}
	return true
}

func (h *hosts[T]) each(f func(T)) {
	for _, m := range []map[string]T{h.exact, h.wild, h.oneLabel} {
		for _, v := range m { // any order: each by itself
			f(v)
		}
	}
	if h.all != nil {
		f(*h.all)
	}
}

// maxHost is the longest host name in bytes (RFC 1035).
const maxHost = 253

// Host returns the name in a Host header or :authority: in lower case, without the port and a dot at the end. It is
// false for what no host name is. IP addresses are names, too.
func Host(header string) (string, bool) {
	host := header
	if strings.HasPrefix(host, "[") {
		end := strings.IndexByte(host, ']')
		if end < 0 || !port(host[end+1:]) {
			return "", false
		}
		for _, c := range []byte(host[1:end]) {
			if !hex(c) && c != ':' && c != '.' {
				return "", false
			}
		}
		return strings.ToLower(host[:end+1]), end > 1
	}
	if at := strings.IndexByte(host, ':'); at >= 0 {
		if !port(host[at:]) {
			return "", false
		}
		host = host[:at]
	}
	host = strings.TrimSuffix(host, ".")
	if len(host) > maxHost || host == "" && header != "" {
		return "", false
	}
	lower := true
	for i, c := range []byte(host) {
		switch {
		case 'a' <= c && c <= 'z', '0' <= c && c <= '9', c == '-', c == '_':
		case c == '.' && i > 0 && host[i-1] != '.':
		case 'A' <= c && c <= 'Z':
			lower = false
		default:
			return "", false
		}
	}
	if !lower {
		host = strings.ToLower(host)
	}
	return host, true
}

// port reports whether a text is empty or a colon and at most five digits.
func port(text string) bool {
	if text == "" {
		return true
	}
	if text[0] != ':' || len(text) > 6 {
		return false
	}
	for _, c := range []byte(text[1:]) {
		if c < '0' || c > '9' {
			return false
		}
	}
	return true
}

func hex(c byte) bool { return '0' <= c && c <= '9' || 'a' <= c && c <= 'f' || 'A' <= c && c <= 'F' }

// Intersect returns the host names that both patterns match, as a pattern, or false. An empty pattern is all hosts, and
// an asterisk is one or more labels, as in the Gateway API.
func Intersect(a, b string) (string, bool) {
	switch {
	case a == "" || a == b:
		return b, true
	case b == "":
		return a, true
	}
	sa, wa := strings.CutPrefix(a, "*")
	sb, wb := strings.CutPrefix(b, "*")
	switch {
	case wa && wb && strings.HasSuffix(sa, sb), wb && !wa && under(a, sb):
		return a, true
	case wa && wb && strings.HasSuffix(sb, sa), wa && !wb && under(b, sa):
		return b, true
	}
	return "", false
}

// under reports whether a name is at least one label and the suffix.
func under(name, suffix string) bool {
	return len(name) > len(suffix) && strings.HasSuffix(name, suffix)
}
