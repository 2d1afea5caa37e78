package modelrules

import (
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"carob/internal/core/gatewayplan/inferenceapi"
)

// How model names are resolved: the shares, unknown names, and the precedence of objectives.
func TestResolve(t *testing.T) {
	m := New()
	for _, spec := range []inferenceapi.ModelSpec{
		{ModelName: "llama2", Criticality: "Critical", TargetModels: []inferenceapi.TargetModel{
			{Name: "old", Weight: new(int32(75))}, {Name: "new", Weight: new(int32(25))}}},
		{ModelName: "spare", Criticality: "Sheddable",
			TargetModels: []inferenceapi.TargetModel{{Name: "x"}, {Name: "y"}}},
	} {
		if !m.AddModel(&inferenceapi.Model{Spec: spec}) {
			t.Errorf("%s is not added", spec.ModelName)
		}
	}
	if m.AddModel(&inferenceapi.Model{Spec: inferenceapi.ModelSpec{ModelName: "llama2"}}) {
		t.Error("a second model of one name is added")
	}
	m.AddObjective(&inferenceapi.Objective{ObjectMeta: metav1.ObjectMeta{Name: "urgent"},
		Spec: inferenceapi.ObjectiveSpec{Priority: new(int32(9))}})
	count := map[string]int{}
	for n := range uint64(1000) {
		r := m.Resolve("llama2", "", n)
		count[r.Target]++
		if !r.Known || r.Priority != priorityCritical {
			t.Fatalf("%+v", r)
		}
	}
	if count["old"] != 750 || count["new"] != 250 {
		t.Error(count)
	}
	for _, c := range []struct {
		name, objective string
		want            Resolved
	}{
		{"spare", "", Resolved{"y", prioritySheddable, true}},
		{"nobody", "", Resolved{"nobody", prioritySheddable, false}},
		{"nobody", "urgent", Resolved{"nobody", 9, false}},
		{"llama2", "unknown", Resolved{"new", priorityCritical, true}},
		{"spare", "unknown", Resolved{"y", prioritySheddable, true}},
	} {
		if got := m.Resolve(c.name, c.objective, 99); got != c.want {
			t.Errorf("%s %s: %+v, not %+v", c.name, c.objective, got, c.want)
		}
	}
	if got := (*Rules)(nil).Resolve("m", "o", 1); got != (Resolved{Target: "m"}) {
		t.Errorf("a pool without models: %+v", got)
	}
}
