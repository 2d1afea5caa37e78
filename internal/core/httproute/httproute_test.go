package httproute

import (
	"fmt"
	"math/rand/v2"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// fields are the headers and query parameters of a request in tests.
type fields struct{ headers, query map[string]string }

func (f fields) Header(name string) (string, bool) { v, ok := f.headers[name]; return v, ok }
func (f fields) Query(name string) (string, bool)  { v, ok := f.query[name]; return v, ok }

// naive finds the rule for a request literally as the Gateway API specifies: it collects all matches that hold and
// compares them pairwise.
func naive(listeners []Listener, r *Request) *candidate {
	var best *candidate
	listener, found := "", false
	for _, l := range listeners {
		if hostHolds(HostPattern{Name: l.Host}, r.Host) &&
			(!found || hostRank(HostPattern{Name: l.Host}) > hostRank(HostPattern{Name: listener})) {
			listener, found = l.Host, true
		}
	}
	for _, l := range listeners {
		if !found || l.Host != listener {
			continue
		}
		for i := range l.Routes {
			for n := range l.Routes[i].Rules {
				for m := range l.Routes[i].Rules[n].Matches {
					hosts := l.Routes[i].Hosts
					if len(hosts) == 0 {
						hosts = []HostPattern{{}}
					}
					for _, h := range hosts {
						c := &candidate{&l.Routes[i], n, m, h}
						if hostHolds(h, r.Host) && holds(c.match(), r) && (best == nil || c.before(best)) {
							best = c
						}
					}
				}
			}
		}
	}
	return best
}

type candidate struct {
	route       *Route
	rule, index int
	host        HostPattern
}

func (c *candidate) match() *Match { return &c.route.Rules[c.rule].Matches[c.index] }

func hostHolds(p HostPattern, host string) bool {
	if p.Name == "" {
		return true
	}
	if host == "" {
		return false
	}
	suffix, wild := strings.CutPrefix(p.Name, "*")
	if !wild {
		return p.Name == host
	}
	rest, ok := strings.CutSuffix(host, suffix)
	return ok && rest != "" && !(p.OneLabel && strings.Contains(rest, ".")) && !strings.HasPrefix(rest, ".")
}

func hostRank(p HostPattern) int {
	switch {
	case p.Name == "":
		return 0
	case p.OneLabel:
		return 10*len(p.Name) + 1
	case strings.HasPrefix(p.Name, "*"):
		return 10 * len(p.Name)
	}
	return 1e6 + len(p.Name)
}

func segments(path string) []string { return strings.Split(strings.TrimRight(path, "/"), "/") }

func holds(m *Match, r *Request) bool {
	switch m.Path.Kind {
	case Exact:
		if r.Path != m.Path.Value {
			return false
		}
	case Regex:
		if !regexp.MustCompile("^(" + m.Path.Value + ")$").MatchString(r.Path) {
			return false
		}
	case Prefix:
		want, got := segments(m.Path.Value), strings.Split(r.Path, "/")
		if len(want) > len(got) || !slices.Equal(want, got[:len(want)]) {
			return false
		}
	case Method:
		if got := strings.Split(r.Path, "/"); len(got) != 3 || got[1] == "" || got[2] != m.Path.Value {
			return false
		}
	}
	if m.Method != "" && m.Method != r.Method {
		return false
	}
	check := func(all []ValueMatch, get func(string) (string, bool)) bool {
		seen := map[string]bool{}
		for _, c := range all {
			if seen[c.Name] {
				continue
			}
			seen[c.Name] = true
			v, ok := get(c.Name)
			if !ok || !c.Regex && v != c.Value || c.Regex && !regexp.MustCompile("^("+c.Value+")$").MatchString(v) {
				return false
			}
		}
		return true
	}
	return check(m.Headers, r.Fields.Header) && check(m.Query, r.Fields.Query)
}

func names(all []ValueMatch) int {
	seen := map[string]bool{}
	for _, c := range all {
		seen[c.Name] = true
	}
	return len(seen)
}

func (c *candidate) before(o *candidate) bool {
	if a, b := hostRank(c.host), hostRank(o.host); a != b {
		return a > b
	}
	a, b := c.match(), o.match()
	if a.Path.Kind != b.Path.Kind {
		return a.Path.Kind < b.Path.Kind
	}
	length := func(m *Match) int {
		if m.Path.Kind == Prefix {
			return len(strings.TrimRight(m.Path.Value, "/"))
		}
		return len(m.Path.Value)
	}
	if length(a) != length(b) {
		return length(a) > length(b)
	}
	if (a.Method != "") != (b.Method != "") {
		return a.Method != ""
	}
	if names(a.Headers) != names(b.Headers) {
		return names(a.Headers) > names(b.Headers)
	}
	if names(a.Query) != names(b.Query) {
		return names(a.Query) > names(b.Query)
	}
	if c.route != o.route {
		return c.route.Source.Compare(o.route.Source) < 0
	}
	return c.rule < o.rule || c.rule == o.rule && c.index < o.index
}

func pick[T any](r *rand.Rand, of ...T) T { return of[r.IntN(len(of))] }

func randomPath(r *rand.Rand) string {
	path := ""
	for range r.IntN(4) {
		path += "/" + pick(r, "a", "b", "aa", "a%2Fb")
	}
	return path + pick(r, "", "/")
}

func randomRoutes(r *rand.Rand, n int) (out []Route) {
	onePath := r.IntN(3) == 0
	for i := range n {
		route := Route{Source: Source{Name: fmt.Sprint("r", i), Created: int64(r.IntN(3))}}
		for range r.IntN(3) {
			route.Hosts = append(route.Hosts, pick(r, HostPattern{Name: "a.com"}, HostPattern{Name: "x.a.com"},
				HostPattern{Name: "*.a.com"}, HostPattern{Name: "*.com"}, HostPattern{"*.a.com", true}))
		}
		for range 1 + r.IntN(2) {
			var rule Rule
			for range r.IntN(3) {
				m := Match{Path: pick(r, PathMatch{Exact, randomPath(r)}, PathMatch{Prefix, "/" + randomPath(r)[0:]},
					PathMatch{Prefix, randomPath(r)}, PathMatch{Regex, "/a.*"}, PathMatch{Regex, "/[ab]/?"},
					PathMatch{Method, "b"}), Method: pick(r, "", "", "GET", "PUT")}
				if m.Path.Value == "" || onePath {
					m.Path = PathMatch{Prefix, "/"} // many entries of one path are indexed
				}
				for range r.IntN(3) {
					m.Headers = append(m.Headers, ValueMatch{pick(r, "X", "Y"), pick(r, "1", "2", "."), r.IntN(4) == 0})
				}
				for range r.IntN(2) {
					m.Query = append(m.Query, ValueMatch{pick(r, "x", "y"), pick(r, "1", "2"), r.IntN(6) == 0})
				}
				rule.Matches = append(rule.Matches, m)
			}
			route.Rules = append(route.Rules, rule)
		}
		out = append(out, route)
	}
	return out
}

// The table gives the same result as the literal algorithm of the specification, for random routes and requests. Some
// sets have many routes for one path, which are indexed.
func TestTableAgainstText(t *testing.T) {
	found := 0
	for seed := range uint64(200) {
		r := rand.New(rand.NewPCG(seed, 1))
		var listeners []Listener
		for range 1 + r.IntN(3) {
			listeners = append(listeners, Listener{Host: pick(r, "", "", "a.com", "*.a.com", "*.com"),
				Routes: randomRoutes(r, 1+r.IntN(pick(r, 4, 40)))})
		}
		for i := range listeners { // names are unique, as in a cluster
			for j := range listeners[i].Routes {
				listeners[i].Routes[j].Source.Namespace = fmt.Sprint("n", i)
			}
		}
		table, problems := Compile(listeners)
		if len(problems) > 0 {
			t.Fatalf("seed %d: %v", seed, problems)
		}
		for range 100 {
			f := fields{map[string]string{}, map[string]string{}}
			for _, name := range []string{"X", "Y"} {
				if r.IntN(2) == 0 {
					f.headers[name] = pick(r, "1", "2", "33")
				}
				if r.IntN(2) == 0 {
					f.query[strings.ToLower(name)] = pick(r, "1", "2")
				}
			}
			q := &Request{Host: pick(r, "a.com", "x.a.com", "y.x.a.com", "b.com", "", "com"), Method: pick(r, "GET",
				"PUT", "POST"),
				Path: pick(r, "/", randomPath(r)), Fields: f}
			if q.Path == "" {
				q.Path = "/"
			}
			got, ok := table.Find(q)
			want := naive(listeners, q)
			if ok != (want != nil) {
				t.Fatalf("seed %d: %+v: found %v, want %+v", seed, q, ok, want)
			}
			if !ok {
				continue
			}
			found++
			if *got.Source != want.route.Source || got.Met.PathMatch != want.match().Path ||
				got.Rule != &want.route.Rules[want.rule] {
				t.Fatalf("seed %d: %+v: %+v %+v, want %+v %d %+v", seed, q, got.Source, got.Met.PathMatch,
					want.route.Source, want.rule, want.match())
			}
		}
	}
	if found < 3000 {
		t.Errorf("only %d requests were served", found)
	}
}

// TestPathSemantics is the table of N6.9 and N6.10.
func TestPathSemantics(t *testing.T) {
	for _, c := range []struct {
		kind          PathKind
		value, path   string
		matches, host bool
	}{
		{Exact, "/foo", "/foo", true, true}, {Exact, "/foo", "/foo/", false, true}, {Exact, "/foo", "/Foo", false,
			true},
		{Exact, "/foo/", "/foo", false, true}, {Prefix, "/", "/any/thing", true, true},
		{Prefix, "/aaa/bbb", "/aaa/bbb", true, true}, {Prefix, "/aaa/bbb/", "/aaa/bbb", true, true},
		{Prefix, "/aaa/bbb", "/aaa/bbb/", true, true}, {Prefix, "/aaa/bbb", "/aaa/bbb/ccc", true, true},
		{Prefix, "/aaa/bb", "/aaa/bbb", false, true}, {Prefix, "/aaa/bbb", "/aaa/bbbxyz", false, true},
		{Prefix, "/aaa", "/", false, true}, {Prefix, "/a/b", "/a%2Fb", false, true},
	} {
		table, _ := Compile([]Listener{{Routes: []Route{{Rules: []Rule{{Matches: []Match{{
			Path: PathMatch{c.kind, c.value}}}}}}}}})
		if _, ok := table.Find(&Request{Path: c.path, Method: "GET"}); ok != c.matches {
			t.Errorf("%d %s: %s matches: %v", c.kind, c.value, c.path, ok)
		}
	}
}

func TestRewrites(t *testing.T) {
	for _, c := range []struct{ path, prefix, with, want string }{
		{"/foo/bar", "/foo", "/xyz", "/xyz/bar"}, {"/foo/bar", "/foo", "/xyz/", "/xyz/bar"},
		{"/foo/bar", "/foo/", "/xyz", "/xyz/bar"}, {"/foo/bar", "/foo/", "/xyz/", "/xyz/bar"},
		{"/foo", "/foo", "/xyz", "/xyz"}, {"/foo/", "/foo", "/xyz", "/xyz/"}, {"/foo/bar", "/foo", "", "/bar"},
		{"/foo/", "/foo", "", "/"}, {"/foo", "/foo", "", "/"}, {"/foo/", "/foo", "/", "/"}, {"/foo", "/foo", "/", "/"},
		{"/foo/bar", "/", "/x", "/x/foo/bar"}, {"/foo/b", "/foo", "/a b\r\nX: y?z#", "/a%20b%0D%0AX:%20y%3Fz%23/b"},
	} {
		if got := (PathChange{ReplacePrefix, c.with}).Apply(c.path, Met{PathMatch{Prefix, c.prefix},
			nil}); got != c.want {
			t.Errorf("%s, %s replaced with %q: %s, want %s", c.path, c.prefix, c.with, got, c.want)
		}
	}
	if got := (PathChange{ReplaceFull, "/new%2f%zz"}).Apply("/x", Met{}); got != "/new%2f%25zz" {
		t.Errorf("full: %s", got)
	}
	table, _ := Compile([]Listener{{Routes: []Route{{Rules: []Rule{{Matches: []Match{{
		Path: PathMatch{Regex, "/api(/|$)(.*)"}}}}}}}}})
	met, _ := table.Find(&Request{Path: "/api/v1/x"})
	if got := (PathChange{ReplaceGroups, "/$2"}).Apply("/api/v1/x", met.Met); got != "/v1/x" {
		t.Errorf("groups: %s", got)
	}
}

func TestLocation(t *testing.T) {
	for _, c := range []struct {
		r        Redirect
		scheme   string
		listener int32
		want     string
	}{
		{Redirect{Scheme: "https"}, "http", 80, "https://a.com/p?q"},
		{Redirect{Scheme: "https"}, "http", 8080, "https://a.com/p?q"},
		{Redirect{Host: "b.org"}, "http", 80, "http://b.org/p?q"}, {Redirect{}, "http", 8080, "http://a.com:8080/p?q"},
		{Redirect{Port: 8083}, "http", 80, "http://a.com:8083/p?q"},
		{Redirect{Scheme: "https", Port: 443}, "http", 80, "https://a.com/p?q"},
		{Redirect{Scheme: "http", Port: 443}, "https", 443, "http://a.com:443/p?q"},
	} {
		if got := c.r.Location(c.scheme, "a.com", c.listener, "/p", "q", Met{}); got != c.want {
			t.Errorf("%+v: %s, want %s", c.r, got, c.want)
		}
	}
}

func TestIntersect(t *testing.T) {
	for _, c := range []struct {
		a, b, want string
		ok         bool
	}{
		{"", "a.com", "a.com", true}, {"a.com", "", "a.com", true}, {"a.com", "b.com", "", false},
		{"*.com", "a.com", "a.com", true}, {"a.b.com", "*.com", "a.b.com", true}, {"*.com", "*.b.com", "*.b.com", true},
		{"*.a.com", "a.com", "", false}, {"*.a.com", "*.b.com", "", false}, {"*.a.com", "xa.com", "", false},
	} {
		if got, ok := Intersect(c.a, c.b); got != c.want || ok != c.ok {
			t.Errorf("%q and %q: %q %v", c.a, c.b, got, ok)
		}
	}
}

func TestHost(t *testing.T) {
	for header, want := range map[string]string{"A.Example.com:8080": "a.example.com", "a.com.": "a.com", "": "",
		"10.0.0.1:80": "10.0.0.1", "[::1]:80": "[::1]", "under_score.com": "under_score.com"} {
		if got, ok := Host(header); got != want || !ok {
			t.Errorf("%q: %q %v", header, got, ok)
		}
	}
	for _, bad := range []string{"a b", "a/b", "a\r\nb", "a:b", "a:123456", "a..b", ".a", "[::1", "a@b", ":80", "ä.com",
		"a\x00", strings.Repeat("a", 254), "[]"} {
		if got, ok := Host(bad); ok {
			t.Errorf("%q is %q", bad, got)
		}
	}
}

func TestCleanPath(t *testing.T) {
	for sent, want := range map[string]string{"/a/../b": "/b", "/a/%2e%2e/b": "/b", "/../../etc": "/etc", "/a/.": "/a/",
		"/%61dmin": "/admin", "/a%2fb": "/a%2Fb", "/..": "/", "//a": "//a", "/a/.b": "/a/.b", "/a/..b": "/a/..b"} {
		if got, _, ok := CleanPath(sent); got != want || !ok {
			t.Errorf("%s: %s %v, want %s", sent, got, ok, want)
		}
	}
	for _, bad := range []string{"", "a", "*", "/%00", "/%0", "/%zz", "/a\nb", "/a b", "/\x00", "http://a/"} {
		if got, _, ok := CleanPath(bad); ok {
			t.Errorf("%q is %q", bad, got)
		}
	}
}

func TestOrigins(t *testing.T) {
	c := &CORS{Origins: []string{"https://www.foo.com", "https://*.bar.com"}, Methods: []string{"*"}, MaxAge: 5}
	for origin, want := range map[string]bool{"https://www.foo.com": true, "https://x.y.bar.com": true,
		"https://bar.com": false, "https://evil.com/.bar.com": false, "http://x.bar.com": false, "": false,
		"https://.bar.com": false, "null": false} {
		if got := c.Answer(origin) != nil; got != want {
			t.Errorf("%q: %v", origin, got)
		}
	}
	if got := c.Preflight("https://www.foo.com", "PUT", "x"); len(got) != 4 || got[2].Value != "PUT" {
		t.Errorf("%v", got)
	}
}

func TestChoose(t *testing.T) {
	r := Rule{Backends: []Backend{{Weight: 2}, {Weight: 0}, {Weight: 1}}}
	for n, want := range []int{0, 0, 2} {
		if got := r.Choose(int64(n)); got != &r.Backends[want] {
			t.Errorf("%d is not backend %d", n, want)
		}
	}
	if r.TotalWeight() != 3 || r.Choose(3) != nil {
		t.Error("more than all")
	}
}

// A path with very many segments costs no more than the deepest prefix.
func FuzzPath(f *testing.F) {
	for _, s := range []string{"/a/../b", "/%2e%2e/", "/%2f..%2F", strings.Repeat("/", 4000), "/a/./%00"} {
		f.Add(s)
	}
	table, _ := Compile([]Listener{{Routes: randomRoutes(rand.New(rand.NewPCG(1, 1)), 50)}})
	f.Fuzz(func(t *testing.T, sent string) {
		path, _, ok := CleanPath(sent)
		if !ok {
			return
		}
		again, moved, ok := CleanPath(path)
		if !ok || again != path || moved {
			t.Fatalf("%q becomes %q, then %q", sent, path, again)
		}
		for s := range strings.SplitSeq(path, "/") {
			if s == "." || s == ".." {
				t.Fatalf("%q becomes %q", sent, path)
			}
		}
		table.Find(&Request{Path: path, Host: "a.com", Fields: fields{}})
		for _, change := range []PathChange{{ReplacePrefix, sent}, {ReplaceFull, sent}} {
			out := change.Apply(path, Met{PathMatch{Prefix, "/a"}, nil})
			if strings.ContainsAny(out, " ?#\r\n\x00\"<>\\^`{|}") {
				t.Fatalf("%q is not escaped in a URL", out)
			}
		}
	})
}

func FuzzHost(f *testing.F) {
	for _, s := range []string{"a.com:80", "[::1]:80", "a\r\nb", "a..b", "*.com"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, header string) {
		host, ok := Host(header)
		if again, same := Host(host); ok && (again != host || !same) {
			t.Fatalf("%q becomes %q, then %q %v", header, host, again, same)
		}
		if ok && strings.ContainsAny(host, " /\\@?#*\r\n\x00") {
			t.Fatalf("%q is a host", host)
		}
	})
}

