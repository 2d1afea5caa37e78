package statefulset

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	ktesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/record"
	"k8s.io/utils/ptr"

	"carob/internal/controllers/controllertest"
	"carob/internal/controllers/source"
	"carob/internal/core/workload"
	"carob/internal/core/workload/statefulset"
)

// world is a set, an API, a node and the controller, in a bubble of virtual time.
type world struct {
	*testing.T
	api    *controllertest.API
	events *record.FakeRecorder
	dice   dice
	end    func() // of the controller that runs now
	kill   atomic.Pointer[context.CancelFunc]
	crash  chan struct{}
	others sync.WaitGroup

	mu    sync.Mutex
	sizes []int32 // all values of spec.replicas
}

// dice is a source of random numbers for several goroutines.
type dice struct {
	mu  sync.Mutex
	rng *rand.Rand
}

func (d *dice) n(n int) int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.rng.IntN(n)
}

func newSet() *appsv1.StatefulSet {
	return &appsv1.StatefulSet{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "web"},
		Spec: appsv1.StatefulSetSpec{
			Replicas: ptr.To[int32](3), Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "web"}},
			PodManagementPolicy:  appsv1.OrderedReadyPodManagement,
			RevisionHistoryLimit: ptr.To[int32](2),
			Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"app": "web"}},
				Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "one"}}}},
			UpdateStrategy: appsv1.StatefulSetUpdateStrategy{Type: appsv1.RollingUpdateStatefulSetStrategyType,
				RollingUpdate: &appsv1.RollingUpdateStatefulSetStrategy{Partition: ptr.To[int32](0),
					MaxUnavailable: new(intstr.FromInt32(1))}}}}
}

// inWorld runs a test with the usual set after change; before prepares the API.
func inWorld(t *testing.T, seed uint64, change func(*appsv1.StatefulSet), before func(w *world), test func(w *world)) {
	synctest.Test(t, func(t *testing.T) {
		set := newSet()
		if change != nil {
			change(set)
		}
		w := &world{T: t, api: controllertest.New(set), events: record.NewFakeRecorder(100000),
			dice: dice{rng: rand.New(rand.NewPCG(seed, 1))}, crash: make(chan struct{}, 1)}
		if before != nil {
			before(w)
		}
		w.start()
		test(w)
		w.end()
		w.others.Wait()
		w.settled()
		time.Sleep(time.Second) // delayed watches end
	})
}

// start runs a new controller.
func (w *world) start() {
	ctx, cancel := context.WithCancel(w.Context())
	watches := Watches{Sets: source.StatefulSets(w.api), Pods: source.Pods(w.api), Claims: source.VolumeClaims(w.api),
		Revisions: source.Revisions(w.api)}
	c, err := New(w.api, w.events, watches, func(*appsv1.StatefulSet) {})
	if err != nil {
		w.Fatal(err)
	}
	var group sync.WaitGroup
	w.end = func() { cancel(); group.Wait() }
	w.kill.Store(&cancel) // before the first write
	all := []*source.Watch{watches.Sets, watches.Pods, watches.Claims, watches.Revisions}
	for _, x := range all {
		group.Go(func() { x.Run(ctx) })
	}
	group.Go(func() {
		for _, x := range all {
			select {
			case <-x.Synced():
			case <-ctx.Done():
				return
			}
		}
		c.Run(ctx)
	})
}

func (w *world) pods() []*corev1.Pod { return controllertest.All[*corev1.Pod](w.api) }

func (w *world) set() *appsv1.StatefulSet { return controllertest.All[*appsv1.StatefulSet](w.api)[0] }

// kept returns the minimum replicas of all specs that the controller may have as the newest.
func (w *world) kept() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return int(slices.Min(append(w.sizes[max(0, len(w.sizes)-4):], *w.set().Spec.Replicas)))
}

func (w *world) scale(n int32) {
	w.mu.Lock()
	w.sizes = append(w.sizes, *w.set().Spec.Replicas)
	w.mu.Unlock()
	w.change(func(s *appsv1.StatefulSet) { s.Spec.Replicas = &n })
}

