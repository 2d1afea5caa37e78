package daemonset

import (
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"pgregory.net/rapid"

	"carob/internal/core/workload"
)

func randomWorld(t tester, pick picker) *world {
	w := newWorld(t)
	w.setSpec("template: {spec: {containers: [{name: c, image: one}], nodeSelector: {is: in}}}")
	w.set.Spec.MinReadySeconds = []int32{0, 0, 10}[pick("minReadySeconds", 3)]
	w.set.Spec.RevisionHistoryLimit = new(int32(pick("limit", 3)))
	switch pick("strategy", 4) {
	case 0:
		w.set.Spec.UpdateStrategy = appsv1.DaemonSetUpdateStrategy{Type: appsv1.OnDeleteDaemonSetStrategyType}
	case 1:
		w.set.Spec.UpdateStrategy.RollingUpdate.MaxUnavailable = new(
			intstr.FromString([]string{"1%", "50%", "100%"}[pick("maxUnavailable", 3)]))
	case 2:
		w.set.Spec.UpdateStrategy.RollingUpdate.MaxUnavailable = new(intstr.FromInt32(0))
		w.set.Spec.UpdateStrategy.RollingUpdate.MaxSurge = new(intstr.FromInt32(int32(1 + pick("maxSurge", 2))))
	}
	for i := range pick("nodes", 5) {
		w.randomNode(pick, fmt.Sprint("n", i))
	}
	return w
}

func (w *world) randomNode(pick picker, name string) {
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name,
		Labels: map[string]string{"is": []string{"in", "in", "in", "out"}[pick("label", 4)]}}}
	if effect := []string{"", "", "", "NoSchedule", "NoExecute", "PreferNoSchedule"}[pick("taint", 6)]; effect != "" {
		n.Spec.Taints = []corev1.Taint{{Key: "x", Effect: corev1.TaintEffect(effect)}}
	}
	w.nodes[name] = n
}

// random applies a random event: an action of users or nodes, or the passing of time.
func (w *world) random(pick picker) {
	some := func() *corev1.Pod {
		if len(w.pods) == 0 {
			return nil
		}
		return w.pod(slices.Sorted(maps.Keys(w.pods))[pick("pod", len(w.pods))])
	}
	switch pick("what", 12) {
	case 0:
		w.set.Spec.Template.Spec.Containers[0].Image = []string{"one", "two", "three"}[pick("image", 3)]
		w.set.Generation++
		w.template()
	case 1, 2:
		w.randomNode(pick, fmt.Sprint("n", pick("node", 6)))
	case 3:
		delete(w.nodes, fmt.Sprint("n", pick("node", 6)))
	case 4, 5, 6:
		if p := some(); p != nil && p.DeletionTimestamp == nil && !workload.Terminal(p) {
			w.setReady(p, true)
		}
	case 7:
		if p := some(); p != nil && p.Status.Phase == corev1.PodRunning {
			w.setReady(p, false)
		}
	case 8, 9:
		if p := some(); p != nil && p.DeletionTimestamp != nil {
			delete(w.pods, p.Name)
		}
	case 10:
		if p := some(); p != nil {
			w.setReady(p, false)
			p.Status.Phase = []corev1.PodPhase{corev1.PodFailed, corev1.PodSucceeded}[pick("phase", 2)]
		}
	case 11:
		w.now = w.now.Add(time.Duration(1+pick("seconds", 20)) * time.Second)
	}
}

// With random events, in each step: no node gets a second pod, except one of each revision in a surge; an update
// makes no more pods than maxUnavailable unavailable; a surge creates no more than maxSurge beside available ones
// (W4.33–W4.38, W4.53, W4.54). At the end, each eligible node has exactly one pod, of the set's template.
func TestRandomHistories(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		history(t, func(what string, n int) int { return rapid.IntRange(0, n-1).Draw(t, what) }, nil)
	})
}

// picker picks a number below n; the purpose names the draw.
type picker func(what string, n int) int

// history is one random history with all checks; sabotage may change the input of Decide.
func history(t tester, pick picker, sabotage func(in *Input)) {
	w := randomWorld(t, pick)
	w.sabotage = sabotage
	for range 1 + pick("turns", 60) {
		w.random(pick)
		w.checkedSync(t)
	}
	w.converge(t)
}

func (w *world) availablePod(p *corev1.Pod) bool {
	ok, _ := workload.Available(p, w.set.Spec.MinReadySeconds, w.now)
	return ok
}

// live returns the pods of each node that are not being deleted.
func (w *world) live(pods map[string]*corev1.Pod) map[string][]*corev1.Pod {
	on := map[string][]*corev1.Pod{}
	for _, name := range slices.Sorted(maps.Keys(pods)) {
		if p := pods[name]; p.DeletionTimestamp == nil {
			on[Target(p)] = append(on[Target(p)], p)
		}
	}
	return on
}

