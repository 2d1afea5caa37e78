package dns

import (
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// Rewrite is one rule of the directive `rewrite`: it changes the name or the type of a question, and
// the answer back, or the TTL of an answer.
type Rewrite struct {
	Field    string // name, type, ttl
	Continue bool
	kind     string // exact, prefix, suffix, substring, regex
	from, to string
	pattern  *regexp.Regexp
	auto     bool // names in the answer are changed back
	// Rules for names and values in the answer.
	names, values []swap
	low, high     uint32
}

type swap struct {
	pattern *regexp.Regexp
	to      string
}

// maxPattern is the length of the longest regular expression, in bytes.
const maxPattern = 10000

func (p *parser) pattern(s string) (*regexp.Regexp, error) {
	if len(s) > maxPattern {
		return nil, p.fail("a regular expression has more than %d bytes", maxPattern)
	}
	r, err := regexp.Compile(s)
	if err != nil {
		return nil, p.fail("%q is not a regular expression: %w", s, err)
	}
	return r, nil
}

func (p *parser) rewrite() error {
	words := slices.Clone(p.d.words[1:])
	for _, l := range p.d.body {
		words = append(words, l.words...)
	}
	r := Rewrite{kind: "exact"}
	if len(words) > 0 && (words[0] == "continue" || words[0] == "stop") {
		r.Continue, words = words[0] == "continue", words[1:]
	}
	if len(words) < 3 {
		return p.fail("rewrite takes a field, what it is, and what it becomes")
	}
	r.Field, words = words[0], words[1:]
	var err error
	switch r.Field {
	case "name":
		err = p.rewriteName(&r, words)
	case "type":
		r.from, r.to = strings.ToUpper(words[0]), strings.ToUpper(words[1])
		if len(words) != 2 {
			err = p.fail("rewrite type takes two types")
		}
	case "ttl":
		err = p.rewriteTTL(&r, words)
	default:
		err = p.fail("rewrite: carob's DNS rewrites name, type, and ttl, not %q", r.Field)
	}
	p.server.Rewrites = append(p.server.Rewrites, r)
	return err
}

// matcher reads the kind of a match and what is matched.
func (p *parser) matcher(r *Rewrite, words []string) ([]string, error) {
	if slices.Contains([]string{"exact", "prefix", "suffix", "substring", "regex"}, words[0]) && len(words) > 2 {
		r.kind, words = words[0], words[1:]
	}
	r.from = words[0]
	var err error
	switch r.kind {
	case "regex":
		r.pattern, err = p.pattern(r.from)
	case "exact":
		r.from = fqdn(strings.ToLower(r.from))
	case "suffix":
		r.from = fqdn(strings.ToLower(r.from))
	default:
		r.from = strings.ToLower(r.from)
	}
	return words[1:], err
}

func fqdn(s string) string { return strings.TrimSuffix(s, ".") + "." }

func (p *parser) rewriteName(r *Rewrite, words []string) error {
	words, err := p.matcher(r, words)
	if err != nil {
		return err
	}
	r.to, words = words[0], words[1:]
	if r.kind == "exact" || r.kind == "suffix" {
		r.to = fqdn(r.to)
	}
	r.auto = r.kind == "exact"
	for len(words) > 0 {
		if words[0] == "answer" {
			words = words[1:]
		}
		switch {
		case len(words) > 0 && words[0] == "auto" || len(words) > 1 && words[0] == "name" && words[1] == "auto":
			r.auto = true
			words = words[1+slices.Index(words, "auto"):]
		case len(words) > 2 && (words[0] == "name" || words[0] == "value"):
			pattern, err := p.pattern(words[1])
			if err != nil {
				return err
			}
			if words[0] == "name" {
				r.names = append(r.names, swap{pattern, words[2]})
			} else {
				r.values = append(r.values, swap{pattern, words[2]})
			}
			words = words[3:]
		default:
			return p.fail("rewrite name: %q is not a valid rule", strings.Join(words, " "))
		}
	}
	if r.auto && (r.kind == "substring" || r.kind == "prefix" || r.kind == "regex") && r.kind == "regex" {
		return p.fail("rewrite name regex: answer auto is not possible, use answer name FROM TO")
	}
	return nil
}

func (p *parser) rewriteTTL(r *Rewrite, words []string) error {
	words, err := p.matcher(r, words)
	if err != nil {
		return err
	}
	if len(words) != 1 {
		return p.fail("rewrite ttl takes a name, and seconds or a range of them")
	}
	low, high, isRange := strings.Cut(words[0], "-")
	if !isRange {
		high = low
	}
	bound := func(s string, otherwise uint32) (uint32, error) {
		if s == "" {
			return otherwise, nil
		}
		n, err := strconv.ParseUint(s, 10, 31)
		if err != nil {
			return 0, p.fail("%q is not a TTL", words[0])
		}
		return uint32(n), nil
	}
	if r.low, err = bound(low, 0); err != nil {
		return err
	}
	if r.high, err = bound(high, 1<<31-1); err != nil {
		return err
	}
	if r.low > r.high {
		return p.fail("%q is not a range", words[0])
	}
	return nil
}

// Question applies a rule to a question; both names are texts with a dot at the end, the first one
// in lower case. ok: the rule matches.
func (r *Rewrite) Question(name, typ string) (newName, newType string, ok bool) {
	switch r.Field {
	case "type":
		return name, r.to, typ == r.from || r.from == "ANY" && typ == "ANY"
	case "ttl":
		return name, typ, r.matches(name)
	}
	if !r.matches(name) {
		return name, typ, false
	}
	switch r.kind {
	case "exact":
		name = r.to
	case "prefix":
		name = r.to + strings.TrimPrefix(name, r.from)
	case "suffix":
		name = strings.TrimSuffix(name, r.from) + r.to
	case "substring":
		name = strings.ReplaceAll(name, r.from, r.to)
	case "regex":
		name = expand(r.to, r.pattern.FindStringSubmatch(name))
	}
	return fqdn(strings.ToLower(name)), typ, true
}

func (r *Rewrite) matches(name string) bool {
	switch r.kind {
	case "prefix":
		return strings.HasPrefix(name, r.from)
	case "suffix":
		return strings.HasSuffix(name, r.from)
	case "substring":
		return strings.Contains(name, r.from)
	case "regex":
		return r.pattern.MatchString(name)
	}
	return name == r.from
}

// expand replaces {1} and so on by the groups of a match.
func expand(to string, groups []string) string {
	for i, g := range groups {
		to = strings.ReplaceAll(to, "{"+strconv.Itoa(i)+"}", g)
	}
	return to
}

// Owner changes the owner of a record of the answer back: before is the question before this rule, after the one after
// it.
func (r *Rewrite) Owner(name, before, after string) string {
	if r.Field != "name" {
		return name
	}
	if strings.EqualFold(name, after) && (r.auto || len(r.names) == 0) {
		return before
	}
	if r.auto && r.kind == "suffix" {
		if rest, ok := strings.CutSuffix(strings.ToLower(name), strings.ToLower(r.to)); ok {
			return rest + r.from
		}
	}
	for _, s := range r.names {
		if m := s.pattern.FindStringSubmatch(strings.ToLower(name)); m != nil {
			return fqdn(expand(s.to, m))
		}
	}
	return name
}

// Value changes a name in the data of a record of the answer.
func (r *Rewrite) Value(name string) string {
	for _, s := range r.values {
		if m := s.pattern.FindStringSubmatch(strings.ToLower(name)); m != nil {
			return fqdn(expand(s.to, m))
		}
	}
	return name
}

// TTL limits the TTL of a record, in seconds.
func (r *Rewrite) TTL(ttl uint32) uint32 {
	if r.Field != "ttl" {
		return ttl
	}
	return min(max(ttl, r.low), r.high)
}

// Types reports whether the types of a rule for types are known.
func (r *Rewrite) Types(known func(string) bool) bool {
	return r.Field != "type" || known(r.from) && known(r.to)
}
