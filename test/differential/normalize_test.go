package main

import (
	"encoding/json"
	"testing"
)

// What a server lists in a random order, and what is configured otherwise, is no difference; another reason is.
func TestRandomOrderIsNoDifference(t *testing.T) {
	decoded := func(text string) answer {
		var v any
		if err := json.Unmarshal([]byte(text), &v); err != nil {
			t.Fatal(err)
		}
		return answer{status: 422, values: []any{mark("", v)}, raw: []byte(text)}
	}
	for _, c := range []struct {
		a, b string
		same bool
	}{
		{`{"kind":"Status","message":"[a: no, b: bad]","details":{"causes":[{"field":"a"},{"field":"b"}]}}`,
			`{"kind":"Status","message":"[b: bad, a: no]","details":{"causes":[{"field":"b"},{"field":"a"}]}}`, true},
		{`{"kind":"Status","message":"a: wrong","details":{"causes":[{"field":"a"}]}}`,
			`{"kind":"Status","message":"b: wrong","details":{"causes":[{"field":"b"}]}}`, false},
		{`{"kind":"Status","message":"Invalid value: {\"capabilities\":{}}: no"}`,
			`{"kind":"Status","message":"Invalid value: {\"Capabilities\":null}: no"}`, true},
		{`{"kind":"Status","message":"The range of valid IPs is 10.96.0.0/16"}`,
			`{"kind":"Status","message":"The range of valid IPs is 10.201.0.0/16"}`, true},
		{`{"kind":"Status","message":"failed to create typed patch object (a/b; v1, Kind=C): .x: no"}`,
			`{"kind":"Status","message":"failed to create typed patch object (a/b; v1, Kind=C): errors:\\n .y: no"}`,
			true},
		{`{"kind":"CustomResourceDefinition","status":{"conditions":[{"type":"A"},{"type":"B"}]}}`,
			`{"kind":"CustomResourceDefinition","status":{"conditions":[{"type":"B"},{"type":"A"}]}}`, true},
		{`{"kind":"Pod","status":{"conditions":[{"type":"A"},{"type":"B"}]}}`,
			`{"kind":"Pod","status":{"conditions":[{"type":"B"},{"type":"A"}]}}`, false},
	} {
		if found := newPairs().compare(request{}, decoded(c.a), decoded(c.b)); (len(found) == 0) != c.same {
			t.Errorf("%s and %s: %v", c.a, c.b, found)
		}
	}
}

// A claim that names no class gets carob's; one that names a class keeps it.
func TestConfigurationIsNoDifference(t *testing.T) {
	claim := func(spec map[string]any) map[string]any {
		return map[string]any{"kind": "PersistentVolumeClaim", "spec": spec}
	}
	if got := configured(claim(map[string]any{})); len(got) != 1 || got[0] != "spec.storageClassName" {
		t.Errorf("a claim without a class: %v", got)
	}
	if got := configured(claim(map[string]any{"storageClassName": "fast"})); got != nil {
		t.Errorf("a claim of a class: %v", got)
	}
	role := func(name string) map[string]any {
		return map[string]any{"kind": "ClusterRole", "metadata": map[string]any{"name": name}}
	}
	if !builtIn(role(metricsReader)) || builtIn(role("reader")) {
		t.Error("only the role of the metrics API is built in")
	}
}
