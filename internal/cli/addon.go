package cli

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
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

// addonOwner is the field manager of an add-on's objects.
const addonOwner = "carob-addon"

// addonTime is how long a definition may take to be served.
const addonTime = 30 * time.Second

func (r *root) addonCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:     "addon",
		Aliases: []string{"addons"},
		Short:   "List, enable, and disable parts of carob that are off by default",
		Long: `List, enable, and disable parts of carob that are off by default. The cluster must
be running; its data directory records which add-ons are enabled.`,
		Example: `  carob addon list
  carob addon enable vpa
  carob addon disable vpa`,
	}
	cmd.AddCommand(r.addonListCommand(), r.addonEnableCommand(), r.addonDisableCommand())
	return cmd
}

func addonNames() (names []string) {
	for _, a := range addons.All() {
		names = append(names, a.Name)
	}
	return names
}

func completeAddons(_ *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
	if len(args) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	return addonNames(), cobra.ShellCompDirectiveNoFileComp
}

func findAddon(name string) (addons.Addon, error) {
	a, ok := addons.Find(name)
	if !ok {
		return a, usagef("there is no add-on %q: use %s", name, strings.Join(addonNames(), ", "))
	}
	return a, nil
}

// addonKinds are the kinds of objects that add-ons consist of.
var addonKinds = map[string]schema.GroupVersionResource{
	"ClusterRole": {Group: "rbac.authorization.k8s.io", Version: "v1", Resource: "clusterroles"},
	"ClusterRoleBinding": {Group: "rbac.authorization.k8s.io", Version: "v1",
		Resource: "clusterrolebindings"},
	"CustomResourceDefinition": {Group: "apiextensions.k8s.io", Version: "v1",
		Resource: "customresourcedefinitions"},
	"Role":           {Group: "rbac.authorization.k8s.io", Version: "v1", Resource: "roles"},
	"RoleBinding":    {Group: "rbac.authorization.k8s.io", Version: "v1", Resource: "rolebindings"},
	"ServiceAccount": {Version: "v1", Resource: "serviceaccounts"},
	workload:         {Group: "apps", Version: "v1", Resource: "deployments"},
}

// workload is the kind of objects that act on those of users. They go when the add-on is disabled.
const workload = "Deployment"

// addonAPI is the client for one object of an add-on.
func addonAPI(c dynamic.Interface, o *unstructured.Unstructured) dynamic.ResourceInterface {
	api := c.Resource(addonKinds[o.GetKind()])
	if ns := o.GetNamespace(); ns != "" {
		return api.Namespace(ns)
	}
	return api
}

// addon finds an add-on by its name, and the client for its objects.
func (r *root) addon(name string) (addons.Addon, dynamic.Interface, error) {
	a, err := findAddon(name)
	if err != nil {
		return addons.Addon{}, nil, err
	}
	c, err := r.addonClient()
	return a, c, err
}

func (r *root) addonClient() (dynamic.Interface, error) {
	cfg, err := r.restConfig()
	if err != nil {
		return nil, err
	}
	c, err := dynamic.NewForConfig(cfg)
	if err != nil {
		return nil, fmt.Errorf("create client: %w", err)
	}
	return c, nil
}

// addonStatus is what `carob addon list` prints of one add-on.
type addonStatus struct {
	Name        string `json:"name"`
	State       string `json:"state"`
	Description string `json:"description"`
}

// foreignAddon is the state of an add-on whose objects were not installed by carob.
const foreignAddon = "not carob's"

// addonState reads the state of an add-on from its switch.
func addonState(ctx context.Context, c dynamic.Interface, a addons.Addon) (string, error) {
	d, err := c.Resource(addonKinds["CustomResourceDefinition"]).Get(ctx, a.Switch, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return addons.Disabled, nil
	case err != nil:
		return "", fmt.Errorf("read add-on %s: %w", a.Name, err)
	case d.GetLabels()[addons.Label] != a.Name:
		return foreignAddon, nil
	case a.On(d.GetName(), d.GetLabels()):
		return addons.Enabled, nil
	}
	return addons.Disabled, nil
}

