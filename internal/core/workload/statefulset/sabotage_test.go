package statefulset

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"carob/internal/core/workload"
)

// sabotage changes decisions, to show that the checks of random histories notice it.
type sabotage struct {
	in     func(in *Input)          // changes the input of Decide; the set is a copy
	plan   func(in *Input, p *Plan) // changes its output
	forget bool                     // Revise sees no revisions
	hoard  bool                     // no revision is deleted
}

// broken is the panic value of a failed check.
type broken string

type recorder struct{}

func (recorder) Helper() {}

func (recorder) Fatalf(format string, a ...any) { panic(broken(fmt.Sprintf(format, a...))) }

// breaksInvariant reports whether one of many random histories breaks a promise.
func breaksInvariant(t *testing.T, seeds uint64, s *sabotage, run func(tester, picker, *sabotage)) bool {
	t.Helper()
	for seed := range seeds {
		rng := rand.New(rand.NewPCG(seed, 3))
		message := func() (message string) {
			defer func() {
				if r := recover(); r != nil {
					b, ok := r.(broken)
					if !ok {
						panic(r)
					}
					message = string(b)
				}
			}()
			run(recorder{}, func(_ string, n int) int { return rng.IntN(n) }, s)
			return ""
		}()
		if message != "" {
			t.Logf("seed %d: %.120s", seed, message)
			return true
		}
	}
	return false
}

// For each promise of the random histories, a sabotage breaks it, and the checks notice.
func TestChecksFindSabotage(t *testing.T) {
	for name, s := range map[string]*sabotage{
		"creation in order (W3.42)": {in: func(in *Input) {
			in.Set.Spec.PodManagementPolicy = appsv1.ParallelPodManagement
		}},
		"deletion in order (W3.45)": {plan: func(in *Input, p *Plan) {
			for _, stage := range p.Stages {
				for i := range stage {
					if o, _ := Ordinal("web", stage[i].Pod.Name); stage[i].Action == Delete && !inRange(in.Set, o) {
						for _, lower := range in.Pods { // another pod to be deleted
							if l, _ := Ordinal("web", lower.Name); l < o && !inRange(in.Set, l) &&
								lower.DeletionTimestamp == nil {
								stage[i].Pod = lower
							}
						}
					}
				}
			}
		}},
		"no second pod of an ordinal (W3.47)": {in: func(in *Input) {
			in.Pods = slices.DeleteFunc(slices.Clone(in.Pods),
				func(p *corev1.Pod) bool { return p.DeletionTimestamp != nil })
		}},
		"one creation at a time (W3.43)": {in: func(in *Input) {
			in.Pods = slices.Clone(in.Pods)
			for i, p := range in.Pods {
				if p.DeletionTimestamp == nil && !workload.Terminal(p) {
					in.Pods[i] = p.DeepCopy()
					setReady(in.Pods[i], begin, true)
				}
			}
		}},
		"maxUnavailable (W3.61)": {in: func(in *Input) {
			if r := in.Set.Spec.UpdateStrategy.RollingUpdate; r != nil {
				r.MaxUnavailable = new(intstr.FromString("100%"))
			}
		}},
		"partition (W3.62)": {in: func(in *Input) {
			if r := in.Set.Spec.UpdateStrategy.RollingUpdate; r != nil {
				r.Partition = new(int32)
			}
		}},
		"OnDelete (W3.60)": {in: func(in *Input) {
			in.Set.Spec.UpdateStrategy.Type = appsv1.RollingUpdateStatefulSetStrategyType
		}},
		"minReadySeconds (W3.43)": {in: func(in *Input) { in.Set.Spec.MinReadySeconds = 0 }},
		"updates end (W3.62)": {in: func(in *Input) {
			in.Set.Spec.UpdateStrategy.Type = appsv1.OnDeleteStatefulSetStrategyType
		}},
		"history limit (W3.26)": {hoard: true},
	} {
		if !breaksInvariant(t, 2000, s, history) {
			t.Errorf("%s: the checks do not notice the sabotage", name)
		}
	}
	if !breaksInvariant(t, 2000, &sabotage{forget: true}, rollback) {
		t.Error("rollback ends where it said (W3.23): the checks do not notice the sabotage")
	}
	for _, run := range []func(tester, picker, *sabotage){history, rollback} {
		if breaksInvariant(t, 200, nil, run) {
			t.Error("the checks fail without a sabotage")
		}
	}
}
