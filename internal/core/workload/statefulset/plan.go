// Package statefulset decides which pods, claims, and revisions of a StatefulSet are created, changed, and deleted.
// internal/controllers/statefulset drives it. Everything is a function of the arguments. The clauses W3… are those of
// docs/spec/workloads.md.
package statefulset

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"carob/internal/core/workload"
	"carob/internal/core/workload/revision"
)

// Burst limits the pods that one plan creates with Parallel pod management (W0.42). The next plan creates proceed.
const Burst = 500

// Input is everything that Decide depends on.
type Input struct {
	Now time.Time
	Set *appsv1.StatefulSet // read only
	// Current and Update are the current and the update revision, as stored.
	Current, Update *appsv1.ControllerRevision
	Collisions      int32
	Pods            []*corev1.Pod // controlled by the set
	// Claim returns the PersistentVolumeClaim with this name in the set's namespace, or nil.
	Claim func(name string) *corev1.PersistentVolumeClaim
	// Failures are the deletions of pods that nodes refused by earlier plans for this generation, by name.
	Failures map[string]workload.Failure
}

// Action is what is done to a pod.
type Action string

// The actions.
const (
	// Create creates the missing claims, then the pod, then updates the owners of claims that existed. It fails if a
	// claim is terminating.
	Create Action = "create"
	// Delete deletes the pod.
	Delete Action = "delete"
	// Repair restores the pod's identity and volumes and the owners of its claims, and updates the pod (W3.44).
	Repair Action = "repair"
	// EnsureClaims creates the missing claims of a Pending pod and updates the owners of claims (W3.43).
	EnsureClaims Action = "supply"
)

// Step is one action.
type Step struct {
	Action Action
	Pod    *corev1.Pod // to create, or as observed
	Claims Claims
	// Counted is set for a pod that an update deletes and status.currentReplicas includes (W3.65).
	Counted bool
}

// Stage is a list of independent steps. The next stage starts when all of them have succeeded.
type Stage []Step

// Plan holds the next actions of the controller.
type Plan struct {
	// Stages run one after the other until one fails. With InOrder, the steps of a stage run one after the other,
	// too; otherwise in parallel, in growing batches (W0.41).
	Stages  []Stage
	InOrder bool
	// Again is the time of the next reconciliation if nothing changes; zero for none (W0.61).
	Again time.Time
	// Refused is the message of the event UnknownStrategy if nothing is done (W3.64).
	Refused string
	// Failures are input for the next plans for this generation.
	Failures map[string]workload.Failure

	status appsv1.StatefulSetStatus
	wanted int32
}

// Decide plans the next reconciliation of a set (W3.40).
func Decide(in Input) (Plan, error) {
	p := Plan{InOrder: in.Set.Spec.PodManagementPolicy != appsv1.ParallelPodManagement, wanted: int32(replicas(in.Set))}
	if in.Set.Spec.UpdateStrategy.Type == appsv1.RecreateStatefulSetStrategyType {
		p.Refused = fmt.Sprintf("statefulset %s/%s uses Recreate strategy but feature gate %s is disabled",
			in.Set.Namespace, in.Set.Name, "StatefulSetRecreateStrategy")
		return p, nil
	}
	s := sync{Input: in, ordered: p.InOrder}
	s.sort()
	p.status, s.again = s.count()
	p.Again = s.again
	if in.Set.DeletionTimestamp != nil {
		return p, nil
	}
	proceed, err := s.decide()
	p.Stages, p.Failures, p.Again = s.stages, s.failures, s.again
	if err != nil {
		return p, err
	}
	if proceed && in.Set.Spec.UpdateStrategy.Type == appsv1.RollingUpdateStatefulSetStrategyType {
		outdated, err := s.update()
		if err != nil {
			return p, err
		}
		s.add(outdated)
	}
	p.Stages = s.stages
	return p, nil
}

// Status returns the new status of the set after this many counted pods were deleted (W3.65).
func (p *Plan) Status(deleted int) appsv1.StatefulSetStatus {
	s := *p.status.DeepCopy()
	s.CurrentReplicas -= int32(deleted)
	if s.UpdatedReplicas == p.wanted && s.ReadyReplicas == p.wanted && s.Replicas == p.wanted { // W3.68
		s.CurrentReplicas, s.CurrentRevision = s.UpdatedReplicas, s.UpdateRevision
	}
	return s
}

