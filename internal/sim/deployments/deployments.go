// Package deployments runs the plans of Deployments and ReplicaSets together against a store in memory,
// in random steps from one seed: users change, scale, pause, and roll back; watches deliver events
// late, twice, or only with a new list; there are conflicts and lost responses; controllers end
// between any two writes; pods break. After each write it checks the invariants. Its tests run it; it
// must never touch a real cluster.
//
// Contract: docs/spec/workloads.md.
package deployments

import (
	"strconv"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"

	"carob/internal/core/workload"
	"carob/internal/core/workload/deployment"
	"carob/internal/core/workload/replicaset"
	"carob/internal/sim/fakeapi"
)

// The invariants.
const (
	Surge     fakeapi.Invariant = "never more pods than size and surge (W2.41)"
	Minimum   fakeapi.Invariant = "no decision leaves fewer available pods than the minimum (W2.42)"
	NoneTwice fakeapi.Invariant = "a set never has more active pods than it was ever to have (W1.12)"
	NoOverlap fakeapi.Invariant = "Recreate makes no pod while an old one is there (W2.50)"
	Ends      fakeapi.Invariant = "when no change is pending, the Deployment matches its spec (W2.73)"
	History   fakeapi.Invariant = "no more old sets than the limit of history (W2.100)"
)

// Sabotage breaks the controllers in one way; the zero value breaks nothing.
type Sabotage struct {
	Stale bool                       // plans are made before the own writes are delivered
	Plan  func(p *deployment.Plan)   // changes a deployment's plan
	In    func(in *deployment.Input) // changes its input
	Pods  func(p *replicaset.Plan)   // changes a ReplicaSet's plan
}

var begin = time.Date(2026, 11, 22, 12, 0, 0, 0, time.UTC)

type world struct {
	*fakeapi.API
	sabotage   Sabotage
	uid        types.UID // of the deployment
	caches     *fakeapi.Caches
	rollouts   *Deployments
	counts     *ReplicaSets
	before     picture // when the pass began
	largest    map[types.UID]int32
	unanswered map[types.UID]bool // pods whose creation got no response
	broken     map[string]bool    // images whose pods never become ready
}

// Run runs the given number of steps of a seed and returns the first broken invariant, nil for
// none.
func Run(seed uint64, steps int, sabotage Sabotage) error {
	return fakeapi.Catch(func() {
		w := &world{API: fakeapi.New(seed, begin), sabotage: sabotage, largest: map[types.UID]int32{},
			unanswered: map[types.UID]bool{}, broken: map[string]bool{"v2": true}}
		w.Ended = func(o fakeapi.Object) bool {
			p, ok := o.(*corev1.Pod)
			return !ok || workload.Terminal(p)
		}
		w.Stored = func(_ fakeapi.Object, after fakeapi.Entry) {
			if s, ok := after.Object.(*appsv1.ReplicaSet); ok {
				w.largest[s.UID] = max(w.largest[s.UID], *s.Spec.Replicas)
			}
		}
		w.uid = w.Create(w.deployment()).GetUID()
		w.restart()
		for range steps {
			w.step()
		}
		w.rest()
	})
}

func (w *world) deployment() *appsv1.Deployment {
	d := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: "n", Name: "web"},
		Spec: appsv1.DeploymentSpec{
			Replicas: w.number(8), RevisionHistoryLimit: w.number(3),
			ProgressDeadlineSeconds: new(int32(600)),
			Selector:                &metav1.LabelSelector{MatchLabels: map[string]string{"app": "web"}},
			Strategy:                appsv1.DeploymentStrategy{Type: appsv1.RecreateDeploymentStrategyType},
		}}
	if w.IntN(4) > 0 {
		surge, unavailable := w.IntN(4), w.IntN(4)
		if surge == 0 {
			unavailable++
		}
		d.Spec.Strategy = appsv1.DeploymentStrategy{Type: appsv1.RollingUpdateDeploymentStrategyType,
			RollingUpdate: &appsv1.RollingUpdateDeployment{
				MaxSurge: new(intstr.FromInt(surge)), MaxUnavailable: new(intstr.FromInt(unavailable))}}
	}
	d.Spec.Template.Labels = map[string]string{"app": "web"}
	d.Spec.Template.Spec.Containers = []corev1.Container{{Name: "c", Image: "v0"}}
	return d
}

