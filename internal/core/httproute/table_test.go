package httproute

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"carob/internal/core/immutablemap"
)

// dump writes the whole content of a table in a fixed order.
func (t *Table) dump() string {
	var out []string
	add := func(format string, args ...any) { out = append(out, fmt.Sprintf(format, args...)) }
	name := func(e *entry) string {
		return fmt.Sprint(e.route.Source, e.route.via, e.route.Part, e.ruleAt, e.matchAt, e.rule.Name)
	}
	names := func(all []*entry) (s []string) {
		for _, e := range all {
			s = append(s, name(e))
		}
		return s
	}
	eachHost(&t.listeners, func(listener string, r *routes) {
		for at, p := range r.known.All() {
			add("%s known %v %v", listener, at, names(p.entries))
		}
		eachHost(&r.hosts, func(host string, p *paths) {
			at := listener + " " + host
			add("%s depths %v regexes %v", at, p.depths, names(p.regexes))
			for kind, m := range map[string]*immutablemap.Map[string, *group]{"exact": &p.exact, "prefix": &p.prefix,
				"methods": &p.methods} {
				for path, g := range m.All() {
					add("%s %s %q %v", at, kind, path, names(g.entries))
					for _, s := range g.shapes {
						add("%s %s %q shape %q %v %v %v other %v", at, kind, path, s.key, s.method, s.headers, s.query,
							names(s.other))
						for v, same := range s.byValue.All() {
							add("%s %s %q shape %q %q %v", at, kind, path, s.key, v, names(same))
						}
					}
				}
			}
		})
	})
	slices.Sort(out)
	return strings.Join(out, "\n")
}

func eachHost[T any](h *hosts[T], f func(string, T)) {
	for kind, m := range map[string]*immutablemap.Map[string, T]{"": &h.exact, "*": &h.wild, "*1": &h.oneLabel} {
		for key, v := range m.All() {
			f(kind+key, v)
		}
	}
	if h.all != nil {
		f("all", *h.all)
	}
}

// After any changes a table equals one that is compiled anew from the same routes; earlier tables do not change.
func TestChangedTable(t *testing.T) {
	for seed := range uint64(25) {
		r := rand.New(rand.NewPCG(seed, 3))
		var listeners []Listener
		for range 1 + r.IntN(3) {
			listeners = append(listeners, Listener{Host: pick(r, "", "a.com", "*.com")})
		}
		crowd := pick(r, 3, 20, 60) // at least now and then more than few of one path
		table, _ := Compile(listeners)
		now := map[place]*Route{}
		first, firstDump := table, table.dump()
		for step := range 60 {
			var changes []Change
			for range 1 + r.IntN(4) {
				c := Change{Listener: r.IntN(len(listeners)), Source: Source{Name: fmt.Sprint("r", r.IntN(crowd)),
					Created: 5}, Part: r.IntN(2)}
				if r.IntN(10) < []int{8, 2}[step/30] {
					route := randomRoutes(r, 1)[0]
					route.Source, route.Part = c.Source, c.Part
					for i := range route.Rules {
						route.Rules[i].Name = fmt.Sprint("step ", step)
					}
					c.Route = &route
				}
				changes = append(changes, c)
				if at := (place{c.Source, c.Listener, c.Part}); c.Route == nil {
					delete(now, at)
				} else {
					now[at] = c.Route
				}
			}
			before, dump := table, table.dump()
			table, _ = table.With(changes)
			for i := range listeners {
				listeners[i].Routes = nil
			}
			for at, route := range now {
				listeners[at.via].Routes = append(listeners[at.via].Routes, *route)
			}
			fresh, _ := Compile(listeners)
			if got, want := table.dump(), fresh.dump(); got != want {
				t.Fatalf("seed %d, step %d: changed:\n%s\n\nafresh:\n%s", seed, step, got, want)
			}
			if before.dump() != dump {
				t.Fatalf("seed %d, step %d: the table before has changed", seed, step)
			}
			if got, want := len(table.Routes()), len(now); got != want {
				t.Fatalf("seed %d, step %d: %d routes, want %d", seed, step, got, want)
			}
		}
		if first.dump() != firstDump {
			t.Fatalf("seed %d: the first table has changed", seed)
		}
	}
}

// BenchmarkWith changes one route among many: with a host of its own, and with a path of its own at the same host.
func BenchmarkWith(b *testing.B) {
	for _, kind := range []string{"hosts", "paths", "headers"} {
		for _, n := range []int{10, 10000, 100000} {
			route := func(i int) Route {
				m := Match{Path: PathMatch{Kind: Prefix, Value: "/"}}
				out := Route{Source: Source{Kind: "HTTPRoute", Namespace: "a", Name: fmt.Sprint("r", i)}}
				switch kind {
				case "hosts":
					out.Hosts = []HostPattern{{Name: fmt.Sprintf("h%d.example.com", i)}}
				case "paths":
					m.Path.Value = fmt.Sprintf("/p%d", i)
				case "headers":
					m.Headers = []ValueMatch{{Name: "X", Value: fmt.Sprint(i)}}
				}
				out.Rules = []Rule{{Matches: []Match{m}}}
				return out
			}
			l := Listener{}
			for i := range n {
				l.Routes = append(l.Routes, route(i))
			}
			table, _ := Compile([]Listener{l})
			b.Run(fmt.Sprintf("%s/%d", kind, n), func(b *testing.B) {
				for i := 0; b.Loop(); i++ {
					r := route(i % n)
					table, _ = table.With([]Change{{Source: r.Source, Route: &r}})
				}
			})
		}
	}
}
