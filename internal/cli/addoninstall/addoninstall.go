// Package addoninstall stores and deletes the objects of add-ons through the API, for `carob addon`. It deletes nothing
// that carob did not install. Apply takes over what it finds: its caller must ask State first.
package addoninstall

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/dynamic"

	"carob/internal/base/addons"
)

// owner is the field manager of an add-on's objects.
const owner = "carob-addon"

// patience is how long a definition may take to be served.
const patience = 30 * time.Second

// kinds are the kinds of objects that add-ons consist of.
var kinds = map[string]schema.GroupVersionResource{
	"ClusterRole": {Group: "rbac.authorization.k8s.io", Version: "v1", Resource: "clusterroles"},
	"ClusterRoleBinding": {Group: "rbac.authorization.k8s.io", Version: "v1",
		Resource: "clusterrolebindings"},
	definition: {Group: "apiextensions.k8s.io", Version: "v1",
		Resource: "customresourcedefinitions"},
	"Role":           {Group: "rbac.authorization.k8s.io", Version: "v1", Resource: "roles"},
	"RoleBinding":    {Group: "rbac.authorization.k8s.io", Version: "v1", Resource: "rolebindings"},
	"ServiceAccount": {Version: "v1", Resource: "serviceaccounts"},
	workload:         {Group: "apps", Version: "v1", Resource: "deployments"},
}

// definition is the kind of objects that define kinds.
const definition = "CustomResourceDefinition"

// workload is the kind of objects that act on those of users. They go when the add-on is disabled.
const workload = "Deployment"

// clientOf is the client for one object of an add-on.
func clientOf(c dynamic.Interface, o *unstructured.Unstructured) dynamic.ResourceInterface {
	api := c.Resource(kinds[o.GetKind()])
	if ns := o.GetNamespace(); ns != "" {
		return api.Namespace(ns)
	}
	return api
}

// Foreign is the state of an add-on whose objects were not installed by carob.
const Foreign = "not carob's"

// State reads the state of an add-on from its switch.
func State(ctx context.Context, c dynamic.Interface, a addons.Addon) (string, error) {
	d, err := c.Resource(kinds[definition]).Get(ctx, a.Switch, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return addons.Disabled, nil
	case err != nil:
		return "", fmt.Errorf("read add-on %s: %w", a.Name, err)
	case d.GetLabels()[addons.Label] != a.Name:
		return Foreign, nil
	case a.On(d.GetName(), d.GetLabels()):
		return addons.Enabled, nil
	}
	return addons.Disabled, nil
}

// Apply stores the objects of an add-on and waits until its kinds are served.
func Apply(ctx context.Context, c dynamic.Interface, a addons.Addon) (changed bool, err error) {
	objects, err := a.Manifests()
	if err != nil {
		return false, err
	}
	for _, o := range objects {
		api := clientOf(c, o)
		before := ""
		if old, err := api.Get(ctx, o.GetName(), metav1.GetOptions{}); err == nil {
			before = old.GetResourceVersion()
		} else if !apierrors.IsNotFound(err) {
			return changed, err
		}
		after, err := api.Apply(ctx, o.GetName(), o, metav1.ApplyOptions{FieldManager: owner, Force: true})
		if err != nil {
			return changed, fmt.Errorf("apply %s %s: %w", o.GetKind(), o.GetName(), err)
		}
		changed = changed || after.GetResourceVersion() != before
		if o.GetKind() == definition {
			if err := awaitDefinition(ctx, c, after); err != nil {
				return changed, err
			}
		}
	}
	return changed, nil
}