func (w *world) change(f func(*appsv1.StatefulSet)) { controllertest.Change(w.api, "ns", "web", f) }

// kubelet does the next action of a node for one pod, and reports whether there was one.
func (w *world) kubelet(p *corev1.Pod) bool {
	switch {
	case p.DeletionTimestamp != nil:
		w.api.Remove(p)
	case !workload.Ready(p) && !workload.Terminal(p):
		controllertest.Change(w.api, "ns", p.Name, func(p *corev1.Pod) {
			p.Spec.NodeName, p.Status.Phase = "node", corev1.PodRunning
			p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue,
				LastTransitionTime: metav1.Now()}}
		})
	default:
		return false
	}
	return true
}

// collect acts like the garbage collector for claims.
func (w *world) collect() {
	uids := map[types.UID]bool{}
	for _, p := range w.pods() {
		uids[p.UID] = true
	}
	for _, c := range controllertest.All[*corev1.PersistentVolumeClaim](w.api) {
		if slices.ContainsFunc(c.OwnerReferences,
			func(r metav1.OwnerReference) bool { return r.Kind == "Pod" && !uids[r.UID] }) {
			w.api.Remove(c)
		}
	}
}

// settle lets the node work until the set is in its desired state, or for an hour.
func (w *world) settle() {
	w.Helper()
	for range 3600 * 5 {
		synctest.Wait()
		for _, p := range w.pods() {
			w.kubelet(p)
		}
		w.collect()
		if w.problem() == "" {
			return
		}
		time.Sleep(200 * time.Millisecond)
		select {
		case <-w.crash:
			w.end()
			w.start()
		default:
		}
	}
	w.Fatalf("after an hour: %s", w.problem())
}

// problem returns a difference from the spec, with partition 0.
func (w *world) problem() string {
	set := w.set()
	var want, got []string
	for i := range *set.Spec.Replicas {
		want = append(want, fmt.Sprint("web-", i))
	}
	for _, p := range w.pods() {
		got = append(got, p.Name)
		if p.DeletionTimestamp != nil || !workload.Ready(p) ||
			p.Spec.Containers[0].Image != set.Spec.Template.Spec.Containers[0].Image {
			return fmt.Sprintf("pod %s: image %s, ready %v, deleted %v", p.Name, p.Spec.Containers[0].Image,
				workload.Ready(p), p.DeletionTimestamp)
		}
	}
	slices.Sort(want)
	n := int32(len(want))
	s := &set.Status
	switch {
	case !slices.Equal(want, got):
		return fmt.Sprintf("pods %v, want %v", got, want)
	case s.Replicas != n || s.ReadyReplicas != n || s.AvailableReplicas != n || s.UpdatedReplicas != n ||
		s.CurrentReplicas != n ||
		s.CurrentRevision != s.UpdateRevision || s.ObservedGeneration != set.Generation:
		return fmt.Sprintf("status %+v of %d at generation %d", s, n, set.Generation)
	}
	if revisions := len(controllertest.All[*appsv1.ControllerRevision](w.api)); revisions > int(
		*set.Spec.RevisionHistoryLimit)+1 {
		return fmt.Sprintf("%d revisions", revisions)
	}
	return ""
}

