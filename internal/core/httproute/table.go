package httproute

import (
	"cmp"
	"slices"

	"carob/internal/core/immutablemap"
)

// Table finds the rule that serves a request at one port. It is immutable: With returns a changed
// copy.
type Table struct {
	listeners hosts[*routes]
	names     []string // host names of the listeners, as Compile got them
}

// routes are those of one host name of listeners.
type routes struct {
	hosts hosts[*paths]
	known immutablemap.Map[place, *placed]
}

// place names a route of a table.
type place struct {
	source    Source
	via, part int
}

func (p place) hash() uint32 {
	return immutablemap.String(p.source.Namespace) ^ 31*immutablemap.String(p.source.Name) ^ uint32(p.part)*2654435761
}

// placed is a route of a table.
type placed struct {
	Route
	via      int // the listener
	patterns []HostPattern
	entries  []*entry
}

// Problem is a part of a route that cannot be served.
type Problem struct {
	Source Source
	Rule   int
	Reason string
}

// Compile makes a table. Listeners with the same host name become one. A match with an invalid regular expression is
// left out and reported.
func Compile(listeners []Listener) (*Table, []Problem) {
	t := &Table{listeners: newHosts[*routes]()}
	var problems []Problem
	var all []*routes
	for via := range listeners {
		l := &listeners[via]
		t.names = append(t.names, l.Host)
		into, known := t.listeners.get(HostPattern{Name: l.Host})
		if !known {
			into = newRoutes()
			t.listeners.put(HostPattern{Name: l.Host}, into, true)
			all = append(all, into)
		}
		for i := range l.Routes {
			route, bad := newPlaced(&l.Routes[i], via)
			problems = append(problems, bad...)
			into.known.Set(route.place(), route)
			for _, pattern := range route.patterns {
				if len(route.entries) == 0 {
					continue
				}
				p, known := into.hosts.get(pattern)
				if !known {
					p = newPaths()
					into.hosts.put(pattern, p, true)
				}
				for _, e := range route.entries {
					p.add(e)
				}
			}
		}
	}
	for _, r := range all {
		r.hosts.each(func(p *paths) { p.finish() })
	}
	return t, problems
}

// Append returns a table with more listeners, after the others, which have no routes yet.
func (t *Table) Append(hosts []string) *Table {
	if len(hosts) == 0 {
		return t
	}
	out := *t
	out.names = append(slices.Clip(t.names), hosts...)
	for _, host := range hosts {
		if _, known := out.listeners.get(HostPattern{Name: host}); !known {
			out.listeners.put(HostPattern{Name: host}, newRoutes(), false)
		}
	}
	return &out
}

func newRoutes() *routes {
	return &routes{hosts: newHosts[*paths](), known: immutablemap.New[place, *placed](place.hash)}
}

// newPlaced compiles a route.
func newPlaced(r *Route, via int) (*placed, []Problem) {
	out := &placed{Route: *r, via: via}
	for _, p := range r.Hosts {
		if !slices.Contains(out.patterns, p) {
			out.patterns = append(out.patterns, p)
		}
	}
	if len(r.Hosts) == 0 {
		out.patterns = []HostPattern{{}}
	}
	var problems []Problem
	for n := range r.Rules {
		rule := &r.Rules[n]
		for m := range rule.Matches {
			e, err := compileMatch(&rule.Matches[m])
			if err != nil {
				problems = append(problems, Problem{r.Source, n, err.Error()})
				continue
			}
			e.route, e.rule, e.ruleAt, e.matchAt = out, rule, n, m
			out.entries = append(out.entries, e)
		}
	}
	return out, problems
}

func (p *placed) place() place { return place{p.Source, p.via, p.Part} }

// Change is a route of a listener that was added, changed, or removed.
type Change struct {
	Listener int // its place in what Compile got
	Source   Source
	Part     int
	Route    *Route // nil: removed; else with this Source and Part
}

// With returns the table with other routes. Its cost depends on the changed routes, and on the number of entries with
// the same host and path; the table itself does not change.
func (t *Table) With(changes []Change) (*Table, []Problem) {
	out := *t
	var problems []Problem
	for i := range changes {
		c := &changes[i]
		name := HostPattern{Name: t.names[c.Listener]}
		before, _ := out.listeners.get(name)
		after := *before
		at := place{c.Source, c.Listener, c.Part}
		if old, known := after.known.Get(at); known {
			after.remove(old)
			after.known = after.known.Without(at)
		}
		if c.Route != nil {
			route, bad := newPlaced(c.Route, c.Listener)
			problems = append(problems, bad...)
			after.known = after.known.With(at, route)
			after.insert(route)
		}
		out.listeners.put(name, &after, false)
	}
	return &out, problems
}

func (r *routes) remove(old *placed) {
	for _, pattern := range old.patterns {
		p, known := r.hosts.get(pattern)
		if !known {
			continue
		}
		for _, e := range old.entries {
			if p = p.without(e); p == nil {
				break
			}
		}
		if p == nil {
			r.hosts.drop(pattern)
		} else {
			r.hosts.put(pattern, p, false)
		}
	}
}

func (r *routes) insert(route *placed) {
	for _, pattern := range route.patterns {
		if len(route.entries) == 0 {
			return
		}
		p, known := r.hosts.get(pattern)
		if !known {
			p = newPaths()
		}
		for _, e := range route.entries {
			p = p.with(e)
		}
		r.hosts.put(pattern, p, false)
	}
}

// Route returns a route of a listener, or nil.
func (t *Table) Route(listener int, source Source, part int) *Route {
	r, _ := t.listeners.get(HostPattern{Name: t.names[listener]})
	if p, known := r.known.Get(place{source, listener, part}); known {
		return &p.Route
	}
	return nil
}

// Served is a route of a table, and the host name of its listener.
type Served struct {
	Listener string
	Route    *Route
}

// Routes are all routes: by listener, as Compile got them, then by age.
func (t *Table) Routes() (out []Served) {
	var all []*placed
	t.listeners.each(func(r *routes) {
		for _, p := range r.known.All() { // any order: sorted below
			all = append(all, p)
		}
	})
	slices.SortFunc(all, func(a, b *placed) int {
		return cmp.Or(cmp.Compare(a.via, b.via), a.Source.Compare(b.Source), cmp.Compare(a.Part, b.Part))
	})
	for _, p := range all {
		out = append(out, Served{t.names[p.via], &p.Route})
	}
	return out
}