// awaitDefinition waits until a definition is established.
func awaitDefinition(ctx context.Context, c dynamic.Interface, d *unstructured.Unstructured) error {
	if established(d) {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	w, err := c.Resource(kinds[definition]).Watch(ctx, metav1.ListOptions{
		FieldSelector: fields.OneTermEqualSelector(metav1.ObjectNameField, d.GetName()).String()})
	if err != nil {
		return fmt.Errorf("watch %s: %w", d.GetName(), err)
	}
	defer w.Stop()
	for {
		select {
		case e, ok := <-w.ResultChan():
			if !ok {
				return fmt.Errorf("%s is not served yet: try again", d.GetName())
			}
			if o, ok := e.Object.(*unstructured.Unstructured); ok && established(o) {
				return nil
			}
		case <-ctx.Done():
			return fmt.Errorf("wait for %s: %w", d.GetName(), ctx.Err())
		}
	}
}

func established(d *unstructured.Unstructured) bool {
	conditions, _, _ := unstructured.NestedSlice(d.Object, "status", "conditions")
	for _, c := range conditions {
		m, _ := c.(map[string]any)
		if m["type"] == "Established" && m["status"] == "True" {
			return true
		}
	}
	return false
}

// Disable stops what an add-on does, and keeps its objects and those of its kinds.
func Disable(ctx context.Context, c dynamic.Interface, a addons.Addon) error {
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{
		"labels": map[string]string{addons.State: addons.Disabled}}})
	if err != nil {
		return err
	}
	if _, err := c.Resource(kinds[definition]).Patch(ctx, a.Switch, types.MergePatchType, patch,
		metav1.PatchOptions{FieldManager: owner}); err != nil {
		return err
	}
	return remove(ctx, c, a, func(kind string) bool { return kind == workload })
}

// Count returns the number of objects of each kind of an add-on, as in "3 things".
func Count(ctx context.Context, c dynamic.Interface, a addons.Addon) (out []string) {
	for _, resource := range a.Objects {
		kind, _ := schema.ParseResourceArg(resource)
		if kind == nil {
			kind = &schema.GroupVersionResource{Group: a.Group, Version: "v1", Resource: resource}
		}
		list, err := c.Resource(*kind).List(ctx, metav1.ListOptions{})
		if err == nil && len(list.Items) > 0 {
			out = append(out, fmt.Sprintf("%d %s", len(list.Items), kind.Resource))
		}
	}
	return out
}

// Purge deletes the objects of an add-on. It deletes the switch first, so that the add-on stops acting. What acts
// in pods goes last: objects of users may wait for it.
func Purge(ctx context.Context, c dynamic.Interface, a addons.Addon) error {
	objects, err := a.Manifests()
	if err != nil {
		return err
	}
	defines := func(kind string) bool { return kind == definition }
	if err := remove(ctx, c, a, defines); err != nil {
		return err
	}
	if slices.ContainsFunc(objects, func(o *unstructured.Unstructured) bool { return o.GetKind() == workload }) {
		for _, o := range objects {
			if !defines(o.GetKind()) {
				continue
			}
			if err := awaitGone(ctx, c, o.GetName()); err != nil {
				return err
			}
		}
	}
	return remove(ctx, c, a, func(kind string) bool { return !defines(kind) })
}

// remove deletes the objects of an add-on that are of certain kinds, the last ones first.
func remove(ctx context.Context, c dynamic.Interface, a addons.Addon, which func(kind string) bool) error {
	objects, err := a.Manifests()
	if err != nil {
		return err
	}
	for _, object := range slices.Backward(objects) {
		if !which(object.GetKind()) {
			continue
		}
		api := clientOf(c, object)
		o, err := api.Get(ctx, object.GetName(), metav1.GetOptions{})
		if apierrors.IsNotFound(err) || err == nil && o.GetLabels()[addons.Label] != a.Name {
			continue
		}
		if err == nil {
			background := metav1.DeletePropagationBackground
			err = api.Delete(ctx, o.GetName(), metav1.DeleteOptions{PropagationPolicy: &background})
		}
		if err != nil && !apierrors.IsNotFound(err) && !meta.IsNoMatchError(err) {
			return err
		}
	}
	return nil
}

// awaitGone waits until a definition that is being deleted is gone, with its objects.
func awaitGone(ctx context.Context, c dynamic.Interface, name string) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	api := c.Resource(kinds[definition])
	one := fields.OneTermEqualSelector(metav1.ObjectNameField, name)
	options := metav1.ListOptions{FieldSelector: one.String()}
	list, err := api.List(ctx, options)
	if err != nil {
		return fmt.Errorf("list %s: %w", name, err)
	}
	if len(list.Items) == 0 || list.Items[0].GetDeletionTimestamp() == nil { // gone, or not the add-on's
		return nil
	}
	options.ResourceVersion = list.GetResourceVersion()
	w, err := api.Watch(ctx, options)
	if err != nil {
		return fmt.Errorf("watch %s: %w", name, err)
	}
	defer w.Stop()
	for e := range w.ResultChan() {
		if e.Type == watch.Deleted {
			return nil
		}
	}
	return fmt.Errorf("objects of %s are still being deleted: see what they wait for, then try again", name)
}
