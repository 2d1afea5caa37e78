// Package daemonsets runs the plan of DaemonSets against a store in memory, in random steps from one
// seed: users change the template, the strategy, and the node selector; nodes are added, removed,
// and tainted; pods break; watches deliver events late, twice, or only with a new list; there are
// conflicts and lost responses; the controller ends between any two writes. After each write it
// checks the invariants. Its tests run it; it must never touch a real cluster. The hash of a
// template is its image: revisions are not simulated.
//
// Contract: docs/spec/workloads.md.
package daemonsets

import (
	"strconv"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"

	"carob/internal/core/workload"
	"carob/internal/core/workload/daemonset"
	"carob/internal/sim/fakeapi"
)

// The invariants.
const (
	OnePod   fakeapi.Invariant = "a node gets no second pod, and beyond surge no third (W4.33, W4.36, W4.38)"
	Eligible fakeapi.Invariant = "a pod is made only for a node that should run one (W4.10, W4.12, W4.14)"
	Minimum  fakeapi.Invariant = "an update leaves no more nodes without an available pod than it may (W4.53, W4.54)"
	Ends     fakeapi.Invariant = "when the faults end, each node has its pod and no part writes any more (W4.61, W4.68)"
)

// Sabotage breaks the controller in one way; the zero value breaks nothing.
type Sabotage struct {
	Stale bool                      // plans are made before the own writes are delivered
	In    func(in *daemonset.Input) // changes the input of the plan; Set is a copy
	Plan  func(p *daemonset.Plan)   // changes the plan
}

var begin = time.Date(2026, 11, 22, 12, 0, 0, 0, time.UTC)

type world struct {
	*fakeapi.API
	sabotage   Sabotage
	c          *Controller
	caches     *fakeapi.Caches
	uid        types.UID
	unanswered map[types.UID]bool // pods whose creation got no response
	machines   int
	breaks     int // how many pods break as soon as they run
}

// Run runs the given number of steps of a seed and returns the first broken invariant, nil for
// none.
func Run(seed uint64, steps int, sabotage Sabotage) error {
	return fakeapi.Catch(func() {
		w := &world{API: fakeapi.New(seed, begin), sabotage: sabotage, unanswered: map[types.UID]bool{}}
		w.Ended = func(o fakeapi.Object) bool {
			p, ok := o.(*corev1.Pod)
			return !ok || p.Spec.NodeName == "" || workload.Terminal(p)
		}
		w.uid = w.Create(w.set()).GetUID()
		for range 5 {
			w.boot()
		}
		w.start()
		for range steps {
			w.step()
		}
		w.rest()
	})
}

// start starts a process with the controller.
func (w *world) start() {
	w.caches = fakeapi.NewCaches(w.API)
	created := func(in daemonset.Input, node string, made fakeapi.Object, answered bool) {
		w.unanswered[made.GetUID()] = !answered
		w.created(in, node, made)
	}
	w.c = NewController(w.API, w.Client(), w.caches, Hooks{Sabotage: w.sabotage, Planned: w.planned, Created: created})
}

func (w *world) turn() {
	if !w.c.Turn() {
		w.start()
	}
}

func (w *world) set() *appsv1.DaemonSet {
	d := &appsv1.DaemonSet{ObjectMeta: metav1.ObjectMeta{Namespace: "n", Name: "log"}}
	d.Spec.Selector = &metav1.LabelSelector{MatchLabels: map[string]string{"app": "log"}}
	d.Spec.UpdateStrategy = w.strategy()
	d.Spec.Template.Labels = map[string]string{"app": "log"}
	d.Spec.Template.Spec.Containers = []corev1.Container{{Name: "c", Image: "v0"}}
	if w.IntN(2) == 0 {
		d.Spec.Template.Spec.NodeSelector = map[string]string{"disk": "yes"}
	}
	return d
}

func (w *world) strategy() appsv1.DaemonSetUpdateStrategy {
	r := &appsv1.RollingUpdateDaemonSet{
		MaxUnavailable: new(intstr.FromInt(1 + w.IntN(2))), MaxSurge: new(intstr.FromInt(0))}
	switch w.IntN(5) {
	case 0:
		return appsv1.DaemonSetUpdateStrategy{Type: appsv1.OnDeleteDaemonSetStrategyType}
	case 1, 2:
		r.MaxUnavailable, r.MaxSurge = new(intstr.FromInt(0)), new(intstr.FromInt(1+w.IntN(2)))
	}
	return appsv1.DaemonSetUpdateStrategy{Type: appsv1.RollingUpdateDaemonSetStrategyType, RollingUpdate: r}
}

// boot adds a node.
func (w *world) boot() {
	w.machines++
	n := &corev1.Node{}
	n.Name, n.Labels = "node-"+strconv.Itoa(w.machines), map[string]string{}
	if w.IntN(3) > 0 {
		n.Labels["disk"] = "yes"
	}
	w.Create(n)
}

