// Package deployment decides about a Deployment: which replica sets to create, resize and delete,
// and its status (W2). internal/controllers/deployment drives it; it must never read a clock or the
// API.
//
// Decide makes one pass, in upstream's order of decisions (W2.20 to W2.27), and assumes that each
// of its writes succeeds. The driver makes them one after the other, stops at the first that fails,
// and calls again when its watches show the writes. So carob may end between any two writes: the
// stored objects have all that the next pass needs.
//
// Contract: docs/spec/workloads.md.
package deployment

import (
	"cmp"
	"maps"
	"math"
	"slices"
	"strconv"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"

	"carob/internal/core/workload"
)

// Annotations of deployments and their replica sets (W2.5 to W2.8).
const (
	Revision        = "deployment.kubernetes.io/revision"
	RevisionHistory = "deployment.kubernetes.io/revision-history"
	DesiredReplicas = "deployment.kubernetes.io/desired-replicas"
	MaxReplicas     = "deployment.kubernetes.io/max-replicas"
)

// Input holds everything that a decision depends on. It is read only.
type Input struct {
	Deployment *appsv1.Deployment
	// Sets are the replica sets of the deployment, adopted ones too, released ones not.
	Sets []*appsv1.ReplicaSet
	// Running marks the sets with pods that have not ended, including those that are being deleted
	// (W2.50). It is needed for the strategy Recreate only.
	Running func(set types.UID) bool
	Now     time.Time
}

// Event is an event about the deployment.
type Event struct {
	Type, Reason, Message string
}

// Step is one write. Exactly one of its objects is set; Event is recorded when it has
// succeeded, unless its Reason is empty.
type Step struct {
	Create   *appsv1.ReplicaSet
	Update   *appsv1.ReplicaSet // with the version that it is based on
	Delete   *appsv1.ReplicaSet
	Rollback *appsv1.Deployment // the spec and the annotations of the deployment
	Status   *appsv1.Deployment // the status and the annotations of the deployment
	Event    Event
}

// Plan holds the actions.
type Plan struct {
	Events []Event   // to be recorded in any case, first
	Steps  []Step    // in this order, up to the first that fails
	Next   time.Time // when to decide again without a change; zero for never
}

// Decide makes one pass.
func Decide(in Input) Plan {
	p := newPass(in)
	switch {
	case selectsAll(p.d):
		p.warn("SelectingAll",
			"This deployment is selecting all pods. A non-empty selector is required.")
		p.d.Status.ObservedGeneration = max(p.d.Status.ObservedGeneration, p.d.Generation)
	case p.d.DeletionTimestamp != nil:
		p.status()
	default:
		p.notePause()
		p.run()
	}
	return p.end()
}

func selectsAll(d *appsv1.Deployment) bool {
	s := d.Spec.Selector
	return s == nil || len(s.MatchLabels) == 0 && len(s.MatchExpressions) == 0
}

// run makes the decisions about replica sets (W2.24 to W2.27).
func (p *pass) run() {
	rollback, requested := rollbackTo(p.d)
	switch {
	case p.d.Spec.Paused:
		p.syncNew()
		p.scale()
		if !requested {
			p.cleanUp()
		}
		p.status()
		return
	case requested:
		p.syncNew()
		p.rollback(rollback)
		return
	}
	p.syncNew()
	if p.scaling() {
		p.scale()
		p.status()
		return
	}
	if p.d.Spec.Strategy.Type == appsv1.RecreateDeploymentStrategyType {
		p.recreate()
	} else {
		p.roll()
	}
	p.rolloutStatus()
}

// pass is a pass in progress. Its sets are copies if they were changed.
type pass struct {
	in   Input
	d    *appsv1.Deployment   // a copy whose status and annotations may be changed
	now  *appsv1.ReplicaSet   // of the deployment's template; nil while there is none
	old  []*appsv1.ReplicaSet // all others, oldest first
	plan Plan

	origin  map[types.UID]*appsv1.ReplicaSet // of the copies
	changed []types.UID                      // copies, in the order in which they were changed
	created bool                             // now is to be created
}

