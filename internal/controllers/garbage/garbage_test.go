package garbage

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/kubernetes/fake"
	metadatafake "k8s.io/client-go/metadata/fake"
	ktesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/record"

	"carob/internal/controllers/controllertest"
	"carob/internal/controllers/inventory"
)

var maps = corev1.SchemeGroupVersion.WithResource("configmaps")

// object is a ConfigMap with owners of the same kind.
func object(namespace, name string, owners ...string) *metav1.PartialObjectMetadata {
	o := &metav1.PartialObjectMetadata{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "ConfigMap"},
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, UID: types.UID(namespace + "/" + name)}}
	for _, owner := range owners {
		o.OwnerReferences = append(o.OwnerReferences,
			metav1.OwnerReference{APIVersion: "v1", Kind: "ConfigMap", Name: owner,
				UID: types.UID(namespace + "/" + owner)})
	}
	return o
}

// world is a collector with a fake API in virtual time.
type world struct {
	*testing.T
	objects *metadatafake.FakeMetadataClient
	events  *record.FakeRecorder
}

func inWorld(t *testing.T, objects []runtime.Object, test func(w *world)) {
	inWorldOf(t, func(d discovery.DiscoveryInterface) discovery.DiscoveryInterface { return d }, objects, test)
}

// inWorldOf does the same with another discovery.
func inWorldOf(t *testing.T, discovered func(discovery.DiscoveryInterface) discovery.DiscoveryInterface,
	objects []runtime.Object, test func(w *world)) {
	synctest.Test(t, func(t *testing.T) {
		scheme := metadatafake.NewTestScheme()
		if err := metav1.AddMetaToScheme(scheme); err != nil {
			t.Fatal(err)
		}
		w := &world{T: t, objects: metadatafake.NewSimpleMetadataClient(scheme, objects...),
			events: record.NewFakeRecorder(100)}
		served := fake.NewClientset()
		served.Resources = []*metav1.APIResourceList{{GroupVersion: "v1", APIResources: []metav1.APIResource{
			{Name: "configmaps", Kind: "ConfigMap", Namespaced: true,
				Verbs: []string{"get", "list", "watch", "delete", "patch"}}}}}
		inv := inventory.New(discovered(served.Discovery()), w.objects, time.Second)
		c := New(w.objects, inv, w.events)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{}, 2)
		go func() { inv.Run(ctx); done <- struct{}{} }()
		go func() { c.Run(ctx); done <- struct{}{} }()
		w.settle()
		test(w)
		cancel()
		<-done
		<-done
	})
}

// settle waits until the kinds are found, or an orphan's dependents arrive.
func (w *world) settle() {
	time.Sleep(2 * time.Second)
	synctest.Wait()
}

func (w *world) has(namespace, name string, want bool) *metav1.PartialObjectMetadata {
	w.Helper()
	o, err := w.objects.Resource(maps).Namespace(namespace).Get(w.Context(), name, metav1.GetOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		w.Fatal(err)
	}
	if got := err == nil; got != want {
		w.Errorf("%s/%s exists: %t, want %t", namespace, name, got, want)
	}
	return o
}

func (w *world) delete(namespace, name string) {
	w.Helper()
	if err := w.objects.Resource(maps).Namespace(namespace).Delete(w.Context(), name,
		metav1.DeleteOptions{}); err != nil {
		w.Fatal(err)
	}
	w.settle()
}

// partly is discovery while an aggregated API server is away.
type partly struct{ discovery.DiscoveryInterface }

func (p partly) ServerGroupsAndResources() ([]*metav1.APIGroup, []*metav1.APIResourceList, error) {
	groups, lists, err := p.DiscoveryInterface.ServerGroupsAndResources()
	if err != nil {
		return nil, nil, err
	}
	return groups, lists, &discovery.ErrGroupDiscoveryFailed{Groups: map[schema.GroupVersion]error{
		{Group: "away.example.com", Version: "v1"}: errors.New("stale")}}
}

// An API server that is away since the start delays no other kind; objects with owners of its kinds stay.
func TestAggregatedServerIsAway(t *testing.T) {
	strange := object("ns", "of-strange", "x")
	strange.OwnerReferences[0].APIVersion = "away.example.com/v1"
	inWorldOf(t, func(d discovery.DiscoveryInterface) discovery.DiscoveryInterface { return partly{d} },
		[]runtime.Object{object("ns", "a"), object("ns", "of-a", "a"), strange}, func(w *world) {
			w.delete("ns", "a")
			w.has("ns", "of-a", false)
			w.has("ns", "of-strange", true)
		})
}

// Dependents are deleted with their last owner, and so are theirs.
func TestDependentsAreDeleted(t *testing.T) {
	inWorld(t, []runtime.Object{object("ns", "a"), object("ns", "b"), object("ns", "of-a", "a"),
		object("ns", "of-both", "a", "b"), object("ns", "below", "of-a"), object("ns", "free")}, func(w *world) {
		w.delete("ns", "a")
		w.has("ns", "of-a", false)
		w.has("ns", "below", false)
		w.has("ns", "free", true)
		if o := w.has("ns", "of-both", true); len(o.OwnerReferences) != 1 || o.OwnerReferences[0].Name != "b" {
			w.Errorf("owners left: %v", o.OwnerReferences)
		}
		w.delete("ns", "b")
		w.has("ns", "of-both", false)
	})
}

