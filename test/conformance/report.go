package main

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
	"text/tabwriter"
	"time"
)

// readWaiting reads lines of a test's name, the parts it waits for (separated by
// commas) and where it does, with tabs between them.
func readWaiting(file string) (map[string]wait, error) {
	waiting := map[string]wait{}
	f, err := os.Open(file)
	if errors.Is(err, fs.ErrNotExist) {
		return waiting, nil
	}
	if err != nil {
		return nil, err
	}
	defer f.Close()
	sc := bufio.NewScanner(f)
	for sc.Scan() {
		l := strings.TrimSpace(sc.Text())
		if l == "" || strings.HasPrefix(l, "#") {
			continue
		}
		f := strings.Split(l, "\t")
		if len(f) != 3 || f[2] == "" {
			return nil, fmt.Errorf("%s: %q is not a name, parts and a reason with tabs between them", file, l)
		}
		w := wait{parts: strings.Split(f[1], ","), reason: f[1] + ": " + f[2]}
		for _, p := range w.parts {
			if _, ok := parts[p]; !ok {
				return nil, fmt.Errorf("%s: there is no part %q", file, p)
			}
		}
		waiting[f[0]] = w
	}
	return waiting, sc.Err()
}

var sig = regexp.MustCompile(`^\[(sig-[\w-]+)\]`)

// report prints a line per test and a table, and reports whether a test failed
// that should pass.
func report(w io.Writer, want []string, results map[string]spec, waiting map[string]wait) (failed bool) {
	type count struct{ pass, waits, fail, skip int }
	table := map[string]*count{"total": {}}
	for _, n := range want {
		group := "other"
		if m := sig.FindStringSubmatch(n); m != nil {
			group = m[1]
		}
		if table[group] == nil {
			table[group] = &count{}
		}
		r, ran := results[n]
		verdict, note := "FAIL", r.Failure.Location.String()+strings.Join(strings.Fields(r.Failure.Message), " ")
		add := func(c *count) { c.fail++ }
		switch w, waits := waiting[n]; {
		case waits && (!ran || r.State != "passed"):
			verdict, note, add = "WAITS", w.reason, func(c *count) { c.waits++ }
			if ran {
				note += "; " + r.Failure.Location.String()
			}
		case !ran || r.State == "skipped" || r.State == "pending":
			verdict, add, failed = "SKIP", func(c *count) { c.skip++ }, true
		case r.State == "passed" && waits:
			verdict, note, add = "PASS", "was thought to wait for "+w.reason+"; take it off the list",
				func(c *count) { c.pass++ }
		case r.State == "passed":
			verdict, note, add = "PASS", "", func(c *count) { c.pass++ }
		default:
			failed = true
		}
		add(table[group])
		add(table["total"])
		fmt.Fprintf(w, "%-5s %6.1fs %s\n", verdict, time.Duration(r.RunTime).Seconds(), n)
		if note != "" {
			fmt.Fprintf(w, "              %.300s\n", note)
		}
	}
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(tw, "\n\tpassed\twaits\tFAILED\tskipped\ttotal\t")
	for _, g := range slices.SortedFunc(maps.Keys(table), func(a, b string) int {
		if (a == "total") != (b == "total") {
			if a == "total" {
				return 1
			}
			return -1
		}
		return strings.Compare(a, b)
	}) {
		c := table[g]
		fmt.Fprintf(tw, "%s\t%d\t%d\t%d\t%d\t%d\t\n", g, c.pass, c.waits, c.fail, c.skip, c.pass+c.waits+c.fail+c.skip)
	}
	_ = tw.Flush()
	return failed
}
