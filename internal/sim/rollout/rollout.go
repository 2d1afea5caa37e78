// Package rollout runs the plans of Deployments and ReplicaSets together against a store in memory,
// in random steps from one seed: users change, scale, pause, and roll back; watches deliver events
// late, twice, or only with a new list; there are conflicts; controllers end between any two
// writes; pods break. After each write it checks the invariants. Its tests run it; it must never
// touch a real cluster.
package rollout

import (
	"maps"
	"math/rand/v2"
	"slices"
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
	"carob/internal/sim/cluster"
)

// The invariants.
const (
	Surge     cluster.Promise = "never more pods than size and surge (W2.41)"
	Minimum   cluster.Promise = "no decision leaves fewer available pods than the minimum (W2.42)"
	NoneTwice cluster.Promise = "a set never has more active pods than it was ever to have (W1.12)"
	NoOverlap cluster.Promise = "Recreate makes no pod while an old one is there (W2.50)"
	Ends      cluster.Promise = "when all is quiet, the deployment is what it says (W2.73)"
	History   cluster.Promise = "no more old sets than the limit of history (W2.100)"
)

// Sabotage breaks the controllers in one way; the zero value breaks nothing.
type Sabotage struct {
	Stale bool                       // plans are made before the own writes are delivered
	Plan  func(p *deployment.Plan)   // changes a deployment's plan
	In    func(in *deployment.Input) // changes its input
	Pods  func(p *replicaset.Plan)   // changes a ReplicaSet's plan
}

var begin = time.Date(2026, 11, 22, 12, 0, 0, 0, time.UTC)

// stored is an object and its version.
type stored[T any] struct {
	object  T
	version int
}

// change is an entry of the store's history; one of the three kinds is set. gone means that the
// object was deleted.
type change struct {
	version    int
	deployment *appsv1.Deployment
	set        *appsv1.ReplicaSet
	pod        *corev1.Pod
	gone       bool
}

// view is what a controller's watches have delivered.
type view struct {
	d       stored[*appsv1.Deployment]
	sets    map[types.UID]stored[*appsv1.ReplicaSet]
	pods    map[types.UID]*corev1.Pod
	at      int // entries of the history that were delivered
	version int
	needs   int // version of its own newest write
}

func (v *view) apply(c change) {
	v.version = max(v.version, c.version)
	switch {
	case c.deployment != nil:
		v.d = stored[*appsv1.Deployment]{c.deployment, c.version}
	case c.set != nil && c.gone:
		delete(v.sets, c.set.UID)
	case c.set != nil:
		v.sets[c.set.UID] = stored[*appsv1.ReplicaSet]{c.set, c.version}
	case c.gone:
		delete(v.pods, c.pod.UID)
	default:
		v.pods[c.pod.UID] = c.pod
	}
}

type world struct {
	*rand.Rand
	sabotage Sabotage
	truth    view // what is stored
	history  []change
	rollouts *view // of the deployment controller
	counts   *view // of the ReplicaSet controller
	largest  map[types.UID]int32
	broken   map[string]bool // images whose pods never become ready
	made     int
	now      time.Time
	calm     bool
}

func newView() *view {
	return &view{sets: map[types.UID]stored[*appsv1.ReplicaSet]{}, pods: map[types.UID]*corev1.Pod{}}
}

// Run runs so many steps of a seed and returns the first broken invariant, nil for none.
func Run(seed uint64, steps int, sabotage Sabotage) error {
	w := &world{Rand: rand.New(rand.NewPCG(seed, 7)), sabotage: sabotage, truth: *newView(), rollouts: newView(),
		counts:  newView(), //nolint:gosec // reproducible
		largest: map[types.UID]int32{}, broken: map[string]bool{"v2": true}, now: begin}
	return cluster.Catch(func() {
		w.store(change{deployment: w.deployment()})
		for range steps {
			w.step()
		}
		w.rest()
	})
}

