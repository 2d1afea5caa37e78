package apiserver

import (
	"reflect"
	"slices"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// notServed are the kinds of k8s.io/api's stable versions that no path serves, each with its
// reason.
var notServed = map[string]string{
	"Binding": "a request: pods/binding", "Eviction": "a request: pods/eviction", "Scale": "a view: scale subresources",
	"TokenRequest":        "a request: serviceaccounts/token",
	"SerializedReference": "a value inside of annotations", "RangeAllocation": "internal to upstream's allocators",
	"PodStatusResult": "a node's answer", "NodeProxyOptions": "query parameters",
	"PodAttachOptions": "query parameters", "PodExecOptions": "query parameters", "PodLogOptions": "query parameters",
	"PodPortForwardOptions": "query parameters",
	"PodProxyOptions":       "query parameters", "ServiceProxyOptions": "query parameters",
}

// Every kind of the stable API groups is served, or has a reason not to be.
func TestStableKinds(t *testing.T) {
	r := start(t, t.TempDir())
	types, err := r.admin(t).Discovery().ServerPreferredResources()
	if err != nil {
		t.Fatal(err)
	}
	served := map[schema.GroupKind]bool{}
	for _, list := range types {
		gv, _ := schema.ParseGroupVersion(list.GroupVersion)
		for _, res := range list.APIResources {
			served[schema.GroupKind{Group: gv.Group, Kind: res.Kind}] = true
		}
	}
	var missing []string
	for gvk := range r.set.External.AllKnownTypes() {
		obj, err := r.set.External.New(gvk)
		if err != nil || gvk.Version == runtime.APIVersionInternal || strings.HasSuffix(gvk.Kind, "List") ||
			!strings.HasPrefix(gvk.Version, "v") {
			continue
		}
		if pkg := packagePath(obj); !strings.HasPrefix(pkg, "k8s.io/api/") {
			continue
		}
		if _, ok := notServed[gvk.Kind]; !ok && !served[gvk.GroupKind()] {
			missing = append(missing, gvk.String())
		}
	}
	slices.Sort(missing)
	if len(missing) > 0 {
		t.Errorf("not served: %s", strings.Join(missing, "\n"))
	}
}

func packagePath(o runtime.Object) string { return reflect.TypeOf(o).Elem().PkgPath() }
