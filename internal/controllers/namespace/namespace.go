// Package namespace deletes the content of namespaces that are being deleted, and then removes
// their finalizer. The controller manager runs it; it must never change the content of other
// namespaces.
//
//	Active ──DELETE──▶ Terminating: pods ──gone──▶ everything else ──gone──▶ finalized ──▶ gone
//
// Pods are deleted first, and the controller waits for them, so that objects that they need while
// they terminate (policies, service accounts, secrets) remain.
package namespace

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/tools/cache"

	"carob/internal/base/confirm"
	"carob/internal/controllers/reconciler"
	"carob/internal/controllers/source"
)

// parallel limits the kinds that are processed at the same time in one namespace.
const parallel = 8

// Delays before the next check of content that the pod watch does not show.
const (
	recheckPods   = 15 * time.Second
	recheckRest   = time.Second
	recheckMax    = 8 * time.Second // of content with the finalizer of another controller
	seldomPerWait = 10              // a check after each tenth of the time waited so far
)

// recheckDelay is the delay for the rest of a namespace whose deletion has taken waited so far.
func recheckDelay(waited time.Duration) time.Duration {
	return min(max(waited/seldomPerWait, recheckRest), recheckMax)
}

// Controller deletes the content of namespaces. Its key is the namespace.
type Controller struct {
	*reconciler.Reconciler
	client     kubernetes.Interface
	discovery  discovery.DiscoveryInterface
	objects    metadata.Interface
	namespaces cache.Store
}

// New returns a controller. It watches pods to continue as soon as the last pod is gone.
func New(client kubernetes.Interface, d discovery.DiscoveryInterface, objects metadata.Interface, namespaces,
	pods *source.Watch) (*Controller, error) {
	c := &Controller{client: client, discovery: d, objects: objects, namespaces: namespaces.Objects()}
	c.Reconciler = reconciler.New("namespace", 10, c.reconcile)
	if err := reconciler.OnNamespace(namespaces, c.Add); err != nil {
		return nil, fmt.Errorf("namespace: watch namespaces: %w", err)
	}
	err := pods.OnChange(func(before, after metav1.Object) {
		if after == nil && c.terminating(before.GetNamespace()) != nil {
			c.Add(before.GetNamespace())
		}
	})
	if err != nil {
		return nil, fmt.Errorf("namespace: watch pods: %w", err)
	}
	return c, nil
}

// terminating returns the namespace, as the watch shows it, if it ends.
func (c *Controller) terminating(name string) *corev1.Namespace {
	obj, exists, _ := c.namespaces.GetByKey(name)
	n, ok := obj.(*corev1.Namespace)
	if !exists || !ok || !ends(n) {
		return nil
	}
	return n
}

// ends reports whether a namespace is being deleted and has this controller's finalizer.
func ends(n *corev1.Namespace) bool {
	return n.DeletionTimestamp != nil && slices.Contains(n.Spec.Finalizers, corev1.FinalizerKubernetes)
}

// stored returns the namespace as it is stored, nil if it does not end. The watch may still show one that is gone,
// while another one has its name: the content of that one must stay. While a namespace has the finalizer, no other one
// takes its name.
func (c *Controller) stored(ctx context.Context, name string) (*corev1.Namespace, error) {
	n, err := c.client.CoreV1().Namespaces().Get(ctx, name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("read namespace %q: %w", name, err)
	case !ends(n):
		return nil, nil
	}
	return n, nil
}

func (c *Controller) reconcile(ctx context.Context, name string) (time.Duration, error) {
	if c.terminating(name) == nil {
		return 0, nil
	}
	n, err := c.stored(ctx, name)
	if n == nil {
		return 0, err
	}
	f, again := c.empty(ctx, name)
	if f.nothingLeft() {
		return 0, c.finalize(ctx, n)
	}
	if err := c.publish(ctx, n, f); err != nil {
		return 0, err
	}
	if again == recheckRest {
		again = recheckDelay(time.Since(n.DeletionTimestamp.Time))
	}
	return again, errors.Join(f.content...)
}