// watchOrder fails the test when the controller breaks the order of a set: no pod is created while a lower ordinal
// is not ready, and only the highest pod, or those that an update may replace, are deleted (W3.42, W3.45, W3.61,
// W3.62).
func (w *world) watchOrder(budget int) {
	w.api.PrependReactor("*", "pods", func(a ktesting.Action) (bool, runtime.Object, error) {
		var name string
		switch a := a.(type) {
		case ktesting.DeleteAction:
			name = a.GetName()
		case ktesting.CreateAction:
			if p, ok := a.GetObject().(*corev1.Pod); ok && a.GetVerb() == "create" {
				name = p.Name
			}
		}
		ordinal, ok := statefulset.Ordinal("web", name)
		if !ok {
			return false, nil, nil
		}
		unavailable, below := 0, 0
		there, highest, kept := false, true, w.kept()
		for _, p := range w.pods() {
			o, _ := statefulset.Ordinal("web", p.Name)
			highest = highest && o <= ordinal
			bad := p.DeletionTimestamp != nil || !workload.Ready(p)
			switch {
			case o == ordinal:
				there = p.DeletionTimestamp == nil
			case bad:
				unavailable++
			case o < ordinal:
				below++
			}
		}
		if highest && ordinal >= kept { // it may be scaled down, independent of other pods that are scaled down
			unavailable = 0
			for _, p := range w.pods() {
				if o, _ := statefulset.Ordinal("web", p.Name); o < kept &&
					(p.DeletionTimestamp != nil || !workload.Ready(p)) {
					unavailable = budget
				}
			}
		}
		switch {
		case a.GetVerb() == "create" && below != ordinal:
			w.Errorf("%s is made, but only %d below it are ready", name, below)
		case a.GetVerb() == "delete" && there && unavailable >= budget:
			w.Errorf("%s is deleted while %d others are unavailable", name, unavailable)
		}
		return false, nil, nil
	})
}

// trouble injects all faults into the API and its watches: late, lost and duplicate events, conflicts, errors
// before and after the write took effect, and a crash of the controller after any write.
func (w *world) trouble() {
	w.api.Late = func() time.Duration { return time.Duration(w.dice.n(60)) * time.Millisecond }
	w.api.Faults = func() controllertest.Fault {
		switch w.dice.n(40) {
		case 0:
			return controllertest.Cut
		case 1, 2:
			return controllertest.Twice
		}
		return controllertest.None
	}
	w.api.Before = func(verb string, gvr schema.GroupVersionResource, o metav1.Object) error {
		switch w.dice.n(30) {
		case 0:
			return apierrors.NewInternalError(fmt.Errorf("no room"))
		case 2: // by a webhook: nothing was written
			return apierrors.NewConflict(gvr.GroupResource(), o.GetName(), fmt.Errorf("not now"))
		case 1:
			if verb == "update" || verb == "patch" {
				w.others.Go(func() { w.touch(gvr.Resource, o.GetName()) })
				return apierrors.NewConflict(gvr.GroupResource(), o.GetName(), fmt.Errorf("another client wrote"))
			}
		}
		return nil
	}
	w.api.After = func(string, schema.GroupVersionResource, metav1.Object) error {
		switch w.dice.n(30) {
		case 0:
			return apierrors.NewTimeoutError("the answer was lost", 1)
		case 1:
			(*w.kill.Load())() // it stops
			select {
			case w.crash <- struct{}{}:
			default:
			}
			return apierrors.NewTimeoutError("carob crashed", 1)
		}
		return nil
	}
}

// touch is the write of another client that came first, if the object still exists.
func (w *world) touch(resource, name string) {
	defer func() { _ = recover() }()
	note := func(o metav1.Object) { o.SetAnnotations(map[string]string{"touched": fmt.Sprint(w.dice.n(1 << 30))}) }
	switch resource {
	case "statefulsets":
		controllertest.Change(w.api, "ns", name, func(o *appsv1.StatefulSet) { note(o) })
	case "pods":
		controllertest.Change(w.api, "ns", name, func(o *corev1.Pod) { note(o) })
	case "persistentvolumeclaims":
		controllertest.Change(w.api, "ns", name, func(o *corev1.PersistentVolumeClaim) { note(o) })
	case "controllerrevisions":
		controllertest.Change(w.api, "ns", name, func(o *appsv1.ControllerRevision) { note(o) })
	}
}

func (w *world) settled() {
	w.api.Late, w.api.Faults, w.api.Before, w.api.After = nil, nil, nil, nil
}

