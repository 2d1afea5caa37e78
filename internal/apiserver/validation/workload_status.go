package validation

import (
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

var statusPath = field.NewPath("status")

// count is a number in a status.
type count struct {
	name  string
	value int64
}

func optional[T int32 | int64](name string, v *T) count {
	if v == nil {
		return count{name, 0}
	}
	return count{name, int64(*v)}
}

// counts checks numbers, none of which can be negative.
func counts(all ...count) field.ErrorList {
	var errs field.ErrorList
	for _, c := range all {
		errs = append(errs, apivalidation.ValidateNonnegativeField(c.value, statusPath.Child(c.name))...)
	}
	return errs
}

// parts checks that none of the numbers is greater than that of all replicas.
func parts(replicas int32, all ...count) field.ErrorList {
	var errs field.ErrorList
	for _, c := range all {
		if c.value > int64(replicas) {
			errs = append(errs, field.Invalid(statusPath.Child(c.name), c.value, "cannot be greater than status.replicas"))
		}
	}
	return errs
}

// availableAreReady checks that replicas are available only when they are ready; ready is what the message calls that number.
func availableAreReady(available, readyReplicas int32, ready string) field.ErrorList {
	if available <= readyReplicas {
		return nil
	}
	return field.ErrorList{field.Invalid(statusPath.Child("availableReplicas"), available, "cannot be greater than "+ready)}
}

// notLess checks the count of collisions, which only grows.
func notLess(is, was *int32) field.ErrorList {
	value := func(n *int32) int32 {
		if n == nil {
			return 0
		}
		return *n
	}
	if was == nil || is != nil && *is >= *was {
		return nil
	}
	return field.ErrorList{field.Invalid(statusPath.Child("collisionCount"), value(is), "cannot be decremented")}
}

func deploymentStatusUpdate(d, old *appsv1.Deployment) field.ErrorList {
	s := &d.Status
	updated, ready, available := count{"updatedReplicas", int64(s.UpdatedReplicas)}, count{"readyReplicas", int64(s.ReadyReplicas)}, count{"availableReplicas", int64(s.AvailableReplicas)}
	errs := counts(count{"observedGeneration", s.ObservedGeneration}, count{"replicas", int64(s.Replicas)}, updated, ready, available,
		count{"unavailableReplicas", int64(s.UnavailableReplicas)}, optional("terminatingReplicas", s.TerminatingReplicas), optional("collisionCount", s.CollisionCount))
	errs = append(errs, parts(s.Replicas, updated, ready, available)...)
	errs = append(errs, availableAreReady(s.AvailableReplicas, s.ReadyReplicas, "readyReplicas")...)
	return append(errs, notLess(s.CollisionCount, old.Status.CollisionCount)...)
}

func replicaSetStatusUpdate(r, _ *appsv1.ReplicaSet) field.ErrorList { return replicasStatus(r.Status) }

func replicationControllerStatusUpdate(r, _ *corev1.ReplicationController) field.ErrorList {
	s := r.Status
	return replicasStatus(appsv1.ReplicaSetStatus{Replicas: s.Replicas, FullyLabeledReplicas: s.FullyLabeledReplicas, ReadyReplicas: s.ReadyReplicas,
		AvailableReplicas: s.AvailableReplicas, ObservedGeneration: s.ObservedGeneration})
}

func replicasStatus(s appsv1.ReplicaSetStatus) field.ErrorList {
	labeled, ready, available := count{"fullyLabeledReplicas", int64(s.FullyLabeledReplicas)}, count{"readyReplicas", int64(s.ReadyReplicas)}, count{"availableReplicas", int64(s.AvailableReplicas)}
	errs := counts(count{"replicas", int64(s.Replicas)}, labeled, ready, available, count{"observedGeneration", s.ObservedGeneration}, optional("terminatingReplicas", s.TerminatingReplicas))
	errs = append(errs, parts(s.Replicas, labeled, ready, available)...)
	return append(errs, availableAreReady(s.AvailableReplicas, s.ReadyReplicas, "readyReplicas")...)
}

func statefulSetStatusUpdate(set, old *appsv1.StatefulSet) field.ErrorList {
	s := &set.Status
	ready, current := count{"readyReplicas", int64(s.ReadyReplicas)}, count{"currentReplicas", int64(s.CurrentReplicas)}
	updated, available := count{"updatedReplicas", int64(s.UpdatedReplicas)}, count{"availableReplicas", int64(s.AvailableReplicas)}
	errs := counts(count{"replicas", int64(s.Replicas)}, ready, current, updated, available, count{"observedGeneration", s.ObservedGeneration}, optional("collisionCount", s.CollisionCount))
	errs = append(errs, parts(s.Replicas, ready, current, updated, available)...)
	errs = append(errs, availableAreReady(s.AvailableReplicas, s.ReadyReplicas, "status.readyReplicas")...)
	return append(errs, notLess(s.CollisionCount, old.Status.CollisionCount)...)
}

func daemonSetStatusUpdate(d, old *appsv1.DaemonSet) field.ErrorList {
	s := &d.Status
	errs := counts(count{"currentNumberScheduled", int64(s.CurrentNumberScheduled)}, count{"numberMisscheduled", int64(s.NumberMisscheduled)},
		count{"desiredNumberScheduled", int64(s.DesiredNumberScheduled)}, count{"numberReady", int64(s.NumberReady)}, count{"observedGeneration", s.ObservedGeneration},
		count{"updatedNumberScheduled", int64(s.UpdatedNumberScheduled)}, count{"numberAvailable", int64(s.NumberAvailable)}, count{"numberUnavailable", int64(s.NumberUnavailable)},
		optional("collisionCount", s.CollisionCount))
	return append(errs, notLess(s.CollisionCount, old.Status.CollisionCount)...)
}
