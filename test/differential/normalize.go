package main

import (
	"fmt"
	"regexp"
	"slices"
	"sort"
	"strings"
)

// pairs maps identities and versions of one side to those of the other.
type pairs struct {
	there, back map[string]string
}

func newPairs() *pairs { return &pairs{there: map[string]string{}, back: map[string]string{}} }

// same reports whether two texts with marked values are equal, and records which values correspond. A value that
// has changed its partner is a difference once.
func (p *pairs) same(a, b string) bool {
	x, y := marked.FindAllString(a, -1), marked.FindAllString(b, -1)
	if len(x) != len(y) || marked.ReplaceAllString(a, "<>") != marked.ReplaceAllString(b, "<>") {
		return false
	}
	fine := true
	for i := range x {
		if other, ok := p.there[x[i]]; ok && other != y[i] {
			fine = false
		}
		if other, ok := p.back[y[i]]; ok && other != x[i] {
			fine = false
		}
		p.there[x[i]], p.back[y[i]] = y[i], x[i]
	}
	return fine
}

var (
	record  = regexp.MustCompile(`in record \(\d+\)`)
	current = regexp.MustCompile(`(resource version: \d+, current: )\d+`)
	version = regexp.MustCompile(`(\\?"?resourceVersion\\?"?: ?\\?)"\d+`)
	marked  = regexp.MustCompile(`<(uid|version) [^>]*>`)
	uid     = regexp.MustCompile(`\b[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\b`)
	when    = regexp.MustCompile(`\b\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z`)
	// Configuration: each of the two has its own range of cluster IPs.
	addresses = regexp.MustCompile(`(The range of valid IPs is )[0-9a-f.:]+/\d+`)
	// Upstream prints its internal types, with the names that they have in Go.
	object = regexp.MustCompile(`(Invalid value: )[{\[].*?[}\]]: `)
	// Which errors it has, and how many, depends on the random order of a map.
	untyped = regexp.MustCompile(`(?s)(failed to create typed patch object \([^)]*\)): .*`)
	port    = regexp.MustCompile(`(127\.0\.0\.1|192\.0\.2\.2):\d+`)
)

// plain marks what a server makes up.
func plain(s string) string {
	s = uid.ReplaceAllString(s, "<uid $0>")
	s = when.ReplaceAllStringFunc(s, func(v string) string {
		if strings.Contains(v, ".") {
			return "<microtime>"
		}
		return "<time>"
	})
	s = version.ReplaceAllString(s, `${1}"<version>`)
	s = record.ReplaceAllString(s, "<record>")
	s = current.ReplaceAllString(s, "${1}<now>")
	s = addresses.ReplaceAllString(s, "${1}<range>")
	s = object.ReplaceAllString(s, "${1}<object>: ")
	s = untyped.ReplaceAllString(s, "${1}: <errors>")
	return port.ReplaceAllString(s, "<host>")
}

// ordered puts what a server lists in a random order into a fixed one: the causes of an error, which upstream
// collects in maps, with the message that repeats them, and the conditions of a CRD, which controllers add side by
// side.
func ordered(o map[string]any) {
	details, _ := o["details"].(map[string]any)
	if causes, _ := details["causes"].([]any); len(causes) > 1 {
		slices.SortFunc(causes, func(a, b any) int { return strings.Compare(fmt.Sprint(a), fmt.Sprint(b)) })
	}
	if message, ok := o["message"].(string); ok && o["kind"] == "Status" {
		parts := strings.FieldsFunc(plain(message), func(r rune) bool { return strings.ContainsRune(", []\n", r) })
		slices.Sort(parts)
		o["message"] = strings.Join(parts, " ")
	}
	if status, _ := o["status"].(map[string]any); o["kind"] == "CustomResourceDefinition" {
		if all, ok := status["conditions"].([]any); ok {
			slices.SortFunc(all, func(a, b any) int { return strings.Compare(conditionType(a), conditionType(b)) })
		}
	}
}

func conditionType(v any) string {
	o, _ := v.(map[string]any)
	return stringOf(o, "type")
}

// mark is plain for a decoded body, below the key.
func mark(key string, v any) any {
	switch at := v.(type) {
	case map[string]any:
		ordered(at)
		keys := make([]string, 0, len(at))
		for k := range at {
			keys = append(keys, k)
		}
		sort.Strings(keys)
		if _, list := at["items"]; list && key == "" { // others write meanwhile
			if m, ok := at["metadata"].(map[string]any); ok && m["resourceVersion"] != nil &&
				m["resourceVersion"] != "" {
				m["resourceVersion"] = "0"
			}
		}
		out := make(map[string]any, len(at))
		for _, k := range keys {
			out[plain(k)] = mark(k, at[k])
		}
		return out
	case []any:
		out := make([]any, len(at))
		for i := range at {
			out[i] = mark(key, at[i])
		}
		return out
	case string:
		switch {
		case at == "":
			return at
		case key == "resourceVersion" && at != "0":
			return "<version " + at + ">"
		case key == "continue":
			return "<continue>"
		}
		return plain(at)
	}
	return v
}

// headers that are compared.
var headers = []string{"Content-Type", "Warning", "Allow", "Cache-Control", "Content-Encoding", "Location", "Vary",
	"Www-Authenticate", "X-Content-Type-Options",
	"Accept-Patch", "Retry-After", "X-From-Cache", "Content-Disposition", "Strict-Transport-Security"}

