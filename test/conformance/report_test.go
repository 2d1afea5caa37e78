package main

import (
	"strings"
	"testing"
)

func TestReport(t *testing.T) {
	passed, failed := spec{State: "passed"}, spec{State: "failed"}
	failed.Failure.Message, failed.Failure.Location = "it\n broke",
		location{"/go/k8s.io/kubernetes/test/e2e/apps/job.go", 7}
	waiting := map[string]wait{"[sig-a] waits": {reason: "services: for an address"},
		"[sig-a] fixed": {reason: "no reason any more"}}
	for name, x := range map[string]struct {
		results map[string]spec
		want    []string // names asked for
		text    string
		failed  bool
	}{
		"passes": {map[string]spec{"[sig-a] x": passed}, []string{"[sig-a] x"}, "PASS", false},
		"fails": {map[string]spec{"[sig-a] x": failed}, []string{"[sig-a] x"}, "apps/job.go:7: it broke",
			true},
		"did not run":       {nil, []string{"[sig-a] x"}, "SKIP", true},
		"waits":             {nil, []string{"[sig-a] waits"}, "services: for an address", false},
		"waits and was run": {map[string]spec{"[sig-a] waits": failed}, []string{"[sig-a] waits"}, "WAITS", false},
		"waits and passes": {map[string]spec{"[sig-a] fixed": passed}, []string{"[sig-a] fixed"},
			"take it off the list", false},
	} {
		var out strings.Builder
		if got := report(&out, x.want, x.results, waiting); got != x.failed || !strings.Contains(out.String(), x.text) {
			t.Errorf("a test that %s: failed %v, printed\n%s", name, got, out.String())
		}
	}
}

func TestWaiting(t *testing.T) {
	waiting, err := readWaiting("waiting.txt")
	if err != nil {
		t.Fatal(err)
	}
	if len(waiting) == 0 {
		t.Error("waiting.txt is empty: remove it, and the option")
	}
	names, controllers, err := standIns("endpoints")
	if err != nil || len(controllers) == 0 {
		t.Fatal(controllers, err)
	}
	for _, x := range []struct {
		parts []string
		want  bool
	}{{[]string{"endpoints"}, true}, {nil, true}, {[]string{"endpoints", "dns"}, false}} {
		if got := (wait{parts: x.parts}).onlyFor(names); got != x.want {
			t.Errorf("waits only for %v, of %v: %v", names, x.parts, got)
		}
	}
	if _, _, err := standIns("dns"); err == nil {
		t.Error("upstream's controllers are no DNS server")
	}
}