func (w *world) number(below int) *int32 { return new(int32(w.IntN(below))) } //nolint:gosec // small

// restart starts a new process with both controllers.
func (w *world) restart() {
	w.caches = fakeapi.NewCaches(w.API)
	h := Hooks{Sabotage: w.sabotage, Created: w.created,
		Began:      func(in deployment.Input) { w.before = w.picture(in.Sets) },
		Wrote:      func(in deployment.Input) { w.check(w.before, in) },
		Unanswered: func(uid types.UID) { w.unanswered[uid] = true }}
	client := w.Client()
	w.rollouts, w.counts = NewDeployments(w.API, client, w.caches, h), NewReplicaSets(w.API, client, w.caches, h)
}

// turn lets the controllers process their events.
func (w *world) turn(rollouts, counts bool) {
	if rollouts && !w.rollouts.Turn() || counts && !w.counts.Turn() {
		w.restart()
	}
}

func (w *world) current() *appsv1.Deployment {
	d, ok := w.Get(w.uid).(*appsv1.Deployment)
	if !ok {
		fakeapi.Break(Ends, "the deployment is gone")
	}
	return d
}

// step applies one random event.
func (w *world) step() {
	w.Now = w.Now.Add(time.Duration(w.IntN(20)) * time.Second)
	switch n := w.IntN(100); {
	case n < 60:
		watches := w.caches.Watches()
		watches[w.IntN(len(watches))].Deliver()
	case n < 70:
		w.turn(true, false)
	case n < 84:
		w.turn(false, true)
	case n < 95:
		w.node()
	case n < 98:
		w.user()
	default:
		w.restart()
	}
}

// user changes the deployment.
func (w *world) user() {
	w.Change(w.uid, func(o fakeapi.Object) {
		d, ok := o.(*appsv1.Deployment)
		if !ok {
			return
		}
		d.Generation++
		switch w.IntN(5) {
		case 0, 1:
			d.Spec.Template.Spec.Containers[0].Image = "v" + strconv.Itoa(w.IntN(4))
		case 2:
			d.Spec.Replicas = w.number(8)
		case 3:
			d.Spec.Paused = w.IntN(2) == 0
		case 4:
			if d.Annotations == nil {
				d.Annotations = map[string]string{}
			}
			d.Annotations[appsv1.DeprecatedRollbackTo] = strconv.Itoa(w.IntN(4))
		}
	})
}

// node makes pods ready, breaks some, and ends those that are being deleted. It also deletes the pods
// whose set was deleted, like the garbage collector.
func (w *world) node() {
	for _, p := range fakeapi.All[*corev1.Pod](w.API) {
		change := func(s corev1.PodStatus) {
			w.Change(p.UID, func(o fakeapi.Object) {
				if p, ok := o.(*corev1.Pod); ok {
					p.Status = s
				}
			})
		}
		if p.DeletionTimestamp == nil && w.Get(metav1.GetControllerOfNoCopy(p).UID) == nil {
			w.Delete(p.UID, 30)
			continue
		}
		switch {
		case workload.Terminal(p): // it stays (W1.14)
		case p.DeletionTimestamp != nil:
			if !w.One(2) {
				change(corev1.PodStatus{Phase: corev1.PodFailed})
			}
		case !workload.Ready(p) && !w.broken[p.Spec.Containers[0].Image] && !w.One(2):
			change(corev1.PodStatus{Phase: corev1.PodRunning,
				Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue,
					LastTransitionTime: metav1.NewTime(w.Now)}}})
		case w.One(60):
			change(corev1.PodStatus{Phase: corev1.PodFailed})
		}
	}
}

// rest ends all faults, and checks the final state. Only their watches and their requested times
// call the controllers.
func (w *world) rest() {
	w.Faultless = true
	w.Change(w.uid, func(o fakeapi.Object) {
		if d, ok := o.(*appsv1.Deployment); ok {
			d.Spec.Paused = false
			d.Spec.Template.Spec.Containers[0].Image = "v1"
			delete(d.Annotations, appsv1.DeprecatedRollbackTo)
			d.Generation++
		}
	})
	w.Rest(Ends, 2*time.Hour, func() {
		w.caches.CatchUp()
		w.turn(true, true)
		w.node()
	}, func() (soon bool, due time.Time) {
		soon, due = w.rollouts.Due()
		again, other := w.counts.Due()
		return soon || again, workload.Earlier(due, other)
	})
	w.checkEnd()
}
