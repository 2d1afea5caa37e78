package main

import (
	"strings"
	"testing"
)

func TestReport(t *testing.T) {
	passed, failed := spec{State: "passed"}, spec{State: "failed"}
	failed.Failure.Message = "it\n broke"
	known := map[string]string{"[sig-a] waits": "for services", "[sig-a] fixed": "no reason any more"}
	for name, x := range map[string]struct {
		results map[string]spec
		want    []string // names asked for
		text    string
		failed  bool
	}{
		"passes":               {map[string]spec{"[sig-a] x": passed}, []string{"[sig-a] x"}, "PASS", false},
		"fails":                {map[string]spec{"[sig-a] x": failed}, []string{"[sig-a] x"}, "it broke", true},
		"did not run":          {nil, []string{"[sig-a] x"}, "SKIP", true},
		"is known":             {nil, []string{"[sig-a] waits"}, "for services", false},
		"is known and was run": {map[string]spec{"[sig-a] waits": failed}, []string{"[sig-a] waits"}, "KNOWN", false},
		"is known and passes":  {map[string]spec{"[sig-a] fixed": passed}, []string{"[sig-a] fixed"}, "take it off the list", false},
	} {
		var out strings.Builder
		if got := report(&out, x.want, x.results, known); got != x.failed || !strings.Contains(out.String(), x.text) {
			t.Errorf("a test that %s: failed %v, printed\n%s", name, got, out.String())
		}
	}
}
