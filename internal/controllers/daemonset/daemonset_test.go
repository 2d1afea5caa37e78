package daemonset

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
	"k8s.io/apimachinery/pkg/util/intstr"
	ktesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/record"
	"k8s.io/utils/ptr"

	"carob/internal/controllers/controllertest"
	"carob/internal/controllers/source"
	"carob/internal/core/workload"
	"carob/internal/core/workload/daemonset"
	"carob/internal/core/workload/revision"
)

// world is a set, an API, nodes and the controller, in a bubble of virtual time.
type world struct {
	*testing.T
	api    *controllertest.API
	events *record.FakeRecorder
	dice   dice
	end    func() // of the controller that runs now
	kill   atomic.Pointer[context.CancelFunc]
	crash  chan struct{}
	others sync.WaitGroup
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

func newSet() *appsv1.DaemonSet {
	return &appsv1.DaemonSet{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "d"}, Spec: appsv1.DaemonSetSpec{
		Selector:             &metav1.LabelSelector{MatchLabels: map[string]string{"app": "d"}},
		RevisionHistoryLimit: ptr.To[int32](2),
		Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"app": "d"}},
			Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "one"}},
				NodeSelector: map[string]string{"is": "in"}}},
		UpdateStrategy: appsv1.DaemonSetUpdateStrategy{Type: appsv1.RollingUpdateDaemonSetStrategyType,
			RollingUpdate: &appsv1.RollingUpdateDaemonSet{MaxUnavailable: new(intstr.FromInt32(1)),
				MaxSurge: new(intstr.FromInt32(0))}}}}
}

func node(name, is string) *corev1.Node {
	return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"is": is}}}
}

