// Package daemonset decides which pods and revisions of a DaemonSet are created, changed, and deleted, so that each
// eligible node runs one pod. internal/controllers/daemonset drives it. Everything is a function of the arguments. The
// clauses W4… are those of docs/spec/workloads.md.
package daemonset

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"

	"carob/internal/core/workload"
)

// Burst limits the creations and the deletions of one plan (W4.3).
const Burst = 250

// The back-off between deletions of failed pods on a node (W4.34).
const (
	firstWait   = time.Second
	longestWait = 15 * time.Minute
)

// Input is everything that Decide depends on.
type Input struct {
	Now   time.Time
	Set   *appsv1.DaemonSet // read only
	Hash  string            // of the revision of the set's template
	Pods  []*corev1.Pod     // controlled by the set
	Nodes []*corev1.Node    // all
	// Failures are the deletions of failed pods by earlier plans for this generation, by node.
	Failures map[string]workload.Failure
}

// Event is recorded on the set.
type Event struct{ Type, Reason, Message string }

// Plan holds the next actions of the controller. Its parts are independent.
type Plan struct {
	Delete []*corev1.Pod
	Create []string // nodes that get a pod, see Pod
	Events []Event
	// Failures are input for the next plans for this generation.
	Failures map[string]workload.Failure
	// Again is the time of the next reconciliation if nothing changes; zero for none.
	Again time.Time
	// Status is the new status, without the effects of this plan (W4.61–W4.66).
	Status appsv1.DaemonSetStatus
}

// Decide plans the next reconciliation of a set (W4.30). The set must not be terminating (W4.6).
func Decide(in Input) (Plan, error) {
	s := sync{Input: in, eligible: NewEligible(in.Set), nodes: map[string]*corev1.Node{},
		on: map[string][]*corev1.Pod{}}
	s.plan.Failures = map[string]workload.Failure{}
	for _, n := range in.Nodes {
		s.nodes[n.Name] = n
	}
	for _, p := range in.Pods {
		if workload.Terminal(p) && p.DeletionTimestamp != nil {
			continue // ignored (W4.31)
		}
		if node := Target(p); node != "" {
			s.on[node] = append(s.on[node], p)
		}
	}
	for _, pods := range s.on { // any order: each list is sorted by itself
		slices.SortFunc(pods, first)
	}
	s.count()
	s.manage()
	if len(s.plan.Create)+len(s.plan.Delete) == 0 &&
		in.Set.Spec.UpdateStrategy.Type == appsv1.RollingUpdateDaemonSetStrategyType {
		if err := s.rollout(); err != nil {
			return s.plan, err
		}
	}
	s.plan.Create = s.plan.Create[:min(len(s.plan.Create), Burst)]
	s.plan.Delete = s.plan.Delete[:min(len(s.plan.Delete), Burst)]
	return s.plan, nil
}

// sync is the state of one decision.
type sync struct {
	Input
	eligible Eligible
	nodes    map[string]*corev1.Node
	on       map[string][]*corev1.Pod // by node, including deleted nodes
	plan     Plan
}

func (s *sync) create(node string)       { s.plan.Create = append(s.plan.Create, node) }
func (s *sync) delete(pod *corev1.Pod)   { s.plan.Delete = append(s.plan.Delete, pod) }
func (s *sync) again(at time.Time)       { s.plan.Again = workload.Earlier(s.plan.Again, at) }
func (s *sync) old(pod *corev1.Pod) bool { return !updated(s.Set, s.Hash, pod) }

func (s *sync) available(pod *corev1.Pod) bool {
	ok, at := workload.Available(pod, s.Set.Spec.MinReadySeconds, s.Now)
	if !at.IsZero() {
		s.again(at)
	}
	return ok
}

func (s *sync) record(kind, reason, format string, pod *corev1.Pod, node string) {
	s.plan.Events = append(s.plan.Events, Event{kind, reason, fmt.Sprintf(format, pod.Namespace, pod.Name, node)})
}

// names returns all nodes, and deleted ones with pods, sorted: the same input gives the same plan.
func (s *sync) names() []string {
	all := append(slices.Sorted(maps.Keys(s.nodes)), slices.Sorted(maps.Keys(s.on))...)
	slices.Sort(all)
	return slices.Compact(all)
}