func newPass(in Input) *pass {
	p := &pass{in: in, origin: map[types.UID]*appsv1.ReplicaSet{}}
	d := *in.Deployment
	d.Status = *in.Deployment.Status.DeepCopy()
	d.Annotations = maps.Clone(d.Annotations)
	p.d = &d
	sets := slices.Clone(in.Sets)
	slices.SortFunc(sets, byAge)
	for _, s := range sets {
		// The oldest of those with the same template is the new one (W2.28).
		if p.now == nil && workload.SameTemplate(&s.Spec.Template, &d.Spec.Template) {
			p.now = s
		} else {
			p.old = append(p.old, s)
		}
	}
	return p
}

func byAge(a, b *appsv1.ReplicaSet) int {
	return cmp.Or(a.CreationTimestamp.Compare(b.CreationTimestamp.Time), cmp.Compare(a.Name, b.Name))
}

// end returns the plan of the pass.
func (p *pass) end() Plan {
	var updates []Step
	for _, s := range p.all() {
		origin := p.origin[s.UID]
		if origin == nil {
			continue
		}
		step := Step{Update: s}
		if from, to := workload.Replicas(origin), workload.Replicas(s); from != to {
			step.Event = scaled(s.Name, from, to)
		}
		updates = append(updates, step)
	}
	// Sets are scaled down before others are scaled up, so that there are never more pods than
	// allowed.
	slices.SortStableFunc(updates, func(a, b Step) int {
		return cmp.Or(cmp.Compare(p.growth(a.Update), p.growth(b.Update)),
			cmp.Compare(slices.Index(p.changed, a.Update.UID), slices.Index(p.changed, b.Update.UID)))
	})
	p.plan.Steps = append(updates, p.plan.Steps...)
	if p.created {
		step := Step{Create: p.now}
		if n := workload.Replicas(p.now); n > 0 {
			step.Event = scaled(p.now.Name, 0, n)
		}
		p.plan.Steps = append([]Step{step}, p.plan.Steps...)
	}
	if !equality.Semantic.DeepEqual(p.d.Status, p.in.Deployment.Status) ||
		p.d.Annotations[Revision] != p.in.Deployment.Annotations[Revision] {
		p.plan.Steps = append(p.plan.Steps, Step{Status: p.d})
	}
	return p.plan
}

// growth returns -1 for a copy with fewer replicas than the original set, 1 for one with more.
func (p *pass) growth(s *appsv1.ReplicaSet) int {
	return cmp.Compare(workload.Replicas(s), workload.Replicas(p.origin[s.UID]))
}

func (p *pass) warn(reason, message string) {
	p.plan.Events = append(p.plan.Events, Event{corev1.EventTypeWarning, reason, message})
}

func scaled(name string, from, to int32) Event {
	how := "up"
	if to < from {
		how = "down"
	}
	return Event{corev1.EventTypeNormal, "ScalingReplicaSet",
		"Scaled " + how + " replica set " + name + " from " + number(from) + " to " + number(to)}
}

func number(n int32) string { return strconv.FormatInt(int64(n), 10) }

// all returns the sets, old ones first.
func (p *pass) all() []*appsv1.ReplicaSet {
	if p.now == nil {
		return p.old
	}
	return append(slices.Clone(p.old), p.now)
}

// edit returns the pass's own copy of a set, whose annotations and size may be changed.
func (p *pass) edit(s *appsv1.ReplicaSet) *appsv1.ReplicaSet {
	if p.origin[s.UID] != nil || p.created && s == p.now {
		return s
	}
	c := *s
	c.Annotations = maps.Clone(s.Annotations)
	if c.Annotations == nil {
		c.Annotations = map[string]string{}
	}
	p.origin[s.UID] = s
	p.changed = append(p.changed, s.UID)
	if s == p.now {
		p.now = &c
	} else {
		p.old[slices.Index(p.old, s)] = &c
	}
	return &c
}

