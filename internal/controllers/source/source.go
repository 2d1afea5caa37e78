// Package source makes the watches that controllers share: informers over the objects of the API
// server in this process, or, with a client of another server, over copies that keep only the
// fields that controllers read. It must never make decisions.
//
// Contract: docs/spec/workloads.md.
package source

import (
	appsv1 "k8s.io/api/apps/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	batchv1 "k8s.io/api/batch/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	policyv1 "k8s.io/api/policy/v1"
	resourcev1 "k8s.io/api/resource/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
)

// ByNode indexes pods by spec.nodeName.
const ByNode = "node"

// Namespaces watches all namespaces.
func Namespaces(c kubernetes.Interface) *Watch {
	return newWatch(c.CoreV1().Namespaces(), &corev1.Namespace{}, fields.Everything(), slimMeta, nil)
}

// ServiceAccounts watches the service accounts of one name in all namespaces.
func ServiceAccounts(c kubernetes.Interface, name string) *Watch {
	return newWatch(c.CoreV1().ServiceAccounts(metav1.NamespaceAll), &corev1.ServiceAccount{}, named(name), slimMeta,
		nil)
}

// ConfigMaps watches the config maps of one name in all namespaces.
func ConfigMaps(c kubernetes.Interface, name string) *Watch {
	return newWatch(c.CoreV1().ConfigMaps(metav1.NamespaceAll), &corev1.ConfigMap{}, named(name), slimMeta, nil)
}

// Pods watches all pods, reduced by slimPod; indexed ByNode, ByController and by namespace.
func Pods(c kubernetes.Interface) *Watch {
	return newWatch(c.CoreV1().Pods(metav1.NamespaceAll), &corev1.Pod{}, fields.Everything(), slimPod,
		cache.Indexers{ByNode: nodeOf, ByController: controllerOf, cache.NamespaceIndex: cache.MetaNamespaceIndexFunc})
}

// Nodes watches all nodes, without their images.
func Nodes(c kubernetes.Interface) *Watch {
	return newWatch(c.CoreV1().Nodes(), &corev1.Node{}, fields.Everything(), slimNode, nil)
}