// member is a pod of the set with its ordinal.
type member struct {
	*corev1.Pod
	ordinal int
}

// sync is the state of one decision.
type sync struct {
	Input
	ordered   bool
	replicas  []member // in range, ascending; without missing pods
	condemned []member // out of range, ascending
	stages    []Stage
	templates map[*appsv1.ControllerRevision]*corev1.PodTemplateSpec
	failures  map[string]workload.Failure
	again     time.Time
}

func (s *sync) sort() {
	for _, pod := range s.Pods {
		ordinal, ok := Ordinal(s.Set.Name, pod.Name)
		switch {
		case !ok: // not a pod of the set
		case inRange(s.Set, ordinal):
			s.replicas = append(s.replicas, member{pod, ordinal})
		default:
			s.condemned = append(s.condemned, member{pod, ordinal})
		}
	}
	byOrdinal := func(a, b member) int { return cmp.Compare(a.ordinal, b.ordinal) }
	slices.SortFunc(s.replicas, byOrdinal)
	slices.SortFunc(s.condemned, byOrdinal)
}

// count computes the status and the time at which the next ready pod becomes available (W3.70–W3.77).
func (s *sync) count() (appsv1.StatefulSetStatus, time.Time) {
	collisions := s.Collisions
	status := appsv1.StatefulSetStatus{
		ObservedGeneration: s.Set.Generation, CurrentRevision: s.Current.Name, UpdateRevision: s.Update.Name,
		CollisionCount: &collisions, Conditions: slices.Clone(s.Set.Status.Conditions),
	}
	var again time.Time
	for _, pod := range slices.Concat(s.replicas, s.condemned) {
		if pod.Status.Phase == "" {
			continue
		}
		status.Replicas++
		if pod.Status.Phase == corev1.PodRunning && workload.Ready(pod.Pod) {
			status.ReadyReplicas++
			available, at := workload.Available(pod.Pod, s.Set.Spec.MinReadySeconds, s.Now)
			if available {
				status.AvailableReplicas++
			}
			again = workload.Earlier(again, at)
		}
		if pod.DeletionTimestamp == nil {
			if revisionOf(pod.Pod) == s.Current.Name {
				status.CurrentReplicas++
			}
			if revisionOf(pod.Pod) == s.Update.Name {
				status.UpdatedReplicas++
			}
		}
	}
	return status, again
}

// add appends a stage unless it is empty.
func (s *sync) add(stage Stage) {
	if len(stage) > 0 {
		s.stages = append(s.stages, stage)
	}
}

// decide plans the stages for replicas and condemned pods, and reports whether a rolling update may continue.
func (s *sync) decide() (proceed bool, err error) {
	stage, proceed, err := s.processReplicas()
	s.add(stage)
	if err != nil || !proceed {
		return false, err
	}
	var own Stage
	for _, pod := range slices.Backward(s.condemned) {
		step := Step{Action: EnsureClaims, Pod: pod.Pod}
		if s.owners(&step.Claims, pod.Pod, pod.ordinal); len(step.Claims.Own) > 0 {
			own = append(own, step)
		}
	}
	s.add(own)
	processCondemned, proceed := s.processCondemned()
	s.add(processCondemned)
	return proceed, nil
}

// processReplicas plans the steps for the ordinals in range, in ascending order (W3.41–W3.44). With OrderedReady it
// stops at the first pod for which it has to wait, and returns false.
func (s *sync) processReplicas() (stage Stage, proceed bool, err error) {
	next, created := start(s.Set), 0
	fill := func(end int) (bool, error) { // ordinals without a pod
		for ; next < end && created < Burst; next++ {
			step, wait, err := s.create(next)
			if err != nil {
				return false, err
			}
			if !wait {
				stage = append(stage, step)
				created++
			}
			if s.ordered {
				return false, nil
			}
			if wait {
				created++ // also limited by Burst
			}
		}
		return true, nil
	}
	for _, pod := range s.replicas {
		if proceed, err := fill(pod.ordinal); err != nil || !proceed {
			return stage, false, err
		}
		next = pod.ordinal + 1
		step, wait := s.processReplica(pod)
		if step.Action != "" {
			stage = append(stage, step)
		}
		if wait && s.ordered {
			return stage, false, nil
		}
	}
	proceed, err = fill(start(s.Set) + replicas(s.Set))
	return stage, proceed, err
}