// count computes the status (W4.61–W4.66).
func (s *sync) count() {
	st := s.Set.Status.DeepCopy()
	st.ObservedGeneration = s.Set.Generation
	st.DesiredNumberScheduled, st.CurrentNumberScheduled, st.NumberMisscheduled = 0, 0, 0
	st.NumberReady, st.NumberAvailable, st.UpdatedNumberScheduled = 0, 0, 0
	for name, node := range s.nodes { // any order: only counts
		pods := s.on[name]
		if run, _ := s.eligible.Of(node); !run {
			if len(pods) > 0 {
				st.NumberMisscheduled++
			}
			continue
		}
		st.DesiredNumberScheduled++
		if len(pods) == 0 {
			continue
		}
		st.CurrentNumberScheduled++
		if workload.Ready(pods[0]) {
			st.NumberReady++
			if s.available(pods[0]) {
				st.NumberAvailable++
			}
		}
		if !s.old(pods[0]) {
			st.UpdatedNumberScheduled++
		}
	}
	st.NumberUnavailable = st.DesiredNumberScheduled - st.NumberAvailable
	s.plan.Status = *st
}

// manage creates missing pods on eligible nodes and deletes pods from other nodes (W4.33–W4.40).
func (s *sync) manage() {
	for _, name := range s.names() {
		node, pods := s.nodes[name], s.on[name]
		if node == nil {
			for _, p := range pods { // they can never be scheduled
				if p.Spec.NodeName == "" && p.DeletionTimestamp == nil {
					s.delete(p)
				}
			}
			continue
		}
		switch run, stay := s.eligible.Of(node); {
		case run && len(pods) == 0:
			s.create(name)
		case stay:
			s.manageNode(name, pods, run)
		default:
			for _, p := range pods {
				if p.DeletionTimestamp == nil {
					s.delete(p)
				}
			}
		}
	}
}

// manageNode plans for the pods on a node where they may continue to run.
func (s *sync) manageNode(node string, pods []*corev1.Pod, run bool) {
	var running []*corev1.Pod
	waits := false // a failed pod, for the end of the back-off
	for _, p := range pods {
		switch {
		case p.DeletionTimestamp != nil:
		case p.Status.Phase == corev1.PodFailed:
			if !s.mayDeleteFailed(node) {
				waits = true
			} else {
				s.record(corev1.EventTypeWarning, "FailedDaemonPod",
					"Found failed daemon pod %s/%s on node %s, will try to kill it", p, node)
				s.delete(p)
			}
		case p.Status.Phase == corev1.PodSucceeded:
			s.record(corev1.EventTypeNormal, "SucceededDaemonPod",
				"Found succeeded daemon pod %s/%s on node %s, will try to delete it", p, node)
			s.delete(p)
		default:
			running = append(running, p)
		}
	}
	if !surges(s.Set) {
		for _, p := range running[min(1, len(running)):] {
			s.delete(p)
		}
		return
	}
	if len(running) == 0 {
		if run && !waits { // a pod beside the failed one would skip its back-off
			s.create(node)
		}
		return
	}
	s.manageSurge(running)
}

// manageSurge keeps the oldest new and the oldest old pod of a node, the old one until the new one is available
// (W4.38).
func (s *sync) manageSurge(running []*corev1.Pod) {
	if len(running) < 2 {
		return
	}
	var newer, older *corev1.Pod
	for _, p := range running {
		keep := &newer
		if p.Labels[appsv1.ControllerRevisionHashLabelKey] != s.Hash {
			keep = &older
		}
		if *keep == nil {
			*keep = p
		} else {
			s.delete(p)
		}
	}
	if newer != nil && older != nil && (!workload.Ready(older) || s.available(newer)) {
		s.delete(older)
	}
}

// mayDeleteFailed reports whether the back-off allows the deletion of a failed pod on a node now (W4.34). A plan
// deletes at most one per node.
func (s *sync) mayDeleteFailed(node string) bool {
	if _, did := s.plan.Failures[node]; did {
		s.again(s.Now.Add(s.plan.Failures[node].Wait))
		return false
	}
	next, at := s.Failures[node].Next(s.Now, firstWait, longestWait)
	if !at.IsZero() {
		s.again(at)
		return false
	}
	s.plan.Failures[node] = next
	return true
}

// Changed reports whether the status must be written.
func Changed(before, after *appsv1.DaemonSetStatus) bool {
	return before.ObservedGeneration < after.ObservedGeneration || cmp.Or(
		cmp.Compare(before.DesiredNumberScheduled, after.DesiredNumberScheduled),
		cmp.Compare(before.CurrentNumberScheduled, after.CurrentNumberScheduled),
		cmp.Compare(before.NumberMisscheduled, after.NumberMisscheduled),
		cmp.Compare(before.NumberReady, after.NumberReady),
		cmp.Compare(before.UpdatedNumberScheduled, after.UpdatedNumberScheduled),
		cmp.Compare(before.NumberAvailable, after.NumberAvailable),
		cmp.Compare(before.NumberUnavailable, after.NumberUnavailable)) != 0
}
