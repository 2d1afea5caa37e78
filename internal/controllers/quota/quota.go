// Package quota maintains the status of resource quotas: it counts the existing objects. Admission
// charges new objects; this controller releases what deleted objects used, and corrects the charge
// for an object that was rejected after admission. The controller manager runs it; it must never
// change anything except the status.
//
// A count lacks an object that admission has charged and that is not stored yet: a status with this count would lose
// the charge, and more objects would be admitted than the quota allows. So a lower count is stored only if the quota
// has not changed for a while: then the objects of all charges are stored or rejected. A charge after the quota was
// read is kept: the write conflicts, and the objects are counted again.
package quota

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	quotav1 "k8s.io/apiserver/pkg/quota/v1"
	"k8s.io/apiserver/pkg/quota/v1/generic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/metadata"

	"carob/internal/base/confirm"
	"carob/internal/base/quotaevaluator"
	"carob/internal/controllers/inventory"
	"carob/internal/controllers/reconciler"
	"carob/internal/core/quota"
)

const (
	// Changes within this time are counted together.
	gather = 200 * time.Millisecond
	// A pod whose deletion is overdue stops counting without a change.
	recount = 5 * time.Minute
	// A quota is not released before it has not been charged for this time, in which charged objects are stored; while
	// it is charged all the time, not before the second one. Upstream releases at once.
	storing     = 500 * time.Millisecond
	longestHold = 5 * time.Second
)

// Controller counts objects. Its key is a namespace.
type Controller struct {
	*reconciler.Reconciler
	client    kubernetes.Interface
	objects   metadata.Interface
	inventory *inventory.Inventory

	mu     sync.Mutex
	quotas map[string]map[string]bool // names by namespace
	holds  map[types.NamespacedName]hold
}

// hold is the wait before a quota is released.
type hold struct {
	version      string
	used         corev1.ResourceList
	since, first time.Time // since when the quota is unchanged, and of the first count that was lower
}

// New returns a controller that reads inv and writes through client.
func New(client kubernetes.Interface, objects metadata.Interface, inv *inventory.Inventory) *Controller {
	c := &Controller{client: client, objects: objects, inventory: inv, quotas: map[string]map[string]bool{},
		holds: map[types.NamespacedName]hold{}}
	c.Reconciler = reconciler.New("resourcequota_primary", 5, c.reconcile)
	inv.AddReader(c)
	return c
}

var quotas = corev1.Resource("resourcequotas")

// weighed are the kinds whose usage depends on the objects' content: a change of an object may
// change the usage.
var weighed = map[schema.GroupResource]bool{
	quotas: true, corev1.Resource("pods"): true, corev1.Resource("services"): true,
	corev1.Resource("persistentvolumeclaims"): true, resourcev1.Resource("resourceclaims"): true,
}

// Changed implements inventory.Reader.
func (c *Controller) Changed(k inventory.Kind, o *metav1.PartialObjectMetadata) {
	gr := k.GroupResource()
	if gr == quotas && c.note(o, true) {
		c.Add(o.Namespace) // it limits nothing before it has a status: objects of the same manifest follow at once
		return
	}
	if weighed[gr] || time.Since(o.CreationTimestamp.Time) < 2*time.Second {
		c.count(o.Namespace)
	}
}

// Gone implements inventory.Reader.
func (c *Controller) Gone(k inventory.Kind, o *metav1.PartialObjectMetadata) {
	if k.GroupResource() == quotas {
		c.note(o, false)
	}
	c.count(o.Namespace)
}

// Relisted implements inventory.Reader.
func (c *Controller) Relisted(k inventory.Kind, objects []*metav1.PartialObjectMetadata) {
	if k.GroupResource() != quotas {
		c.Kinds() // deletions may have been missed
		return
	}
	c.mu.Lock()
	c.quotas = map[string]map[string]bool{}
	clear(c.holds)
	c.mu.Unlock()
	for _, o := range objects {
		c.Changed(k, o)
	}
}

// Kinds implements inventory.Reader: a quota may count a new kind.
func (c *Controller) Kinds() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for namespace := range c.quotas {
		c.AddAfter(namespace, gather)
	}
}

