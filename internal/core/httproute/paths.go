package httproute

import (
	"cmp"
	"slices"
	"strings"

	"carob/internal/core/immutablemap"
)

// paths finds the entries of one host name by the path of a request.
type paths struct {
	exact   immutablemap.Map[string, *group]
	regexes []*entry
	prefix  immutablemap.Map[string, *group] // without the slash at the end; "" is all paths
	methods immutablemap.Map[string, *group] // by the last segment
	depths  []int                            // how many prefixes have 0, 1, … segments; the last is not 0
}

func newPaths() *paths {
	return &paths{exact: immutablemap.New[string, *group](immutablemap.String),
		prefix:  immutablemap.New[string, *group](immutablemap.String),
		methods: immutablemap.New[string, *group](immutablemap.String)}
}

// groups returns the groups that an entry belongs to, and its key in them; nil for a regular expression.
func (p *paths) groups(e *entry) (m *immutablemap.Map[string, *group], key string) {
	value := e.match.Path.Value
	switch e.match.Path.Kind {
	case Exact:
		return &p.exact, value
	case Prefix:
		return &p.prefix, strings.TrimRight(value, "/")
	case Method:
		return &p.methods, value
	case Regex:
	}
	return nil, ""
}

// add is used while the index is built; finish must follow.
func (p *paths) add(e *entry) {
	m, key := p.groups(e)
	if m == nil {
		p.regexes = append(p.regexes, e)
		return
	}
	g, known := m.Get(key)
	if !known {
		g = &group{}
		m.Set(key, g)
		if m == &p.prefix {
			p.depths = counted(p.depths, key, 1)
		}
	}
	g.entries = append(g.entries, e)
}

// counted counts a prefix.
func counted(depths []int, prefix string, by int) []int {
	depth := strings.Count(prefix, "/")
	for len(depths) <= depth {
		depths = append(depths, 0)
	}
	depths[depth] += by
	for len(depths) > 0 && depths[len(depths)-1] == 0 {
		depths = depths[:len(depths)-1]
	}
	return depths
}

// compareRegex orders regular expressions: the longer first.
func compareRegex(a, b *entry) int {
	return cmp.Or(cmp.Compare(len(b.match.Path.Value), len(a.match.Path.Value)), compareRank(a, b))
}

func (p *paths) finish() {
	slices.SortFunc(p.regexes, compareRegex)
	for _, m := range []*immutablemap.Map[string, *group]{&p.exact, &p.prefix, &p.methods} {
		for _, g := range m.All() { // any order: each by itself
			g.finish()
		}
	}
}

// with returns the paths with one more entry.
func (p *paths) with(e *entry) *paths {
	out := *p
	m, key := out.groups(e)
	if m == nil {
		out.regexes = inserted(p.regexes, e, compareRegex)
		return &out
	}
	g, known := m.Get(key)
	if !known && m == &out.prefix {
		out.depths = counted(slices.Clone(p.depths), key, 1)
	}
	*m = m.With(key, g.with(e))
	return &out
}

// without returns the paths without an entry, or nil when no other is left.
func (p *paths) without(e *entry) *paths {
	out := *p
	if m, key := out.groups(e); m == nil {
		out.regexes = removed(p.regexes, e, compareRegex)
	} else if g, known := m.Get(key); known {
		if g = g.without(e); g != nil {
			*m = m.With(key, g)
			return &out
		}
		*m = m.Without(key)
		if m == &out.prefix {
			out.depths = counted(slices.Clone(p.depths), key, -1)
		}
	}
	if len(out.regexes) == 0 && out.exact.Len() == 0 && out.prefix.Len() == 0 && out.methods.Len() == 0 {
		return nil
	}
	return &out
}

// inserted returns a copy of a sorted list with one more entry.
func inserted(all []*entry, e *entry, compare func(a, b *entry) int) []*entry {
	at, _ := slices.BinarySearchFunc(all, e, compare)
	out := make([]*entry, 0, len(all)+1)
	return append(append(append(out, all[:at]...), e), all[at:]...)
}

// removed returns a copy of a sorted list without an entry.
func removed(all []*entry, e *entry, compare func(a, b *entry) int) []*entry {
	at, known := slices.BinarySearchFunc(all, e, compare)
	if !known {
		return all
	}
	out := make([]*entry, 0, len(all)-1)
	return append(append(out, all[:at]...), all[at+1:]...)
}

func (p *paths) find(r *Request) *entry {
	if g, ok := p.exact.Get(r.Path); ok {
		if e := g.find(r); e != nil {
			return e
		}
	}
	for _, e := range p.regexes {
		if e.path.MatchString(r.Path) && e.matches(r) {
			return e
		}
	}
	if e := p.findPrefix(r); e != nil {
		return e
	}
	if p.methods.Len() > 0 && strings.Count(r.Path, "/") == 2 {
		service, method, _ := strings.Cut(r.Path[1:], "/")
		if service != "" {
			g, _ := p.methods.Get(method)
			return g.find(r)
		}
	}
	return nil
}

