package statefulset

import (
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"
	"pgregory.net/rapid"

	"carob/internal/core/workload"
)

// random applies a random event: an action of users or nodes, or the passing of time.
func (w *world) random(pick picker) {
	names := slices.Sorted(maps.Keys(w.pods))
	some := func() *corev1.Pod {
		if len(names) == 0 {
			return nil
		}
		return w.pod(names[pick("pod", len(names))])
	}
	switch pick("what", 12) {
	case 0:
		w.set.Spec.Replicas = new(int32(pick("replicas", 7)))
		w.set.Generation++
	case 1:
		w.set.Spec.Template.Spec.Containers[0].Image = []string{"one", "two", "three"}[pick("image", 3)]
		w.set.Generation++
	case 2:
		if w.set.Spec.UpdateStrategy.RollingUpdate != nil {
			w.set.Spec.UpdateStrategy.RollingUpdate.Partition = new(int32(pick("partition", 5)))
		}
	case 3:
		w.set.Spec.Ordinals = &appsv1.StatefulSetOrdinals{Start: int32(pick("start", 4))}
	case 4, 5, 6:
		if p := some(); p != nil && p.DeletionTimestamp == nil && !workload.Terminal(p) {
			setReady(p, w.now, true)
		}
	case 7:
		if p := some(); p != nil && p.Status.Phase == corev1.PodRunning {
			setReady(p, w.now, false)
		}
	case 8, 9:
		if p := some(); p != nil && p.DeletionTimestamp != nil {
			w.remove(p.Name)
		}
	case 10:
		if p := some(); p != nil {
			p.Status.Phase = []corev1.PodPhase{corev1.PodFailed, corev1.PodSucceeded}[pick("phase", 2)]
		}
	case 11:
		w.now = w.now.Add(time.Duration(1+pick("seconds", 20)) * time.Second)
	}
}

func randomWorld(t tester, pick picker) *world {
	w := newWorld(t)
	policy := []appsv1.PodManagementPolicyType{appsv1.OrderedReadyPodManagement,
		appsv1.ParallelPodManagement}[pick("policy", 2)]
	w.setSpec("template: {spec: {containers: [{name: c, image: one}]}}")
	w.set.Spec.PodManagementPolicy = policy
	w.set.Spec.MinReadySeconds = []int32{0, 0, 10}[pick("minReadySeconds", 3)]
	w.set.Spec.RevisionHistoryLimit = new(int32(pick("limit", 3)))
	switch pick("strategy", 4) {
	case 0:
		w.set.Spec.UpdateStrategy = appsv1.StatefulSetUpdateStrategy{Type: appsv1.OnDeleteStatefulSetStrategyType}
	case 1:
		w.set.Spec.UpdateStrategy.RollingUpdate = nil
	case 2:
		w.set.Spec.UpdateStrategy.RollingUpdate.MaxUnavailable = new(
			intstr.FromInt32(int32(1 + pick("maxUnavailable", 3))))
	}
	if pick("claims", 2) == 1 {
		c := corev1.PersistentVolumeClaim{}
		c.Name = "data"
		w.set.Spec.VolumeClaimTemplates = []corev1.PersistentVolumeClaim{c}
		when := []appsv1.PersistentVolumeClaimRetentionPolicyType{appsv1.RetainPersistentVolumeClaimRetentionPolicyType,
			appsv1.DeletePersistentVolumeClaimRetentionPolicyType}
		w.set.Spec.PersistentVolumeClaimRetentionPolicy = &appsv1.StatefulSetPersistentVolumeClaimRetentionPolicy{
			WhenDeleted: when[pick("deleted", 2)], WhenScaled: when[pick("scaled", 2)]}
	}
	return w
}

// available is what the set looks like to Decide, for checks.
func (w *world) look() sync {
	s := sync{Input: Input{Now: w.now, Set: w.set, Pods: slices.Collect(maps.Values(w.pods))}}
	s.sort()
	return s
}

