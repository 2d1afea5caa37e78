package vpa

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"pgregory.net/rapid"
)

func list(cpu, memory string) corev1.ResourceList {
	out := corev1.ResourceList{}
	if cpu != "" {
		out[corev1.ResourceCPU] = resource.MustParse(cpu)
	}
	if memory != "" {
		out[corev1.ResourceMemory] = resource.MustParse(memory)
	}
	return out
}

// recommends gives an autoscaler a recommendation for container c0, between bounds.
func recommends(low, cpu, high string) func(*VerticalPodAutoscaler) {
	return func(v *VerticalPodAutoscaler) {
		v.Status.Recommendation = &Recommendation{Containers: []ContainerRecommendation{{ContainerName: "c0",
			LowerBound: list(low, "10Mi"), Target: list(cpu, "100Mi"), UpperBound: list(high, "1Gi")}}}
	}
}

func mode(m UpdateMode, replicas int32) func(*VerticalPodAutoscaler) {
	return func(v *VerticalPodAutoscaler) {
		v.Spec.UpdatePolicy = &UpdatePolicy{UpdateMode: &m, MinReplicas: &replicas}
	}
}

// owned returns a running pod of ReplicaSet r with these requests.
func owned(name, cpu, memory string, change ...func(*corev1.Pod)) *corev1.Pod {
	p := podOf(name, 1, 0)
	p.UID, p.Spec.NodeName = types.UID(name), "n"
	p.OwnerReferences = []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "ReplicaSet", Name: "r", UID: "r",
		Controller: new(true)}}
	p.Spec.Containers[0].Resources.Requests = list(cpu, memory)
	started := metav1.NewTime(traceStart)
	p.Status.StartTime = &started
	for _, c := range change {
		c(p)
	}
	return p
}

func condition(kind corev1.PodConditionType, reason string) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		p.Status.Conditions = append(p.Status.Conditions,
			corev1.PodCondition{Type: kind, Status: corev1.ConditionTrue, Reason: reason})
	}
}

func scaleOf(n int) func(Owner) (int, bool) { return func(Owner) (int, bool) { return n, true } }

// W9.51, W9.54–W9.56: which pods are changed, and in which order; with one replica none (W12.34).
func TestCandidates(t *testing.T) {
	for _, c := range []struct {
		what   string
		pods   []*corev1.Pod
		after  time.Duration
		change func(*VerticalPodAutoscaler)
		want   string
	}{
		{what: "within the bounds", pods: []*corev1.Pod{owned("a", "150m", "100Mi")}},
		{what: "within the bounds, grown up, 10 % off", pods: []*corev1.Pod{owned("a", "180m", "100Mi")},
			after: 12 * time.Hour, want: "a"},
		{what: "within the bounds, not quite grown up", pods: []*corev1.Pod{owned("a", "180m", "100Mi")},
			after: 12*time.Hour - time.Second},
		{what: "within the bounds, grown up, less than 10 % off", pods: []*corev1.Pod{owned("a", "199m", "100Mi")},
			after: 13 * time.Hour},
		{what: "below and above", pods: []*corev1.Pod{owned("above", "900m", "100Mi"), owned("below", "10m", "100Mi"),
			owned("far", "1m", "100Mi")}, want: "far below above"},
		{what: "without requests", pods: []*corev1.Pod{owned("a", "", "")}, want: "a"},
		{what: "added later than admission looked", pods: []*corev1.Pod{owned("a", "10m", "1Mi", func(p *corev1.Pod) {
			p.Annotations = map[string]string{ObservedAnnotation: "other"}
		})}},
		{what: "an annotation that is not a list of names", pods: []*corev1.Pod{owned("a", "10m", "1Mi",
			func(p *corev1.Pod) { p.Annotations = map[string]string{ObservedAnnotation: "c0\x00, ../.."} })},
			want: "a"},
		{what: "killed early", pods: []*corev1.Pod{owned("a", "150m", "100Mi", func(p *corev1.Pod) {
			p.Status.ContainerStatuses[0].LastTerminationState.Terminated = &corev1.ContainerStateTerminated{
				Reason: "OOMKilled", StartedAt: metav1.NewTime(traceStart), FinishedAt: metav1.NewTime(traceStart)}
		})}, after: time.Minute, want: "a"},
		{what: "killed early, long ago", pods: []*corev1.Pod{owned("a", "150m", "100Mi", func(p *corev1.Pod) {
			p.Status.ContainerStatuses[0].LastTerminationState.Terminated = &corev1.ContainerStateTerminated{
				Reason: "OOMKilled", StartedAt: metav1.NewTime(traceStart), FinishedAt: metav1.NewTime(traceStart)}
		})}, after: time.Hour},
		{what: "a requirement that does not hold", pods: []*corev1.Pod{owned("a", "10m", "100Mi")},
			change: func(v *VerticalPodAutoscaler) {
				v.Spec.UpdatePolicy.EvictionRequirements = []EvictionRequirement{{
					Resources: []corev1.ResourceName{"cpu"}, ChangeRequirement: TargetLowerThanRequests}}
			}},
		{what: "one that holds", pods: []*corev1.Pod{owned("a", "10m", "100Mi")},
			change: func(v *VerticalPodAutoscaler) {
				v.Spec.UpdatePolicy.EvictionRequirements = []EvictionRequirement{{
					Resources: []corev1.ResourceName{"cpu"}, ChangeRequirement: TargetHigherThanRequests}}
			}, want: "a"},
		{what: "too few", pods: []*corev1.Pod{owned("a", "10m", "100Mi")},
			change: func(v *VerticalPodAutoscaler) { v.Spec.UpdatePolicy.MinReplicas = new(int32(2)) }},
		{what: "of nobody", pods: []*corev1.Pod{owned("a", "10m", "100Mi",
			func(p *corev1.Pod) { p.OwnerReferences = nil })}},
		{what: "being deleted", pods: []*corev1.Pod{owned("a", "10m", "100Mi", func(p *corev1.Pod) {
			p.DeletionTimestamp = &metav1.Time{Time: traceStart}
		})}},
	} {
		v := autoscaler(mode(ModeRecreate, 1), recommends("100m", "200m", "500m"))
		if c.change != nil {
			c.change(v)
		}
		r := NewRound(v, c.pods, scaleOf(len(c.pods)), Ranges{}, Resizes{}, traceStart.Add(c.after))
		// All pods of a group may be candidates, although only some may change at a time.
		var got []string
		for _, p := range r.Candidates() {
			got = append(got, p.Name)
		}
		if strings.Join(got, " ") != c.want {
			t.Errorf("%s: %q, want %q", c.what, got, c.want)
		}
	}
}

