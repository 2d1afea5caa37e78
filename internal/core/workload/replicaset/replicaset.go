// Package replicaset decides about a ReplicaSet or a ReplicationController: which pods to create
// and delete to reach its number of replicas, and its status (W1). internal/controllers/replicaset
// drives it; it must never read a clock or the API.
//
// Contract: docs/spec/workloads.md.
package replicaset

import (
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"carob/internal/core/workload"
)

// Input holds everything that a decision depends on. It is read only.
type Input struct {
	// Set is the replica set; a replication controller is converted to one.
	Set *appsv1.ReplicaSet
	// Active are its active pods, adopted ones too, released ones not (W0.25).
	Active []*corev1.Pod
	// Ending is how many of its pods are being deleted and have not ended; nil if they are not
	// counted (W1.21).
	Ending *int32
	// Related are the active pods of all sets with the same controller, by node (W0.53).
	Related map[string]int
	// Refused are its pods that nodes refused.
	Refused []*corev1.Pod
	// Burst is the maximum number of pods to create or delete; 0: no limit (W1.10).
	Burst int
	Now   time.Time
}

// Plan holds the actions: creations or deletions, or none.
type Plan struct {
	Create int           // number of pods from the template
	Delete []*corev1.Pod // in the order of deletion
	// Again is when pods that nodes refused may be replaced; until then none is created. Zero: nothing waits.
	Again time.Time
}

// Decide returns the actions to reach the number of replicas (W1.12).
func Decide(in Input) Plan {
	if in.Set.DeletionTimestamp != nil {
		return Plan{}
	}
	burst := in.Burst
	if burst == 0 {
		burst = len(in.Active) + int(workload.Replicas(in.Set))
	}
	switch missing := int(workload.Replicas(in.Set)) - len(in.Active); {
	case missing > 0:
		if at := workload.AfterRefusals(in.Refused, in.Active, in.Now); !at.IsZero() {
			return Plan{Again: at}
		}
		return Plan{Create: min(missing, burst)}
	case -missing == len(in.Active):
		return Plan{Delete: in.Active[:min(-missing, burst)]} // all are deleted, in any order (W0.50)
	case missing < 0:
		ranked := workload.RankForDeletion(in.Active, workload.Ranking{Costs: true, Related: in.Related, Now: in.Now})
		return Plan{Delete: ranked[:min(-missing, burst)]}
	}
	return Plan{}
}

// Status returns the status (W1.20 to W1.23), whether it differs from what is stored, and when to
// decide again because a pod becomes available without an event (W0.61); zero for never. failure is
// why not all of the plan could be done, or nil.
func Status(in Input, failure error) (status appsv1.ReplicaSetStatus, changed bool, next time.Time) {
	stored := in.Set.Status
	status = appsv1.ReplicaSetStatus{
		Replicas: int32(len(in.Active)), TerminatingReplicas: in.Ending,
		ObservedGeneration: in.Set.Generation, //nolint:gosec // a number of pods
		Conditions:         conditions(in, failure),
	}
	template := labels.SelectorFromSet(in.Set.Spec.Template.Labels)
	untimed := false
	for _, p := range in.Active {
		if template.Matches(labels.Set(p.Labels)) {
			status.FullyLabeledReplicas++
		}
		if !workload.Ready(p) {
			continue
		}
		status.ReadyReplicas++
		ok, at := workload.Available(p, in.Set.Spec.MinReadySeconds, in.Now)
		if ok {
			status.AvailableReplicas++
		}
		next = workload.Earlier(next, at)
		untimed = untimed || !ok && at.IsZero()
	}
	if untimed {
		next = workload.Earlier(next, in.Now.Add(time.Duration(in.Set.Spec.MinReadySeconds)*time.Second))
	}
	return status, !equality.Semantic.DeepEqual(status, stored), next
}

// conditions reports that pods can't be created or deleted while the failure lasts; the first
// reason stays (W1.23).
func conditions(in Input, failure error) []appsv1.ReplicaSetCondition {
	var out []appsv1.ReplicaSetCondition
	failed := false
	for _, c := range in.Set.Status.Conditions {
		if c.Type == appsv1.ReplicaSetReplicaFailure {
			if failure == nil {
				continue
			}
			failed = true
		}
		out = append(out, c)
	}
	if failure == nil || failed {
		return out
	}
	c := appsv1.ReplicaSetCondition{Type: appsv1.ReplicaSetReplicaFailure, Status: corev1.ConditionTrue,
		LastTransitionTime: metav1.NewTime(in.Now), Message: failure.Error()}
	switch n := len(in.Active); {
	case n < int(workload.Replicas(in.Set)):
		c.Reason = "FailedCreate"
	case n > int(workload.Replicas(in.Set)):
		c.Reason = "FailedDelete"
	}
	return append(out, c)
}