func (w *world) checkedSync(t tester) {
	had := maps.Clone(w.pods)
	before := w.live(had)
	w.sync() // fails when a pod is deleted twice
	after, eligible, surge := w.live(w.pods), NewEligible(w.set), surges(w.set)
	r, err := Revise(w.set, w.revisions, nil)
	if err != nil {
		t.Fatalf("%v", err)
	}
	extra := 0
	for node, pods := range after {
		for _, p := range pods {
			if had[p.Name] != nil {
				continue
			}
			if n := w.nodes[node]; n == nil {
				t.Fatalf("a pod was made for %s, which does not exist", node)
			} else if run, _ := eligible.Of(n); !run {
				t.Fatalf("a pod was made for %s, which is not eligible", node)
			}
			if len(before[node]) > 0 && !surge || len(before[node]) > 1 {
				t.Fatalf("%s gets %s beside %d pods", node, p.Name, len(before[node]))
			}
			if !surge && slices.ContainsFunc(slices.Collect(maps.Values(had)),
				func(o *corev1.Pod) bool { return Target(o) == node && !workload.Terminal(o) }) {
				t.Fatalf("%s gets %s before its existing pod has ended", node, p.Name)
			}
			if len(before[node]) == 1 && w.availablePod(before[node][0]) {
				extra++
			}
			if !updated(w.set, HashOf(r.Current), p) {
				t.Fatalf("%s is made of an old revision", p.Name)
			}
		}
	}
	if rolling := w.set.Spec.UpdateStrategy.RollingUpdate; surge && extra > int(rolling.MaxSurge.IntVal) {
		t.Fatalf("%d extra pods at once, at most %v are allowed", extra, rolling.MaxSurge)
	}
	// Pods that an update makes unavailable: available ones on eligible nodes, without a replacement.
	taken, unavailable, desired := 0, 0, 0
	for node, n := range w.nodes {
		run, _ := eligible.Of(n)
		if !run {
			continue
		}
		desired++
		served := slices.ContainsFunc(before[node], w.availablePod)
		serves := slices.ContainsFunc(after[node], w.availablePod)
		switch {
		case served && !serves:
			taken++
		case !served:
			unavailable++
		}
	}
	budget := 0
	if rolling := w.set.Spec.UpdateStrategy.RollingUpdate; rolling != nil && !surge {
		budget, _ = scaled(rolling.MaxUnavailable, desired)
		budget = max(0, max(1, budget)-unavailable)
	}
	if taken > budget {
		t.Fatalf("an update deletes %d, %d are unavailable, at most %d more are allowed", taken, unavailable, budget)
	}
}

// converge lets the nodes act until nothing changes, and compares the result with the spec.
func (w *world) converge(t tester) {
	for i := 0; ; i++ {
		changed := w.sync()
		for _, name := range slices.Sorted(maps.Keys(w.pods)) {
			switch p := w.pods[name]; {
			case p.DeletionTimestamp != nil || w.nodes[Target(p)] == nil: // the node, or the garbage collection
				delete(w.pods, name)
				changed = true
			case !workload.Terminal(p) && !workload.Ready(p):
				w.setReady(w.pod(name), true)
				changed = true
			}
		}
		if w.again.After(w.now) {
			w.now = w.again
			changed = true
		}
		if !changed {
			break
		}
		if i > 300 {
			t.Fatalf("it does not converge: %s", w.sb.String())
		}
	}
	on, eligible := w.live(w.pods), NewEligible(w.set)
	desired := int32(0)
	for name, node := range w.nodes {
		run, stay := eligible.Of(node)
		switch n := len(on[name]); {
		case run && n != 1, !stay && n != 0, n > 1:
			t.Fatalf("%s has %d pods", name, n)
		}
		if run {
			desired++
			if p := on[name][0]; w.set.Spec.UpdateStrategy.Type == appsv1.RollingUpdateDaemonSetStrategyType &&
				p.Spec.Containers[0].Image != w.set.Spec.Template.Spec.Containers[0].Image {
				t.Fatalf("%s runs %s", name, p.Spec.Containers[0].Image)
			}
		}
	}
	s := &w.set.Status
	if s.DesiredNumberScheduled != desired || s.NumberAvailable != desired || s.CurrentNumberScheduled != desired ||
		s.NumberUnavailable != 0 || s.ObservedGeneration != w.set.Generation {
		t.Fatalf("status %+v of %d", s, desired)
	}
	if w.set.Spec.UpdateStrategy.Type == appsv1.RollingUpdateDaemonSetStrategyType &&
		s.UpdatedNumberScheduled != desired {
		t.Fatalf("status %+v of %d", s, desired)
	}
}

// W4.50: a pod is updated if its hash is the current one, or its template generation the set's.
func TestUpdated(t *testing.T) {
	pod := func(hash, generation string) *corev1.Pod {
		return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{
			appsv1.ControllerRevisionHashLabelKey: hash, generationLabel: generation}}}
	}
	set := &appsv1.DaemonSet{ObjectMeta: metav1.ObjectMeta{
		Annotations: map[string]string{appsv1.DeprecatedTemplateGeneration: "2"}}}
	for _, c := range []struct {
		pod     *corev1.Pod
		current string
		want    bool
	}{
		{pod("b", "1"), "b", true}, {pod("a", "2"), "b", true}, {pod("a", "1"), "b", false},
		{pod("", ""), "b", false}, {pod("", "1"), "", false}, {&corev1.Pod{}, "", false},
	} {
		if got := updated(set, c.current, c.pod); got != c.want {
			t.Errorf("current hash %q, pod %v: %v", c.current, c.pod.Labels, got)
		}
	}
	if updated(&appsv1.DaemonSet{}, "b", pod("a", "")) {
		t.Error("a set without the annotation has no template generation")
	}
}
