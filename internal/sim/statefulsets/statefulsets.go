// Package statefulsets runs the plan of StatefulSets against a store in memory, in random steps from one
// seed: users scale, change the template, shift ordinals, and delete pods; pods break; watches
// deliver events late, twice, or only with a new list; there are conflicts and lost responses; the
// controller ends between any two writes. After each write it checks the invariants. Its tests run
// it; it must never touch a real cluster. Package cluster runs the controller with claims.
//
// Contract: docs/spec/workloads.md.
package statefulsets

import (
	"strconv"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"

	"carob/internal/core/workload"
	"carob/internal/core/workload/statefulset"
	"carob/internal/sim/fakeapi"
)

// The invariants.
const (
	OneOrdinal fakeapi.Invariant = "an ordinal never has two pods (W3.47, W3.49)"
	Order      fakeapi.Invariant = "OrderedReady makes and removes one pod after the other (W3.43, W3.45)"
	Minimum    fakeapi.Invariant = "an update takes no more available pods than maxUnavailable (W3.61, W3.62)"
	Ends       fakeapi.Invariant = "when the faults end, all pods are there and new, and no part writes (W3.68, W3.77)"
)

// Sabotage breaks the controller in one way; the zero value breaks nothing.
type Sabotage struct {
	In   func(in *statefulset.Input) // changes the input of the plan; Set is a copy
	Plan func(p *statefulset.Plan)   // changes the plan
}

var begin = time.Date(2026, 11, 22, 12, 0, 0, 0, time.UTC)

type world struct {
	*fakeapi.API
	sabotage Sabotage
	c        *Controller
	caches   *fakeapi.Caches
	uid      types.UID
}

// Run runs the given number of steps of a seed and returns the first broken invariant, nil for
// none.
func Run(seed uint64, steps int, sabotage Sabotage) error {
	return fakeapi.Catch(func() {
		w := &world{API: fakeapi.New(seed, begin), sabotage: sabotage}
		w.Ended = func(o fakeapi.Object) bool {
			p, ok := o.(*corev1.Pod)
			return !ok || p.Spec.NodeName == "" || workload.Terminal(p)
		}
		w.uid = w.Create(w.set()).GetUID()
		w.restart()
		for range steps {
			w.step()
		}
		w.rest()
	})
}

func (w *world) number(below int) *int32 { return new(int32(w.IntN(below))) } //nolint:gosec // small

func (w *world) set() *appsv1.StatefulSet {
	s := &appsv1.StatefulSet{ObjectMeta: metav1.ObjectMeta{Namespace: "n", Name: "db"}}
	s.Spec = appsv1.StatefulSetSpec{Replicas: w.number(6), RevisionHistoryLimit: w.number(3),
		MinReadySeconds:     *w.number(2) * 10,
		Selector:            &metav1.LabelSelector{MatchLabels: map[string]string{"app": "db"}},
		PodManagementPolicy: appsv1.OrderedReadyPodManagement}
	if w.IntN(2) == 0 {
		s.Spec.PodManagementPolicy = appsv1.ParallelPodManagement
	}
	s.Spec.UpdateStrategy = appsv1.StatefulSetUpdateStrategy{Type: appsv1.RollingUpdateStatefulSetStrategyType,
		RollingUpdate: &appsv1.RollingUpdateStatefulSetStrategy{Partition: new(int32(0))}}
	if w.IntN(2) == 0 {
		s.Spec.UpdateStrategy.RollingUpdate.MaxUnavailable = new(intstr.FromInt32(1 + *w.number(3)))
	}
	s.Spec.Template.Labels = map[string]string{"app": "db"}
	s.Spec.Template.Spec.Containers = []corev1.Container{{Name: "c", Image: "v0"}}
	return s
}

// step applies one random event.
func (w *world) step() {
	w.Now = w.Now.Add(time.Duration(w.IntN(10)) * time.Second)
	switch n := w.IntN(100); {
	case n < 45:
		watches := w.caches.Watches()
		watches[w.IntN(len(watches))].Deliver()
	case n < 74:
		w.turn()
	case n < 95:
		w.kubelets()
	case n < 99:
		w.user()
	default:
		w.restart()
	}
}

// restart starts a new process of the controller.
func (w *world) restart() {
	w.caches = fakeapi.NewCaches(w.API)
	w.c = NewController(w.API, w.Client(), w.caches,
		Hooks{In: w.sabotage.In, Plan: w.sabotage.Plan, Planned: w.planned, Created: w.created})
}

func (w *world) turn() {
	if !w.c.Turn() {
		w.restart()
	}
}

func (w *world) user() {
	if pods := fakeapi.All[*corev1.Pod](w.API); w.IntN(3) == 0 && len(pods) > 0 {
		w.Delete(pods[w.IntN(len(pods))].UID, 30)
		return
	}
	w.Change(w.uid, func(o fakeapi.Object) {
		s, ok := o.(*appsv1.StatefulSet)
		if !ok {
			return
		}
		s.Generation++
		switch w.IntN(6) {
		case 0, 1:
			s.Spec.Replicas = w.number(7)
		case 2, 3:
			s.Spec.Template.Spec.Containers[0].Image = "v" + strconv.Itoa(w.IntN(3))
		case 4:
			s.Spec.UpdateStrategy.RollingUpdate.Partition = w.number(4)
		default:
			s.Spec.Ordinals = &appsv1.StatefulSetOrdinals{Start: *w.number(3)}
		}
	})
}

// kubelets starts pods, breaks some, and ends those that are being deleted.
func (w *world) kubelets() {
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
		case w.One(3) || workload.Terminal(p):
		case p.DeletionTimestamp != nil:
			change(end)
		case p.Spec.NodeName == "":
			change(func(p *corev1.Pod) { p.Spec.NodeName = "node" })
		case !workload.Ready(p) && p.Spec.Containers[0].Image != "v2": // v2 never becomes ready
			change(func(p *corev1.Pod) {
				p.Status = corev1.PodStatus{Phase: corev1.PodRunning, Conditions: []corev1.PodCondition{
					{Type: corev1.PodReady, Status: corev1.ConditionTrue, LastTransitionTime: metav1.NewTime(w.Now)}}}
			})
		case w.One(25):
			change(end)
		}
	}
}

// rest ends all faults and checks the final state. A user repairs the template and, as W3.67
// requires, deletes the pods that never become ready. Only its watches and its requested time call
// the controller.
func (w *world) rest() {
	w.Faultless = true
	w.Change(w.uid, func(o fakeapi.Object) {
		if s, ok := o.(*appsv1.StatefulSet); ok {
			s.Generation++
			s.Spec.Template.Spec.Containers[0].Image = "v1"
			s.Spec.UpdateStrategy.RollingUpdate.Partition = new(int32(0))
		}
	})
	w.Rest(Ends, 2*time.Hour, func() {
		w.caches.CatchUp()
		w.turn()
		w.kubelets()
		for _, p := range fakeapi.All[*corev1.Pod](w.API) {
			if p.Spec.Containers[0].Image == "v2" && p.DeletionTimestamp == nil {
				w.Delete(p.UID, 30)
			}
		}
	}, func() (soon bool, due time.Time) { return w.c.Due() })
	w.checkEnd()
	w.Quiet(Ends, func() {
		w.c.sets.List()
		w.turn()
	})
}