// finalize removes this controller's finalizer, after which the API server removes the namespace.
func (c *Controller) finalize(ctx context.Context, n *corev1.Namespace) error {
	final := n.DeepCopy()
	final.Spec.Finalizers = slices.DeleteFunc(final.Spec.Finalizers,
		func(f corev1.FinalizerName) bool { return f == corev1.FinalizerKubernetes })
	_, err := c.client.CoreV1().Namespaces().Finalize(ctx, final, metav1.UpdateOptions{})
	err = confirm.Overtaken(ctx, n, err, confirm.By(c.client.CoreV1().Namespaces().Get, n.Name))
	if err == nil {
		return nil
	}
	return fmt.Errorf("finalize namespace %q: %w", n.Name, err)
}

// empty deletes the content and returns what remains, and when to check again.
func (c *Controller) empty(ctx context.Context, name string) (findings, time.Duration) {
	f := findings{remaining: map[schema.GroupVersionResource]int{}, finalizers: map[string]int{}}
	kinds, err := c.kinds()
	f.discovery = err
	pods := corev1.SchemeGroupVersion.WithResource("pods")
	var rest []kind
	for _, k := range kinds {
		if k.GroupVersionResource == pods {
			f.add(c.clear(ctx, name, k))
		} else {
			rest = append(rest, k)
		}
	}
	if f.remaining[pods] > 0 || len(f.content) > 0 {
		return f, recheckPods
	}
	results := make(chan cleared, len(rest))
	slots := make(chan struct{}, parallel)
	var group sync.WaitGroup
	for _, k := range rest {
		slots <- struct{}{}
		group.Go(func() {
			results <- c.clear(ctx, name, k)
			<-slots
		})
	}
	group.Wait()
	close(results)
	for r := range results {
		f.add(r)
	}
	return f, recheckRest
}

// kind is a kind of namespaced objects that can be deleted.
type kind struct {
	schema.GroupVersionResource
	collection bool // supports deletecollection
}

// kinds reads the kinds from discovery. With an error, the list has those that were found.
func (c *Controller) kinds() ([]kind, error) {
	lists, err := discovery.ServerPreferredNamespacedResources(c.discovery)
	var kinds []kind
	for _, list := range lists {
		gv, parseErr := schema.ParseGroupVersion(list.GroupVersion)
		if parseErr != nil {
			err = errors.Join(err, parseErr)
			continue
		}
		for _, r := range list.APIResources {
			if slices.Contains(r.Verbs, "delete") && slices.Contains(r.Verbs, "list") {
				kinds = append(kinds, kind{gv.WithResource(r.Name), slices.Contains(r.Verbs, "deletecollection")})
			}
		}
	}
	return kinds, err
}

// cleared is what remains of one kind.
type cleared struct {
	kind       schema.GroupVersionResource
	remaining  int
	finalizers []string // finalizers of the remaining objects
	err        error
}

// clear deletes all objects of a kind that are not being deleted yet.
func (c *Controller) clear(ctx context.Context, namespace string, k kind) cleared {
	result := cleared{kind: k.GroupVersionResource}
	api := c.objects.Resource(k.GroupVersionResource).Namespace(namespace)
	list, err := api.List(ctx, metav1.ListOptions{})
	if err == nil && len(list.Items) > 0 {
		if err = c.deleteAll(ctx, api, k, list.Items); err == nil {
			list, err = api.List(ctx, metav1.ListOptions{})
		}
	}
	if apierrors.IsNotFound(err) || apierrors.IsMethodNotSupported(err) {
		return result // the kind is gone, or cannot be listed
	}
	if err != nil {
		result.err = fmt.Errorf("delete all %s: %w", k.Resource, err)
		return result
	}
	result.remaining = len(list.Items)
	for i := range list.Items {
		result.finalizers = append(result.finalizers, list.Items[i].Finalizers...)
	}
	return result
}

func (c *Controller) deleteAll(ctx context.Context, api metadata.ResourceInterface, k kind,
	items []metav1.PartialObjectMetadata) error {
	if !slices.ContainsFunc(items, func(o metav1.PartialObjectMetadata) bool { return o.DeletionTimestamp == nil }) {
		return nil // all of them are being deleted
	}
	background := metav1.DeletePropagationBackground
	o := metav1.DeleteOptions{PropagationPolicy: &background}
	if k.collection {
		return api.DeleteCollection(ctx, o, metav1.ListOptions{})
	}
	var errs []error
	for i := range items {
		if err := api.Delete(ctx, items[i].Name, o); err != nil && !apierrors.IsNotFound(err) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}
