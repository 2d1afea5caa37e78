package resourceclaim

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/tools/record"

	"carob/internal/controllers/controllertest"
	"carob/internal/controllers/inventory"
	"carob/internal/controllers/source"
	"carob/internal/core/podclaims"
)

// readers is an inventory that the test controls.
type readers struct{ list []inventory.Reader }

func (r *readers) AddReader(one inventory.Reader) { r.list = append(r.list, one) }

func run(t *testing.T, api *controllertest.API) (*record.FakeRecorder, *readers) {
	t.Helper()
	events, inv := record.NewFakeRecorder(10000), &readers{}
	in := Watches{Pods: source.Pods(api), Claims: source.ResourceClaims(api),
		Templates: source.ResourceClaimTemplates(api)}
	c, err := New(api, events, inv, in)
	if err != nil {
		t.Fatal(err)
	}
	controllertest.Run(t, c, in.Pods)
	return events, inv
}

func template(name string) *resourcev1.ResourceClaimTemplate {
	return &resourcev1.ResourceClaimTemplate{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name}}
}

// pod returns a pod with a claim from the template for each entry.
func pod(name, template string, entries ...string) *corev1.Pod {
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name}}
	for _, e := range entries {
		p.Spec.ResourceClaims = append(p.Spec.ResourceClaims,
			corev1.PodResourceClaim{Name: e, ResourceClaimTemplateName: &template})
	}
	return p
}

func wait() { time.Sleep(time.Minute); synctest.Wait() }

// statuses formats the pods' statuses: "POD ENTRY OWNER" for each entry whose claim exists.
func statuses(t *testing.T, api *controllertest.API) []string {
	t.Helper()
	claims := map[string]*resourcev1.ResourceClaim{}
	for _, c := range controllertest.All[*resourcev1.ResourceClaim](api) {
		claims[c.Name] = c
	}
	var out []string
	for _, p := range controllertest.All[*corev1.Pod](api) {
		for _, s := range p.Status.ResourceClaimStatuses {
			c := claims[*s.ResourceClaimName]
			if c == nil {
				out = append(out, p.Name+" "+s.Name+" gone")
			} else if podclaims.OwnedBy(p, c) && c.Annotations[resourcev1.PodResourceClaimAnnotation] == s.Name {
				out = append(out, p.Name+" "+s.Name)
			} else {
				out = append(out, p.Name+" "+s.Name+" another's")
			}
		}
	}
	slices.Sort(out)
	return out
}

// A pod waits for its template; then each entry gets one claim, which the status names; a deleted claim
// is created again (S9.10 to S9.12).
func TestFromTemplate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := controllertest.New(pod("p", "gpu", "a", "b"))
		events, _ := run(t, api)
		wait()
		seen := controllertest.Events(events)
		if len(seen) == 0 || seen[0] != `Warning FailedResourceClaimCreation PodResourceClaim a: resource claim template "gpu": `+
			`resourceclaimtemplate.resource.k8s.io "gpu" not found` {
			t.Errorf("events %q", seen)
		}
		api.Put(template("gpu"))
		wait()
		controllertest.Equal(t, "statuses", statuses(t, api), "p a", "p b")
		for _, c := range controllertest.All[*resourcev1.ResourceClaim](api) {
			if strings.HasPrefix(c.Name, "p-a-") {
				api.Remove(c)
			}
		}
		wait()
		controllertest.Equal(t, "statuses again", statuses(t, api), "p a", "p b")
		if n := len(controllertest.All[*resourcev1.ResourceClaim](api)); n != 2 {
			t.Errorf("%d claims", n)
		}
	})
}

// With watches that are late, deliver twice or break off, and writes that fail before or after their effect,
// each entry has exactly one claim in the end.
func TestOneClaimForEachEntry(t *testing.T) {
	for seed := range uint64(200) {
		synctest.Test(t, func(t *testing.T) {
			r := rand.New(rand.NewPCG(seed, 1)) //nolint:gosec // a test that can be repeated
			api := controllertest.New(template("gpu"))
			api.Late = func() time.Duration { return time.Duration(r.IntN(2000)) * time.Millisecond }
			api.Faults = func() controllertest.Fault {
				return []controllertest.Fault{controllertest.None, controllertest.None, controllertest.Twice,
					controllertest.Cut}[r.IntN(4)]
			}
			noFaults := false
			trouble := func(_ string, gvr schema.GroupVersionResource, o metav1.Object) error {
				if noFaults || o.GetName() == "gpu" || r.IntN(3) > 0 {
					return nil
				}
				if r.IntN(2) == 0 {
					return apierrors.NewConflict(gvr.GroupResource(), o.GetName(), errors.New("changed"))
				}
				return errors.New("connection reset")
			}
			run(t, api)
			api.Before = trouble
			api.After = func(verb string, gvr schema.GroupVersionResource, o metav1.Object) error {
				if err := trouble(verb, gvr, o); err != nil && !apierrors.IsConflict(err) {
					return err // no server answers with a conflict after it has stored something
				}
				return nil
			}
			for i := range 4 {
				api.Put(pod(fmt.Sprint("p", i), "gpu", "a", "b"))
				time.Sleep(time.Duration(r.IntN(1000)) * time.Millisecond)
			}
			wait()
			noFaults = true
			time.Sleep(time.Hour)
			want := []string{"p0 a", "p0 b", "p1 a", "p1 b", "p2 a", "p2 b", "p3 a", "p3 b"}
			claims := len(controllertest.All[*resourcev1.ResourceClaim](api))
			if got := statuses(t, api); !slices.Equal(got, want) || claims != len(want) {
				t.Errorf("seed %d: %d claims, statuses %q", seed, claims, got)
			}
		})
	}
}

