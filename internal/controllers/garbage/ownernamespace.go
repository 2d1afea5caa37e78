package garbage

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"carob/internal/controllers/inventory"
	"carob/internal/core/garbage"
)

// reportMisplaced records an event OwnerRefInvalidNamespace for each reference to an owner in
// another namespace. Such an owner is invalid: the object is deleted, and the event gives the
// reason.
func (c *Collector) reportMisplaced(ctx context.Context, kind inventory.Kind, in garbage.Input) {
	o := in.Object
	for i, r := range in.Object.Owners {
		if in.Owners[i] != garbage.Absent && in.Owners[i] != garbage.Unknown {
			continue
		}
		c.mu.Lock()
		before := in.Owners[i] == garbage.Unknown && c.unknown[o.UID]
		c.mu.Unlock()
		if before || !c.elsewhere(ctx, r, o.Namespace) {
			continue
		}
		c.events.Eventf(&corev1.ObjectReference{APIVersion: kind.GroupVersionKind.GroupVersion().String(),
			Kind: kind.Kind, Namespace: o.Namespace, Name: o.Name, UID: o.UID},
			corev1.EventTypeWarning, "OwnerRefInvalidNamespace",
			"ownerRef [%s/%s, namespace: %s, name: %s, uid: %s] does not exist in namespace %q",
			r.APIVersion, r.Kind, o.Namespace, r.Name, r.UID, o.Namespace)
	}
}

// elsewhere reports whether the owner is in another namespace. The graph does not keep objects
// without references, so an unknown owner is looked up in all namespaces.
func (c *Collector) elsewhere(ctx context.Context, r metav1.OwnerReference, namespace string) bool {
	c.mu.Lock()
	owner, there := c.graph.Object(r.UID)
	observed := c.graph.Observed(r.UID)
	c.mu.Unlock()
	if observed {
		return there && owner.Namespace != "" && owner.Namespace != namespace
	}
	kind, ok := c.inventory.Resolve(schema.FromAPIVersionAndKind(r.APIVersion, r.Kind))
	if !ok || !kind.Namespaced {
		return false
	}
	list, err := c.objects.Resource(kind.GroupVersionResource).List(ctx,
		metav1.ListOptions{ResourceVersion: "0",
			FieldSelector: fields.OneTermEqualSelector("metadata.name", r.Name).String()})
	if err != nil {
		klog.FromContext(ctx).V(2).Info("Cannot look up an owner in other namespaces", "kind", kind.GroupResource(),
			"name", r.Name, "err", err)
		return false
	}
	for i := range list.Items {
		if found := &list.Items[i]; found.UID == r.UID && found.Namespace != namespace {
			c.update(func(g *garbage.Graph) []types.UID { return g.Verified(garbage.New(kind.GroupKind(), found)) })
			return true
		}
	}
	return false
}
