package daemonset

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

// broken is the panic value of a failed check.
type broken string

type recorder struct{}

func (recorder) Helper() {}

func (recorder) Fatalf(format string, a ...any) { panic(broken(fmt.Sprintf(format, a...))) }

// breaksInvariant reports whether one of many random histories breaks a promise.
func breaksInvariant(t *testing.T, seeds uint64, sabotage func(in *Input)) bool {
	t.Helper()
	for seed := range seeds {
		rng := rand.New(rand.NewPCG(seed, 4))
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
			history(recorder{}, func(_ string, n int) int { return rng.IntN(n) }, sabotage)
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
	rolling := func(f func(r *appsv1.RollingUpdateDaemonSet)) func(in *Input) {
		return func(in *Input) {
			if r := in.Set.Spec.UpdateStrategy.RollingUpdate; r != nil {
				f(r)
			}
		}
	}
	for name, s := range map[string]func(in *Input){
		"one pod for each node (W4.36)": func(in *Input) {
			in.Pods = slices.DeleteFunc(slices.Clone(in.Pods),
				func(p *corev1.Pod) bool { return p.DeletionTimestamp != nil })
		},
		"eligible nodes only (W4.12)": func(in *Input) { in.Set.Spec.Template.Spec.NodeSelector = nil },
		"taints (W4.14)": func(in *Input) {
			in.Set.Spec.Template.Spec.Tolerations = []corev1.Toleration{{Operator: corev1.TolerationOpExists}}
		},
		"maxUnavailable (W4.53)": rolling(func(r *appsv1.RollingUpdateDaemonSet) {
			if r.MaxSurge == nil || r.MaxSurge.IntVal == 0 {
				r.MaxUnavailable = new(intstr.FromString("100%"))
			}
		}),
		"maxSurge (W4.54)": rolling(func(r *appsv1.RollingUpdateDaemonSet) {
			if r.MaxSurge != nil && r.MaxSurge.IntVal > 0 {
				r.MaxSurge = new(intstr.FromString("100%"))
			}
		}),
		"the old pod stays until the new one serves (W4.38)": func(in *Input) {
			in.Pods = slices.Clone(in.Pods)
			for i, p := range in.Pods {
				if p.DeletionTimestamp == nil && !workload.Terminal(p) && surges(in.Set) {
					in.Pods[i] = p.DeepCopy()
					(&world{now: begin}).setReady(in.Pods[i], true)
				}
			}
		},
		"pods of the new template (W4.51)": func(in *Input) {
			in.Hash = "other"
			delete(in.Set.Annotations, appsv1.DeprecatedTemplateGeneration)
		},
		"updates end (W4.53)": func(in *Input) {
			in.Set.Spec.UpdateStrategy.Type = appsv1.OnDeleteDaemonSetStrategyType
		},
		"status (W4.61)":          func(in *Input) { in.Nodes = in.Nodes[:max(0, len(in.Nodes)-1)] },
		"minReadySeconds (W4.64)": func(in *Input) { in.Set.Spec.MinReadySeconds = 0 },
		"generation (W0.71)":      func(in *Input) { in.Set.Generation = 1 },
	} {
		if !breaksInvariant(t, 2000, s) {
			t.Errorf("%s: the checks do not notice the sabotage", name)
		}
	}
	if breaksInvariant(t, 200, nil) {
		t.Error("the checks fail without a sabotage")
	}
}
