// Package httproute decides which rule serves an HTTP request and what its filters do: routes are compiled into a
// Table, whose cost for a request does not grow with the number of routes. It is pure; package gateway drives it, and
// core/gatewayplan makes its routes from Ingress and Gateway API objects.
//
// A request is matched in this order, as the Gateway API specifies (HTTPRouteSpec.hostnames, HTTPRouteRule.matches):
//
//  1. the listener with the most specific host name; no other listener is tried then (listener isolation),
//  2. routes by host name: an exact name, then wildcards with more characters, then routes for all hosts,
//  3. the path: an exact one, then regular expressions, then the longest prefix, then the method of a gRPC call,
//  4. matches with a method, then with more headers, then with more query parameters,
//  5. the older route, then the one whose namespace and name come first, then the first rule in a route.
//
// If a rule does not match, the next one of this order is tried, also across host names of one listener.
//
// Contract: docs/spec/network.md.
package httproute

import (
	"cmp"
	"regexp"
	"slices"
	"strings"
	"time"
)

// Request has the facts of a request that a match may use.
type Request struct {
	Host   string // as Host returns it; empty when the request has none
	Path   string // as CleanPath returns it
	Method string
	Fields Fields
}

// Fields looks up headers and query parameters of a request.
type Fields interface {
	// Header returns the values of a header, joined by commas. The name is canonical, as CanonicalHeader returns it.
	Header(name string) (value string, ok bool)
	// Query returns the first value of a query parameter.
	Query(name string) (value string, ok bool)
}

// Source is the origin of a route, and its age.
type Source struct {
	Kind, Namespace, Name string
	Created               int64 // seconds; an older route wins
}

// Compare orders routes: the older first, then by name.
func (s Source) Compare(o Source) int {
	return cmp.Or(cmp.Compare(s.Created, o.Created), strings.Compare(s.Namespace, o.Namespace),
		strings.Compare(s.Name, o.Name), strings.Compare(s.Kind, o.Kind))
}

// HostPattern is a host name in lower case: exact, "*.example.com", or empty for all hosts.
type HostPattern struct {
	Name string
	// OneLabel has the asterisk stand for exactly one label, as in an Ingress (N6.8). In the Gateway API it stands for
	// one or more.
	OneLabel bool
}

// Route is a route as it was written.
type Route struct {
	Source Source
	// Part distinguishes routes of one source and one listener: an Ingress has several. The
	// smaller precedes.
	Part  int
	Hosts []HostPattern // none: all hosts
	Rules []Rule
}

// Rule defines what happens to requests that match any of its Matches.
type Rule struct {
	Name     string
	Matches  []Match // none: no request
	Filters  Filters
	Backends []Backend
	// Timeout is for the whole request, BackendTimeout for each attempt at a backend; 0: none.
	Timeout, BackendTimeout time.Duration
	// ConnectTimeout and ReadTimeout are those of an Ingress: for a connection, and for each part of a response.
	ConnectTimeout, ReadTimeout time.Duration
	// MaxBody is the largest request body in bytes; 0: no limit.
	MaxBody int64
	Retry   *Retry // nil: none
	// NotFound answers 404 without a backend.
	NotFound bool
}

// PathKind is how a path is compared.
type PathKind int

// The kinds, in their precedence.
const (
	Exact  PathKind = iota // the whole path
	Regex                  // a regular expression (RE2) that must match the whole path
	Prefix                 // whole segments; a slash at the end of the prefix is ignored
	Method                 // the last of exactly two segments: a gRPC method in any service
)

// PathMatch is a condition on the path.
type PathMatch struct {
	Kind  PathKind
	Value string
}

// ValueMatch is a condition on a header or a query parameter.
type ValueMatch struct {
	Name  string
	Value string // the value, or a regular expression that must match all of it
	Regex bool
}

// Match is a set of conditions that all hold.
type Match struct {
	Path    PathMatch
	Method  string // empty: any
	Headers []ValueMatch
	Query   []ValueMatch
}

// Result is what serves a request.
type Result struct {
	Source *Source
	Rule   *Rule
	// Met is the path condition that matched: a rewrite replaces its prefix.
	Met Met
}

// Met is a path condition that has matched.
type Met struct {
	PathMatch
	expr *regexp.Regexp // of a regular expression
}

// Listener is a set of routes that are reached by one host name of a port.
type Listener struct {
	Host   string // exact, "*.example.com", or empty for all
	Routes []Route
}

// Serves reports whether a listener serves the host. A TLS connection is accepted for such a name only.
func (t *Table) Serves(host string) bool {
	for range t.listeners.find(host) {
		return true
	}
	return false
}