// reserve allocates a claim for a pod, like the scheduler.
func reserve(t *testing.T, api *controllertest.API, claim string, p *corev1.Pod) {
	t.Helper()
	if !controllertest.Change(api, "ns", claim, func(c *resourcev1.ResourceClaim) {
		c.Finalizers = []string{resourcev1.Finalizer}
		c.Status.Allocation = &resourcev1.AllocationResult{}
		c.Status.ReservedFor = append(c.Status.ReservedFor, podclaims.Reservation(p))
	}) {
		t.Fatalf("no claim %s", claim)
	}
}

// The generated claim of a finished pod is deleted with its allocation although the pod stays; a claim of the
// user is only released, when its last pod has ended or is deleted (S9.15, S9.16). A pod that the watch does
// not show yet keeps its reservation.
func TestRelease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		shared := &resourcev1.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "shared"}}
		made, user := pod("made", "gpu", "a"), pod("user", "gpu")
		user.Spec.ResourceClaims = []corev1.PodResourceClaim{{Name: "s", ResourceClaimName: new("shared")}}
		other := user.DeepCopy()
		other.Name = "other"
		api := controllertest.New(template("gpu"), shared, made, user, other)
		run(t, api)
		wait()
		pods := map[string]*corev1.Pod{}
		for _, p := range controllertest.All[*corev1.Pod](api) {
			pods[p.Name] = p
		}
		own := *pods["made"].Status.ResourceClaimStatuses[0].ResourceClaimName
		reserve(t, api, own, pods["made"])
		reserve(t, api, "shared", pods["user"])
		reserve(t, api, "shared", pods["other"])
		wait()
		api.Log()
		finish := func(name string) {
			controllertest.Change(api, "ns", name, func(p *corev1.Pod) { p.Status.Phase = corev1.PodSucceeded })
			wait()
		}
		finish("user")
		controllertest.Equal(t, "one of two users", api.Log(), "update resourceclaims/status shared")
		api.Remove(pods["other"])
		wait()
		controllertest.Equal(t, "the last user is deleted", api.Log(), "update resourceclaims/status shared",
			"update resourceclaims shared")
		finish("made")
		controllertest.Equal(t, "the pod of a made claim", api.Log(), "update resourceclaims/status "+own,
			"update resourceclaims "+own, "delete resourceclaims "+own)
		left := controllertest.All[*resourcev1.ResourceClaim](api)
		if len(left) != 1 || len(left[0].Finalizers)+len(left[0].Status.ReservedFor) != 0 ||
			left[0].Status.Allocation != nil {
			t.Errorf("left %+v", left)
		}
		// The pod is stored, and the watch is late by an hour.
		late := time.Hour
		api.Late = func() time.Duration { return late }
		api.Put(pod("late", "gpu"))
		synctest.Wait()
		late = 0
		stored, err := api.CoreV1().Pods("ns").Get(t.Context(), "late", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		reserve(t, api, "shared", stored)
		wait()
		controllertest.Equal(t, "a pod that is not known yet", api.Log())
		reserve(t, api, "shared", &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "ghost", UID: "ghost"}})
		wait()
		controllertest.Equal(t, "a pod that never existed", api.Log(), "update resourceclaims/status shared")
	})
}

// A claim that is deleted while unused is removed, also in a cluster without pods: the inventory reports it.
func TestDeletedClaimWithoutPods(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		now := metav1.Now()
		api := controllertest.New(&resourcev1.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "c",
			DeletionTimestamp: &now, Finalizers: []string{resourcev1.Finalizer}},
			Status: resourcev1.ResourceClaimStatus{Allocation: &resourcev1.AllocationResult{}}})
		_, inv := run(t, api)
		wait()
		for _, a := range api.Actions() {
			if a.GetResource().Group == resourcev1.GroupName {
				t.Errorf("%s %s before there is a reason", a.GetVerb(), a.GetResource().Resource)
			}
		}
		kind := inventory.Kind{GroupVersionResource: resourcev1.SchemeGroupVersion.
			WithResource("resourceclaims")}
		for _, r := range inv.list {
			r.Kinds()
			r.Relisted(kind, []*metav1.PartialObjectMetadata{{}})
			r.Gone(kind, &metav1.PartialObjectMetadata{})
		}
		wait()
		controllertest.Equal(t, "writes", api.Log(), "update resourceclaims/status c", "update resourceclaims c")
		if left := controllertest.All[*resourcev1.ResourceClaim](api); len(left) != 0 {
			t.Errorf("left %+v", left)
		}
	})
}

// A pod that was bound without the scheduler reserves a claim that is allocated already (S9.14).
func TestBoundDirectly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := pod("p", "gpu")
		p.Spec.NodeName = "n"
		p.Spec.ResourceClaims = []corev1.PodResourceClaim{{Name: "s", ResourceClaimName: new("c")}}
		api := controllertest.New(p,
			&resourcev1.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "c"}})
		run(t, api)
		wait()
		controllertest.Equal(t, "not allocated", api.Log())
		controllertest.Change(api, "ns", "c",
			func(c *resourcev1.ResourceClaim) { c.Status.Allocation = &resourcev1.AllocationResult{} })
		wait()
		controllertest.Equal(t, "allocated", api.Log(), "update resourceclaims/status c")
		c := controllertest.All[*resourcev1.ResourceClaim](api)[0]
		if len(c.Status.ReservedFor) != 1 || c.Status.ReservedFor[0].Name != "p" {
			t.Errorf("reserved for %+v", c.Status.ReservedFor)
		}
	})
}