// manyRoutes are for as many hosts, and for one host as many paths and header values.
func manyRoutes(n int) []Route {
	out := make([]Route, 0, n)
	for i := range n {
		r := Route{Source: Source{Name: fmt.Sprint(i)}}
		m := Match{Path: PathMatch{Prefix, "/"}}
		switch i % 3 {
		case 0:
			r.Hosts = []HostPattern{{Name: fmt.Sprintf("h%d.example.com", i)}}
		case 1:
			r.Hosts = []HostPattern{{Name: "one.example.com"}}
			m.Path.Value = fmt.Sprintf("/team/%d/app", i)
		case 2:
			r.Hosts = []HostPattern{{Name: "one.example.com"}}
			m.Headers = []ValueMatch{{Name: "X-Tenant", Value: fmt.Sprint(i)}}
		}
		r.Rules = []Rule{{Matches: []Match{m}}}
		out = append(out, r)
	}
	return out
}

func BenchmarkFind(b *testing.B) {
	for _, n := range []int{10, 10_000, 100_000} {
		table, _ := Compile([]Listener{{Routes: manyRoutes(n)}})
		last := n - n%3 - 3
		requests := []*Request{
			{Host: fmt.Sprintf("h%d.example.com", last), Path: "/some/path", Method: "GET"},
			{Host: "one.example.com", Path: fmt.Sprintf("/team/%d/app/x/y", last+1), Method: "GET"},
			{Host: "one.example.com", Path: "/other", Method: "GET",
				Fields: fields{headers: map[string]string{"X-Tenant": fmt.Sprint(last + 2)}}},
		}
		for i, what := range []string{"host", "path", "header"} {
			b.Run(fmt.Sprintf("%s/%d", what, n), func(b *testing.B) {
				for b.Loop() {
					if _, ok := table.Find(requests[i]); !ok {
						b.Fatal("not found")
					}
				}
			})
		}
	}
}