// inWorld runs a test with nodes a to c and the usual set after change; before prepares the API.
func inWorld(t *testing.T, seed uint64, change func(*appsv1.DaemonSet), before func(w *world), test func(w *world)) {
	synctest.Test(t, func(t *testing.T) {
		set := newSet()
		if change != nil {
			change(set)
		}
		w := &world{T: t, api: controllertest.New(set, node("a", "in"), node("b", "in"), node("c", "in")),
			events: record.NewFakeRecorder(100000),
			dice:   dice{rng: rand.New(rand.NewPCG(seed, 2))}, crash: make(chan struct{}, 1)}
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
	watches := Watches{Sets: source.DaemonSets(w.api), Pods: source.Pods(w.api), Nodes: source.Nodes(w.api),
		Revisions: source.Revisions(w.api)}
	c, err := New(w.api, w.events, watches)
	if err != nil {
		w.Fatal(err)
	}
	var group sync.WaitGroup
	w.end = func() { cancel(); group.Wait() }
	w.kill.Store(&cancel) // before the first write
	all := []*source.Watch{watches.Sets, watches.Pods, watches.Nodes, watches.Revisions}
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

func (w *world) set() *appsv1.DaemonSet { return controllertest.All[*appsv1.DaemonSet](w.api)[0] }

func (w *world) change(f func(*appsv1.DaemonSet)) { controllertest.Change(w.api, "ns", "d", f) }

func (w *world) nodes() map[string]*corev1.Node {
	nodes := map[string]*corev1.Node{}
	for _, n := range controllertest.All[*corev1.Node](w.api) {
		nodes[n.Name] = n
	}
	return nodes
}

// kubelet does the next action of a pod's node, or of the pod garbage collector, for one pod.
func (w *world) kubelet(p *corev1.Pod) {
	target := daemonset.Target(p)
	switch {
	case p.DeletionTimestamp != nil, p.Spec.NodeName != "" && w.nodes()[target] == nil:
		w.api.Remove(p)
	case !workload.Ready(p) && !workload.Terminal(p) && w.nodes()[target] != nil:
		controllertest.Change(w.api, "ns", p.Name, func(p *corev1.Pod) {
			p.Spec.NodeName, p.Status.Phase = target, corev1.PodRunning
			p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue,
				LastTransitionTime: metav1.Now()}}
		})
	}
}

// settle lets the nodes work until the set is in its desired state, or for an hour.
func (w *world) settle() {
	w.Helper()
	for range 3600 * 5 {
		synctest.Wait()
		for _, p := range w.pods() {
			w.kubelet(p)
		}
		if w.problem() == "" {
			return
		}
		time.Sleep(200 * time.Millisecond)
		w.recover()
	}
	w.Fatalf("after an hour: %s", w.problem())
}

// recover restarts the controller after a crash.
func (w *world) recover() {
	select {
	case <-w.crash:
		w.end()
		w.start()
	default:
	}
}

// problem returns a difference from the spec.
func (w *world) problem() string {
	set := w.set()
	want, on := int32(0), map[string]int{}
	for _, p := range w.pods() {
		on[daemonset.Target(p)]++
		if p.DeletionTimestamp != nil || !workload.Ready(p) ||
			p.Spec.Containers[0].Image != set.Spec.Template.Spec.Containers[0].Image {
			return fmt.Sprintf("pod %s on %s: image %s, ready %v, deleted %v", p.Name, daemonset.Target(p),
				p.Spec.Containers[0].Image, workload.Ready(p), p.DeletionTimestamp)
		}
	}
	for name, n := range w.nodes() {
		pods := 0
		if n.Labels["is"] == "in" {
			want, pods = want+1, 1
		}
		if on[name] != pods {
			return fmt.Sprintf("%d pods on %s", on[name], name)
		}
	}
	if s := &set.Status; s.DesiredNumberScheduled != want || s.CurrentNumberScheduled != want ||
		s.NumberAvailable != want || s.UpdatedNumberScheduled != want ||
		s.NumberMisscheduled != 0 || s.NumberUnavailable != 0 || s.ObservedGeneration != set.Generation {
		return fmt.Sprintf("status %+v of %d at generation %d", s, want, set.Generation)
	}
	if revisions := len(controllertest.All[*appsv1.ControllerRevision](w.api)); revisions > int(
		*set.Spec.RevisionHistoryLimit)+1 {
		return fmt.Sprintf("%d revisions", revisions)
	}
	return ""
}

// watchNodes fails the test when a node gets a second pod: without surge while it has one, with surge while it has
// two that are not being deleted (W4.33, W4.36, W4.38).
func (w *world) watchNodes(surge bool) {
	w.api.PrependReactor("create", "pods", func(a ktesting.Action) (bool, runtime.Object, error) {
		create, ok := a.(ktesting.CreateAction)
		if !ok {
			return false, nil, nil
		}
		made, ok := create.GetObject().(*corev1.Pod)
		if !ok {
			return false, nil, nil
		}
		there := 0
		for _, p := range w.pods() {
			if daemonset.Target(p) == daemonset.Target(made) && (!surge || p.DeletionTimestamp == nil) {
				there++
			}
		}
		if there > 1 || there > 0 && !surge {
			w.Errorf("%s gets another pod beside %d", daemonset.Target(made), there)
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
		if w.dice.n(30) > 0 {
			return nil
		}
		(*w.kill.Load())() // it stops
		select {
		case w.crash <- struct{}{}:
		default:
		}
		return apierrors.NewTimeoutError("carob crashed", 1)
	}
}

// touch is the write of another client that came first, if the object still exists.
func (w *world) touch(resource, name string) {
	defer func() { _ = recover() }()
	note := func(o metav1.Object) { o.SetAnnotations(map[string]string{"touched": fmt.Sprint(w.dice.n(1 << 30))}) }
	switch resource {
	case "daemonsets":
		controllertest.Change(w.api, "ns", name, func(o *appsv1.DaemonSet) { note(o) })
	case "pods":
		controllertest.Change(w.api, "ns", name, func(o *corev1.Pod) { note(o) })
	case "controllerrevisions":
		controllertest.Change(w.api, "ns", name, func(o *appsv1.ControllerRevision) { note(o) })
	}
}

func (w *world) settled() {
	w.api.Late, w.api.Faults, w.api.Before, w.api.After = nil, nil, nil, nil
}

// With late, lost, and repeated events, rejected writes, crashes of the controller, and nodes that are added and
// removed: no node gets two pods, and in the end each eligible node has one of the set's template.
func TestConvergesUnderFaults(t *testing.T) {
	for seed := range uint64(40) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			surge := seed%3 == 2
			inWorld(t, seed, func(s *appsv1.DaemonSet) {
				if surge {
					s.Spec.UpdateStrategy.RollingUpdate = &appsv1.RollingUpdateDaemonSet{
						MaxUnavailable: new(intstr.FromInt32(0)), MaxSurge: new(intstr.FromInt32(1))}
				}
			}, func(w *world) {
				w.trouble()
				w.watchNodes(surge)
			}, func(w *world) {
				for range 60 {
					time.Sleep(time.Duration(w.dice.n(400)) * time.Millisecond)
					w.recover()
					name := string(rune('a' + w.dice.n(5)))
					switch w.dice.n(10) {
					case 0:
						w.change(func(s *appsv1.DaemonSet) {
							s.Spec.Template.Spec.Containers[0].Image = []string{"one", "two", "three"}[w.dice.n(3)]
						})
					case 1:
						w.api.Put(node(name, []string{"in", "in", "out"}[w.dice.n(3)]))
					case 2:
						if n := w.nodes()[name]; n != nil {
							w.api.Remove(n)
						}
					default:
						if pods := w.pods(); len(pods) > 0 {
							w.kubelet(pods[w.dice.n(len(pods))])
						}
					}
				}
				w.settle()
				w.settled()
				w.settle()
			})
		})
	}
}

