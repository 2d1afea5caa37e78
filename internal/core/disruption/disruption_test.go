package disruption

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"pgregory.net/rapid"
)

func pods(healthy, unhealthy int) []*corev1.Pod {
	var out []*corev1.Pod
	for i := range healthy + unhealthy {
		status := corev1.ConditionTrue
		if i >= healthy {
			status = corev1.ConditionFalse
		}
		out = append(out, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: string(rune('a' + i))},
			Status: corev1.PodStatus{Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: status}}}})
	}
	return out
}

func TestDecide(t *testing.T) {
	minInt, minPercent, maxInt, maxPercent := intstr.FromInt32(2), intstr.FromString("50%"), intstr.FromInt32(1),
		intstr.FromString("30%")
	for _, c := range []struct {
		name                               string
		spec                               policyv1.PodDisruptionBudgetSpec
		pods                               []*corev1.Pod
		scale                              int32
		expected, desired, healthy, allows int32
	}{
		{"W10.13 at least two of three", policyv1.PodDisruptionBudgetSpec{MinAvailable: &minInt}, pods(3, 0), 0,
			3, 2, 3, 1},
		{"W10.13, W10.17 at least two, one is sick",
			policyv1.PodDisruptionBudgetSpec{MinAvailable: &minInt}, pods(2, 1),
			0, 3, 2, 2, 0},
		{"W10.14 half of five rounds up", policyv1.PodDisruptionBudgetSpec{MinAvailable: &minPercent},
			pods(5, 0), 5, 5, 3, 5, 2},
		{"W10.12 one may be missing",
			policyv1.PodDisruptionBudgetSpec{MaxUnavailable: &maxInt}, pods(3, 0), 3, 3, 2, 3, 1},
		{"W10.12, W10.17 one is missing already", policyv1.PodDisruptionBudgetSpec{MaxUnavailable: &maxInt}, pods(2, 0),
			3, 3, 2, 2, 0},
		{"W10.12, W12.4 a third rounds up", policyv1.PodDisruptionBudgetSpec{MaxUnavailable: &maxPercent}, pods(4, 0),
			4, 4, 2, 4, 2},
		{"W10.17, W12.37 nothing selected", policyv1.PodDisruptionBudgetSpec{MaxUnavailable: &maxInt}, nil,
			0, 0, 0, 0, 0},
	} {
		s, _, err := Decide(Input{Budget: &policyv1.PodDisruptionBudget{Spec: c.spec}, Pods: c.pods, Scale: c.scale})
		if err != nil || s.ExpectedPods != c.expected || s.DesiredHealthy != c.desired ||
			s.CurrentHealthy != c.healthy || s.DisruptionsAllowed != c.allows {
			t.Errorf("%s: %+v, %v", c.name, s, err)
		}
	}
}

// W10.17, W10.18: a pod with a recorded eviction does not count as healthy until its deletion is overdue.
func TestEvictedPod(t *testing.T) {
	least, now := intstr.FromInt32(1), time.Unix(1000, 0)
	b := &policyv1.PodDisruptionBudget{Spec: policyv1.PodDisruptionBudgetSpec{MinAvailable: &least},
		Status: policyv1.PodDisruptionBudgetStatus{DisruptedPods: map[string]metav1.Time{"a": metav1.NewTime(now),
			"gone": metav1.NewTime(now)}}}
	s, again, err := Decide(Input{Now: now.Add(time.Minute), Budget: b, Pods: pods(2, 0)})
	if err != nil || s.DisruptionsAllowed != 0 || len(s.DisruptedPods) != 1 || again != time.Minute {
		t.Errorf("%+v, again %v, %v", s, again, err)
	}
	s, again, err = Decide(Input{Now: now.Add(Patience), Budget: b, Pods: pods(2, 0)})
	if err != nil || s.DisruptionsAllowed != 1 || len(s.DisruptedPods) != 0 || again != 0 {
		t.Errorf("%+v, again %v, %v", s, again, err)
	}
}

// The allowed disruptions never leave fewer healthy pods than required.
func TestNeverTooMany(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		healthy, unhealthy := rapid.IntRange(0, 8).Draw(t, "healthy"), rapid.IntRange(0, 8).Draw(t, "sick")
		least := intstr.FromInt32(int32(rapid.IntRange(0, 10).Draw(t, "least")))
		s, _, err := Decide(
			Input{Budget: &policyv1.PodDisruptionBudget{Spec: policyv1.PodDisruptionBudgetSpec{MinAvailable: &least}},
				Pods: pods(healthy, unhealthy)})
		if err != nil || s.DisruptionsAllowed < 0 || s.DisruptionsAllowed > 0 &&
			s.CurrentHealthy-s.DisruptionsAllowed < least.IntVal {
			t.Fatalf("%+v, %v", s, err)
		}
	})
}