// Leases watches the leases that nodes renew as heartbeats.
func Leases(c kubernetes.Interface) *Watch {
	return newWatch(c.CoordinationV1().Leases(corev1.NamespaceNodeLease), &coordinationv1.Lease{},
		fields.Everything(), slimMeta, nil)
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
func Budgets(c kubernetes.Interface) *Watch {
	return newWatch(c.PolicyV1().PodDisruptionBudgets(metav1.NamespaceAll), &policyv1.PodDisruptionBudget{},
		fields.Everything(), slimMeta,
		cache.Indexers{cache.NamespaceIndex: cache.MetaNamespaceIndexFunc})
}

// ByController indexes objects by the UID of their controller; see Candidates.
const ByController = "controller"

// orphans is the key in ByController of objects without a controller.
func orphans(namespace string) string { return "orphans/" + namespace }

func controllerOf(obj any) ([]string, error) {
	o, ok := obj.(metav1.Object)
	if !ok {
		return nil, nil
	}
	if c := metav1.GetControllerOfNoCopy(o); c != nil {
		return []string{string(c.UID)}, nil
	}
	return []string{orphans(o.GetNamespace())}, nil
}

// Candidates returns the objects that an owner controls, and those of its namespace that have no
// controller, which it may adopt (W0.21). The watch is indexed ByController.
func Candidates[T metav1.Object](w *Watch, owner metav1.Object) []T {
	return append(Controlled[T](w, owner.GetUID()), indexed[T](w, ByController, orphans(owner.GetNamespace()))...)
}

// Controlled returns the objects whose controller has this UID. The watch is indexed ByController.
func Controlled[T metav1.Object](w *Watch, owner types.UID) []T {
	return indexed[T](w, ByController, string(owner))
}

// Namespaced returns the objects of a namespace. The watch is indexed by cache.NamespaceIndex.
func Namespaced[T metav1.Object](w *Watch, namespace string) []T {
	return indexed[T](w, cache.NamespaceIndex, namespace)
}

// Get returns an object of a watch by its namespace/name; the zero value when there is none.
func Get[T metav1.Object](w *Watch, key string) T {
	obj, _, _ := w.Objects().GetByKey(key)
	o, _ := obj.(T)
	return o
}

func indexed[T metav1.Object](w *Watch, index, value string) []T {
	objects, err := w.Objects().ByIndex(index, value)
	if err != nil {
		panic("source: " + w.name + " has no such index: " + err.Error())
	}
	out := make([]T, 0, len(objects))
	for _, obj := range objects {
		if o, ok := obj.(T); ok {
			out = append(out, o)
		}
	}
	return out
}

func byController() cache.Indexers {
	return cache.Indexers{ByController: controllerOf, cache.NamespaceIndex: cache.MetaNamespaceIndexFunc}
}

// ReplicaSets watches all replica sets, indexed ByController and by namespace.
func ReplicaSets(c kubernetes.Interface) *Watch {
	return newWatch(c.AppsV1().ReplicaSets(metav1.NamespaceAll), &appsv1.ReplicaSet{}, fields.Everything(), slimMeta,
		byController())
}

// Deployments watches all deployments, indexed by namespace.
func Deployments(c kubernetes.Interface) *Watch {
	return newWatch(c.AppsV1().Deployments(metav1.NamespaceAll), &appsv1.Deployment{}, fields.Everything(), slimMeta,
		byNamespace())
}

// ReplicationControllers watches all replication controllers, indexed by namespace.
func ReplicationControllers(c kubernetes.Interface) *Watch {
	return newWatch(c.CoreV1().ReplicationControllers(metav1.NamespaceAll), &corev1.ReplicationController{},
		fields.Everything(), slimMeta, byNamespace())
}

// StatefulSets watches all stateful sets, indexed by namespace.
func StatefulSets(c kubernetes.Interface) *Watch {
	return newWatch(c.AppsV1().StatefulSets(metav1.NamespaceAll), &appsv1.StatefulSet{}, fields.Everything(),
		slimMeta, byNamespace())
}

// DaemonSets watches all daemon sets, indexed by namespace.
func DaemonSets(c kubernetes.Interface) *Watch {
	return newWatch(c.AppsV1().DaemonSets(metav1.NamespaceAll), &appsv1.DaemonSet{}, fields.Everything(), slimMeta,
		byNamespace())
}

// Revisions watches all controller revisions, indexed ByController and by namespace.
func Revisions(c kubernetes.Interface) *Watch {
	return newWatch(c.AppsV1().ControllerRevisions(metav1.NamespaceAll), &appsv1.ControllerRevision{},
		fields.Everything(), slimMeta, byController())
}

// VolumeClaims watches all persistent volume claims, indexed by namespace.
func VolumeClaims(c kubernetes.Interface) *Watch {
	return newWatch(c.CoreV1().PersistentVolumeClaims(metav1.NamespaceAll), &corev1.PersistentVolumeClaim{},
		fields.Everything(), slimMeta, byNamespace())
}

// OnNode returns the pods of a node. The watch is indexed ByNode.
func OnNode(w *Watch, node string) []*corev1.Pod { return indexed[*corev1.Pod](w, ByNode, node) }

// Services watches all Services, indexed by namespace.
func Services(c kubernetes.Interface) *Watch {
	return newWatch(c.CoreV1().Services(metav1.NamespaceAll), &corev1.Service{}, fields.Everything(), slimMeta,
		byNamespace())
}

// Endpoints watches all Endpoints.
func Endpoints(c kubernetes.Interface) *Watch {
	return newWatch(c.CoreV1().Endpoints(metav1.NamespaceAll), &corev1.Endpoints{}, fields.Everything(), slimMeta,
		nil)
}

// byService indexes EndpointSlices by the namespace/name of the Service that they name.
const byService = "service"

// EndpointSlices watches all EndpointSlices; see SlicesOf.
func EndpointSlices(c kubernetes.Interface) *Watch {
	return newWatch(c.DiscoveryV1().EndpointSlices(metav1.NamespaceAll), &discoveryv1.EndpointSlice{},
		fields.Everything(), slimMeta, cache.Indexers{byService: func(obj any) ([]string, error) {
			if s, ok := obj.(*discoveryv1.EndpointSlice); ok && s.Labels[discoveryv1.LabelServiceName] != "" {
				return []string{s.Namespace + "/" + s.Labels[discoveryv1.LabelServiceName]}, nil
			}
			return nil, nil
		}})
}

// SlicesOf returns the EndpointSlices that name a Service by its namespace/name. The watch is
// EndpointSlices.
func SlicesOf(w *Watch, service string) []*discoveryv1.EndpointSlice {
	return indexed[*discoveryv1.EndpointSlice](w, byService, service)
}

// Jobs watches all Jobs, indexed ByController and by namespace.
func Jobs(c kubernetes.Interface) *Watch {
	return newWatch(c.BatchV1().Jobs(metav1.NamespaceAll), &batchv1.Job{}, fields.Everything(), slimMeta,
		byController())
}

// Autoscalers watches all horizontal pod autoscalers.
func Autoscalers(c kubernetes.Interface) *Watch {
	return newWatch(c.AutoscalingV2().HorizontalPodAutoscalers(metav1.NamespaceAll),
		&autoscalingv2.HorizontalPodAutoscaler{}, fields.Everything(), slimMeta, nil)
}

// CronJobs watches all CronJobs.
func CronJobs(c kubernetes.Interface) *Watch {
	return newWatch(c.BatchV1().CronJobs(metav1.NamespaceAll), &batchv1.CronJob{}, fields.Everything(), slimMeta,
		nil)
}

// Custom watches all objects of a custom resource; read converts them from their fields; indexed
// by namespace. read must not modify its argument.
func Custom(c dynamic.Interface, kind schema.GroupVersionResource,
	read func(*unstructured.Unstructured) (metav1.Object, error)) *Watch {
	w := newWatch(c.Resource(kind), &unstructured.Unstructured{}, fields.Everything(), nil, byNamespace())
	w.read = func(obj any) (any, error) {
		if u, ok := obj.(*unstructured.Unstructured); ok {
			return read(u)
		}
		return obj, nil
	}
	return w
}

func byNamespace() cache.Indexers {
	return cache.Indexers{cache.NamespaceIndex: cache.MetaNamespaceIndexFunc}
}

func slimNode(obj any) (any, error) {
	if node, ok := obj.(*corev1.Node); ok {
		node.ManagedFields = nil
		node.Status.Images = nil
	}
	return obj, nil
}

// ResourceClaims watches all resource claims, indexed ByController.
func ResourceClaims(c kubernetes.Interface) *Watch {
	return newWatch(c.ResourceV1().ResourceClaims(metav1.NamespaceAll), &resourcev1.ResourceClaim{},
		fields.Everything(), slimMeta, byController())
}

// ResourceClaimTemplates watches all templates of resource claims.
func ResourceClaimTemplates(c kubernetes.Interface) *Watch {
	return newWatch(c.ResourceV1().ResourceClaimTemplates(metav1.NamespaceAll), &resourcev1.ResourceClaimTemplate{},
		fields.Everything(), slimMeta, nil)
}

// ResourceSlices watches all resource slices.
func ResourceSlices(c kubernetes.Interface) *Watch {
	return newWatch(c.ResourceV1().ResourceSlices(), &resourcev1.ResourceSlice{}, fields.Everything(), slimMeta, nil)
}

// DeviceTaintRules watches all rules that taint devices.
func DeviceTaintRules(c kubernetes.Interface) *Watch {
	return newWatch(c.ResourceV1().DeviceTaintRules(), &resourcev1.DeviceTaintRule{}, fields.Everything(), slimMeta,
		nil)
}

// byClaim indexes volumes by the namespace/name of the claim that they name.
const byClaim = "claim"

// Volumes watches all persistent volumes; see VolumesOf.
func Volumes(c kubernetes.Interface) *Watch {
	return newWatch(c.CoreV1().PersistentVolumes(), &corev1.PersistentVolume{}, fields.Everything(), slimMeta,
		cache.Indexers{byClaim: func(obj any) ([]string, error) {
			if v, ok := obj.(*corev1.PersistentVolume); ok && v.Spec.ClaimRef != nil {
				return []string{v.Spec.ClaimRef.Namespace + "/" + v.Spec.ClaimRef.Name}, nil
			}
			return nil, nil
		}})
}

// VolumesOf returns the volumes that name a claim, by its namespace/name. The watch is Volumes.
func VolumesOf(w *Watch, claim string) []*corev1.PersistentVolume {
	return indexed[*corev1.PersistentVolume](w, byClaim, claim)
}

// StorageClasses watches all storage classes.
func StorageClasses(c kubernetes.Interface) *Watch {
	return newWatch(c.StorageV1().StorageClasses(), &storagev1.StorageClass{}, fields.Everything(), slimMeta, nil)
}

// VolumeAttachments watches all volume attachments; see AttachmentsOn and AttachmentsOf.
func VolumeAttachments(c kubernetes.Interface) *Watch {
	return newWatch(c.StorageV1().VolumeAttachments(), &storagev1.VolumeAttachment{}, fields.Everything(), slimMeta,
		cache.Indexers{ByNode: func(obj any) ([]string, error) {
			if a, ok := obj.(*storagev1.VolumeAttachment); ok {
				return []string{a.Spec.NodeName}, nil
			}
			return nil, nil
		}, byVolume: func(obj any) ([]string, error) {
			if a, ok := obj.(*storagev1.VolumeAttachment); ok && a.Spec.Source.PersistentVolumeName != nil {
				return []string{*a.Spec.Source.PersistentVolumeName}, nil
			}
			return nil, nil
		}})
}

// byVolume indexes attachments by the name of their persistent volume.
const byVolume = "volume"

// AttachmentsOn returns the attachments of a node. The watch is VolumeAttachments.
func AttachmentsOn(w *Watch, node string) []*storagev1.VolumeAttachment {
	return indexed[*storagev1.VolumeAttachment](w, ByNode, node)
}

// AttachmentsOf returns the attachments of a persistent volume. The watch is VolumeAttachments.
func AttachmentsOf(w *Watch, volume string) []*storagev1.VolumeAttachment {
	return indexed[*storagev1.VolumeAttachment](w, byVolume, volume)
}

// CSIDrivers watches the objects of all CSI drivers.
func CSIDrivers(c kubernetes.Interface) *Watch {
	return newWatch(c.StorageV1().CSIDrivers(), &storagev1.CSIDriver{}, fields.Everything(), slimMeta, nil)
}