// recorded returns the events so far.
func (w *world) recorded() []string {
	var recorded []string
	for {
		select {
		case e := <-w.events.Events:
			recorded = append(recorded, e)
		default:
			slices.Sort(recorded)
			return slices.Compact(recorded)
		}
	}
}

// A stable set causes no writes; nodes trigger a reconciliation only if they concern it (W4.4), by label, by
// taint or as new ones.
func TestNodes(t *testing.T) {
	inWorld(t, 1, nil, nil, func(w *world) {
		w.settle()
		w.recorded()
		synctest.Wait()
		w.api.Log()
		time.Sleep(24 * time.Hour)
		controllertest.Change(w.api, "", "a",
			func(n *corev1.Node) { n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady}} })
		synctest.Wait()
		if log := w.api.Log(); len(log) > 0 {
			t.Errorf("at rest it writes %v", log)
		}
		w.api.Put(node("d", "in"))
		controllertest.Change(w.api, "", "a", func(n *corev1.Node) { n.Labels["is"] = "out" })
		controllertest.Change(w.api, "", "b",
			func(n *corev1.Node) { n.Spec.Taints = []corev1.Taint{{Key: "x", Effect: corev1.TaintEffectNoExecute}} })
		synctest.Wait()
		var going, coming []string
		for _, p := range w.pods() {
			switch {
			case p.DeletionTimestamp != nil:
				going = append(going, daemonset.Target(p))
			case !workload.Ready(p):
				coming = append(coming, daemonset.Target(p))
			}
		}
		slices.Sort(going)
		if fmt.Sprint(going, coming) != "[a b] [d]" {
			t.Errorf("going are those on %v, coming on %v", going, coming)
		}
		w.api.Remove(node("d", ""))
		synctest.Wait()
		if pods := w.pods(); slices.ContainsFunc(pods, func(p *corev1.Pod) bool { return daemonset.Target(p) == "d" }) {
			t.Error("the pod for a deleted node still exists, and is never bound")
		}
		w.api.Remove(node("c", "")) // it is added again before its pod is collected
		synctest.Wait()
		if n := w.set().Status.DesiredNumberScheduled; n != 0 {
			t.Errorf("desired %d without nodes", n)
		}
		w.api.Put(node("c", "in"))
		synctest.Wait()
		if n := w.set().Status.DesiredNumberScheduled; n != 1 {
			t.Errorf("desired %d with a node that has its pod", n)
		}
	})
}

// The events of creations, deletions and failures (W0.34–W0.37, W4.34, W4.41); a pod that fails again and again is
// replaced with growing back-off.
func TestFailures(t *testing.T) {
	t.Run("without surge", func(t *testing.T) { failAgain(t, func(*appsv1.DaemonSet) {}) })
	t.Run("with surge", func(t *testing.T) {
		failAgain(t, func(s *appsv1.DaemonSet) {
			s.Spec.UpdateStrategy = appsv1.DaemonSetUpdateStrategy{Type: appsv1.RollingUpdateDaemonSetStrategyType,
				RollingUpdate: &appsv1.RollingUpdateDaemonSet{MaxSurge: new(intstr.FromInt32(1)),
					MaxUnavailable: new(intstr.FromInt32(0))}}
		})
	})
}

