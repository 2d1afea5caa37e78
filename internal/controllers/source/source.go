// Package source makes the watches that controllers share: informers that keep
// only what some controller reads. It must never decide anything.
package source

import (
	"context"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
)

// ByNode indexes pods by spec.nodeName.
const ByNode = "node"

// client is what list and watch calls of one kind look like in the typed client.
type client[L runtime.Object] interface {
	List(context.Context, metav1.ListOptions) (L, error)
	Watch(context.Context, metav1.ListOptions) (watch.Interface, error)
}

func informer[L runtime.Object](api kubernetes.Interface, c client[L], example runtime.Object, selector fields.Selector, slim cache.TransformFunc, indexers cache.Indexers) cache.SharedIndexInformer {
	lw := &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			o.FieldSelector = selector.String()
			return c.List(ctx, o)
		},
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			o.FieldSelector = selector.String()
			return c.Watch(ctx, o)
		},
	}
	i := cache.NewSharedIndexInformer(cache.ToListWatcherWithWatchListSemantics(lw, api), example, 0, indexers)
	if err := i.SetTransform(slim); err != nil {
		panic("source: a new informer that has started: " + err.Error())
	}
	return i
}

// Namespaces watches all namespaces.
func Namespaces(c kubernetes.Interface) cache.SharedIndexInformer {
	return informer(c, c.CoreV1().Namespaces(), &corev1.Namespace{}, fields.Everything(), slimMeta, nil)
}

// ServiceAccounts watches the service accounts of one name in all namespaces.
func ServiceAccounts(c kubernetes.Interface, name string) cache.SharedIndexInformer {
	return informer(c, c.CoreV1().ServiceAccounts(metav1.NamespaceAll), &corev1.ServiceAccount{}, named(name), slimMeta, nil)
}

// ConfigMaps watches the config maps of one name in all namespaces.
func ConfigMaps(c kubernetes.Interface, name string) cache.SharedIndexInformer {
	return informer(c, c.CoreV1().ConfigMaps(metav1.NamespaceAll), &corev1.ConfigMap{}, named(name), slimMeta, nil)
}

// Pods watches all pods, without what they run; indexed ByNode and by namespace.
func Pods(c kubernetes.Interface) cache.SharedIndexInformer {
	return informer(c, c.CoreV1().Pods(metav1.NamespaceAll), &corev1.Pod{}, fields.Everything(), slimPod, cache.Indexers{ByNode: nodeOf, cache.NamespaceIndex: cache.MetaNamespaceIndexFunc})
}

// Nodes watches all nodes, without their images.
func Nodes(c kubernetes.Interface) cache.SharedIndexInformer {
	return informer(c, c.CoreV1().Nodes(), &corev1.Node{}, fields.Everything(), slimNode, nil)
}

// Leases watches the leases that nodes renew to show that they live.
func Leases(c kubernetes.Interface) cache.SharedIndexInformer {
	return informer(c, c.CoordinationV1().Leases(corev1.NamespaceNodeLease), &coordinationv1.Lease{}, fields.Everything(), slimMeta, nil)
}

func named(name string) fields.Selector {
	return fields.OneTermEqualSelector(metav1.ObjectNameField, name)
}

func nodeOf(obj any) ([]string, error) {
	if pod, ok := obj.(*corev1.Pod); ok && pod.Spec.NodeName != "" {
		return []string{pod.Spec.NodeName}, nil
	}
	return nil, nil
}

func slimMeta(obj any) (any, error) {
	if o, ok := obj.(metav1.Object); ok {
		o.SetManagedFields(nil)
	}
	return obj, nil
}

// Budgets watches all disruption budgets, indexed by namespace.
func Budgets(c kubernetes.Interface) cache.SharedIndexInformer {
	return informer(c, c.PolicyV1().PodDisruptionBudgets(metav1.NamespaceAll), &policyv1.PodDisruptionBudget{}, fields.Everything(), slimMeta,
		cache.Indexers{cache.NamespaceIndex: cache.MetaNamespaceIndexFunc})
}

// slimPod keeps who a pod is and belongs to, where it is, how it stands and what it tolerates.
func slimPod(obj any) (any, error) {
	pod, ok := obj.(*corev1.Pod)
	if !ok {
		return obj, nil
	}
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Labels: pod.Labels, OwnerReferences: pod.OwnerReferences, Namespace: pod.Namespace, Name: pod.Name, UID: pod.UID, ResourceVersion: pod.ResourceVersion, Generation: pod.Generation,
			CreationTimestamp: pod.CreationTimestamp, DeletionTimestamp: pod.DeletionTimestamp, DeletionGracePeriodSeconds: pod.DeletionGracePeriodSeconds,
		},
		Spec:   corev1.PodSpec{NodeName: pod.Spec.NodeName, Tolerations: pod.Spec.Tolerations},
		Status: corev1.PodStatus{Phase: pod.Status.Phase, Reason: pod.Status.Reason, Conditions: pod.Status.Conditions},
	}, nil
}

func slimNode(obj any) (any, error) {
	if node, ok := obj.(*corev1.Node); ok {
		node.ManagedFields = nil
		node.Status.Images = nil
	}
	return obj, nil
}