// With late, lost, and repeated events, rejected writes, and crashes of the controller: the order holds, no
// ordinal exists twice (the API would reject it), and in the end the set matches its spec.
func TestConvergesUnderFaults(t *testing.T) {
	for seed := range uint64(40) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			budget := 1 + int(seed%3)/2
			inWorld(t, seed, func(s *appsv1.StatefulSet) {
				s.Spec.UpdateStrategy.RollingUpdate.MaxUnavailable = new(intstr.FromInt32(int32(budget)))
				if seed%5 == 4 {
					s.Spec.PodManagementPolicy = appsv1.ParallelPodManagement
				}
				if seed%2 == 1 {
					s.Spec.VolumeClaimTemplates = []corev1.PersistentVolumeClaim{
						{ObjectMeta: metav1.ObjectMeta{Name: "data"}}}
					retention := appsv1.StatefulSetPersistentVolumeClaimRetentionPolicy{
						WhenDeleted: appsv1.RetainPersistentVolumeClaimRetentionPolicyType,
						WhenScaled:  appsv1.DeletePersistentVolumeClaimRetentionPolicyType}
					s.Spec.PersistentVolumeClaimRetentionPolicy = &retention
				}
			}, func(w *world) {
				w.trouble()
				if seed%5 != 4 {
					w.watchOrder(budget)
				}
			}, func(w *world) {
				for range 60 {
					time.Sleep(time.Duration(w.dice.n(400)) * time.Millisecond)
					select {
					case <-w.crash:
						w.end()
						w.start()
					default:
					}
					switch w.dice.n(8) {
					case 0:
						w.scale(int32(w.dice.n(6)))
					case 1:
						w.change(func(s *appsv1.StatefulSet) {
							s.Spec.Template.Spec.Containers[0].Image = []string{"one", "two", "three"}[w.dice.n(3)]
						})
					default:
						if pods := w.pods(); len(pods) > 0 {
							w.kubelet(pods[w.dice.n(len(pods))])
						}
					}
				}
				w.settle()
				w.settled()
				w.settle()
				w.claimsFit()
			})
		})
	}
}

// claimsFit compares claims with a policy that deletes those of pods that are scaled down (W3.93): each pod has its
// claim, and no claim of a pod is deleted. A claim stays if its pod no longer existed when the set was scaled, as
// upstream.
func (w *world) claimsFit() {
	w.Helper()
	if len(w.set().Spec.VolumeClaimTemplates) == 0 {
		return
	}
	claims := map[string]bool{}
	for _, c := range controllertest.All[*corev1.PersistentVolumeClaim](w.api) {
		if claims[c.Name] = true; len(c.OwnerReferences) > 0 {
			w.Errorf("the claim %s belongs to %v", c.Name, c.OwnerReferences)
		}
	}
	for _, p := range w.pods() {
		if !claims["data-"+p.Name] {
			w.Errorf("the claim of %s does not exist", p.Name)
		}
	}
}

// recorded returns the events so far, with their counts.
func (w *world) recorded() map[string]int {
	recorded := map[string]int{}
	for {
		select {
		case e := <-w.events.Events:
			recorded[e]++
		default:
			return recorded
		}
	}
}

func (w *world) wantEvents(want ...string) {
	w.Helper()
	recorded := w.recorded()
	if got := slices.Sorted(maps.Keys(recorded)); !slices.Equal(got, slices.Sorted(slices.Values(want))) {
		w.Errorf("events %q, want %q", got, want)
	}
}

