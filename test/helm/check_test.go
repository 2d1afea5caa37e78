package helm

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"reflect"
	"slices"
	"strings"
	"time"

	release "helm.sh/helm/v4/pkg/release/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/dynamic"
)

// kinds are what the whole chart makes of each kind, without hooks.
var kinds = []string{
	"ClusterRole", "ConfigMap", "Deployment", "HorizontalPodAutoscaler", "Ingress", "Pod", "PodDisruptionBudget",
	"Role", "RoleBinding", "Secret", "Service", "ServiceAccount", "Widget",
}

// manifest is the objects of a release.
func (u *user) manifest(r *release.Release) (out []*unstructured.Unstructured) {
	u.Helper()
	for d := yaml.NewYAMLOrJSONDecoder(strings.NewReader(r.Manifest), 4096); ; {
		o := &unstructured.Unstructured{}
		switch err := d.Decode(o); {
		case errors.Is(err, io.EOF) && len(out) > 0:
			return out
		case err != nil:
			u.Fatalf("%d objects, then: %v", len(out), err)
		case len(o.Object) > 0:
			out = append(out, o)
		}
	}
}

// resource is where an object of a release is read.
func (u *user) resource(o *unstructured.Unstructured) dynamic.ResourceInterface {
	u.Helper()
	mapper, err := u.getter.ToRESTMapper()
	if err != nil {
		u.Fatal(err)
	}
	gvk := o.GroupVersionKind()
	m, err := mapper.RESTMapping(gvk.GroupKind(), gvk.Version)
	if err != nil {
		u.Fatal(err)
	}
	if m.Scope.Name() == meta.RESTScopeNameRoot {
		return u.dynamic.Resource(m.Resource)
	}
	return u.dynamic.Resource(m.Resource).Namespace(u.namespace)
}

// present checks that the cluster has each object of the release, with each field as in the chart and managed by the
// release.
func (u *user) present(r *release.Release) {
	u.Helper()
	for _, want := range u.manifest(r) {
		what := want.GetKind() + " " + want.GetName()
		got, err := u.resource(want).Get(u.Context(), want.GetName(), metav1.GetOptions{})
		if err != nil {
			u.Errorf("%s: %v", what, err)
			continue
		}
		for _, d := range differences("", want.Object, got.Object) {
			u.Errorf("%s: %s", what, d)
		}
		if a := got.GetAnnotations(); a["meta.helm.sh/release-name"] != "r" ||
			a["meta.helm.sh/release-namespace"] != u.namespace {
			u.Errorf("%s belongs to release %q in %q", what, a["meta.helm.sh/release-name"],
				a["meta.helm.sh/release-namespace"])
		}
	}
}

// differences are the fields of want that got lacks or has otherwise.
func differences(path string, want, got any) (out []string) {
	switch w := want.(type) {
	case map[string]any:
		g, _ := got.(map[string]any)
		for _, k := range slices.Sorted(maps.Keys(w)) {
			out = append(out, differences(path+"."+k, w[k], g[k])...)
		}
	case []any:
		g, _ := got.([]any)
		if len(g) != len(w) {
			return []string{fmt.Sprintf("%s has %d elements, not %d", path, len(g), len(w))}
		}
		for i := range w {
			out = append(out, differences(fmt.Sprintf("%s[%d]", path, i), w[i], g[i])...)
		}
	default:
		if !reflect.DeepEqual(want, got) {
			out = []string{fmt.Sprintf("%s is %v, not %v", path, got, want)}
		}
	}
	return out
}

// gone checks that the cluster has no object of the release, and waits until the namespace has nothing but what every
// namespace has: dependents, such as the pods of a Deployment, are deleted in the background.
func (u *user) gone(r *release.Release) {
	u.Helper()
	for _, o := range u.manifest(r) {
		if _, err := u.resource(o).Get(u.Context(), o.GetName(), metav1.GetOptions{}); !apierrors.IsNotFound(err) {
			u.Errorf("%s %s is still there (%v)", o.GetKind(), o.GetName(), err)
		}
	}
	var left []string
	err := wait.PollUntilContextTimeout(u.Context(), 100*time.Millisecond, patience, true,
		func(context.Context) (bool, error) {
			left = u.left()
			return len(left) == 0, nil
		})
	if err != nil {
		u.Errorf("%v are left", left)
	}
}

// left are the objects of the namespace that not every namespace has.
func (u *user) left() (out []string) {
	u.Helper()
	lists, err := u.client.Discovery().ServerPreferredResources()
	if err != nil {
		u.Fatal(err)
	}
	resources, err := discovery.GroupVersionResources(
		discovery.FilteredBy(discovery.SupportsAllVerbs{Verbs: []string{"list", "delete"}}, lists))
	if err != nil {
		u.Fatal(err)
	}
	if len(resources) < 20 {
		u.Fatalf("only %d resources are served", len(resources))
	}
	for gvr := range resources {
		all, err := u.dynamic.Resource(gvr).List(u.Context(), metav1.ListOptions{})
		if err != nil {
			u.Errorf("list %s: %v", gvr, err)
			continue
		}
		for _, o := range all.Items {
			if o.GetNamespace() != u.namespace || o.GetKind() == "Event" {
				continue
			}
			if name := o.GetKind() + "/" + o.GetName(); name != "ConfigMap/kube-root-ca.crt" &&
				name != "ServiceAccount/default" {
				out = append(out, name)
			}
		}
	}
	return out
}

// kinds are the kinds of the objects of a release, each once, sorted.
func (u *user) kinds(r *release.Release) []string {
	u.Helper()
	var out []string
	for _, o := range u.manifest(r) {
		out = append(out, o.GetKind())
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// stored are the status labels of the secrets in which Helm keeps the release,
// by revision.
func (u *user) stored() map[string]string {
	u.Helper()
	l, err := u.client.CoreV1().Secrets(u.namespace).List(u.Context(), metav1.ListOptions{
		LabelSelector: "owner=helm,name=r", FieldSelector: "type=helm.sh/release.v1"})
	if err != nil {
		u.Fatal(err)
	}
	out := map[string]string{}
	for _, s := range l.Items {
		out[s.Name] = s.Labels["status"]
	}
	return out
}