// note records that a quota exists, or that it does not. It reports whether this is a quota that was not known.
func (c *Controller) note(o *metav1.PartialObjectMetadata, there bool) (added bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	names := c.quotas[o.Namespace]
	added = there && !names[o.Name]
	switch {
	case there && names == nil:
		c.quotas[o.Namespace] = map[string]bool{o.Name: true}
	case there:
		names[o.Name] = true
	default:
		delete(c.holds, types.NamespacedName{Namespace: o.Namespace, Name: o.Name})
		delete(names, o.Name)
		if len(names) == 0 {
			delete(c.quotas, o.Namespace)
		}
	}
	return added
}

func (c *Controller) count(namespace string) {
	c.mu.Lock()
	limited := c.quotas[namespace] != nil
	c.mu.Unlock()
	if limited {
		c.AddAfter(namespace, gather)
	}
}

func (c *Controller) reconcile(ctx context.Context, namespace string) (time.Duration, error) {
	began := time.Now()
	list, err := c.client.CoreV1().ResourceQuotas(namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return 0, fmt.Errorf("list the quotas of namespace %q: %w", namespace, err)
	}
	if len(list.Items) == 0 {
		return 0, nil
	}
	seen := &once{list: func(gr schema.GroupResource, namespace string) ([]runtime.Object, error) {
		return c.list(ctx, gr, namespace)
	}, got: map[schema.GroupResource]listed{}}
	var errs []error
	for i := range list.Items {
		errs = append(errs, c.update(ctx, &list.Items[i], seen, began))
	}
	return recount, errors.Join(errs...)
}

// held returns how long the quota must stay as it is before a lower count is stored. The count began at the given time.
func (c *Controller) held(q *corev1.ResourceQuota, used corev1.ResourceList, began time.Time) time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	key := types.NamespacedName{Namespace: q.Namespace, Name: q.Name}
	lower := false
	for name, n := range used { // any order: any of them
		before, charged := q.Status.Used[name]
		lower = lower || charged && n.Cmp(before) < 0
	}
	if !lower {
		delete(c.holds, key)
		return 0
	}
	h, now := c.holds[key], time.Now()
	if h.first.IsZero() {
		h.first = now
	}
	if h.since.IsZero() || h.version != q.ResourceVersion || !equality.Semantic.DeepEqual(h.used, q.Status.Used) {
		h.since, h.version, h.used = now, q.ResourceVersion, q.Status.Used
	}
	if wait := min(storing-began.Sub(h.since), longestHold-began.Sub(h.first)); wait > 0 {
		c.holds[key] = h
		return wait
	}
	delete(c.holds, key)
	return 0
}

// update counts for one quota and stores the difference.
func (c *Controller) update(ctx context.Context, q *corev1.ResourceQuota, seen *once, began time.Time) error {
	registry := generic.NewRegistry(evaluators(seen.of))
	for name := range q.Spec.Hard {
		if gr, ok := quota.CountedKind(name); ok && registry.Get(gr) == nil {
			if _, served := c.inventory.ByResource(gr); served {
				registry.Add(quotaevaluator.Count(gr, seen.of, ""))
			}
		}
	}
	used, countErr := quotav1.CalculateUsage(q.Namespace, q.Spec.Scopes, q.Spec.Hard, registry, q.Spec.ScopeSelector)
	if countErr != nil {
		countErr = fmt.Errorf("count for quota %s/%s: %w", q.Namespace, q.Name, countErr)
		for name := range q.Spec.Hard {
			// Resources that could not be counted must not be reported as unused.
			if _, ok := used[name]; !ok {
				if old, ok := q.Status.Used[name]; ok {
					used[name] = old
				}
			}
		}
	}
	if wait := c.held(q, used, began); wait > 0 {
		for name, n := range used {
			if before, charged := q.Status.Used[name]; charged && n.Cmp(before) < 0 {
				used[name] = before
			}
		}
		c.AddAfter(q.Namespace, wait)
	}
	status := corev1.ResourceQuotaStatus{Hard: q.Spec.Hard,
		Used: quotav1.Mask(used, quotav1.ResourceNames(q.Spec.Hard))}
	if equality.Semantic.DeepEqual(status, q.Status) {
		return countErr
	}
	changed := q.DeepCopy()
	changed.Status = status
	_, err := c.client.CoreV1().ResourceQuotas(q.Namespace).UpdateStatus(ctx, changed, metav1.UpdateOptions{})
	stale := confirm.Stale(err)
	err = confirm.Overtaken(ctx, q, err, func(ctx context.Context) (metav1.Object, error) {
		return c.stored(ctx, q.Namespace, q.Name)
	})
	switch {
	case err != nil:
		return errors.Join(countErr, fmt.Errorf("update the status of quota %s/%s: %w", q.Namespace, q.Name, err))
	case stale:
		c.AddAfter(q.Namespace, gather) // admission charged the quota meanwhile: count again
	}
	return countErr
}