// W9.8, W9.58, W9.59: the action for a pod in mode InPlaceOrRecreate, by the state of a resize in flight.
func TestSteps(t *testing.T) {
	names := map[Step]string{Wait: "wait", Resize: "resize", Evict: "evict"}
	for _, c := range []struct {
		what   string
		change []func(*corev1.Pod)
		after  time.Duration // since the resize was seen first
		want   Step
	}{
		{what: "nothing in flight", want: Resize},
		{what: "pending pod", change: []func(*corev1.Pod){func(p *corev1.Pod) { p.Status.Phase = corev1.PodPending }},
			want: Wait},
		{what: "deferred", change: []func(*corev1.Pod){condition(corev1.PodResizePending, corev1.PodReasonDeferred)},
			after: 5 * time.Minute, want: Wait},
		{what: "deferred for long", change: []func(*corev1.Pod){condition(corev1.PodResizePending,
			corev1.PodReasonDeferred)}, after: 5*time.Minute + time.Second, want: Evict},
		{what: "infeasible", change: []func(*corev1.Pod){condition(corev1.PodResizePending,
			corev1.PodReasonInfeasible)}, want: Evict},
		{what: "in progress", change: []func(*corev1.Pod){condition(corev1.PodResizeInProgress, "")},
			after: time.Hour, want: Wait},
		{what: "in progress for long", change: []func(*corev1.Pod){condition(corev1.PodResizeInProgress, "")},
			after: time.Hour + time.Second, want: Evict},
		{what: "failed", change: []func(*corev1.Pod){condition(corev1.PodResizeInProgress, corev1.PodReasonError)},
			want: Evict},
	} {
		v := autoscaler(mode(ModeInPlaceOrRecreate, 1), recommends("100m", "200m", "500m"))
		p := owned("a", "10m", "100Mi", c.change...)
		since := Resizes{}
		NewRound(v, []*corev1.Pod{p}, scaleOf(1), Ranges{}, since, traceStart)
		r := NewRound(v, []*corev1.Pod{p}, scaleOf(1), Ranges{}, since, traceStart.Add(c.after))
		if got := r.Step(p); got != c.want {
			t.Errorf("%s: %s, want %s", c.what, names[got], names[c.want])
		}
	}
	// W9.7: mode Recreate never resizes.
	recreate := autoscaler(mode(ModeRecreate, 1), recommends("100m", "200m", "500m"))
	small := owned("a", "10m", "100Mi")
	round := NewRound(recreate, []*corev1.Pod{small}, scaleOf(1), Ranges{}, Resizes{}, traceStart)
	if got := round.Step(small); got != Evict {
		t.Errorf("mode Recreate: %s", names[got])
	}
	// The start time of an ended resize does not apply to the next one.
	v, since := autoscaler(mode(ModeInPlaceOrRecreate, 1), recommends("100m", "200m", "500m")), Resizes{}
	flight := owned("a", "10m", "100Mi", condition(corev1.PodResizePending, corev1.PodReasonDeferred))
	for i, p := range []*corev1.Pod{flight, owned("a", "10m", "100Mi"), flight} {
		r := NewRound(v, []*corev1.Pod{p}, scaleOf(1), Ranges{}, since, traceStart.Add(time.Duration(i)*time.Hour))
		if got := r.Step(p); got == Evict {
			t.Error("the second resize is as old as the first")
		}
	}
	since.Keep(map[types.UID]bool{})
	if len(since) != 0 {
		t.Error("a deleted pod is still recorded")
	}
}

