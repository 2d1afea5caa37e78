package replicaset

import (
	"context"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes"
)

// replicaSets are the owners of apps/v1.
type replicaSets struct{ client kubernetes.Interface }

func (replicaSets) gvk() schema.GroupVersionKind {
	return appsv1.SchemeGroupVersion.WithKind("ReplicaSet")
}
func (replicaSets) countsEnding() bool { return true }

func (replicaSets) read(owner metav1.Object) *appsv1.ReplicaSet {
	return owner.(*appsv1.ReplicaSet) //nolint:errcheck,forcetypeassert // the watch holds only this type
}

func (k replicaSets) live(ctx context.Context, namespace, name string) (metav1.Object, error) {
	return k.client.AppsV1().ReplicaSets(namespace).Get(ctx, name, metav1.GetOptions{})
}

func (k replicaSets) store(ctx context.Context, owner metav1.Object, status appsv1.ReplicaSetStatus) (metav1.Object,
	error) {
	set := *k.read(owner)
	set.Status = status
	return k.client.AppsV1().ReplicaSets(set.Namespace).UpdateStatus(ctx, &set, metav1.UpdateOptions{})
}

// replicationControllers are the owners of v1.
type replicationControllers struct{ client kubernetes.Interface }

func (replicationControllers) gvk() schema.GroupVersionKind {
	return corev1.SchemeGroupVersion.WithKind("ReplicationController")
}
func (replicationControllers) countsEnding() bool { return false }

func (replicationControllers) read(owner metav1.Object) *appsv1.ReplicaSet {
	rc := owner.(*corev1.ReplicationController) //nolint:errcheck,forcetypeassert // the watch holds only this type
	set := &appsv1.ReplicaSet{
		ObjectMeta: rc.ObjectMeta,
		Spec: appsv1.ReplicaSetSpec{
			Replicas: rc.Spec.Replicas, MinReadySeconds: rc.Spec.MinReadySeconds,
			Selector: &metav1.LabelSelector{MatchLabels: rc.Spec.Selector},
		},
		Status: appsv1.ReplicaSetStatus{
			Replicas: rc.Status.Replicas, FullyLabeledReplicas: rc.Status.FullyLabeledReplicas,
			ReadyReplicas:     rc.Status.ReadyReplicas,
			AvailableReplicas: rc.Status.AvailableReplicas, ObservedGeneration: rc.Status.ObservedGeneration,
		},
	}
	if rc.Spec.Template != nil {
		set.Spec.Template = *rc.Spec.Template
	}
	for _, c := range rc.Status.Conditions {
		set.Status.Conditions = append(set.Status.Conditions, appsv1.ReplicaSetCondition{
			Type: appsv1.ReplicaSetConditionType(c.Type), Status: c.Status, LastTransitionTime: c.LastTransitionTime,
			Reason: c.Reason, Message: c.Message})
	}
	return set
}

func (k replicationControllers) live(ctx context.Context, namespace, name string) (metav1.Object, error) {
	return k.client.CoreV1().ReplicationControllers(namespace).Get(ctx, name, metav1.GetOptions{})
}

func (k replicationControllers) store(ctx context.Context, owner metav1.Object,
	status appsv1.ReplicaSetStatus) (metav1.Object, error) {
	rc := *owner.(*corev1.ReplicationController) //nolint:errcheck,forcetypeassert // the watch holds only this type
	rc.Status = corev1.ReplicationControllerStatus{
		Replicas: status.Replicas, FullyLabeledReplicas: status.FullyLabeledReplicas,
		ReadyReplicas:     status.ReadyReplicas,
		AvailableReplicas: status.AvailableReplicas, ObservedGeneration: status.ObservedGeneration,
	}
	for _, c := range status.Conditions {
		rc.Status.Conditions = append(rc.Status.Conditions, corev1.ReplicationControllerCondition{
			Type: corev1.ReplicationControllerConditionType(c.Type), Status: c.Status,
			LastTransitionTime: c.LastTransitionTime, Reason: c.Reason, Message: c.Message})
	}
	return k.client.CoreV1().ReplicationControllers(rc.Namespace).UpdateStatus(ctx, &rc, metav1.UpdateOptions{})
}
