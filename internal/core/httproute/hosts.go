package httproute

import (
	"iter"
	"strings"

	"carob/internal/core/immutablemap"
)

// hosts finds values by host name, the most specific first. Changing a copy does not affect the original.
type hosts[T any] struct {
	exact    immutablemap.Map[string, T]
	wild     immutablemap.Map[string, T] // by suffix: ".example.com"
	oneLabel immutablemap.Map[string, T] // the same, for exactly one more label
	all      *T
}

func newHosts[T any]() hosts[T] {
	return hosts[T]{exact: immutablemap.New[string, T](immutablemap.String),
		wild:     immutablemap.New[string, T](immutablemap.String),
		oneLabel: immutablemap.New[string, T](immutablemap.String)}
}

// get returns the value of a pattern.
func (h *hosts[T]) get(p HostPattern) (v T, ok bool) {
	if p.Name == "" {
		if h.all != nil {
			return *h.all, true
		}
		return v, false
	}
	m, key := h.mapOf(p)
	return m.Get(key)
}

// put sets the value of a pattern. own means that no older copy is in use.
func (h *hosts[T]) put(p HostPattern, v T, own bool) {
	if p.Name == "" {
		h.all = &v
		return
	}
	m, key := h.mapOf(p)
	put(m, key, v, own)
}

func put[V any](m *immutablemap.Map[string, V], key string, v V, own bool) {
	if own {
		m.Set(key, v)
	} else {
		*m = m.With(key, v)
	}
}

// drop removes a pattern; copies stay as they are.
func (h *hosts[T]) drop(p HostPattern) {
	if p.Name == "" {
		h.all = nil
		return
	}
	m, key := h.mapOf(p)
	*m = m.Without(key)
}

func (h *hosts[T]) mapOf(p HostPattern) (m *immutablemap.Map[string, T], key string) {
	suffix, wild := strings.CutPrefix(p.Name, "*")
	switch {
	case !wild:
		return &h.exact, p.Name
	case p.OneLabel:
		return &h.oneLabel, suffix
	}
	return &h.wild, suffix
}

// find yields the values whose patterns match a host name.
func (h *hosts[T]) find(host string) iter.Seq[T] {
	return func(yield func(T) bool) {
		if v, ok := h.exact.Get(host); ok && host != "" && !yield(v) {
			return
		}
		if h.wild.Len()+h.oneLabel.Len() > 0 && !h.suffixes(host, yield) {
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
			if v, ok := h.oneLabel.Get(suffix); ok && !yield(v) {
				return false
			}
		}
		if v, ok := h.wild.Get(suffix); ok && !yield(v) {
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
	for _, m := range []*immutablemap.Map[string, T]{&h.exact, &h.wild, &h.oneLabel} {
		for _, v := range m.All() { // any order: each by itself
			f(v)
		}
	}
	if h.all != nil {
		f(*h.all)
	}
}

// maxHost is the longest host name in bytes (RFC 1035).
const maxHost = 253

// Host returns the name in a Host header or :authority: in lower case, without the port and a dot at the end. It
// returns false for an invalid host name. IP addresses are names, too.
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
