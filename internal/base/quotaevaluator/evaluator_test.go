package quotaevaluator

import (
	"errors"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/admission"
	quota "k8s.io/apiserver/pkg/quota/v1"
)

var pods = schema.GroupResource{Resource: "pods"}

// rules count one pod for each object, and a CPU for those in the scope BestEffort.
type rules struct{ unscoped bool }

func (rules) Concerns(name corev1.ResourceName) bool {
	return name == corev1.ResourcePods || name == corev1.ResourceCPU
}

func (r rules) Scoped() bool { return !r.unscoped }

func (rules) InScope(s corev1.ScopedResourceSelectorRequirement, o runtime.Object) (bool, error) {
	if s.ScopeName == "Broken" {
		return false, errors.New("no such scope")
	}
	return o.(*corev1.Pod).Labels["scope"] == string(s.ScopeName), nil
}

func (rules) Usage(o runtime.Object, now time.Time) (corev1.ResourceList, error) {
	if now.IsZero() {
		return nil, errors.New("the usage depends on the time")
	}
	used := corev1.ResourceList{corev1.ResourcePods: resource.MustParse("1")}
	if o.(*corev1.Pod).Labels["scope"] == string(corev1.ResourceQuotaScopeBestEffort) {
		used[corev1.ResourceCPU] = resource.MustParse("1")
	}
	return used, nil
}

func (rules) Missing(required []corev1.ResourceName, _ runtime.Object) error {
	if slices.Contains(required, corev1.ResourceCPU) {
		return errors.New("must specify cpu")
	}
	return nil
}

func pod(name, scope string) *corev1.Pod {
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name,
		Labels: map[string]string{"scope": scope}}}
}

func scope(names ...corev1.ResourceQuotaScope) (out []corev1.ScopedResourceSelectorRequirement) {
	for _, n := range names {
		out = append(out, corev1.ScopedResourceSelectorRequirement{ScopeName: n,
			Operator: corev1.ScopeSelectorOpExists})
	}
	return out
}

func names(of []corev1.ScopedResourceSelectorRequirement) (out []corev1.ResourceQuotaScope) {
	for _, s := range of {
		out = append(out, s.ScopeName)
	}
	return out
}

// Each question of the admission plugin is answered by the rules.
func TestEvaluatorUsesTheRules(t *testing.T) {
	counts := false
	e := New(pods, rules{}, func(admission.Attributes) bool { return counts }, nil)
	if e.GroupResource() != pods {
		t.Error(e.GroupResource())
	}
	for _, counts = range []bool{true, false} {
		if e.Handles(nil) != counts {
			t.Errorf("handles a request: %v, want %v", !counts, counts)
		}
	}
	if New(pods, rules{}, nil, nil).Handles(nil) {
		t.Error("an evaluator without requests to check handles one")
	}
	got := e.MatchingResources([]corev1.ResourceName{"pods", "memory", "cpu"})
	if !slices.Equal(got, []corev1.ResourceName{"pods", "cpu"}) {
		t.Error(got)
	}
	if e.Constraints([]corev1.ResourceName{"cpu"}, pod("a", "")) == nil ||
		e.Constraints([]corev1.ResourceName{"pods"}, pod("a", "")) != nil {
		t.Error("not the rules say what is missing")
	}
	if used, err := e.Usage(pod("a", "BestEffort")); err != nil || used.Cpu().Value() != 1 {
		t.Error(used, err)
	}
}