// step applies one random event.
func (w *world) step() {
	w.Now = w.Now.Add(time.Duration(w.IntN(10)) * time.Second)
	switch n := w.IntN(100); {
	case n < 14:
		w.c.sets.Deliver()
	case n < 38:
		w.c.pods.Deliver()
	case n < 48:
		w.c.nodes.Deliver()
	case n < 74:
		w.turn()
	case n < 92:
		w.kubelets()
	case n < 95:
		w.user()
	case n < 99:
		w.machine()
	default:
		w.start()
	}
}

func (w *world) user() {
	if pods := fakeapi.All[*corev1.Pod](w.API); w.IntN(3) == 0 && len(pods) > 0 {
		w.Delete(pods[w.IntN(len(pods))].UID, 30)
		return
	}
	w.Change(w.uid, func(o fakeapi.Object) {
		d, ok := o.(*appsv1.DaemonSet)
		if !ok {
			return
		}
		d.Generation++
		switch w.IntN(4) {
		case 0, 1:
			d.Spec.Template.Spec.Containers[0].Image = "v" + strconv.Itoa(w.IntN(3))
		case 2:
			d.Spec.UpdateStrategy = w.strategy()
		default:
			d.Spec.Template.Spec.NodeSelector = nil
			if w.IntN(2) == 0 {
				d.Spec.Template.Spec.NodeSelector = map[string]string{"disk": "yes"}
			}
		}
	})
}

// machine adds, removes, or changes a node.
func (w *world) machine() {
	nodes := fakeapi.All[*corev1.Node](w.API)
	if len(nodes) < 2 || len(nodes) < 7 && w.IntN(3) == 0 {
		w.boot()
		return
	}
	n := nodes[w.IntN(len(nodes))]
	if w.IntN(3) == 0 {
		w.Delete(n.UID, 0)
		return
	}
	w.Change(n.UID, func(o fakeapi.Object) {
		n, ok := o.(*corev1.Node)
		switch {
		case !ok:
		case w.IntN(2) == 0:
			n.Labels["disk"] = []string{"yes", "no"}[w.IntN(2)]
		case len(n.Spec.Taints) > 0:
			n.Spec.Taints = nil
		default:
			effect := []corev1.TaintEffect{corev1.TaintEffectNoSchedule, corev1.TaintEffectNoExecute}[w.IntN(2)]
			n.Spec.Taints = []corev1.Taint{{Key: "k", Effect: effect}}
		}
	})
}

// kubelets does the work of the scheduler, the nodes, and pod garbage collection for removed nodes.
func (w *world) kubelets() {
	there := map[string]bool{}
	for _, n := range fakeapi.All[*corev1.Node](w.API) {
		there[n.Name] = true
	}
	for _, p := range fakeapi.All[*corev1.Pod](w.API) {
		change := func(f func(p *corev1.Pod)) {
			w.Change(p.UID, func(o fakeapi.Object) {
				if p, ok := o.(*corev1.Pod); ok {
					f(p)
				}
			})
		}
		end := func(p *corev1.Pod) { p.Status = corev1.PodStatus{Phase: corev1.PodFailed} }
		switch {
		case w.One(3):
		case p.Spec.NodeName == "" && there[daemonset.Target(p)]:
			change(func(p *corev1.Pod) { p.Spec.NodeName = daemonset.Target(p) })
		case p.Spec.NodeName == "":
		case !there[p.Spec.NodeName]:
			change(end)
			w.Delete(p.UID, 0)
		case workload.Terminal(p):
		case p.DeletionTimestamp != nil:
			change(end)
		case !workload.Ready(p) && (w.Faultless || p.Spec.Containers[0].Image != "v2"): // v2 never becomes ready
			change(func(p *corev1.Pod) {
				p.Status = corev1.PodStatus{Phase: corev1.PodRunning, Conditions: []corev1.PodCondition{
					{Type: corev1.PodReady, Status: corev1.ConditionTrue, LastTransitionTime: metav1.NewTime(w.Now)}}}
			})
		case workload.Ready(p) && w.breaks > 0:
			w.breaks--
			change(end)
		case w.One(25):
			change(end)
		}
	}
}

// rest ends all faults except some pods that break one after the other, and checks the final state.
// Only its watches and its requested time call the controller.
func (w *world) rest() {
	w.Faultless, w.breaks = true, 20
	w.Rest(Ends, 12*time.Hour, func() {
		w.caches.CatchUp()
		w.turn()
		w.kubelets()
	}, func() (soon bool, due time.Time) { return w.c.Due() })
	w.checkEnd()
	w.Quiet(Ends, func() {
		w.c.sets.List()
		w.turn()
	})
}
