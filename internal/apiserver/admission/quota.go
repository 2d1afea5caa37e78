package admission

import (
	"context"
	"fmt"
	"io"
	"sync"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/admission/plugin/resourcequota"
	"k8s.io/apiserver/pkg/authentication/user"
	genericapirequest "k8s.io/apiserver/pkg/endpoints/request"
	quotav1 "k8s.io/apiserver/pkg/quota/v1"
	"k8s.io/apiserver/pkg/quota/v1/generic"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/apiserver/pkg/storage"

	"carob/internal/base/quotaevaluator"
	"carob/internal/core/quota"
)

var quotaResource = corev1.Resource("resourcequotas")

// quotaWorkers is how many namespaces are charged concurrently.
const quotaWorkers = 4

// NewQuota returns the plugin that charges created objects to the resource quotas of their
// namespace. It must be the last in the chain: an object rejected later would be charged all the
// same. config, if not nil, is a ResourceQuota configuration: which resources require a quota. Its
// workers start with the first namespace that has a quota, and end when stop is closed.
func NewQuota(reader Reader, storages Storages, config io.Reader, stop <-chan struct{}) (admission.Interface, error) {
	limits, err := resourcequota.LoadConfiguration(config)
	if err != nil {
		return nil, fmt.Errorf("read the configuration of ResourceQuota: %w", err)
	}
	a := &quotaAccess{reader: reader, storages: storages, written: map[string]*corev1.ResourceQuota{}}
	registry := generic.NewRegistry(quotaEvaluators(quotaLookup{reader}))
	return quotaPlugin{a, resourcequota.NewQuotaEvaluator(a, quota.Ignored(), registry, nil, limits, quotaWorkers,
		stop), len(limits.LimitedResources) > 0}, nil
}

// quotaEvaluators returns those of all kinds with rules or old names; kinds that are only counted
// get theirs when a request names them.
func quotaEvaluators(look quota.Lookup) []quotav1.Evaluator {
	var all []quotav1.Evaluator
	for _, k := range quota.Kinds(look) {
		counts := func(a admission.Attributes) bool {
			return k.Counts(quota.Write{Create: a.GetOperation() == admission.Create,
				Update:      a.GetOperation() == admission.Update,
				Subresource: a.GetSubresource(), Object: a.GetObject(), Old: a.GetOldObject()})
		}
		all = append(all, quotaevaluator.New(k.Group, k, counts, nil))
	}
	for _, name := range quota.OldNames() {
		all = append(all, quotaevaluator.Count(corev1.Resource(string(name)), nil, name))
	}
	return all
}

// quotaLookup reads what rules need to know about other objects from the watch cache.
type quotaLookup struct{ reader Reader }

var _ quota.Lookup = quotaLookup{}

// Classes implements quota.Lookup.
func (l quotaLookup) Classes() ([]*resourcev1.DeviceClass, error) {
	return listed[*resourcev1.DeviceClass](l.reader, resourcev1.Resource("deviceclasses"), "")
}

// Claims implements quota.Lookup.
func (l quotaLookup) Claims(namespace string) ([]*resourcev1.ResourceClaim, error) {
	return listed[*resourcev1.ResourceClaim](l.reader, resourcev1.Resource("resourceclaims"), namespace)
}

// Pod implements quota.Lookup.
func (l quotaLookup) Pod(namespace, name string) (*corev1.Pod, error) {
	o, err := l.reader.Get(context.Background(), corev1.Resource("pods"), namespace, name)
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	pod, _ := o.(*corev1.Pod)
	return pod, err
}

func listed[T any](reader Reader, resource schema.GroupResource, namespace string) ([]T, error) {
	var out []T
	err := reader.List(context.Background(), resource, namespace, func(o runtime.Object) bool {
		if x, ok := o.(T); ok {
			out = append(out, x)
		}
		return true
	})
	return out, err
}

type quotaPlugin struct {
	*quotaAccess
	resourcequota.Evaluator
	limited bool // some resources require a quota
}

func (quotaPlugin) Handles(op admission.Operation) bool {
	return on{create: true, update: true}.handles(op)
}

func (q quotaPlugin) Validate(_ context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	if a.GetNamespace() == "" || a.GetResource().GroupResource() == namespaces && a.GetOperation() == admission.Create {
		return nil
	}
	if quotas, err := q.GetQuotas(a.GetNamespace()); err == nil && len(quotas) == 0 && !q.limited {
		return nil // the usual case does not wait for a worker
	}
	return q.Evaluate(a)
}

// quotaAccess reads quotas from the watch cache and writes their status. Its own last writes are
// newer than the cache.
type quotaAccess struct {
	reader   Reader
	storages Storages

	mu      sync.Mutex
	written map[string]*corev1.ResourceQuota // by namespace/name, until the cache has it
}

// mostWritten limits how many written quotas are kept: those of namespaces that are gone are never asked for again. A
// quota that is dropped too early is read from the cache: if that is late, the next write conflicts and is repeated.
const mostWritten = 1000

var _ resourcequota.QuotaAccessor = (*quotaAccess)(nil)

// GetQuotas implements resourcequota.QuotaAccessor.
func (a *quotaAccess) GetQuotas(namespace string) ([]corev1.ResourceQuota, error) {
	var out []corev1.ResourceQuota
	err := a.reader.List(context.Background(), quotaResource, namespace, func(o runtime.Object) bool {
		if q, ok := o.(*corev1.ResourceQuota); ok {
			out = append(out, *a.newest(q))
		}
		return true
	})
	return out, err
}

func (a *quotaAccess) newest(q *corev1.ResourceQuota) *corev1.ResourceQuota {
	key := q.Namespace + "/" + q.Name
	a.mu.Lock()
	defer a.mu.Unlock()
	w := a.written[key]
	if w == nil {
		return q
	}
	versions := storage.APIObjectVersioner{}
	if w.UID != q.UID || versions.CompareResourceVersion(w, q) <= 0 {
		delete(a.written, key)
		return q
	}
	return w
}

// keep records a quota as it was written.
func (a *quotaAccess) keep(q *corev1.ResourceQuota) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if len(a.written) >= mostWritten {
		clear(a.written)
	}
	a.written[q.Namespace+"/"+q.Name] = q
}

// UpdateQuotaStatus implements resourcequota.QuotaAccessor.
func (a *quotaAccess) UpdateQuotaStatus(q *corev1.ResourceQuota) error {
	status := quotaResource
	status.Resource += "/status"
	updater, ok := a.storages(status).(rest.Updater)
	if !ok {
		return fmt.Errorf("resource quotas are not served")
	}
	ctx := genericapirequest.WithUser(ContextFor(context.Background(), quotaResource, q.Namespace),
		&user.DefaultInfo{Name: user.APIServerUser, Groups: []string{user.SystemPrivilegedGroup}})
	obj, _, err := updater.Update(ctx, q.Name, rest.DefaultUpdatedObjectInfo(q), rest.ValidateAllObjectFunc,
		rest.ValidateAllObjectUpdateFunc, false, &metav1.UpdateOptions{})
	if err != nil {
		return err
	}
	if stored, ok := obj.(*corev1.ResourceQuota); ok {
		a.keep(stored)
	}
	return nil
}