func TestScopes(t *testing.T) {
	e, unscoped := New(pods, rules{}, nil, nil), New(pods, rules{unscoped: true}, nil, nil)
	all := scope("BestEffort", "Terminating")
	in, err := e.MatchingScopes(pod("a", "BestEffort"), all)
	if err != nil || !slices.Equal(names(in), []corev1.ResourceQuotaScope{"BestEffort"}) {
		t.Error(in, err)
	}
	if _, err := e.MatchingScopes(pod("a", ""), scope("BestEffort", "Broken")); err == nil {
		t.Error("a scope that cannot be matched is not an error")
	}
	// A limited scope is covered by any quota with that scope, whatever its operator.
	covered := slices.Clone(in)
	covered[0].Operator = corev1.ScopeSelectorOpDoesNotExist
	left, err := e.UncoveredQuotaScopes(all, covered)
	if err != nil || !slices.Equal(names(left), []corev1.ResourceQuotaScope{"Terminating"}) {
		t.Error(left, err)
	}
	for _, f := range []func() ([]corev1.ScopedResourceSelectorRequirement, error){
		func() ([]corev1.ScopedResourceSelectorRequirement, error) {
			return unscoped.MatchingScopes(pod("a", "BestEffort"), all)
		},
		func() ([]corev1.ScopedResourceSelectorRequirement, error) {
			return unscoped.UncoveredQuotaScopes(all, nil)
		},
	} {
		if got, err := f(); err != nil || got == nil || len(got) > 0 {
			t.Errorf("a kind without scopes: %v, %v", got, err)
		}
	}
}

// A quota matches an object if it limits a resource of the kind, and the object is in its scopes.
func TestMatches(t *testing.T) {
	e := New(pods, rules{}, nil, nil)
	for _, tt := range []struct {
		limits string
		scopes []corev1.ResourceQuotaScope
		want   bool
	}{
		{"pods", nil, true}, {"memory", nil, false},
		{"pods", []corev1.ResourceQuotaScope{"BestEffort"}, true},
		{"pods", []corev1.ResourceQuotaScope{"Terminating"}, false},
	} {
		q := &corev1.ResourceQuota{Spec: corev1.ResourceQuotaSpec{Scopes: tt.scopes},
			Status: corev1.ResourceQuotaStatus{Hard: corev1.ResourceList{
				corev1.ResourceName(tt.limits): resource.MustParse("1")}}}
		if got, err := e.Matches(q, pod("a", "BestEffort")); err != nil || got != tt.want {
			t.Errorf("%+v: %v, %v", tt, got, err)
		}
	}
}

// The usage of a namespace is the sum over its objects in the scopes of the quota.
func TestUsageStats(t *testing.T) {
	fails := false
	list := func(gr schema.GroupResource, namespace string) ([]runtime.Object, error) {
		if gr != pods || namespace != "ns" {
			t.Errorf("lists %s of %s", gr, namespace)
		}
		if fails {
			return nil, errors.New("no list")
		}
		return []runtime.Object{pod("a", ""), pod("b", "BestEffort"), pod("c", "BestEffort")}, nil
	}
	e := New(pods, rules{}, nil, list)
	for _, tt := range []struct {
		scopes    []corev1.ResourceQuotaScope
		pods, cpu int64
	}{
		{nil, 3, 2}, {[]corev1.ResourceQuotaScope{"BestEffort"}, 2, 2},
		{[]corev1.ResourceQuotaScope{"Terminating"}, 0, 0},
	} {
		got, err := e.UsageStats(quota.UsageStatsOptions{Namespace: "ns", Scopes: tt.scopes,
			Resources: []corev1.ResourceName{"pods", "cpu"}})
		if err != nil || got.Used.Pods().Value() != tt.pods || got.Used.Cpu().Value() != tt.cpu {
			t.Errorf("%v: %v, %v", tt.scopes, got.Used, err)
		}
	}
	counted, err := Count(pods, list, "services").UsageStats(quota.UsageStatsOptions{Namespace: "ns",
		Resources: []corev1.ResourceName{"count/pods", "services"}})
	byName, byAlias := counted.Used["count/pods"], counted.Used["services"]
	if err != nil || byName.Value() != 3 || byAlias.Value() != 3 {
		t.Error(counted, err)
	}
	fails = true
	if _, err := e.UsageStats(quota.UsageStatsOptions{Namespace: "ns"}); err == nil {
		t.Error("a list that fails counts as an empty one")
	}
}