// stored reads a quota. This controller may only list them.
func (c *Controller) stored(ctx context.Context, namespace, name string) (metav1.Object, error) {
	list, err := c.client.CoreV1().ResourceQuotas(namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	for i := range list.Items {
		if list.Items[i].Name == name {
			return &list.Items[i], nil
		}
	}
	return nil, apierrors.NewNotFound(quotas, name)
}

// evaluators returns the evaluators of kinds with rules or old names.
func evaluators(list quotaevaluator.List) []quotav1.Evaluator {
	var all []quotav1.Evaluator
	for _, k := range quota.Kinds(lookup{list}) {
		all = append(all, quotaevaluator.New(k.Group, k, nil, list))
	}
	for _, name := range quota.OldNames() {
		all = append(all, quotaevaluator.Count(corev1.Resource(string(name)), list, name))
	}
	return all
}

// list returns complete objects of the kinds whose content counts, metadata of others.
func (c *Controller) list(ctx context.Context, gr schema.GroupResource, namespace string) ([]runtime.Object, error) {
	var list runtime.Object
	var err error
	o := metav1.ListOptions{}
	switch gr {
	case corev1.Resource("pods"):
		list, err = c.client.CoreV1().Pods(namespace).List(ctx, o)
	case corev1.Resource("services"):
		list, err = c.client.CoreV1().Services(namespace).List(ctx, o)
	case corev1.Resource("persistentvolumeclaims"):
		list, err = c.client.CoreV1().PersistentVolumeClaims(namespace).List(ctx, o)
	case resourcev1.Resource("resourceclaims"):
		list, err = c.client.ResourceV1().ResourceClaims(namespace).List(ctx, o)
	case resourcev1.Resource("deviceclasses"):
		list, err = c.client.ResourceV1().DeviceClasses().List(ctx, o)
	default:
		k, ok := c.inventory.ByResource(gr)
		if !ok {
			return nil, nil
		}
		list, err = c.objects.Resource(k.GroupVersionResource).Namespace(namespace).List(ctx, o)
	}
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return meta.ExtractList(list)
}

// lookup finds what rules need to know about other objects among those that are listed.
type lookup struct{ list quotaevaluator.List }

var _ quota.Lookup = lookup{}

// Classes implements quota.Lookup.
func (l lookup) Classes() ([]*resourcev1.DeviceClass, error) {
	return of[*resourcev1.DeviceClass](l.list, resourcev1.Resource("deviceclasses"), "")
}

// Claims implements quota.Lookup.
func (l lookup) Claims(namespace string) ([]*resourcev1.ResourceClaim, error) {
	return of[*resourcev1.ResourceClaim](l.list, resourcev1.Resource("resourceclaims"), namespace)
}

// Pod implements quota.Lookup.
func (l lookup) Pod(namespace, name string) (*corev1.Pod, error) {
	pods, err := of[*corev1.Pod](l.list, corev1.Resource("pods"), namespace)
	if i := slices.IndexFunc(pods, func(p *corev1.Pod) bool { return p.Name == name }); i >= 0 {
		return pods[i], nil
	}
	return nil, err
}

func of[T any](list quotaevaluator.List, gr schema.GroupResource, namespace string) ([]T, error) {
	objects, err := list(gr, namespace)
	var out []T
	for _, o := range objects {
		if x, ok := o.(T); ok {
			out = append(out, x)
		}
	}
	return out, err
}

// once lists each kind at most once.
type once struct {
	list quotaevaluator.List
	got  map[schema.GroupResource]listed
}

type listed struct {
	objects []runtime.Object
	err     error
}

func (o *once) of(gr schema.GroupResource, namespace string) ([]runtime.Object, error) {
	l, ok := o.got[gr]
	if !ok {
		l.objects, l.err = o.list(gr, namespace)
		o.got[gr] = l
	}
	return l.objects, l.err
}
