package apps

import (
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"carob/internal/kinds/rules"
)

func validateDeploymentStatusUpdate(d, old *appsv1.Deployment) field.ErrorList {
	s := &d.Status
	updated, ready, available := rules.Count("updatedReplicas", int64(s.UpdatedReplicas)),
		rules.Count("readyReplicas", int64(s.ReadyReplicas)),
		rules.Count("availableReplicas", int64(s.AvailableReplicas))
	errs := rules.Counts(rules.Count("observedGeneration", s.ObservedGeneration),
		rules.Count("replicas", int64(s.Replicas)), updated, ready, available,
		rules.Count("unavailableReplicas", int64(s.UnavailableReplicas)),
		rules.Optional("terminatingReplicas", s.TerminatingReplicas),
		rules.Optional("collisionCount", s.CollisionCount))
	errs = append(errs, rules.Parts(s.Replicas, updated, ready, available)...)
	errs = append(errs, rules.AvailableAreReady(s.AvailableReplicas, s.ReadyReplicas, "readyReplicas")...)
	return append(errs, rules.NotLess(s.CollisionCount, old.Status.CollisionCount)...)
}

func validateReplicaSetStatusUpdate(r, _ *appsv1.ReplicaSet) field.ErrorList {
	return validateReplicasStatus(r.Status)
}

func validateReplicationControllerStatusUpdate(r, _ *corev1.ReplicationController) field.ErrorList {
	s := r.Status
	return validateReplicasStatus(appsv1.ReplicaSetStatus{Replicas: s.Replicas,
		FullyLabeledReplicas: s.FullyLabeledReplicas, ReadyReplicas: s.ReadyReplicas,
		AvailableReplicas: s.AvailableReplicas, ObservedGeneration: s.ObservedGeneration})
}

func validateReplicasStatus(s appsv1.ReplicaSetStatus) field.ErrorList {
	labeled, ready, available := rules.Count("fullyLabeledReplicas", int64(s.FullyLabeledReplicas)),
		rules.Count("readyReplicas", int64(s.ReadyReplicas)),
		rules.Count("availableReplicas", int64(s.AvailableReplicas))
	errs := rules.Counts(rules.Count("replicas", int64(s.Replicas)), labeled, ready, available,
		rules.Count("observedGeneration", s.ObservedGeneration),
		rules.Optional("terminatingReplicas", s.TerminatingReplicas))
	errs = append(errs, rules.Parts(s.Replicas, labeled, ready, available)...)
	return append(errs, rules.AvailableAreReady(s.AvailableReplicas, s.ReadyReplicas, "readyReplicas")...)
}

func validateStatefulSetStatusUpdate(set, old *appsv1.StatefulSet) field.ErrorList {
	s := &set.Status
	ready, current := rules.Count("readyReplicas", int64(s.ReadyReplicas)),
		rules.Count("currentReplicas", int64(s.CurrentReplicas))
	updated, available := rules.Count("updatedReplicas", int64(s.UpdatedReplicas)),
		rules.Count("availableReplicas", int64(s.AvailableReplicas))
	errs := rules.Counts(rules.Count("replicas", int64(s.Replicas)), ready, current, updated, available,
		rules.Count("observedGeneration", s.ObservedGeneration), rules.Optional("collisionCount", s.CollisionCount))
	errs = append(errs, rules.Parts(s.Replicas, ready, current, updated, available)...)
	errs = append(errs, rules.AvailableAreReady(s.AvailableReplicas, s.ReadyReplicas, "status.readyReplicas")...)
	return append(errs, rules.NotLess(s.CollisionCount, old.Status.CollisionCount)...)
}

func validateDaemonSetStatusUpdate(d, old *appsv1.DaemonSet) field.ErrorList {
	s := &d.Status
	errs := rules.Counts(rules.Count("currentNumberScheduled", int64(s.CurrentNumberScheduled)),
		rules.Count("numberMisscheduled", int64(s.NumberMisscheduled)),
		rules.Count("desiredNumberScheduled", int64(s.DesiredNumberScheduled)),
		rules.Count("numberReady", int64(s.NumberReady)), rules.Count("observedGeneration", s.ObservedGeneration),
		rules.Count("updatedNumberScheduled", int64(s.UpdatedNumberScheduled)),
		rules.Count("numberAvailable", int64(s.NumberAvailable)),
		rules.Count("numberUnavailable", int64(s.NumberUnavailable)),
		rules.Optional("collisionCount", s.CollisionCount))
	return append(errs, rules.NotLess(s.CollisionCount, old.Status.CollisionCount)...)
}
