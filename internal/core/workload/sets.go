package workload

import appsv1 "k8s.io/api/apps/v1"

// Replicas returns the desired number of pods of a ReplicaSet (W1.1).
func Replicas(set *appsv1.ReplicaSet) int32 {
	if set.Spec.Replicas == nil {
		return 1
	}
	return *set.Spec.Replicas
}