func failAgain(t *testing.T, change func(*appsv1.DaemonSet)) {
	t.Helper()
	inWorld(t, 1, func(s *appsv1.DaemonSet) {
		change(s)
		s.Spec.Template.Spec.NodeName = "a"
	}, nil, func(w *world) {
		synctest.Wait()
		replaced, last := 0, ""
		for began := time.Now(); time.Since(began) < time.Hour; time.Sleep(time.Second) {
			synctest.Wait()
			for _, p := range w.pods() {
				switch {
				case p.DeletionTimestamp != nil:
					w.api.Remove(p)
				case p.Status.Phase != corev1.PodFailed:
					if replaced, last = replaced+1, p.Name; replaced == 1 {
						if recorded := w.recorded(); !slices.Equal(recorded,
							[]string{"Normal SuccessfulCreate Created pod: " + p.Name}) {
							t.Errorf("events %q", recorded)
						}
					}
					controllertest.Change(w.api, "ns", p.Name,
						func(p *corev1.Pod) { p.Spec.NodeName, p.Status.Phase = "a", corev1.PodFailed })
				}
			}
		}
		if replaced < 10 || replaced > 15 { // 1 s, 2 s … 15 min
			t.Errorf("%d pods in an hour, the last was %s", replaced, last)
		}
		if recorded := w.recorded(); !slices.ContainsFunc(recorded, func(e string) bool {
			return strings.HasPrefix(e, "Warning FailedDaemonPod Found failed daemon pod ns/d-") &&
				strings.HasSuffix(e, " on node a, will try to kill it")
		}) || !slices.ContainsFunc(recorded,
			func(e string) bool { return strings.HasPrefix(e, "Normal SuccessfulDelete Deleted pod: d-") }) {
			t.Errorf("events %q", recorded)
		}
	})
}

// A quota that allows nothing causes few retries and one event (W0.35, W0.41), the deletion of the namespace none
// (W0.40), and an empty selector only a warning (W4.6).
func TestErrors(t *testing.T) {
	quota := apierrors.NewForbidden(corev1.Resource("pods"), "", fmt.Errorf("exceeded quota"))
	gone := apierrors.NewForbidden(corev1.Resource("pods"), "", fmt.Errorf("being terminated"))
	gone.ErrStatus.Details.Causes = []metav1.StatusCause{{Type: corev1.NamespaceTerminatingCause}}
	for name, c := range map[string]struct {
		err    error
		change func(*appsv1.DaemonSet)
		events []string
		most   int
	}{
		"quota":     {err: quota, events: []string{"Warning FailedCreate Error creating: " + quota.Error()}, most: 60},
		"namespace": {err: gone, most: 10},
		"selector": {err: gone, change: func(s *appsv1.DaemonSet) { s.Spec.Selector = &metav1.LabelSelector{} },
			events: []string{
				"Warning SelectingAll This daemon set is selecting all pods. A non-empty selector is required."}},
		"deleted": {err: gone, change: func(s *appsv1.DaemonSet) {
			s.DeletionTimestamp, s.Finalizers = new(metav1.Now()), []string{metav1.FinalizerDeleteDependents}
		}},
	} {
		t.Run(name, func(t *testing.T) {
			tries := 0
			inWorld(t, 1, c.change, func(w *world) {
				w.api.Before = func(verb string, gvr schema.GroupVersionResource, _ metav1.Object) error {
					if verb == "create" && gvr.Resource == "pods" {
						tries++
						return c.err
					}
					return nil
				}
			}, func(w *world) {
				time.Sleep(10 * time.Minute)
				synctest.Wait()
				if tries > c.most || tries == 0 && c.most > 0 {
					t.Errorf("%d tries in ten minutes, at most %d", tries, c.most)
				}
				if recorded := w.recorded(); !slices.Equal(recorded, c.events) {
					t.Errorf("events %q, want %q", recorded, c.events)
				}
				if log := w.api.Log(); c.most == 0 && len(log) > 0 {
					t.Errorf("it writes %v", log)
				}
			})
		})
	}
}

// A revision with the same data that a user adds triggers no reconciliation (W4.5, W12.41). In the next one, the
// revision with the highest number stays, and the pods with the hash of the other carry its hash (W4.60b); the next
// one is 3.
func TestDuplicateRevision(t *testing.T) {
	inWorld(t, 1, nil, nil, func(w *world) {
		w.settle()
		list := func() string {
			var names []string
			for _, r := range controllertest.All[*appsv1.ControllerRevision](w.api) {
				names = append(names, fmt.Sprint(r.Name, "=", r.Revision))
			}
			return strings.Join(names, " ")
		}
		first := controllertest.All[*appsv1.ControllerRevision](w.api)[0]
		second := first.DeepCopy()
		second.Name, second.UID, second.Revision = "d-second", "", 2
		second.Labels = maps.Clone(first.Labels)
		second.Labels[appsv1.DefaultDaemonSetUniqueLabelKey] = "second"
		w.api.Put(second)
		time.Sleep(time.Hour)
		if got := list(); got != first.Name+"=1 d-second=2" {
			t.Errorf("revisions %s", got)
		}
		w.change(func(s *appsv1.DaemonSet) { s.Annotations = map[string]string{"any": "change"} })
		synctest.Wait()
		if got := list(); got != "d-second=2" {
			t.Errorf("revisions %s", got)
		}
		for _, p := range w.pods() {
			if p.Labels[appsv1.DefaultDaemonSetUniqueLabelKey] != "second" || p.DeletionTimestamp != nil {
				t.Errorf("pod %s: %v, deleted %v", p.Name, p.Labels, p.DeletionTimestamp)
			}
		}
		w.change(func(s *appsv1.DaemonSet) { s.Spec.Template.Spec.Containers[0].Image = "two" })
		w.settle()
		if got := list(); !strings.Contains(got, "=3") || !strings.Contains(got, "d-second=2") {
			t.Errorf("revisions %s", got)
		}
	})
}