// findPrefix tries the longest prefix first. A path with more segments than any prefix costs no
// more.
func (p *paths) findPrefix(r *Request) *entry {
	path := r.Path
	if p.prefix.Len() == 0 || !strings.HasPrefix(path, "/") {
		return nil
	}
	deepest := len(p.depths) - 1
	// The slash at an end of a path is not a segment: /a/ has the prefix /a.
	for at, segments := 1, 0; at <= len(path); at++ {
		if at == len(path) || path[at] == '/' {
			if segments++; segments == deepest {
				path = path[:at]
				break
			}
		}
	}
	if deepest == 0 {
		path = ""
	}
	for {
		if g, ok := p.prefix.Get(path); ok {
			if e := g.find(r); e != nil {
				return e
			}
		}
		if path == "" {
			return nil
		}
		path = path[:strings.LastIndexByte(path, '/')]
	}
}

// group has the entries of one path, in their precedence. A large group is indexed by the conditions of its
// entries.
type group struct {
	entries []*entry
	shapes  []*shape // nil: the entries are few
}

// few is the maximum number of entries for a linear search.
const few = 8

// shape has the entries with exact conditions on the same fields: one map lookup finds them.
type shape struct {
	key     string
	rank    entry // any of the entries without its age
	method  bool
	headers []string
	query   []string
	byValue immutablemap.Map[string, []*entry] // the oldest first
	other   []*entry                           // those with regular expressions, the oldest first
}

func (g *group) finish() {
	slices.SortFunc(g.entries, compareRank)
	g.index()
}

// index builds the shapes of sorted entries.
func (g *group) index() {
	g.shapes = nil
	if len(g.entries) <= few {
		return
	}
	known := map[string]*shape{}
	for _, e := range g.entries {
		key, values, indexed := e.key()
		s := known[key]
		if s == nil {
			s = newShape(key, e)
			known[key], g.shapes = s, append(g.shapes, s)
		}
		if !indexed {
			s.other = append(s.other, e)
			continue
		}
		same, _ := s.byValue.Get(values)
		s.byValue.Set(values, append(same, e))
	}
}

func newShape(key string, e *entry) *shape {
	s := &shape{key: key, rank: entry{match: e.match, headers: e.headers, query: e.query},
		method: e.match.Method != "", byValue: immutablemap.New[string, []*entry](immutablemap.String)}
	for i := range e.headers {
		s.headers = append(s.headers, e.headers[i].name)
	}
	for i := range e.query {
		s.query = append(s.query, e.query[i].name)
	}
	return s
}

// with returns the group with one more entry. A nil group has none.
func (g *group) with(e *entry) *group {
	if g == nil {
		return &group{entries: []*entry{e}}
	}
	out := &group{entries: inserted(g.entries, e, compareRank)}
	if g.shapes == nil {
		out.index()
		return out
	}
	key, values, indexed := e.key()
	out.shapes = slices.Clone(g.shapes)
	at := slices.IndexFunc(out.shapes, func(s *shape) bool { return s.key == key })
	if at < 0 {
		at, _ = slices.BinarySearchFunc(out.shapes, e,
			func(s *shape, e *entry) int { return compareFields(&s.rank, e) })
		out.shapes = slices.Insert(out.shapes, at, newShape(key, e))
	}
	s := *out.shapes[at]
	if indexed {
		same, _ := s.byValue.Get(values)
		s.byValue = s.byValue.With(values, inserted(same, e, compareAge))
	} else {
		s.other = inserted(s.other, e, compareAge)
	}
	out.shapes[at] = &s
	return out
}

// without returns the group without an entry, or nil when no other is left.
func (g *group) without(e *entry) *group {
	out := &group{entries: removed(g.entries, e, compareRank)}
	switch {
	case len(out.entries) == 0:
		return nil
	case len(out.entries) <= few || len(out.entries) == len(g.entries):
		out.index()
		return out
	}
	key, values, indexed := e.key()
	out.shapes = slices.Clone(g.shapes)
	at := slices.IndexFunc(out.shapes, func(s *shape) bool { return s.key == key })
	s := *out.shapes[at]
	if !indexed {
		s.other = removed(s.other, e, compareAge)
	} else if same, _ := s.byValue.Get(values); len(same) > 1 {
		s.byValue = s.byValue.With(values, removed(same, e, compareAge))
	} else {
		s.byValue = s.byValue.Without(values)
	}
	if out.shapes[at] = &s; len(s.other) == 0 && s.byValue.Len() == 0 {
		out.shapes = slices.Delete(out.shapes, at, at+1)
	}
	return out
}

// key returns the fields of an entry's conditions, and the values if all of them are exact.
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

// length writes a text with its length, so that different lists of texts have different encodings.
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
		if best != nil && compareFields(&s.rank, best) > 0 {
			break // a lower rank than what was found
		}
		if e := s.find(r); e != nil && (best == nil || compareAge(e, best) < 0) {
			best = e
		}
	}
	return best
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
	var best *entry
	if same, _ := s.byValue.Get(v.String()); len(same) > 0 {
		best = same[0]
	}
	for _, e := range s.other {
		if best != nil && compareAge(best, e) < 0 {
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
// An escaped slash stays escaped: it separates nothing. moved reports dot segments: then the backend must get the
// clean path, so that it serves the resource that was matched. It returns false for an invalid path, and for paths
// with a NUL.
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

// EscapePath escapes what a path must not contain (RFC 3986, section 3.3). Existing escapes stay.
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