// With random events, in each step: no second pod of an ordinal; with OrderedReady, no pod is created above an
// unavailable one, and only the highest pod is scaled down, one at a time; an update makes no more pods than
// maxUnavailable unavailable (W3.42–W3.46, W3.61–W3.63). At the end, the set matches its spec.
func TestRandomHistories(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) { history(t, drawn(t), nil) })
}

// picker picks a number below n; the purpose names the draw.
type picker func(what string, n int) int

func drawn(t *rapid.T) picker {
	return func(what string, n int) int { return rapid.IntRange(0, n-1).Draw(t, what) }
}

// history is one random history with all checks; sabotage may change the input and the output of
// Decide.
func history(t tester, pick picker, sabotage *sabotage) {
	w := randomWorld(t, pick)
	w.sabotage = sabotage
	for range 1 + pick("turns", 60) {
		w.random(pick)
		w.checkedSync(t)
	}
	w.converge(t)
}

func (w *world) checkedSync(t tester) {
	before := w.look()
	ordered := w.set.Spec.PodManagementPolicy == appsv1.OrderedReadyPodManagement
	had := maps.Clone(w.pods)
	w.sync() // fails if a name is taken, or if a pod is deleted twice
	var made, condemned, updated []int
	for name, p := range w.pods {
		ordinal, _ := Ordinal("web", name)
		switch old, there := had[name]; {
		case !there:
			made = append(made, ordinal)
			if !inRange(w.set, ordinal) {
				t.Fatalf("%s was made out of range", name)
			}
		case old.DeletionTimestamp == nil && p.DeletionTimestamp != nil && !inRange(w.set, ordinal):
			condemned = append(condemned, ordinal)
		case old.DeletionTimestamp == nil && p.DeletionTimestamp != nil && !workload.Terminal(p):
			if !before.unavailable(old) || ordered {
				updated = append(updated, ordinal)
			}
		}
	}
	if w.set.Status.CurrentReplicas < 0 || w.set.Status.UpdatedReplicas < 0 {
		t.Fatalf("status %v", w.set.Status)
	}
	unavailable := replicas(w.set) - len(before.replicas)
	for _, p := range before.replicas {
		if before.unavailable(p.Pod) {
			unavailable++
		}
	}
	if budget, _ := maxUnavailable(w.set); len(updated) > max(0, budget-unavailable) {
		t.Fatalf("an update takes %v, %d are unavailable, at most %d are allowed", updated, unavailable, budget)
	}
	if r := w.set.Spec.UpdateStrategy.RollingUpdate; r != nil && len(updated) > 0 &&
		slices.Min(updated)-start(w.set) < partition(r) {
		t.Fatalf("an update takes %v below the partition %d", updated, partition(r))
	}
	if w.set.Spec.UpdateStrategy.Type == appsv1.OnDeleteStatefulSetStrategyType && len(updated) > 0 {
		t.Fatalf("OnDelete, and %v go", updated)
	}
	if !ordered {
		return
	}
	if len(made)+len(condemned) > 1 || len(condemned) > 0 && len(updated) > 0 {
		t.Fatalf("made %v, scaled away %v, updated %v at once", made, condemned, updated)
	}
	for _, p := range before.replicas {
		for _, ordinal := range slices.Concat(made, condemned) {
			if (p.ordinal < ordinal || slices.Contains(condemned, ordinal)) && before.unavailable(p.Pod) {
				t.Fatalf("%d while %s is unavailable", ordinal, p.Name)
			}
		}
	}
	for _, p := range before.condemned {
		if len(condemned) > 0 && p.ordinal > condemned[0] {
			t.Fatalf("%d is scaled away before %s is gone", condemned[0], p.Name)
		}
	}
}

