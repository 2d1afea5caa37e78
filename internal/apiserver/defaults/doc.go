// Package defaults fills in the fields a client left out of an object of a built-in kind.
//
// The scheme calls it on every decode: of a request body and of a stored object. Every function is therefore cheap,
// idempotent and a pure function of the object; none reads a clock, other objects or configuration. What depends on
// other objects (service accounts, priority classes, limit ranges) is the work of package admission.
package defaults

import (
	autoscalingv1 "k8s.io/api/autoscaling/v1"
	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// Register adds the defaulting functions of all kinds this package knows to s. The external types are the hub types,
// so one registration serves every version.
func Register(s *runtime.Scheme) error {
	registerCore(s)
	registerServices(s)
	registerVolumes(s)
	registerApps(s)
	registerBatch(s)
	registerRbac(s)
	registerDiscovery(s)
	registerNetworking(s)
	registerScheduling(s)
	registerStorage(s)
	registerAutoscaling(s)
	registerCertificates(s)
	registerDevices(s)
	return nil
}

func registerCore(s *runtime.Scheme) {
	add(s, Pod)
	add(s, func(o *corev1.PodTemplate) { podTemplate(&o.Template) })
	add(s, endpoints)
	add(s, secret)
	add(s, namespace)
	add(s, node)
	add(s, limitRange)
	add(s, resourceQuota)
}

func registerServices(s *runtime.Scheme) { add(s, service) }

func registerVolumes(s *runtime.Scheme) {
	add(s, persistentVolume)
	add(s, persistentVolumeClaim)
}

func registerApps(s *runtime.Scheme) {
	add(s, replicationController)
	add(s, deployment)
	add(s, replicaSet)
	add(s, StatefulSet)
	add(s, daemonSet)
}

func registerBatch(s *runtime.Scheme) {
	add(s, job)
	add(s, cronJob)
}

func registerRbac(s *runtime.Scheme) {
	add(s, func(o *rbacv1.RoleBinding) { roleRef(&o.RoleRef); subjects(o.Subjects) })
	add(s, func(o *rbacv1.ClusterRoleBinding) { roleRef(&o.RoleRef); subjects(o.Subjects) })
}

func registerDiscovery(s *runtime.Scheme) {
	add(s, endpointSlice)
}

func registerNetworking(s *runtime.Scheme) {
	add(s, networkPolicy)
	add(s, ingressClass)
}

func registerScheduling(s *runtime.Scheme) {
	add(s, priorityClass)
}

func registerStorage(s *runtime.Scheme) {
	add(s, storageClass)
	add(s, csiDriver)
}

func registerAutoscaling(s *runtime.Scheme) {
	add(s, func(o *autoscalingv1.HorizontalPodAutoscaler) { orNew(&o.Spec.MinReplicas, 1) })
	add(s, horizontalPodAutoscaler)
}

func registerCertificates(s *runtime.Scheme) {
	add(s, func(o *certificatesv1.PodCertificateRequest) { orNew(&o.Spec.MaxExpirationSeconds, 24*60*60) })
}

func registerDevices(s *runtime.Scheme) {
	add(s, resourceClaim)
	add(s, func(o *resourcev1.ResourceClaimTemplate) { deviceRequests(o.Spec.Spec.Devices.Requests) })
}

// add registers fn for *T. A scheme keeps one function per type, keyed by the pointer's type.
func add[T any](s *runtime.Scheme, fn func(*T)) {
	var zero any = new(T)
	s.AddTypeDefaultingFunc(zero.(runtime.Object), func(o any) { fn(o.(*T)) })
}

// orDefault sets *p to v when it holds its zero value.
func orDefault[T comparable](p *T, v T) {
	var zero T
	if *p == zero {
		*p = v
	}
}

// orNew sets *p to a pointer to v when it is nil.
func orNew[T any](p **T, v T) {
	if *p == nil {
		*p = &v
	}
}