// Dependents of an object that never existed, or of another one with the same name, are deleted;
// dependents of a kind that is not served stay.
func TestMissingOwners(t *testing.T) {
	impostor, strange := object("ns", "of-old", "a"), object("ns", "of-strange", "x")
	impostor.OwnerReferences[0].UID = "an earlier a"
	strange.OwnerReferences[0].APIVersion = "example.com/v1"
	inWorld(t, []runtime.Object{object("ns", "a"), object("ns", "of-nobody", "nobody"), impostor, strange},
		func(w *world) {
			w.has("ns", "of-nobody", false)
			w.has("ns", "of-old", false)
			w.has("ns", "of-strange", true)
		})
}

func TestOrphansAreReleased(t *testing.T) {
	inWorld(t, []runtime.Object{object("ns", "a"), object("ns", "of-a", "a")}, func(w *world) {
		owner := w.has("ns", "a", true)
		owner.Finalizers, owner.DeletionTimestamp = []string{metav1.FinalizerOrphanDependents},
			&metav1.Time{Time: time.Now()}
		if err := w.objects.Tracker().Update(maps, owner, "ns"); err != nil {
			w.Fatal(err)
		}
		w.settle()
		if o := w.has("ns", "of-a", true); len(o.OwnerReferences) != 0 {
			w.Errorf("owners left: %v", o.OwnerReferences)
		}
		if o := w.has("ns", "a", true); len(o.Finalizers) != 0 {
			w.Errorf("finalizers left: %v", o.Finalizers)
		}
	})
}

// An owner in another namespace is invalid, and an event says so, whether or not the owner was
// known from its other dependents. For an owner that just does not exist there is no event.
func TestOwnerInAnotherNamespace(t *testing.T) {
	lost, forlorn := object("other", "lost", "a"), object("other", "forlorn", "free")
	lost.OwnerReferences[0].UID, forlorn.OwnerReferences[0].UID = "ns/a", "ns/free"
	inWorld(t, []runtime.Object{object("ns", "a"), object("ns", "free"), object("ns", "of-a", "a"), lost, forlorn,
		object("other", "of-nobody", "nobody")}, func(w *world) {
		w.has("other", "lost", false)
		w.has("other", "forlorn", false)
		w.has("other", "of-nobody", false)
		w.has("ns", "of-a", true)
		recorded := map[string]bool{}
		for len(w.events.Events) > 0 {
			recorded[<-w.events.Events] = true
		}
		for _, owner := range []string{"a", "free"} {
			if e := fmt.Sprintf(
				"Warning OwnerRefInvalidNamespace ownerRef [v1/ConfigMap, namespace: other, name: %s, uid: ns/%s] does not exist in namespace %q", owner, owner, "other"); !recorded[e] {
				w.Errorf("%q is missing", e)
			}
		}
		if len(recorded) != 2 {
			w.Errorf("events %v", recorded)
		}
	})
}

// A failed write is retried.
func TestFailuresAreRetried(t *testing.T) {
	inWorld(t, []runtime.Object{object("ns", "a"), object("ns", "of-a", "a")}, func(w *world) {
		failures := 3
		w.objects.PrependReactor("delete", "configmaps", func(a ktesting.Action) (bool, runtime.Object, error) {
			if a.(ktesting.DeleteAction).GetName() != "of-a" || failures == 0 {
				return false, nil, nil
			}
			failures--
			return true, nil, apierrors.NewInternalError(context.DeadlineExceeded)
		})
		w.delete("ns", "a")
		w.has("ns", "of-a", false)
		if failures != 0 {
			w.Errorf("%d failures left", failures)
		}
	})
}

// A webhook refuses a deletion or a patch as if the object did not exist, or as a conflict: it is tried again, with
// growing waits.
func TestRefusedWrites(t *testing.T) {
	for _, refusal := range controllertest.Refusals(corev1.Resource("configmaps")) {
		inWorld(t, []runtime.Object{object("ns", "a"), object("ns", "of-a", "a"), object("ns", "b"),
			object("ns", "of-a-and-b", "a", "b")}, func(w *world) {
			var refusing atomic.Bool
			var tries atomic.Int32
			refusing.Store(true)
			for _, verb := range []string{"delete", "patch"} {
				w.objects.PrependReactor(verb, "configmaps", func(a ktesting.Action) (bool, runtime.Object, error) {
					if name := a.(interface{ GetName() string }).GetName(); name == "a" || !refusing.Load() {
						return false, nil, nil
					}
					tries.Add(1)
					return true, nil, refusal
				})
			}
			w.delete("ns", "a")
			time.Sleep(time.Minute)
			if n := tries.Load(); n < 4 || n > 2*controllertest.MostTries {
				w.Errorf("%v: %d attempts", refusal, n)
			}
			refusing.Store(false)
			time.Sleep(2 * time.Minute)
			w.has("ns", "of-a", false)
			if o := w.has("ns", "of-a-and-b", true); len(o.OwnerReferences) != 1 {
				w.Errorf("%v: %v", refusal, o.OwnerReferences)
			}
		})
	}
}

// The name in an owner reference does not lead to another path of the API: no object has such a name.
func TestOwnerWithANameThatIsAPath(t *testing.T) {
	for _, name := range []string{"../../other/configmaps/x", "..", "a/proxy/stop", "a%2fb"} {
		inWorld(t, []runtime.Object{object("ns", "d", name)}, func(w *world) {
			w.has("ns", "d", false)
			for _, a := range w.objects.Actions() {
				if got, ok := a.(ktesting.GetAction); ok && got.GetName() == name {
					w.Errorf("a request for %q", name)
				}
			}
		})
	}
}
