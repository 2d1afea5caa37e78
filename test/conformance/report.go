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

// readKnown reads lines of a test's name, a tab and the reason why it can't pass.
func readKnown(file string) (map[string]string, error) {
	known := map[string]string{}
	f, err := os.Open(file)
	if errors.Is(err, fs.ErrNotExist) {
		return known, nil
	}
	if err != nil {
		return nil, err
	}
	defer f.Close()
	for sc := bufio.NewScanner(f); sc.Scan(); {
		l := strings.TrimSpace(sc.Text())
		if l == "" || strings.HasPrefix(l, "#") {
			continue
		}
		name, reason, ok := strings.Cut(l, "\t")
		if !ok {
			return nil, fmt.Errorf("%s: %q has no reason after a tab", file, l)
		}
		known[name] = reason
	}
	return known, nil
}

var sig = regexp.MustCompile(`^\[(sig-[\w-]+)\]`)

// report prints a line per test and a table, and reports whether a test failed
// that should pass.
func report(w io.Writer, want []string, results map[string]spec, known map[string]string) (failed bool) {
	type count struct{ pass, fail, known, other int }
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
		verdict, note := "FAIL", strings.Join(strings.Fields(r.Failure.Message), " ")
		add := func(c *count) { c.fail++ }
		switch reason, isKnown := known[n]; {
		case isKnown && (!ran || r.State != "passed"):
			verdict, note, add = "KNOWN", reason, func(c *count) { c.known++ }
		case !ran || r.State == "skipped" || r.State == "pending":
			verdict, add, failed = "SKIP", func(c *count) { c.other++ }, true
		case r.State == "passed" && isKnown:
			verdict, note, add = "PASS", "expected to fail: "+reason+"; take it off the list", func(c *count) { c.pass++ }
		case r.State == "passed":
			verdict, add = "PASS", func(c *count) { c.pass++ }
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
	fmt.Fprintln(tw, "\n\tpassed\tfailed\tknown\tskipped\t")
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
		fmt.Fprintf(tw, "%s\t%d\t%d\t%d\t%d\t\n", g, c.pass, c.fail, c.known, c.other)
	}
	_ = tw.Flush()
	return failed
}