func (w *world) deployment() *appsv1.Deployment {
	d := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: "n", Name: "web", UID: "d", Generation: 1},
		Spec: appsv1.DeploymentSpec{
			Replicas: new(int32(w.IntN(8))), RevisionHistoryLimit: new(int32(w.IntN(3))),
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

func (w *world) store(c change) {
	c.version = w.truth.version + 1
	w.history = append(w.history, c)
	w.truth.apply(c)
	if c.set != nil && !c.gone {
		w.largest[c.set.UID] = max(w.largest[c.set.UID], *c.set.Spec.Replicas)
	}
}

// step does one random thing.
func (w *world) step() {
	w.now = w.now.Add(time.Duration(w.IntN(20)) * time.Second)
	switch n := w.IntN(100); {
	case n < 30:
		w.tell(w.rollouts)
	case n < 60:
		w.tell(w.counts)
	case n < 70:
		w.rollOut(w.writes())
	case n < 84:
		if sets := slices.Sorted(maps.Keys(w.counts.sets)); len(sets) > 0 {
			w.count(sets[w.IntN(len(sets))], w.writes())
		}
	case n < 95:
		w.node()
	case w.calm:
	case n < 98:
		w.user()
	default:
		w.crash()
	}
}

// writes returns how many writes a controller does before it ends.
func (w *world) writes() int {
	if w.calm || w.IntN(4) > 0 {
		return 1 << 20
	}
	return w.IntN(3)
}

// tell delivers some events to a controller, an event twice, or everything by a new list.
func (w *world) tell(v *view) {
	if !w.calm && w.IntN(25) == 0 {
		w.list(v)
		return
	}
	for range 1 + w.IntN(4) {
		if v.at == len(w.history) {
			return
		}
		v.apply(w.history[v.at])
		if w.IntN(10) == 0 {
			v.apply(w.history[v.at])
		}
		v.at++
	}
}

func (w *world) list(v *view) {
	v.d, v.sets, v.pods, v.version, v.at = w.truth.d, maps.Clone(w.truth.sets), maps.Clone(w.truth.pods),
		w.truth.version, len(w.history)
}

// crash ends a controller; a new one starts with a list and knows of no earlier writes.
func (w *world) crash() {
	v := w.rollouts
	if w.IntN(2) == 0 {
		v = w.counts
	}
	w.list(v)
	v.needs = 0
}

// user changes the deployment.
func (w *world) user() {
	d := w.truth.d.object.DeepCopy()
	switch w.IntN(5) {
	case 0, 1:
		d.Spec.Template.Spec.Containers[0].Image = "v" + strconv.Itoa(w.IntN(4))
	case 2:
		d.Spec.Replicas = new(int32(w.IntN(8))) //nolint:gosec // small
	case 3:
		d.Spec.Paused = w.IntN(2) == 0
	case 4:
		if d.Annotations == nil {
			d.Annotations = map[string]string{}
		}
		d.Annotations[appsv1.DeprecatedRollbackTo] = strconv.Itoa(w.IntN(4))
	}
	d.Generation++
	w.store(change{deployment: d})
}

// node makes pods ready, breaks some, and removes those that are being deleted.
func (w *world) node() {
	for _, uid := range slices.Sorted(maps.Keys(w.truth.pods)) {
		p := w.truth.pods[uid].DeepCopy()
		switch {
		case workload.Terminal(p) && p.DeletionTimestamp == nil: // it stays (W1.14)
		case p.DeletionTimestamp != nil:
			if w.IntN(2) == 0 || w.calm {
				w.store(change{pod: p, gone: true})
			}
		case !workload.Ready(p) && !w.broken[p.Spec.Containers[0].Image] && (w.IntN(2) == 0 || w.calm):
			p.Status = corev1.PodStatus{Phase: corev1.PodRunning,
				Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue,
					LastTransitionTime: metav1.NewTime(w.now)}}}
			w.store(change{pod: p})
		case !w.calm && w.IntN(60) == 0:
			p.Status = corev1.PodStatus{Phase: corev1.PodFailed}
			w.store(change{pod: p})
		}
	}
}

// rest ends all faults, waits until nothing is written any more, and checks the end.
func (w *world) rest() {
	w.calm = true
	d := w.truth.d.object.DeepCopy()
	d.Spec.Paused = false
	d.Spec.Template.Spec.Containers[0].Image = "v1"
	delete(d.Annotations, appsv1.DeprecatedRollbackTo)
	d.Generation++
	w.store(change{deployment: d})
	for range 3000 {
		before := len(w.history)
		w.list(w.rollouts)
		w.rollOut(1 << 20)
		w.list(w.counts)
		for _, uid := range slices.Sorted(maps.Keys(w.counts.sets)) {
			w.count(uid, 1<<20)
		}
		w.node()
		if len(w.history) == before {
			w.judgeEnd()
			return
		}
	}
	cluster.Break(Ends, "the writes never end")
}