// The events of a set that is created, scaled and updated (W3.80, W3.81, W3.83), with bounded times, and no writes
// afterwards.
func TestEvents(t *testing.T) {
	inWorld(t, 1, func(s *appsv1.StatefulSet) {
		s.Spec.Replicas = ptr.To[int32](1)
		s.Spec.VolumeClaimTemplates = []corev1.PersistentVolumeClaim{{ObjectMeta: metav1.ObjectMeta{Name: "data"}}}
	}, nil, func(w *world) {
		w.settle()
		w.wantEvents("Normal SuccessfulCreate Create Claim data-web-0 Pod web-0 in StatefulSet web success",
			"Normal SuccessfulCreate Create Pod web-0 in StatefulSet web successful")
		if s := w.set(); s.Status.CollisionCount == nil || *s.Status.CollisionCount != 0 ||
			s.Status.ObservedGeneration != s.Generation {
			w.Errorf("W3.75: status %+v", s.Status)
		}
		controllertest.Change(w.api, "ns", "web", func(s *appsv1.StatefulSet) {
			s.Status.Conditions = []appsv1.StatefulSetCondition{{Type: "example.com/Mine", Status: "True"}}
		})
		w.change(func(s *appsv1.StatefulSet) { s.Spec.Template.Spec.Containers[0].Image = "two" })
		w.settle()
		if c := w.set().Status.Conditions; len(c) != 1 || c[0].Type != "example.com/Mine" {
			w.Errorf("W3.75: conditions %v", c)
		}
		w.wantEvents("Normal SuccessfulDelete Delete Pod web-0 in StatefulSet web successful",
			"Normal SuccessfulCreate Create Pod web-0 in StatefulSet web successful")
		synctest.Wait()
		w.api.Log()
		time.Sleep(24 * time.Hour)
		if log := w.api.Log(); len(log) > 0 {
			w.Errorf("a stable set writes %v", log)
		}
	})
}

// Errors are reported as upstream (W3.82, W3.84), retried with growing back-off, and end with their reason; the wait
// for a pod with another owner (W3.49) and the deletion of the namespace (W0.40) cause no events.
func TestErrors(t *testing.T) {
	quota := apierrors.NewForbidden(corev1.Resource("pods"), "", fmt.Errorf("exceeded quota"))
	gone := apierrors.NewForbidden(corev1.Resource("pods"), "web-0", fmt.Errorf("being terminated"))
	gone.ErrStatus.Details.Causes = []metav1.StatusCause{{Type: corev1.NamespaceTerminatingCause}}
	for _, c := range []struct {
		name, verb, resource string
		err                  error
		events               []string
	}{
		{"quota", "create", "pods", quota,
			[]string{"Warning FailedCreate Create Pod web-0 in StatefulSet web failed error: " + quota.Error()}},
		{"claim", "create", "persistentvolumeclaims", quota, []string{
			"Warning FailedCreate Create Claim data-web-0 for Pod web-0 in StatefulSet web failed error: " +
				quota.Error(),
			"Warning FailedCreate Create Pod web-0 in StatefulSet web failed error: failed to create PVC data-web-0: " +
				quota.Error()}},
		{"taken", "create", "pods", apierrors.NewAlreadyExists(corev1.Resource("pods"), "web-0"), nil},
		{"namespace", "create", "pods", gone, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			tries, broken := 0, true
			inWorld(t, 1, func(s *appsv1.StatefulSet) {
				s.Spec.VolumeClaimTemplates = []corev1.PersistentVolumeClaim{
					{ObjectMeta: metav1.ObjectMeta{Name: "data"}}}
			}, func(w *world) {
				w.api.Before = func(verb string, gvr schema.GroupVersionResource, _ metav1.Object) error {
					if broken && verb == c.verb && gvr.Resource == c.resource {
						tries++
						return c.err
					}
					return nil
				}
			}, func(w *world) {
				time.Sleep(10 * time.Minute)
				synctest.Wait()
				if want := 60; tries > want || tries == 0 {
					t.Errorf("%d tries in ten minutes, want some, at most %d", tries, want)
				}
				recorded := w.recorded()
				delete(recorded, "Normal SuccessfulCreate Create Claim data-web-0 Pod web-0 in StatefulSet web success")
				if got := slices.Sorted(maps.Keys(recorded)); !slices.Equal(got, c.events) {
					t.Errorf("events %q, want %q", got, c.events)
				}
				broken = false
				if c.name == "namespace" {
					// there are no retries
					w.change(func(s *appsv1.StatefulSet) { s.Labels = map[string]string{"any": "change"} })
				}
				w.settle()
			})
		})
	}
}