// The resize of a pod changes the recommended requests and no other field, and only of this pod.
func TestPatch(t *testing.T) {
	v := autoscaler(mode(ModeInPlaceOrRecreate, 1), recommends("100m", "200m", "500m"))
	p := owned("a", "100m", "50Mi", func(p *corev1.Pod) {
		p.Spec.Containers[0].Resources.Limits = list("400m", "")
		p.Spec.Containers[0].Resources.Requests["example.com/gpu"] = resource.MustParse("1")
	})
	before := p.DeepCopy()
	r := NewRound(v, []*corev1.Pod{p}, scaleOf(1), Ranges{}, Resizes{}, traceStart)
	text, err := r.Patch(p)
	if err != nil {
		t.Fatal(err)
	}
	want := `[{"op":"test","path":"/metadata/uid","value":"a"},{"op":"add","path":"/spec/containers/0/resources",` +
		`"value":{"limits":{"cpu":"800m"},"requests":{"cpu":"200m","example.com/gpu":"1","memory":"100Mi"}}}]`
	if string(text) != want {
		t.Errorf("%s\nwant\n%s", text, want)
	}
	if jsonOf(p) != jsonOf(before) {
		t.Error("the pod itself is changed")
	}
	var patch []struct{ Value corev1.ResourceRequirements }
	_ = json.Unmarshal(text, &patch)
	p.Spec.Containers[0].Resources = patch[1].Value
	if text, err := r.Patch(p); err != nil || text != nil {
		t.Errorf("a pod that has it already: %s, %v", text, err)
	}
}

// W9.52, W9.53: with random differences and failures, no more pods are disturbed at a time than the
// tolerance allows.
func TestTolerance(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		configured := rapid.IntRange(1, 12).Draw(t, "configured")
		replicas := rapid.IntRange(1, 4).Draw(t, "minReplicas")
		m := rapid.SampledFrom([]UpdateMode{ModeOff, ModeInitial, ModeRecreate, ModeAuto, ModeInPlaceOrRecreate,
			ModeInPlace}).Draw(t, "mode")
		v := autoscaler(mode(m, int32(replicas)), recommends("100m", "200m", "500m"))
		var pods []*corev1.Pod
		running := 0
		for i := range rapid.IntRange(0, configured+2).Draw(t, "pods") {
			cpu := rapid.SampledFrom([]string{"10m", "150m", "900m", ""}).Draw(t, "cpu")
			p := owned(fmt.Sprintf("p%d", i), cpu, "50Mi")
			switch rapid.IntRange(0, 6).Draw(t, "state") {
			case 0:
				p.Status.Phase = corev1.PodPending
			case 1:
				condition(corev1.PodResizePending, rapid.SampledFrom([]string{corev1.PodReasonDeferred,
					corev1.PodReasonInfeasible, "Strange"}).Draw(t, "reason"))(p)
			case 2:
				condition(corev1.PodResizeInProgress, rapid.SampledFrom([]string{"", corev1.PodReasonError}).
					Draw(t, "reason"))(p)
			}
			if p.Status.Phase == corev1.PodRunning {
				running++
			}
			pods = append(pods, p)
		}
		r := NewRound(v, pods, scaleOf(configured), Ranges{}, Resizes{}, traceStart.Add(24*time.Hour))
		disturbed, touched := 0, map[string]bool{}
		evict := func(p *corev1.Pod) {
			if !r.MayEvict(p) || rapid.Bool().Draw(t, "refused") {
				return
			}
			if touched[p.Name] {
				t.Fatalf("%s is changed twice", p.Name)
			}
			touched[p.Name] = true
			r.Evicted(p)
			if p.Status.Phase == corev1.PodRunning {
				disturbed++
			}
		}
		if Updates(v) {
			for _, p := range r.Candidates() {
				switch r.Step(p) {
				case Evict:
					evict(p)
				case Resize:
					if m != ModeInPlaceOrRecreate {
						t.Fatalf("a resize in mode %s", m)
					}
					if rapid.Bool().Draw(t, "fails") {
						evict(p)
						continue
					}
					touched[p.Name] = true
					r.Resized(p)
					disturbed++
				case Wait:
				}
			}
		}
		tolerance := configured / 2
		switch {
		case len(touched) == 0:
		case len(pods) < replicas:
			t.Fatalf("%d pods of %d are changed, %d are required", len(touched), len(pods), replicas)
		case m == ModeOff || m == ModeInitial || m == ModeInPlace:
			t.Fatalf("pods are changed in mode %s", m)
		case disturbed == 0 || running-disturbed >= configured-tolerance:
		case tolerance == 0 && disturbed == 1 && running == configured: // at least one, or no pod could ever change
		default:
			t.Fatalf("%d of %d running pods are disturbed, %d wanted", disturbed, running, configured)
		}
	})
}