func (r *root) addonListCommand() *cobra.Command {
	var t table
	cmd := &cobra.Command{
		Use:     "list",
		Aliases: []string{"ls"},
		Short:   "List add-ons and whether they are enabled",
		Example: "  carob addon list\n  carob addon list -o json",
		Args:    noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := r.addonClient()
			if err != nil {
				return err
			}
			var list []addonStatus
			var names []string
			for _, a := range addons.All() {
				state, err := addonState(cmd.Context(), c, a)
				if err != nil {
					return err
				}
				list, names = append(list, addonStatus{a.Name, state, a.Description}), append(names, a.Name)
			}
			return t.print(r.out, list, names, func(w io.Writer) error {
				tw := t.rows(w, "NAME", "STATE", "DESCRIPTION")
				for _, a := range list {
					fmt.Fprintf(tw, "%s\t%s\t%s\n", a.Name, a.State, a.Description)
				}
				return tw.Flush()
			})
		},
	}
	addTableFlags(cmd, &t)
	return cmd
}

func (r *root) addonEnableCommand() *cobra.Command {
	var overwrite bool
	cmd := &cobra.Command{
		Use:   "enable NAME",
		Short: "Enable an add-on, or bring its objects up to date",
		Long: `Enable an add-on, or bring its objects up to date after an upgrade of carob.
It stays enabled when carob is restarted. Enabling it twice changes nothing.`,
		Example:           "  carob addon enable vpa",
		Args:              exactArgs(1),
		ValidArgsFunction: completeAddons,
		RunE: func(cmd *cobra.Command, args []string) error {
			a, c, err := r.addon(args[0])
			if err != nil {
				return err
			}
			state, err := addonState(cmd.Context(), c, a)
			if err != nil {
				return err
			}
			if state == foreignAddon && !overwrite {
				return fmt.Errorf("the cluster has a %s that carob did not install: remove the controllers of it, "+
					"then repeat the command with --overwrite", a.Switch)
			}
			changed, err := applyAddon(cmd.Context(), c, a)
			if err != nil {
				return fmt.Errorf("enable add-on %s: %w", a.Name, err)
			}
			switch {
			case state != addons.Enabled:
				fmt.Fprintf(r.out, "addon/%s enabled\n", a.Name)
			case changed:
				fmt.Fprintf(r.out, "addon/%s configured\n", a.Name)
			default:
				fmt.Fprintf(r.out, "addon/%s unchanged\n", a.Name)
			}
			return nil
		},
	}
	cmd.Flags().BoolVar(&overwrite, "overwrite", false, "take over definitions that carob did not install")
	return cmd
}