// converge lets the nodes act until nothing changes, and compares the result with the spec.
func (w *world) converge(t tester) {
	for i := 0; ; i++ {
		changed := w.sync()
		for _, name := range slices.Sorted(maps.Keys(w.pods)) {
			switch p := w.pods[name]; {
			case p.DeletionTimestamp != nil:
				w.remove(name)
				changed = true
			case !workload.Terminal(p) && !workload.Ready(p):
				setReady(w.pod(name), w.now, true)
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
	var want []string
	for i := range replicas(w.set) {
		want = append(want, fmt.Sprint("web-", start(w.set)+i))
	}
	slices.Sort(want)
	if got := slices.Sorted(maps.Keys(w.pods)); !slices.Equal(got, want) {
		t.Fatalf("pods %v, want %v", got, want)
	}
	s := &w.set.Status
	if n := int32(replicas(w.set)); s.Replicas != n || s.ReadyReplicas != n || s.AvailableReplicas != n ||
		s.ObservedGeneration != w.set.Generation {
		t.Fatalf("status %+v of %d", s, n)
	}
	if w.set.Spec.UpdateStrategy.Type != appsv1.RollingUpdateStatefulSetStrategyType {
		return
	}
	low := partition(w.set.Spec.UpdateStrategy.RollingUpdate)
	image := w.set.Spec.Template.Spec.Containers[0].Image
	for name, p := range w.pods {
		if ordinal, _ := Ordinal("web", name); ordinal-start(w.set) >= low && p.Spec.Containers[0].Image != image {
			t.Fatalf("%s runs %s, the template has %s", name, p.Spec.Containers[0].Image, image)
		}
	}
	if low == 0 && s.CurrentRevision != s.UpdateRevision {
		t.Fatalf("a rollout that ended has two revisions: %+v", s)
	}
	if limit := int(*w.set.Spec.RevisionHistoryLimit); low == 0 && len(w.revisions) > limit+1 {
		t.Fatalf("%d revisions, limit %d", len(w.revisions), limit)
	}
}

// A rollback ends with the pods, the revision and the hash of the former template (W3.23).
func TestRollback(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) { rollback(t, drawn(t), nil) })
}

func rollback(t tester, pick picker, sabotage *sabotage) {
	w := randomWorld(t, pick)
	w.sabotage = sabotage
	w.set.Spec.UpdateStrategy = appsv1.StatefulSetUpdateStrategy{Type: appsv1.RollingUpdateStatefulSetStrategyType}
	w.set.Spec.Replicas, w.set.Spec.RevisionHistoryLimit = new(int32(1+pick("replicas", 5))), ptr.To[int32](5)
	w.converge(t)
	first := w.set.Status.CurrentRevision
	w.set.Spec.Template.Spec.Containers[0].Image = "two"
	w.set.Generation++
	for range pick("turns", 21) { // at a random point of the rollout
		w.checkedSync(t)
		for _, name := range slices.Sorted(maps.Keys(w.pods)) {
			if p := w.pods[name]; p.DeletionTimestamp != nil {
				w.remove(name)
			} else {
				setReady(w.pod(name), w.now, true)
			}
		}
	}
	w.set.Spec.Template.Spec.Containers[0].Image = "one"
	w.set.Generation++
	w.converge(t)
	if w.set.Status.CurrentRevision != first || len(w.revisions) > 2 {
		t.Fatalf("ended at %s of %d revisions, was at %s", w.set.Status.CurrentRevision, len(w.revisions), first)
	}
}

// A plan for a set of two billion pods costs no more than one for Burst pods (W0.42).
func TestManyReplicas(t *testing.T) {
	for _, policy := range []appsv1.PodManagementPolicyType{appsv1.OrderedReadyPodManagement,
		appsv1.ParallelPodManagement} {
		w := newWorld(t)
		w.setSpec("replicas: 2147483647\ntemplate: {spec: {containers: [{name: c, image: one}]}}")
		w.set.Spec.PodManagementPolicy = policy
		r, err := Revise(w.set, nil, 0, defaulted)
		if err != nil {
			t.Fatal(err)
		}
		p, err := Decide(Input{Now: w.now, Set: w.set, Current: r.Update, Update: r.Update,
			Claim: func(string) *corev1.PersistentVolumeClaim { return nil }})
		want := map[appsv1.PodManagementPolicyType]int{appsv1.OrderedReadyPodManagement: 1,
			appsv1.ParallelPodManagement: Burst}[policy]
		if err != nil || len(p.Stages) != 1 || len(p.Stages[0]) != want {
			t.Errorf("%s: %d stages, %v; want one of %d", policy, len(p.Stages), err, want)
		}
	}
}