// create plans the creation of the pod with this ordinal, or reports that it must wait.
func (s *sync) create(ordinal int) (step Step, wait bool, err error) {
	r := s.Update
	if s.fromCurrent(ordinal) {
		r = s.Current
	}
	t, err := s.template(r)
	if err != nil {
		return Step{}, false, err
	}
	pod, err := newPod(s.Set, t, r.Name, ordinal)
	if err != nil {
		return Step{}, false, err
	}
	if s.stale(pod, ordinal) {
		return Step{}, true, nil
	}
	step = Step{Action: Create, Pod: pod}
	s.missing(&step.Claims, ordinal)
	s.owners(&step.Claims, pod, ordinal)
	return step, false, nil
}

// fromCurrent reports whether a missing pod is created from the current revision (W3.30–W3.32).
func (s *sync) fromCurrent(ordinal int) bool {
	index := ordinal - start(s.Set)
	if r := s.Set.Spec.UpdateStrategy.RollingUpdate; r != nil {
		return index < partition(r)
	}
	return s.Set.Spec.UpdateStrategy.Type == appsv1.RollingUpdateStatefulSetStrategyType &&
		index < int(s.Set.Status.CurrentReplicas)
}

func partition(r *appsv1.RollingUpdateStatefulSetStrategy) int {
	if r == nil || r.Partition == nil {
		return 0
	}
	return int(*r.Partition)
}

// template returns the pod template of a revision.
func (s *sync) template(r *appsv1.ControllerRevision) (*corev1.PodTemplateSpec, error) {
	if t, ok := s.templates[r]; ok {
		return t, nil
	}
	t := &s.Set.Spec.Template
	if own, err := revision.Data(t); err != nil {
		return nil, err
	} else if !revision.Holds(r, own) {
		if t, err = revision.Restore(t, r.Data.Raw); err != nil {
			return nil, fmt.Errorf("the revision %s: %w", r.Name, err)
		}
	}
	if s.templates == nil {
		s.templates = map[*appsv1.ControllerRevision]*corev1.PodTemplateSpec{}
	}
	s.templates[r] = t
	return t, nil
}

// processReplica plans the step for a pod in range, and reports whether higher ordinals wait for it.
func (s *sync) processReplica(pod member) (step Step, wait bool) {
	if workload.Terminal(pod.Pod) { // W3.41
		if pod.DeletionTimestamp == nil && s.mayReplace(pod.Pod) {
			step = Step{Action: Delete, Pod: pod.Pod}
		}
		return step, true
	}
	var claims Claims
	if pod.Status.Phase == corev1.PodPending {
		s.missing(&claims, pod.ordinal)
		s.owners(&claims, pod.Pod, pod.ordinal)
	}
	if s.ordered && s.unavailable(pod.Pod) {
		if !claims.Nothing() {
			step = Step{Action: EnsureClaims, Pod: pod.Pod, Claims: claims}
		}
		return step, true
	}
	storage := HasStorage(s.Set, pod.Pod)
	if pod.Status.Phase != corev1.PodPending {
		s.owners(&claims, pod.Pod, pod.ordinal)
		if !storage {
			s.missing(&claims, pod.ordinal)
		}
	}
	switch {
	case !HasIdentity(pod.Pod) || !storage || len(claims.Own) > 0 && pod.Status.Phase != corev1.PodPending:
		step = Step{Action: Repair, Pod: pod.Pod, Claims: claims}
	case pod.Status.Phase == corev1.PodPending && !claims.Nothing():
		step = Step{Action: EnsureClaims, Pod: pod.Pod, Claims: claims}
	}
	return step, false
}

