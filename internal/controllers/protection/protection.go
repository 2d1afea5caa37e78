// Package protection implements storage object in use protection: it removes the finalizer that
// admission added once no pod uses the claim, no claim the volume, and no claim or volume the
// attributes class. The controller manager runs one controller per kind; they must never delete
// anything.
//
// Contract: docs/spec/storage-and-node.md.
package protection

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes"

	"carob/internal/base/confirm"
	"carob/internal/controllers/inventory"
	"carob/internal/controllers/reconciler"
	"carob/internal/controllers/source"
	"carob/internal/core/podclaims"
)

// Controller releases the objects of one kind. Its key is namespace/name.
type Controller struct {
	*reconciler.Reconciler
	kind      schema.GroupResource
	finalizer string
	// release removes the finalizer unless the object is in use. It waits if a newer version of the object is stored.
	release func(ctx context.Context, namespace, name string) (used bool, err error)

	mu      sync.Mutex
	waiting map[string]bool // keys of deleted objects that were in use
}

func newController(name string, kind schema.GroupResource, finalizer string, inv *inventory.Inventory) *Controller {
	c := &Controller{kind: kind, finalizer: finalizer, waiting: map[string]bool{}}
	c.Reconciler = reconciler.New(name, 2, c.reconcile)
	inv.AddReader(c)
	return c
}

// Claims returns the controller of persistent volume claims.
func Claims(client kubernetes.Interface, inv *inventory.Inventory, pods *source.Watch) (*Controller, error) {
	const finalizer = "kubernetes.io/pvc-protection"
	c := newController("pvcprotection", corev1.Resource("persistentvolumeclaims"), finalizer, inv)
	c.release = func(ctx context.Context, namespace, name string) (bool, error) {
		claims := client.CoreV1().PersistentVolumeClaims(namespace)
		claim, err := claims.Get(ctx, name, metav1.GetOptions{})
		if err != nil || !held(claim, finalizer) {
			return false, unlessGone(err)
		}
		list, err := client.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{})
		if err != nil {
			return false, err
		}
		if slices.ContainsFunc(list.Items, func(p corev1.Pod) bool { return usesClaim(&p, claim) }) {
			return true, nil
		}
		drop(claim, finalizer)
		_, err = claims.Update(ctx, claim, metav1.UpdateOptions{})
		return confirm.Stale(err), confirm.Overtaken(ctx, claim, err, confirm.By(claims.Get, name))
	}
	err := reconciler.OnChange(pods, func(o metav1.Object) { c.retry(o.GetNamespace() + "/") })
	if err != nil {
		return nil, fmt.Errorf("protection: watch pods: %w", err)
	}
	return c, nil
}

// usesClaim reports whether a pod uses a claim: from when the pod is scheduled until it is removed,
// because the volume of a pod that has ended may still be mounted (S7.2, S7.4). A pod without a
// node will not start with a claim that is being deleted. A deleted pod that only finalizers hold does not use the
// claims of its ephemeral volumes: deleted in the foreground, it waits for these claims to go.
func usesClaim(p *corev1.Pod, claim *corev1.PersistentVolumeClaim) bool {
	if p.Spec.NodeName == "" || !podclaims.UsesVolumeClaim(p, claim) {
		return false
	}
	grace := p.DeletionGracePeriodSeconds
	return p.DeletionTimestamp == nil || grace == nil || *grace != 0 ||
		slices.ContainsFunc(p.Spec.Volumes, func(v corev1.Volume) bool {
			return v.PersistentVolumeClaim != nil && v.PersistentVolumeClaim.ClaimName == claim.Name
		})
}

// Volumes returns the controller of persistent volumes.
func Volumes(client kubernetes.Interface, inv *inventory.Inventory) *Controller {
	const finalizer = "kubernetes.io/pv-protection"
	c := newController("pvprotection", corev1.Resource("persistentvolumes"), finalizer, inv)
	c.release = func(ctx context.Context, _, name string) (bool, error) {
		volumes := client.CoreV1().PersistentVolumes()
		v, err := volumes.Get(ctx, name, metav1.GetOptions{})
		if err != nil || !held(v, finalizer) {
			return false, unlessGone(err)
		}
		if v.Status.Phase == corev1.VolumeBound {
			return true, nil
		}
		drop(v, finalizer)
		_, err = volumes.Update(ctx, v, metav1.UpdateOptions{})
		return confirm.Stale(err), confirm.Overtaken(ctx, v, err, confirm.By(volumes.Get, name))
	}
	return c
}

