package httproute

import (
	"cmp"
	"slices"
	"strings"
)

// paths finds the entries of one host name by the path of a request.
type paths struct {
	exact   map[string]*group
	regexes []*entry
	prefix  map[string]*group // without the slash at the end; "" is all paths
	methods map[string]*group // by the last segment
	deepest int               // segments of the longest prefix
}

func newPaths() *paths {
	return &paths{exact: map[string]*group{}, prefix: map[string]*group{}, methods: map[string]*group{}}
}

func (p *paths) add(e *entry) {
	value := e.match.Path.Value
	switch e.match.Path.Kind {
	case Exact:
		addTo(p.exact, value, e)
	case Regex:
		p.regexes = append(p.regexes, e)
	case Prefix:
		value = strings.TrimRight(value, "/")
		p.deepest = max(p.deepest, strings.Count(value, "/"))
		addTo(p.prefix, value, e)
	case Method:
		addTo(p.methods, value, e)
	}
}

func addTo(m map[string]*group, key string, e *entry) {
	if m[key] == nil {
		m[key] = &group{}
	}
	m[key].entries = append(m[key].entries, e)
}

func (p *paths) finish() {
	slices.SortStableFunc(p.regexes, func(a, b *entry) int {
		return cmp.Or(cmp.Compare(len(b.match.Path.Value), len(a.match.Path.Value)), compareRank(a, b))
	})
	for _, m := range []map[string]*group{p.exact, p.prefix, p.methods} {
		for _, g := range m { // any order: each by itself
			g.finish()
		}
	}
}

func (p *paths) find(r *Request) *entry {
	if e := p.exact[r.Path].find(r); e != nil {
		return e
	}
	for _, e := range p.regexes {
		if e.path.MatchString(r.Path) && e.matches(r) {
			return e
		}
	}
	if e := p.findPrefix(r); e != nil {
		return e
	}
	if len(p.methods) > 0 && strings.Count(r.Path, "/") == 2 {
		service, method, _ := strings.Cut(r.Path[1:], "/")
		if service != "" {
			return p.methods[method].find(r)
		}
	}
	return nil
}

// findPrefix asks the longest prefix first. A path with more segments than any prefix costs no more.
func (p *paths) findPrefix(r *Request) *entry {
	path := r.Path
	if len(p.prefix) == 0 || !strings.HasPrefix(path, "/") {
		return nil
	}
	// The slash at an end of a path is no segment: /a/ has the prefix /a.
	for at, segments := 1, 0; at <= len(path); at++ {
		if at == len(path) || path[at] == '/' {
			if segments++; segments == p.deepest {
				path = path[:at]
				break
			}
		}
	}
	if p.deepest == 0 {
		path = ""
	}
	for {
		if e := p.prefix[path].find(r); e != nil {
			return e
		}
		if path == "" {
			return nil
		}
		path = path[:strings.LastIndexByte(path, '/')]
	}
}

// group has the entries of one path, in their precedence. A large group is indexed by what its entries ask for.
type group struct {
	entries []*entry
	shapes  []*shape // nil: the entries are few
}

// few is how many entries are looked at one by one.
const few = 8

// shape has the entries that ask for the same fields by value: all of them are found by one look into a map.
type shape struct {
	first   *entry // for the rank; the order differs
	method  bool
	headers []string
	query   []string
	byValue map[string]*entry
	other   []*entry // those with regular expressions
}

func (g *group) finish() {
	slices.SortStableFunc(g.entries, compareRank)
	if len(g.entries) <= few {
		return
	}
	known := map[string]*shape{}
	for _, e := range g.entries {
		key, values, indexed := e.key()
		s := known[key]
		if s == nil {
			s = &shape{first: e, method: e.match.Method != "", byValue: map[string]*entry{}}
			for i := range e.headers {
				s.headers = append(s.headers, e.headers[i].name)
			}
			for i := range e.query {
				s.query = append(s.query, e.query[i].name)
			}
			known[key], g.shapes = s, append(g.shapes, s)
		}
		if !indexed {
			s.other = append(s.other, e)
		} else if s.byValue[values] == nil {
			s.byValue[values] = e // the older one
		}
	}
}

// key returns what an entry asks for, and the values if all of them are exact.
func (e *entry) key() (shape, values string, indexed bool) {
	var s, v strings.Builder
	indexed = true
	part := func(kind byte, c *condition) {
		s.WriteByte(kind)
		length(&s, c.name)
		length(&v, c.value)
		indexed = indexed && c.regex == nil
	}
	if e.match.Method != "" {
		s.WriteByte('m')
		length(&v, e.match.Method)
	}
	for i := range e.headers {
		part('h', &e.headers[i])
	}
	for i := range e.query {
		part('q', &e.query[i])
	}
	return s.String(), v.String(), indexed
}

