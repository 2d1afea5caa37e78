// Package admission is the chain of built-in admission plugins of the API server, in the order of the specification.
//
// The plugins run inside the request, in process, and read other objects through a Reader over the server's own watch
// caches: no informers, no pollers, no loopback connection, nothing to wait for at boot. The API server drives them;
// none
// of them writes an object or starts a goroutine.
//
// Contract: docs/spec/pod-lifecycle.md.
package admission

import (
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/registry/rest"
)

// Reader reads stored objects for decisions. The objects are shared: callers must not change them.
type Reader interface {
	// Get returns an object, NotFound if there is none. namespace is empty for cluster-scoped
	// resources. The object may lag behind a write by a watch event, but an object that exists is
	// always found.
	Get(ctx context.Context, resource schema.GroupResource, namespace, name string) (runtime.Object, error)
	// Await is Get that waits up to limit for an object that does not exist yet.
	Await(ctx context.Context, resource schema.GroupResource, namespace, name string,
		limit time.Duration) (runtime.Object, error)
	// List calls fn for each object of a namespace ("" for all); fn returns false to stop.
	List(ctx context.Context, resource schema.GroupResource, namespace string, fn func(runtime.Object) bool) error
}

// Storages finds the installed storage of a resource; nil if it is not served. It is called during
// requests only, so the chain can be built before the storages.
type Storages func(resource schema.GroupResource) rest.Storage

// Config is what the chain needs from the API server.
type Config struct {
	// Reader reads objects; NewReader returns one.
	Reader Reader
	// Authorizer decides about permissions beyond the request itself.
	Authorizer authorizer.Authorizer
	// Configuration is the user's configuration of plugins.
	Configuration Configuration
	// PodAutoscaler says who sizes pods that are created; optional.
	PodAutoscaler *PodAutoscalerSwitch
}

// plugin is one of carob's plugins, with its name upstream.
type plugin struct {
	admission.Interface
	name string
}

// New returns the chain: a mutating and a validating admission plugin. NewQuota's plugin comes
// last, after all other plugins of the server.
func New(c Config) (admission.Interface, error) {
	all, err := plugins(c)
	if err != nil {
		return nil, err
	}
	chain := make([]admission.Interface, len(all))
	for i := range all {
		chain[i] = Measured(all[i].name, all[i].Interface)
	}
	return admission.NewChainHandler(chain...), nil
}

// plugins returns the plugins in the order in which they run.
func plugins(c Config) ([]plugin, error) {
	security, err := newPodSecurity(c.Reader, c.Configuration.For("PodSecurity"))
	if err != nil {
		return nil, err
	}
	return []plugin{
		{namespaceLifecycle{c.Reader}, "NamespaceLifecycle"},
		{limitRanger{c.Reader}, "LimitRanger"},
		{serviceAccount{c.Reader}, "ServiceAccount"},
		{nodeRestriction{c.Reader, c.Authorizer}, "NodeRestriction"},
		{taintNodes{}, "TaintNodesByCondition"},
		{security, "PodSecurity"},
		{priority{c.Reader}, "Priority"},
		{defaultTolerations{}, "DefaultTolerationSeconds"},
		{defaultStorageClass{c.Reader}, "DefaultStorageClass"},
		{storageInUse{}, "StorageObjectInUseProtection"},
		{claimResize{c.Reader}, "PersistentVolumeClaimResize"},
		{runtimeClass{c.Reader}, "RuntimeClass"},
		{certificateApproval{signers{c.Authorizer}}, "CertificateApproval"},
		{certificateSigning{signers{c.Authorizer}}, "CertificateSigning"},
		{trustBundleAttest{signers{c.Authorizer}}, "ClusterTrustBundleAttest"},
		{certificateSubject{}, "CertificateSubjectRestriction"},
		{defaultIngressClass{c.Reader}, "DefaultIngressClass"},
		{topologyLabels{c.Reader}, "PodTopologyLabels"},
		{nodeFeatures{c.Reader}, "NodeDeclaredFeatureValidator"},
		{resizeFits{c.Reader}, "PodResizeValidator"},
		{podAutoscaler{c.Reader, c.PodAutoscaler}, "VerticalPodAutoscaler"},
	}, nil
}

var (
	podResource     = corev1.Resource("pods")
	nodeResource    = corev1.Resource("nodes")
	namespaces      = corev1.Resource("namespaces")
	serviceAccounts = corev1.Resource("serviceaccounts")
)

// newPod returns the pod of a request that creates one, otherwise nil.
func newPod(a admission.Attributes) *corev1.Pod {
	if a.GetOperation() != admission.Create {
		return nil
	}
	return podOf(a)
}

// podOf returns the pod of a request on the main resource, otherwise nil.
func podOf(a admission.Attributes) *corev1.Pod {
	if a.GetSubresource() != "" || a.GetResource().GroupResource() != podResource {
		return nil
	}
	p, _ := a.GetObject().(*corev1.Pod)
	return p
}

// isMirror reports whether the pod mirrors a static pod: its node has already admitted it, so
// nothing in it is changed (L1.38).
func isMirror(p *corev1.Pod) bool {
	_, ok := p.Annotations[corev1.MirrorPodAnnotationKey]
	return ok
}

// containers calls fn for each init and regular container.
func containers(p *corev1.Pod, fn func(c *corev1.Container)) {
	for i := range p.Spec.InitContainers {
		fn(&p.Spec.InitContainers[i])
	}
	for i := range p.Spec.Containers {
		fn(&p.Spec.Containers[i])
	}
}

// on returns the handler of a plugin for these operations.
type on struct{ create, update, remove bool }

func (o on) handles(op admission.Operation) bool {
	switch op {
	case admission.Create:
		return o.create
	case admission.Update:
		return o.update
	case admission.Delete:
		return o.remove
	}
	return false
}