// mayReplace reports whether a pod that has ended is replaced now. One that its node refused waits for the end of the
// back-off: the node would refuse the next one, too.
func (s *sync) mayReplace(pod *corev1.Pod) bool {
	if !workload.Refused(pod) {
		return true
	}
	next, at := s.Failures[pod.Name].Next(s.Now, workload.FirstRefusal, workload.LongestRefusal)
	if !at.IsZero() {
		s.again = workload.Earlier(s.again, at)
		return false
	}
	if s.failures == nil {
		s.failures = map[string]workload.Failure{}
	}
	s.failures[pod.Name] = next
	return true
}

// processCondemned plans the deletion of condemned pods, highest ordinal first (W3.45, W3.46). Terminal pods neither
// block others
// nor are blocked: they can never become available.
func (s *sync) processCondemned() (stage Stage, proceed bool) {
	first := -1 // the first unavailable pod of the set; with OrderedReady, all replicas are available
	for i, pod := range s.condemned {
		if s.unavailable(pod.Pod) && !workload.Terminal(pod.Pod) {
			first = i
			break
		}
	}
	for i, pod := range slices.Backward(s.condemned) {
		switch {
		case pod.DeletionTimestamp != nil:
			if s.ordered {
				return nil, false
			}
		case s.ordered && i != first && s.unavailable(pod.Pod) && !workload.Terminal(pod.Pod):
			return nil, false
		default:
			stage = append(stage, Step{Action: Delete, Pod: pod.Pod})
			if s.ordered {
				return stage, false
			}
		}
	}
	return stage, true
}

// update plans the deletion of pods with an old revision (W3.60–W3.67).
func (s *sync) update() (Stage, error) {
	count := replicas(s.Set)
	budget, err := maxUnavailable(s.Set)
	if err != nil {
		return nil, err
	}
	budget -= count - len(s.replicas) // missing pods
	for _, pod := range s.replicas {
		if s.unavailable(pod.Pod) {
			budget--
		}
	}
	lowest := partition(s.Set.Spec.UpdateStrategy.RollingUpdate)
	var stage Stage
	walk := func(f func(pod member) bool) {
		for _, pod := range slices.Backward(s.replicas) {
			if pod.ordinal-start(s.Set) >= lowest && revisionOf(pod.Pod) != s.Update.Name &&
				pod.DeletionTimestamp == nil && f(pod) {
				stage = append(stage,
					Step{Action: Delete, Pod: pod.Pod, Counted: revisionOf(pod.Pod) == s.Current.Name})
			}
		}
	}
	if !s.ordered { // unavailable pods first, regardless of the budget
		walk(func(pod member) bool { return s.unavailable(pod.Pod) && !workload.Terminal(pod.Pod) })
	}
	walk(func(pod member) bool {
		if budget <= 0 || s.unavailable(pod.Pod) {
			return false
		}
		budget--
		return true
	})
	return stage, nil
}

// maxUnavailable is how many pods an update may make unavailable (W3.61).
func maxUnavailable(set *appsv1.StatefulSet) (int, error) {
	one := intstr.FromInt32(1)
	v := &one
	if r := set.Spec.UpdateStrategy.RollingUpdate; r != nil && r.MaxUnavailable != nil {
		v = r.MaxUnavailable
	}
	n, err := intstr.GetScaledValueFromIntOrPercent(v, replicas(set), false)
	if err != nil {
		return 0, fmt.Errorf("maxUnavailable: %w", err)
	}
	return max(n, 1), nil
}

// unavailable reports whether a pod is terminating or not available (W0.60).
func (s *sync) unavailable(pod *corev1.Pod) bool {
	available, _ := workload.Available(pod, s.Set.Spec.MinReadySeconds, s.Now)
	return pod.DeletionTimestamp != nil || pod.Status.Phase != corev1.PodRunning || !available
}

// Changed reports whether the status must be written (W3.77).
func Changed(before, after *appsv1.StatefulSetStatus) bool {
	return after.ObservedGeneration > before.ObservedGeneration || after.Replicas != before.Replicas ||
		after.ReadyReplicas != before.ReadyReplicas || after.AvailableReplicas != before.AvailableReplicas ||
		after.CurrentReplicas != before.CurrentReplicas || after.UpdatedReplicas != before.UpdatedReplicas ||
		after.CurrentRevision != before.CurrentRevision || after.UpdateRevision != before.UpdateRevision
}