// length writes a text so that no other texts look the same together.
func length(b *strings.Builder, text string) {
	n := len(text)
	b.Write([]byte{byte(n), byte(n >> 8), byte(n >> 16)})
	b.WriteString(text)
}

func (g *group) find(r *Request) *entry {
	if g == nil {
		return nil
	}
	if g.shapes == nil {
		for _, e := range g.entries {
			if e.matches(r) {
				return e
			}
		}
		return nil
	}
	var best *entry
	for _, s := range g.shapes {
		if best != nil && rankOf(s.first, best) > 0 {
			break // a lower rank than what was found
		}
		if e := s.find(r); e != nil && (best == nil || e.order < best.order) {
			best = e
		}
	}
	return best
}

// rankOf compares the ranks of two entries without their age.
func rankOf(a, b *entry) int {
	x, y := *a, *b
	x.order, y.order = 0, 0
	return compareRank(&x, &y)
}

func (s *shape) find(r *Request) *entry {
	var v strings.Builder
	if s.method {
		length(&v, r.Method)
	}
	for _, name := range s.headers {
		value, ok := r.Fields.Header(name)
		if !ok {
			return nil
		}
		length(&v, value)
	}
	for _, name := range s.query {
		value, ok := r.Fields.Query(name)
		if !ok {
			return nil
		}
		length(&v, value)
	}
	best := s.byValue[v.String()]
	for _, e := range s.other {
		if best != nil && best.order < e.order {
			break
		}
		if e.matches(r) {
			return e
		}
	}
	return best
}

// CleanPath returns the path that routes are compared with, from a path as it was sent (still escaped): escapes of
// unreserved characters are decoded, others are in upper case, and dot segments are removed (RFC 3986, section 6.2.2).
// An escaped slash stays escaped: it separates nothing. moved says that there were dot segments: then a backend must
// get the clean path, or it would see another resource than the one that was matched. It is false for what no path is,
// and for paths with a NUL.
func CleanPath(sent string) (path string, moved, ok bool) {
	if !strings.HasPrefix(sent, "/") {
		return "", false, false
	}
	path = sent
	if strings.IndexByte(path, '%') >= 0 {
		if path, ok = unescape(path); !ok {
			return "", false, false
		}
	}
	for _, c := range []byte(path) {
		if c <= ' ' || c == 0x7f {
			return "", false, false
		}
	}
	if !strings.Contains(path, "/.") {
		return path, false, true
	}
	clean := removeDots(path)
	return clean, clean != path, true
}

func unescape(path string) (string, bool) {
	var b strings.Builder
	b.Grow(len(path))
	for i := 0; i < len(path); i++ {
		if path[i] != '%' {
			b.WriteByte(path[i])
			continue
		}
		if i+2 >= len(path) || !hex(path[i+1]) || !hex(path[i+2]) {
			return "", false
		}
		switch c := digit(path[i+1])<<4 | digit(path[i+2]); {
		case c == 0:
			return "", false
		case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', '0' <= c && c <= '9', c == '-', c == '.', c == '_', c == '~':
			b.WriteByte(c)
		default:
			b.WriteByte('%')
			b.WriteString(strings.ToUpper(path[i+1 : i+3]))
		}
		i += 2
	}
	return b.String(), true
}

func digit(c byte) byte {
	switch {
	case c >= 'a':
		return c - 'a' + 10
	case c >= 'A':
		return c - 'A' + 10
	}
	return c - '0'
}

// removeDots resolves the segments "." and "..".
func removeDots(path string) string {
	segments := strings.Split(path[1:], "/")
	out := segments[:0:0]
	for i, s := range segments {
		last := i == len(segments)-1
		switch s {
		case ".":
		case "..":
			out = out[:max(0, len(out)-1)]
		default:
			out = append(out, s)
			continue
		}
		if last {
			out = append(out, "")
		}
	}
	return "/" + strings.Join(out, "/")
}

// EscapePath escapes what a path must not contain (RFC 3986, section 3.3). Escapes that are there stay.
func EscapePath(path string) string {
	const digits = "0123456789ABCDEF"
	var b strings.Builder
	for i := 0; i < len(path); i++ {
		c := path[i]
		if letter(c) || strings.IndexByte("/~!$&'()*+,;=:@", c) >= 0 ||
			c == '%' && i+2 < len(path) && hex(path[i+1]) && hex(path[i+2]) {
			b.WriteByte(c)
			continue
		}
		b.Write([]byte{'%', digits[c>>4], digits[c&15]})
	}
	return b.String()
}