// applyAddon stores the objects of an add-on and waits until its kinds are served.
func applyAddon(ctx context.Context, c dynamic.Interface, a addons.Addon) (changed bool, err error) {
	objects, err := a.Manifests()
	if err != nil {
		return false, err
	}
	for _, o := range objects {
		api := addonAPI(c, o)
		before := ""
		if old, err := api.Get(ctx, o.GetName(), metav1.GetOptions{}); err == nil {
			before = old.GetResourceVersion()
		} else if !apierrors.IsNotFound(err) {
			return changed, err
		}
		after, err := api.Apply(ctx, o.GetName(), o, metav1.ApplyOptions{FieldManager: addonOwner, Force: true})
		if err != nil {
			return changed, fmt.Errorf("apply %s %s: %w", o.GetKind(), o.GetName(), err)
		}
		changed = changed || after.GetResourceVersion() != before
		if o.GetKind() == "CustomResourceDefinition" {
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
	ctx, cancel := context.WithTimeout(ctx, addonTime)
	defer cancel()
	w, err := c.Resource(addonKinds["CustomResourceDefinition"]).Watch(ctx, metav1.ListOptions{
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

func (r *root) addonDisableCommand() *cobra.Command {
	var purge bool
	cmd := &cobra.Command{
		Use:   "disable NAME",
		Short: "Disable an add-on",
		Long: `Disable an add-on: carob stops acting on its objects, and keeps them. With --purge,
they are deleted, with all objects of their kinds.`,
		Example:           "  carob addon disable vpa\n  carob addon disable vpa --purge",
		Args:              exactArgs(1),
		ValidArgsFunction: completeAddons,
		RunE: func(cmd *cobra.Command, args []string) error {
			a, c, err := r.addon(args[0])
			if err != nil {
				return err
			}
			return r.disableAddon(cmd.Context(), c, a, purge)
		},
	}
	cmd.Flags().BoolVar(&purge, "purge", false, "delete the add-on's objects, and all objects of its kinds")
	return cmd
}

func (r *root) disableAddon(ctx context.Context, c dynamic.Interface, a addons.Addon, purge bool) error {
	state, err := addonState(ctx, c, a)
	if err != nil {
		return err
	}
	if state == foreignAddon {
		return fmt.Errorf("the cluster's %s is not carob's: nothing was changed", a.Switch)
	}
	left := countAddonObjects(ctx, c, a)
	if purge {
		if err := purgeAddon(ctx, c, a); err != nil {
			return fmt.Errorf("purge add-on %s: %w", a.Name, err)
		}
		fmt.Fprintf(r.out, "addon/%s purged\n", a.Name)
		if len(left) > 0 {
			fmt.Fprintf(r.out, "deleted: %s; %s\n", strings.Join(left, ", "), a.Kept)
		}
		return nil
	}
	if state == addons.Enabled {
		patch, err := json.Marshal(map[string]any{"metadata": map[string]any{
			"labels": map[string]string{addons.State: addons.Disabled}}})
		if err != nil {
			return fmt.Errorf("disable add-on %s: %w", a.Name, err)
		}
		if _, err := c.Resource(addonKinds["CustomResourceDefinition"]).Patch(ctx, a.Switch, types.MergePatchType,
			patch, metav1.PatchOptions{FieldManager: addonOwner}); err != nil {
			return fmt.Errorf("disable add-on %s: %w", a.Name, err)
		}
		if err := deleteAddon(ctx, c, a, func(kind string) bool { return kind == workload }); err != nil {
			return fmt.Errorf("disable add-on %s: %w", a.Name, err)
		}
		fmt.Fprintf(r.out, "addon/%s disabled\n", a.Name)
	} else {
		fmt.Fprintf(r.out, "addon/%s unchanged: it is not enabled\n", a.Name)
	}
	if len(left) > 0 {
		fmt.Fprintf(r.out, "kept: %s; %s. `%s` deletes them.\n", strings.Join(left, ", "), a.Kept,
			r.try("addon disable "+a.Name+" --purge"))
	}
	return nil
}

// countAddonObjects returns the number of objects of each kind of an add-on, as in "3 things".
func countAddonObjects(ctx context.Context, c dynamic.Interface, a addons.Addon) (out []string) {
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

// purgeAddon deletes the objects of an add-on. It deletes the switch first, so that the add-on stops acting. What acts
// in pods goes last: objects of users may wait for it.
func purgeAddon(ctx context.Context, c dynamic.Interface, a addons.Addon) error {
	objects, err := a.Manifests()
	if err != nil {
		return err
	}
	definition := func(kind string) bool { return kind == "CustomResourceDefinition" }
	if err := deleteAddon(ctx, c, a, definition); err != nil {
		return err
	}
	if slices.ContainsFunc(objects, func(o *unstructured.Unstructured) bool { return o.GetKind() == workload }) {
		for _, o := range objects {
			if !definition(o.GetKind()) {
				continue
			}
			if err := awaitGone(ctx, c, o.GetName()); err != nil {
				return err
			}
		}
	}
	return deleteAddon(ctx, c, a, func(kind string) bool { return !definition(kind) })
}

// deleteAddon deletes the objects of an add-on that are of certain kinds, the last ones first.
func deleteAddon(ctx context.Context, c dynamic.Interface, a addons.Addon, which func(kind string) bool) error {
	objects, err := a.Manifests()
	if err != nil {
		return err
	}
	for _, object := range slices.Backward(objects) {
		if !which(object.GetKind()) {
			continue
		}
		api := addonAPI(c, object)
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
func awaitGone(ctx context.Context, c dynamic.Interface, definition string) error {
	ctx, cancel := context.WithTimeout(ctx, addonTime)
	defer cancel()
	api := c.Resource(addonKinds["CustomResourceDefinition"])
	one := fields.OneTermEqualSelector(metav1.ObjectNameField, definition)
	options := metav1.ListOptions{FieldSelector: one.String()}
	list, err := api.List(ctx, options)
	if err != nil {
		return fmt.Errorf("list %s: %w", definition, err)
	}
	if len(list.Items) == 0 || list.Items[0].GetDeletionTimestamp() == nil { // gone, or not the add-on's
		return nil
	}
	options.ResourceVersion = list.GetResourceVersion()
	w, err := api.Watch(ctx, options)
	if err != nil {
		return fmt.Errorf("watch %s: %w", definition, err)
	}
	defer w.Stop()
	for e := range w.ResultChan() {
		if e.Type == watch.Deleted {
			return nil
		}
	}
	return fmt.Errorf("objects of %s are still being deleted: see what they wait for, then try again", definition)
}