// AttributesClasses returns the controller of volume attributes classes.
func AttributesClasses(client kubernetes.Interface, inv *inventory.Inventory) *Controller {
	const finalizer = "kubernetes.io/vac-protection"
	c := newController("vacprotection",
		storagev1.SchemeGroupVersion.WithResource("volumeattributesclasses").GroupResource(), finalizer, inv)
	c.release = func(ctx context.Context, _, name string) (bool, error) {
		classes := client.StorageV1().VolumeAttributesClasses()
		class, err := classes.Get(ctx, name, metav1.GetOptions{})
		if err != nil || !held(class, finalizer) {
			return false, unlessGone(err)
		}
		used, err := usesClass(ctx, client, name)
		if err != nil || used {
			return used, err
		}
		drop(class, finalizer)
		_, err = classes.Update(ctx, class, metav1.UpdateOptions{})
		return confirm.Stale(err), confirm.Overtaken(ctx, class, err, confirm.By(classes.Get, name))
	}
	return c
}

func usesClass(ctx context.Context, client kubernetes.Interface, name string) (bool, error) {
	is := func(n *string) bool { return n != nil && *n == name }
	claims, err := client.CoreV1().PersistentVolumeClaims(metav1.NamespaceAll).List(ctx, metav1.ListOptions{})
	if err != nil {
		return false, err
	}
	for i := range claims.Items {
		c := &claims.Items[i]
		if m := c.Status.ModifyVolumeStatus; is(c.Spec.VolumeAttributesClassName) ||
			is(c.Status.CurrentVolumeAttributesClassName) || m != nil && m.TargetVolumeAttributesClassName == name {
			return true, nil
		}
	}
	volumes, err := client.CoreV1().PersistentVolumes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return false, err
	}
	return slices.ContainsFunc(volumes.Items,
		func(v corev1.PersistentVolume) bool { return is(v.Spec.VolumeAttributesClassName) }), nil
}

// unlessGone returns the error of a read; nil if the object does not exist.
func unlessGone(err error) error {
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

// held reports whether an object is deleted and has the finalizer.
func held(o metav1.Object, finalizer string) bool {
	return o.GetDeletionTimestamp() != nil && slices.Contains(o.GetFinalizers(), finalizer)
}

func drop(o metav1.Object, finalizer string) {
	o.SetFinalizers(slices.DeleteFunc(slices.Clone(o.GetFinalizers()), func(f string) bool { return f == finalizer }))
}

// Changed implements inventory.Reader.
func (c *Controller) Changed(k inventory.Kind, o *metav1.PartialObjectMetadata) {
	switch gr := k.GroupResource(); {
	case gr == c.kind && held(o, c.finalizer):
		c.Add(o.Namespace + "/" + o.Name)
	case gr == corev1.Resource("persistentvolumeclaims") || gr == corev1.Resource("persistentvolumes"):
		c.retry("/") // users of cluster-scoped objects
	}
}

// Gone implements inventory.Reader.
func (c *Controller) Gone(k inventory.Kind, o *metav1.PartialObjectMetadata) { c.Changed(k, o) }

// Relisted implements inventory.Reader.
func (c *Controller) Relisted(k inventory.Kind, objects []*metav1.PartialObjectMetadata) {
	for _, o := range objects {
		c.Changed(k, o)
	}
}

// Kinds implements inventory.Reader.
func (c *Controller) Kinds() {}

// retry checks the objects again that were in use, below a prefix of keys.
func (c *Controller) retry(prefix string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for key := range c.waiting {
		if strings.HasPrefix(key, prefix) {
			c.Add(key)
		}
	}
}

func (c *Controller) reconcile(ctx context.Context, key string) (time.Duration, error) {
	// Before the check, so that a change during it triggers another one.
	c.mu.Lock()
	c.waiting[key] = true
	c.mu.Unlock()
	namespace, name, _ := strings.Cut(key, "/")
	used, err := c.release(ctx, namespace, name)
	if err != nil {
		return 0, fmt.Errorf("remove the finalizer of %s %s: %w", c.kind, key, err)
	}
	if !used {
		c.mu.Lock()
		delete(c.waiting, key)
		c.mu.Unlock()
	}
	return 0, nil
}
