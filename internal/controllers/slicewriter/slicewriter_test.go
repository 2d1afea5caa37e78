package slicewriter

import (
	"errors"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"carob/internal/controllers/children"
	"carob/internal/controllers/freshness"
	"carob/internal/controllers/source"
)

func slice(name, version string) *discoveryv1.EndpointSlice {
	return &discoveryv1.EndpointSlice{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name,
		UID: types.UID("uid-" + name), ResourceVersion: version}}
}

// N1.23: creates, then updates, then deletes, and which responses end a pass.
func TestWrite(t *testing.T) {
	resource := schema.GroupResource{Group: "discovery.k8s.io", Resource: "endpointslices"}
	ending := apierrors.NewForbidden(resource, "new", errors.New("is being terminated"))
	ending.ErrStatus.Details.Causes = []metav1.StatusCause{{Type: corev1.NamespaceTerminatingCause}}
	conflict := apierrors.NewConflict(resource, "old", errors.New("newer"))
	failure := apierrors.NewInternalError(errors.New("no"))
	for _, c := range []struct {
		name    string
		deletes bool   // and nothing else
		verb    string // whose response is an error
		answer  error
		stored  string // version that a get finds
		wrote   string
		err     string
	}{
		{name: "only a delete", deletes: true, wrote: "delete"},
		{name: "all is well", wrote: "create update delete"},
		{name: "the namespace is being deleted", verb: "create", answer: ending},
		{name: "a create fails", verb: "create", answer: failure, err: "create: "},
		{name: "a newer version is stored", verb: "update", answer: conflict, stored: "40", wrote: "create"},
		{name: "a conflict without reason", verb: "update", answer: conflict, stored: "15", wrote: "create", err: "update old: "},
		{name: "an update fails", verb: "update", answer: failure, stored: "15", wrote: "create", err: "update old: "},
		{name: "an update fails, and is stored", verb: "update", answer: failure, stored: "40", wrote: "create"},
		{name: "it is deleted already", verb: "delete", answer: apierrors.NewNotFound(resource, "extra"), wrote: "create update delete"},
		{name: "another object of its name", verb: "delete", answer: apierrors.NewConflict(resource, "extra", errors.New("uid")),
			wrote: "create update delete"},
		{name: "a webhook says not found", verb: "delete", answer: apierrors.NewNotFound(resource, "extra"), stored: "16",
			wrote: "create update", err: "delete extra: "},
		{name: "a delete fails", verb: "delete", answer: failure, wrote: "create update", err: "delete extra: "},
	} {
		api := fake.NewClientset()
		api.PrependReactor("*", "endpointslices", func(a clienttesting.Action) (bool, runtime.Object, error) {
			if a.GetVerb() == c.verb {
				return true, nil, c.answer
			}
			if d, ok := a.(clienttesting.DeleteActionImpl); ok {
				if p := d.DeleteOptions.Preconditions; p == nil || p.UID == nil || *p.UID != "uid-extra" {
					t.Errorf("%s: delete with preconditions %v", c.name, p)
				}
			}
			if get, ok := a.(clienttesting.GetAction); ok && a.GetVerb() == "get" {
				if c.stored == "" {
					return true, nil, apierrors.NewNotFound(resource, get.GetName())
				}
				return true, slice(get.GetName(), c.stored), nil
			}
			return true, slice("old", "30"), nil
		})
		watch := source.EndpointSlices(api)
		fresh, err := freshness.New(func(string) {}, watch)
		if err != nil {
			t.Fatal(err)
		}
		if err := watch.Replace([]any{slice("old", "15"), slice("extra", "16")}, "20"); err != nil {
			t.Fatal(err)
		}
		var wrote []string
		plan := Plan{Delete: []*discoveryv1.EndpointSlice{slice("extra", "16")}}
		if !c.deletes {
			plan.Create = []*discoveryv1.EndpointSlice{slice("", "")}
			plan.Update = []*discoveryv1.EndpointSlice{slice("old", "15")}
		}
		err = Write(t.Context(), &children.Keeper{Client: api, Fresh: fresh}, watch, "ns/svc", plan,
			func(operation string) { wrote = append(wrote, operation) })
		if !slices.Equal(wrote, strings.Fields(c.wrote)) || (err == nil) != (c.err == "") ||
			err != nil && !strings.HasPrefix(err.Error(), c.err) {
			t.Errorf("%s: wrote %q, %v", c.name, wrote, err)
		}
		if waits := len(wrote) > 0; fresh.Fresh("ns/svc") == waits {
			t.Errorf("%s: the next pass waits for the watch: %v, want %v", c.name, !waits, waits)
		}
	}
}