// A webhook refuses the deletion of a pod as if the pod did not exist: the set goes on.
func TestRefusedDeletion(t *testing.T) {
	refused := false
	inWorld(t, 1, nil, func(w *world) {
		w.api.Before = func(verb string, gvr schema.GroupVersionResource, o metav1.Object) error {
			if verb == "delete" && gvr.Resource == "pods" && !refused {
				refused = true
				return apierrors.NewNotFound(gvr.GroupResource(), o.GetName())
			}
			return nil
		}
	}, func(w *world) {
		w.settle()
		w.scale(0)
		w.settle()
		if left := w.pods(); !refused || len(left) != 0 {
			t.Errorf("refused %v, %d pods left", refused, len(left))
		}
	})
}

// If a revision with other data has the name, the new one gets another name, and the count of collisions is stored
// (W3.22).
func TestCollision(t *testing.T) {
	inWorld(t, 1, nil, func(w *world) {
		set := w.set()
		r, err := statefulset.Revise(set, nil, 0, nil)
		if err != nil {
			w.Fatal(err)
		}
		r.Update.OwnerReferences, r.Update.Labels = nil, nil
		r.Update.Data.Raw = []byte(`{"spec":{}}`)
		w.api.Put(r.Update)
	}, func(w *world) {
		w.settle()
		if s := w.set().Status; *s.CollisionCount != 1 {
			w.Errorf("status %+v", s)
		}
		for _, r := range controllertest.All[*appsv1.ControllerRevision](w.api) {
			if owned := metav1.IsControlledBy(r, w.set()); owned &&
				(r.Name != w.set().Status.UpdateRevision ||
					!strings.HasSuffix(r.Name, r.Labels["controller.kubernetes.io/hash"])) {
				w.Errorf("revision %s with %v, status %s", r.Name, r.Labels, w.set().Status.UpdateRevision)
			}
		}
	})
}

// An orphan with the name of an ordinal is adopted, with its revision; one with another name is not adopted, and
// one that no longer matches is released (W0.21, W0.23, W0.25, W3.26).
func TestOwnership(t *testing.T) {
	inWorld(t, 1, func(s *appsv1.StatefulSet) {
		s.Spec.UpdateStrategy = appsv1.StatefulSetUpdateStrategy{Type: appsv1.OnDeleteStatefulSetStrategyType}
	}, func(w *world) {
		for _, name := range []string{"web-0", "web-x", "other-0"} {
			w.api.Put(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name,
				Labels: map[string]string{"app": "web"}},
				Spec:   corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "one"}}},
				Status: corev1.PodStatus{Phase: corev1.PodPending}})
		}
		w.api.Put(&appsv1.ControllerRevision{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "web-old",
			Labels: map[string]string{"app": "web"}}, Revision: 7})
	}, func(w *world) {
		for range 100 {
			synctest.Wait()
			for _, p := range w.pods() {
				w.kubelet(p)
			}
		}
		owned := func() string {
			var list []string
			for _, p := range w.pods() {
				if metav1.IsControlledBy(p, w.set()) {
					list = append(list, p.Name)
				}
			}
			return strings.Join(list, " ")
		}
		if got := owned(); got != "web-0 web-1 web-2" {
			w.Errorf("owned are %s", got)
		}
		for _, r := range controllertest.All[*appsv1.ControllerRevision](w.api) {
			if !metav1.IsControlledBy(r, w.set()) || r.Name != "web-old" && r.Revision != 8 {
				w.Errorf("revision %s: number %d, owners %v", r.Name, r.Revision, r.OwnerReferences)
			}
		}
		controllertest.Change(w.api, "ns", "web-1", func(p *corev1.Pod) { p.Labels["app"] = "mine now" })
		synctest.Wait()
		time.Sleep(time.Minute)
		if got := owned(); got != "web-0 web-2" { // the name is taken
			w.Errorf("owned are %s", got)
		}
		controllertest.Change(w.api, "ns", "web-1", func(p *corev1.Pod) { p.Labels["app"] = "web" })
		time.Sleep(time.Minute)
		if got := owned(); got != "web-0 web-1 web-2" {
			w.Errorf("owned are %s", got)
		}
	})
}