// resize sets the size of a set, and records the size of the deployment for it; with force even if
// the size does not change (W2.36, W2.63). A set does not grow while it is losing pods: its next
// status leads to another pass.
func (p *pass) resize(s *appsv1.ReplicaSet, size int32, force bool) {
	if size > workload.Replicas(s) && losing(s) {
		return
	}
	want, most := number(p.size()), number(p.size()+p.surge())
	if workload.Replicas(s) == size &&
		(!force || s.Annotations[DesiredReplicas] == want && s.Annotations[MaxReplicas] == most) {
		return
	}
	s = p.edit(s)
	s.Spec.Replicas = &size
	s.Annotations[DesiredReplicas], s.Annotations[MaxReplicas] = want, most
}

// losing reports whether the controller of a set may be deleting pods that the status of the set counts:
// the set was made smaller, and its status is older. If it grew now, nothing would show any more that some of
// these pods are gone.
func losing(s *appsv1.ReplicaSet) bool {
	return s.Status.ObservedGeneration < s.Generation && s.Status.Replicas > workload.Replicas(s)
}

// available returns the number of available pods of a set: at most its replicas, because its status
// may be from before it was scaled down.
func available(s *appsv1.ReplicaSet) int32 {
	return min(s.Status.AvailableReplicas, workload.Replicas(s))
}

func sum(sets []*appsv1.ReplicaSet, of func(*appsv1.ReplicaSet) int32) int32 {
	n := int64(0)
	for _, s := range sets {
		n += int64(of(s))
	}
	return int32(min(n, math.MaxInt32)) //nolint:gosec // in its bounds
}

func active(sets []*appsv1.ReplicaSet) []*appsv1.ReplicaSet {
	var out []*appsv1.ReplicaSet
	for _, s := range sets {
		if workload.Replicas(s) > 0 {
			out = append(out, s)
		}
	}
	return out
}

// size returns the desired number of pods of the deployment.
func (p *pass) size() int32 {
	if p.d.Spec.Replicas == nil {
		return 1 // W2.1
	}
	return *p.d.Spec.Replicas
}

func (p *pass) surge() int32 {
	surge, _ := Bounds(p.d)
	return surge
}

func (p *pass) minAvailable() int32 {
	_, unavailable := Bounds(p.d)
	return p.size() - unavailable
}

// Bounds returns how many pods beyond its size a deployment may have (maxSurge), and how many may
// be unavailable (W2.3).
func Bounds(d *appsv1.Deployment) (surge, unavailable int32) {
	size := int32(1)
	if d.Spec.Replicas != nil {
		size = *d.Spec.Replicas
	}
	r := d.Spec.Strategy.RollingUpdate
	if d.Spec.Strategy.Type == appsv1.RecreateDeploymentStrategyType {
		return 0, 0
	}
	if r == nil {
		r = &appsv1.RollingUpdateDeployment{}
	}
	surge, unavailable = scale(r.MaxSurge, size, true), scale(r.MaxUnavailable, size, false)
	if surge == 0 && unavailable == 0 {
		unavailable = 1
	}
	return surge, min(unavailable, size)
}

// scale is a number, or its part of size.
func scale(n *intstr.IntOrString, size int32, up bool) int32 {
	if n == nil {
		return 0
	}
	v, err := intstr.GetScaledValueFromIntOrPercent(n, int(size), up)
	if err != nil {
		return 0 // validation rejects it
	}
	return int32(min(max(v, 0), math.MaxInt32-int(size))) //nolint:gosec // in its bounds
}

func hasDeadline(d *appsv1.Deployment) bool {
	return d.Spec.ProgressDeadlineSeconds != nil && *d.Spec.ProgressDeadlineSeconds != math.MaxInt32
}

func owner(d *appsv1.Deployment) workload.Owner {
	return workload.Owner{Object: d, Kind: appsv1.SchemeGroupVersion.WithKind("Deployment")}
}