// SameListener reports whether the same listener serves two hosts: a connection that was opened for one name must not
// carry requests for another listener's (RFC 9110, section 15.5.20).
func (t *Table) SameListener(a, b string) bool {
	var first, second *routes
	for r := range t.listeners.find(a) {
		first = r
		break
	}
	for r := range t.listeners.find(b) {
		second = r
		break
	}
	return first == second
}

// Find returns the rule that serves a request, or false.
func (t *Table) Find(r *Request) (Result, bool) {
	for l := range t.listeners.find(r.Host) {
		for p := range l.hosts.find(r.Host) {
			if e := p.find(r); e != nil {
				return Result{Source: &e.route.Source, Rule: e.rule, Met: Met{e.match.Path, e.path}}, true
			}
		}
		return Result{}, false // the most specific listener only
	}
	return Result{}, false
}

// entry is one match of a rule.
type entry struct {
	route           *placed
	rule            *Rule
	match           *Match
	ruleAt, matchAt int // their places in the route

	path           *regexp.Regexp
	headers, query []condition
}

// condition is a compiled ValueMatch.
type condition struct {
	name, value string
	regex       *regexp.Regexp
}

func (c *condition) holds(value string) bool {
	if c.regex != nil {
		return c.regex.MatchString(value)
	}
	return c.value == value
}

func compileMatch(m *Match) (*entry, error) {
	e := &entry{match: m}
	var err error
	if m.Path.Kind == Regex {
		if e.path, err = whole(m.Path.Value); err != nil {
			return nil, err
		}
	}
	if e.headers, err = conditions(m.Headers, CanonicalHeader); err != nil {
		return nil, err
	}
	e.query, err = conditions(m.Query, func(name string) string { return name })
	return e, err
}

// conditions compiles matches. Of several with one name only the first is used.
func conditions(matches []ValueMatch, canonical func(string) string) (out []condition, err error) {
	for _, m := range matches {
		c := condition{name: canonical(m.Name), value: m.Value}
		if slices.ContainsFunc(out, func(o condition) bool { return o.name == c.name }) {
			continue
		}
		if m.Regex {
			if c.regex, err = whole(m.Value); err != nil {
				return nil, err
			}
		}
		out = append(out, c)
	}
	slices.SortFunc(out, func(a, b condition) int { return strings.Compare(a.name, b.name) })
	return out, nil
}

// whole compiles an expression that must match all of a text.
func whole(expr string) (*regexp.Regexp, error) { return regexp.Compile(`^(?:` + expr + `)$`) }

// Check reports whether Compile takes matches: expressions may be invalid.
func Check(matches []Match) error {
	for i := range matches {
		if _, err := compileMatch(&matches[i]); err != nil {
			return err
		}
	}
	return nil
}

// matches checks everything but the path.
func (e *entry) matches(r *Request) bool {
	if e.match.Method != "" && e.match.Method != r.Method {
		return false
	}
	for i := range e.headers {
		if v, ok := r.Fields.Header(e.headers[i].name); !ok || !e.headers[i].holds(v) {
			return false
		}
	}
	for i := range e.query {
		if v, ok := r.Fields.Query(e.query[i].name); !ok || !e.query[i].holds(v) {
			return false
		}
	}
	return true
}

// compareRank orders entries of one path: those with more conditions first, then the older.
func compareRank(a, b *entry) int { return cmp.Or(compareFields(a, b), compareAge(a, b)) }

// compareFields is compareRank without the age.
func compareFields(a, b *entry) int {
	method := func(e *entry) int {
		if e.match.Method != "" {
			return 0
		}
		return 1
	}
	return cmp.Or(cmp.Compare(method(a), method(b)), cmp.Compare(len(b.headers), len(a.headers)),
		cmp.Compare(len(b.query), len(a.query)))
}

// compareAge orders entries of one rank: the older route first, then as they are written.
func compareAge(a, b *entry) int {
	return cmp.Or(a.route.Source.Compare(b.route.Source), cmp.Compare(a.route.via, b.route.via),
		cmp.Compare(a.route.Part, b.route.Part), cmp.Compare(a.ruleAt, b.ruleAt), cmp.Compare(a.matchAt, b.matchAt))
}

// CanonicalHeader returns the canonical form of a header's name, "Content-Type".
func CanonicalHeader(name string) string {
	b := []byte(name)
	upper := true
	for i, c := range b {
		switch {
		case upper && 'a' <= c && c <= 'z':
			b[i] = c - 'a' + 'A'
		case !upper && 'A' <= c && c <= 'Z':
			b[i] = c - 'A' + 'a'
		}
		upper = c == '-'
	}
	return string(b)
}