// W10.32: the current revision is made again with the next number if a user deletes it; an old one is not.
func TestRevisionIsDeleted(t *testing.T) {
	inWorld(t, 1, nil, nil, func(w *world) {
		w.settle()
		w.change(func(s *appsv1.DaemonSet) { s.Spec.Template.Spec.Containers[0].Image = "two" })
		w.settle()
		list := func() (out []int64) {
			for _, r := range controllertest.All[*appsv1.ControllerRevision](w.api) {
				out = append(out, r.Revision)
			}
			slices.Sort(out)
			return out
		}
		remove := func(number int64) {
			for _, r := range controllertest.All[*appsv1.ControllerRevision](w.api) {
				if r.Revision == number {
					w.api.Remove(r)
				}
			}
			w.change(func(s *appsv1.DaemonSet) {
				s.Annotations = map[string]string{"any": fmt.Sprint("change ", number)}
			})
			w.settle()
		}
		remove(2)
		if got := list(); !slices.Equal(got, []int64{1, 2}) {
			t.Errorf("after the current one was deleted: %v", got)
		}
		remove(1)
		if got := list(); !slices.Equal(got, []int64{2}) {
			t.Errorf("after the old one was deleted: %v", got)
		}
		remove(2)
		if got := list(); !slices.Equal(got, []int64{1}) {
			t.Errorf("after the only one was deleted: %v", got)
		}
	})
}

// If a revision with other data has the name, the set counts a collision, and the revision gets another name
// (W4.60a). Matching orphans are adopted, also revisions (W10.31), pods that no longer match are released.
func TestCollisionAndAdoption(t *testing.T) {
	inWorld(t, 1, nil, func(w *world) {
		set := w.set()
		taken := &appsv1.ControllerRevision{ObjectMeta: metav1.ObjectMeta{Namespace: "ns",
			Name: revision.Name("d", workload.TemplateHash(&set.Spec.Template, nil))}, Revision: 1}
		taken.Data.Raw = []byte(`{}`)
		w.api.Put(taken)
		w.api.Put(&appsv1.ControllerRevision{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "d-old",
			Labels: map[string]string{"app": "d"}}, Revision: 7})
	}, func(w *world) {
		w.settle()
		if s := w.set().Status; ptr.Deref(s.CollisionCount, 0) != 1 {
			t.Errorf("status %+v", s)
		}
		for _, r := range controllertest.All[*appsv1.ControllerRevision](w.api) {
			owned := metav1.IsControlledBy(r, w.set())
			switch r.Name {
			case "d-old":
				if !owned || r.Labels[appsv1.DefaultDaemonSetUniqueLabelKey] != "d-old" {
					t.Errorf("orphan %v, owned %v", r.Labels, owned)
				}
			default:
				if owned && r.Revision != 8 {
					t.Errorf("revision %s has number %d", r.Name, r.Revision)
				}
			}
		}
		controllertest.Change(w.api, "ns", "d-old",
			func(r *appsv1.ControllerRevision) { r.Labels = map[string]string{"app": "other"} })
		p := w.pods()[0]
		controllertest.Change(w.api, "ns", p.Name, func(p *corev1.Pod) { p.Labels = map[string]string{"app": "other"} })
		synctest.Wait()
		for _, r := range controllertest.All[*appsv1.ControllerRevision](w.api) {
			if r.Name == "d-old" && len(r.OwnerReferences) > 0 {
				t.Errorf("the revision still belongs to %v", r.OwnerReferences)
			}
		}
		if n := len(w.pods()); n != 4 {
			t.Errorf("%d pods, want the released one and one for its node", n)
		}
	})
}