// A pod that waits for the deletion of its claim is created when the claim is gone, without any other event
// (W3.42, W3.48, W3.96).
func TestPodWaitsForDeletedClaim(t *testing.T) {
	inWorld(t, 1, func(s *appsv1.StatefulSet) {
		s.Spec.VolumeClaimTemplates = []corev1.PersistentVolumeClaim{{ObjectMeta: metav1.ObjectMeta{Name: "data"}}}
		s.Spec.PersistentVolumeClaimRetentionPolicy = &appsv1.StatefulSetPersistentVolumeClaimRetentionPolicy{
			WhenDeleted: appsv1.RetainPersistentVolumeClaimRetentionPolicyType,
			WhenScaled:  appsv1.DeletePersistentVolumeClaimRetentionPolicyType}
	}, func(w *world) {
		w.api.Put(&corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "data-web-0",
			Finalizers:      []string{"pvc"},
			OwnerReferences: []metav1.OwnerReference{{APIVersion: "v1", Kind: "Pod", Name: "web-0", UID: "before"}}}})
	}, func(w *world) {
		time.Sleep(time.Hour)
		if pods := w.pods(); len(pods) > 0 {
			w.Fatalf("%s exists before its claim is gone", pods[0].Name)
		}
		w.api.Remove(controllertest.All[*corev1.PersistentVolumeClaim](w.api)[0])
		synctest.Wait()
		if pods := w.pods(); len(pods) != 1 {
			w.Fatalf("%d pods", len(pods))
		}
		w.settle()
	})
}

// minReadySeconds: the next pod is created exactly then (W0.61).
func TestMinReadySeconds(t *testing.T) {
	inWorld(t, 1, func(s *appsv1.StatefulSet) { s.Spec.MinReadySeconds = 10 }, nil, func(w *world) {
		synctest.Wait()
		w.kubelet(w.pods()[0])
		time.Sleep(10*time.Second - time.Nanosecond)
		synctest.Wait()
		if n := len(w.pods()); n != 1 {
			w.Errorf("%d pods too early", n)
		}
		time.Sleep(time.Millisecond)
		synctest.Wait()
		if n := len(w.pods()); n != 2 || w.set().Status.AvailableReplicas != 1 {
			w.Errorf("%d pods, status %+v", n, w.set().Status)
		}
	})
}

// A set that is being deleted creates no pods and no revisions, and updates its status (W3.40).
func TestDeleted(t *testing.T) {
	inWorld(t, 1, func(s *appsv1.StatefulSet) {
		s.DeletionTimestamp, s.Finalizers = new(metav1.Now()), []string{metav1.FinalizerDeleteDependents}
	}, nil, func(w *world) {
		synctest.Wait()
		if log := w.api.Log(); len(w.pods()) > 0 ||
			slices.ContainsFunc(log, func(l string) bool { return strings.Contains(l, "controllerrevisions") }) {
			w.Errorf("it writes %v", log)
		}
	})
}

// A pod that its node refuses is replaced with growing back-off, at most one minute; a new template at once.
func TestRefusedPods(t *testing.T) {
	inWorld(t, 1, nil, nil, func(w *world) {
		refused := 0
		node := func(until time.Duration) {
			for end := time.Now().Add(until); time.Now().Before(end); time.Sleep(100 * time.Millisecond) {
				for _, p := range w.pods() {
					switch {
					case p.DeletionTimestamp != nil:
						w.api.Remove(p)
					case p.Status.Phase != corev1.PodFailed:
						refused++
						controllertest.Change(w.api, "ns", p.Name, func(p *corev1.Pod) {
							p.Status = corev1.PodStatus{Phase: corev1.PodFailed, Reason: "OutOfcpu"}
						})
					}
				}
			}
		}
		if node(20 * time.Minute); refused < 20 || refused > 30 { // 1 s, 2 s … 1 min
			w.Errorf("%d pods refused in 20 minutes", refused)
		}
		refused = 0
		w.change(func(s *appsv1.StatefulSet) { s.Generation++ })
		if node(time.Second); refused != 1 {
			w.Errorf("%d pods of a new generation", refused)
		}
	})
}