// compare is a line for each difference between the answers to a request.
func (p *pairs) compare(r request, a, b answer) []string {
	var out []string
	if fmt.Sprint(a.err) != fmt.Sprint(b.err) {
		return []string{fmt.Sprintf("error: %v ≠ %v", a.err, b.err)}
	}
	if a.status != b.status {
		out = append(out, fmt.Sprintf("status: %d ≠ %d", a.status, b.status))
	}
	for _, h := range headers {
		if x, y := strings.Join(upstreams(a.header[h]), " | "), strings.Join(b.header[h], " | "); x != y {
			out = append(out, fmt.Sprintf("%s: %q ≠ %q", h, x, y))
		}
	}
	if slices.Contains(r.ignore, "body") {
		return out
	}
	if strings.Contains(a.header.Get("Content-Type"), "protobuf") &&
		a.header.Get("Content-Type") == b.header.Get("Content-Type") {
		return out
	}
	if r.text || len(a.values) == 0 || len(b.values) == 0 {
		if x, y := string(a.raw), string(b.raw); !p.same(x, y) {
			out = append(out, texts(marked.ReplaceAllString(x, "<>"), marked.ReplaceAllString(y, "<>"))...)
		}
		return out
	}
	var x, y any = a.values, b.values
	if len(a.values) == 1 && len(b.values) == 1 {
		x, y = a.values[0], b.values[0]
	}
	p.differences("", x, y, func(path, line string) {
		for _, i := range r.ignore {
			if strings.HasPrefix(path, i) {
				return
			}
		}
		out = append(out, path+": "+line)
	})
	return out
}

// upstreams are the values of a header without those that only carob can have: warnings
// of kinds that nothing drives yet.
func upstreams(values []string) []string {
	var out []string
	for _, v := range values {
		if !strings.Contains(v, `"carob `) {
			out = append(out, v)
		}
	}
	return out
}

// texts is which lines only one of them has.
func texts(a, b string) []string {
	count := map[string]int{}
	for l := range strings.SplitSeq(b, "\n") {
		count[l]++
	}
	var out []string
	for l := range strings.SplitSeq(a, "\n") {
		if count[l]--; count[l] < 0 {
			out = append(out, "+ "+short(l))
		}
	}
	for l := range strings.SplitSeq(b, "\n") {
		if count[l] > 0 {
			count[l]--
			out = append(out, "- "+short(l))
		}
	}
	if len(out) == 0 {
		out = append(out, "the same lines in another order")
	}
	return out
}

func short(v any) string {
	s := fmt.Sprint(v)
	if _, ok := v.(string); ok {
		s = fmt.Sprintf("%q", v)
	}
	if len(s) > 600 {
		s = s[:600] + "…"
	}
	return s
}

func (p *pairs) differences(path string, a, b any, report func(path, line string)) {
	switch x := a.(type) {
	case map[string]any:
		y, ok := b.(map[string]any)
		if !ok {
			break
		}
		keys := map[string]bool{}
		for k := range x {
			keys[k] = true
		}
		for k := range y {
			keys[k] = true
		}
		sorted := make([]string, 0, len(keys))
		for k := range keys {
			sorted = append(sorted, k)
		}
		sort.Strings(sorted)
		for _, k := range sorted {
			v, left := x[k]
			w, right := y[k]
			at := path + "." + k
			if path == "" {
				at = k
			}
			switch {
			case !left:
				report(at, "only upstream: "+short(w))
			case !right:
				report(at, "only carob: "+short(v))
			default:
				p.differences(at, v, w, report)
			}
		}
		return
	case []any:
		y, ok := b.([]any)
		if !ok {
			break
		}
		if x, y, order, ok := keyed(x, y); ok {
			if order != "" {
				report(path, order)
			}
			p.differences(path, x, y, report)
			return
		}
		if len(x) != len(y) {
			report(path, fmt.Sprintf("%d ≠ %d items", len(x), len(y)))
		}
		for i := range min(len(x), len(y)) {
			p.differences(fmt.Sprintf("%s[%d]", path, i), x[i], y[i], report)
		}
		for i := len(y); i < len(x); i++ {
			report(fmt.Sprintf("%s[%d]", path, i), "only carob: "+short(x[i]))
		}
		for i := len(x); i < len(y); i++ {
			report(fmt.Sprintf("%s[%d]", path, i), "only upstream: "+short(y[i]))
		}
		return
	}
	if x, y := fmt.Sprintf("%T %v", a, a), fmt.Sprintf("%T %v", b, b); !p.same(x, y) {
		report(path, short(a)+" ≠ "+short(b))
	}
}

// keyed makes maps of two lists whose items have a name of their own, so that one item more, or another order, isn't
// a difference of all that follow. The order counts where both have the same names.
func keyed(a, b []any) (x, y map[string]any, order string, ok bool) {
	index := func(list []any) (map[string]any, []string) {
		out, keys := map[string]any{}, []string{}
		for _, v := range list {
			m, ok := v.(map[string]any)
			if !ok {
				return nil, nil
			}
			name, ok := m["name"].(string)
			if meta, isMap := m["metadata"].(map[string]any); isMap && !ok {
				name, ok = meta["name"].(string)
			}
			if _, twice := out[name]; !ok || twice {
				return nil, nil
			}
			out[name] = v
			keys = append(keys, name)
		}
		return out, keys
	}
	x, left := index(a)
	y, right := index(b)
	if x == nil || y == nil {
		return nil, nil, "", false
	}
	left = slices.DeleteFunc(left, func(k string) bool { return y[k] == nil })
	right = slices.DeleteFunc(right, func(k string) bool { return x[k] == nil })
	if !slices.Equal(left, right) {
		order = fmt.Sprintf("in order %v ≠ %v", left, right)
	}
	return x, y, order, true
}
