package devices

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	ktesting "k8s.io/client-go/testing"

	"carob/internal/controllers/controllertest"
	"carob/internal/core/podclaims"
)

// stored returns an API with these claims and the pod, and the stored claims.
func stored(pod *corev1.Pod, claims ...*resourcev1.ResourceClaim) (*controllertest.API, []*resourcev1.ResourceClaim) {
	api := controllertest.New(pod)
	for _, c := range claims {
		api.Put(c)
	}
	return api, controllertest.All[*resourcev1.ResourceClaim](api)
}

// attempt returns an Attempt that has found devices for the pod on node n1.
func attempt(t *testing.T, pod *corev1.Pod, claims []*resourcev1.ResourceClaim, others ...any) *Attempt {
	t.Helper()
	x := index(others...)
	for _, c := range claims {
		x.SetClaim(c)
	}
	a := begin(t, x, pod)
	if why := try(t, a, "n1"); why != "" {
		t.Fatal(why)
	}
	return a
}

func users(c *resourcev1.ResourceClaim) (names []string) {
	for _, r := range c.Status.ReservedFor {
		names = append(names, r.Name)
	}
	return names
}

// A claim gets its finalizer first, then its devices and the reservation in one write. Other users stay.
func TestStore(t *testing.T) { // S9.27
	pod := podWith("p", "new", "shared")
	api, claims := stored(pod, claimOf("new", request("r", "gpu")),
		reservedFor(allocated(claimOf("shared"), "n1", "d9"), "other"))
	a := attempt(t, pod, claims, slice("n1", "d1"))
	api.Before = func(_ string, gvr schema.GroupVersionResource, o metav1.Object) error {
		c, ok := o.(*resourcev1.ResourceClaim)
		if ok && c.Status.Allocation != nil && c.Name == "new" && !slices.Contains(c.Finalizers, resourcev1.Finalizer) {
			t.Errorf("%s %s gets devices before its finalizer", gvr.Resource, c.Name)
		}
		return nil
	}
	s, err := a.Store(t.Context(), api, "n1")
	if err != nil {
		t.Fatal(err)
	}
	if len(s.Claims) != 2 || len(s.reserved) != 2 {
		t.Errorf("%d claims were written, %d reserved", len(s.Claims), len(s.reserved))
	}
	want := map[string]string{"new": "d1 p", "shared": "d9 other p"}
	for _, c := range controllertest.All[*resourcev1.ResourceClaim](api) {
		got := c.Status.Allocation.Devices.Results[0].Device + " " + strings.Join(users(c), " ")
		if got != want[c.Name] || c.Status.Allocation.AllocationTimestamp == nil {
			t.Errorf("claim %s has %s at %v", c.Name, got, c.Status.Allocation.AllocationTimestamp)
		}
	}
	// Existing reservations of the pod are not written again.
	a = attempt(t, pod, controllertest.All[*resourcev1.ResourceClaim](api), slice("n1", "d1"))
	api.Log()
	if s, err = a.Store(t.Context(), api, "n1"); err != nil || len(s.Claims) != 2 || len(s.reserved) != 0 {
		t.Errorf("a second time: %+v, %v", s, err)
	}
	if log := api.Log(); len(log) != 0 {
		t.Errorf("a second time wrote %q", log)
	}
	if _, err := a.Store(t.Context(), api, "n2"); err == nil {
		t.Error("an allocation for a node that was not tried was written")
	}
}

// Other clients write between the read and the write. A harmless change is accepted; a claim that was replaced, is
// being deleted, or has other devices is refused.
func TestStoreAfterAChange(t *testing.T) { // S9.27
	for name, test := range map[string]struct {
		change func(api *controllertest.API, c *resourcev1.ResourceClaim)
		want   string
	}{
		"labelled": {func(api *controllertest.API, c *resourcev1.ResourceClaim) {
			c.Labels = map[string]string{"a": "b"}
			api.Put(c)
		}, ""},
		"made anew": {func(api *controllertest.API, c *resourcev1.ResourceClaim) {
			api.Remove(c)
			c = claimOf("c", request("r", "gpu"))
			c.UID = "another"
			api.Put(c)
		}, "claim ns/c got deleted in the meantime"},
		"ending": {func(api *controllertest.API, c *resourcev1.ResourceClaim) {
			c.DeletionTimestamp, c.Finalizers = new(metav1.Now()), []string{"example.com/wait"}
			api.Put(c)
		}, "claim ns/c got deleted in the meantime"},
		"allocated": {func(api *controllertest.API, c *resourcev1.ResourceClaim) {
			api.Put(allocated(c, "n2", "d2"))
		}, "claim ns/c got allocated elsewhere in the meantime"},
	} {
		t.Run(name, func(t *testing.T) {
			pod := podWith("p", "c")
			api, claims := stored(pod, claimOf("c", request("r", "gpu")))
			a := attempt(t, pod, claims, slice("n1", "d1"))
			test.change(api, claims[0].DeepCopy())
			s, err := a.Store(t.Context(), api, "n1")
			if test.want == "" {
				c := controllertest.All[*resourcev1.ResourceClaim](api)[0]
				if err != nil || c.Labels["a"] != "b" || !podclaims.IsReserved(c, pod) {
					t.Errorf("%v, %v", c, err)
				}
				return
			}
			if err == nil || err.Error() != test.want || len(s.Claims)+len(s.reserved) != 0 {
				t.Errorf("%+v, %v; want %q", s, err, test.want)
			}
			for _, c := range controllertest.All[*resourcev1.ResourceClaim](api) {
				if podclaims.IsReserved(c, pod) {
					t.Errorf("%s is reserved", c.Name)
				}
			}
		})
	}
}

// A claim that another pod freed since is not reserved without devices.
func TestStoreOfAFreedClaim(t *testing.T) {
	pod := podWith("p", "c")
	api, claims := stored(pod, allocated(claimOf("c", request("r", "gpu")), "n1", "d1"))
	a := attempt(t, pod, claims)
	if err := Deallocate(t.Context(), api, claims[0]); err != nil {
		t.Fatal(err)
	}
	if c := controllertest.All[*resourcev1.ResourceClaim](api)[0]; c.Status.Allocation != nil {
		t.Fatal("Deallocate left the devices")
	}
	if _, err := a.Store(t.Context(), api, "n1"); err == nil ||
		err.Error() != "claim ns/c got deallocated elsewhere in the meantime" {
		t.Error(err)
	}
}

// When the second claim cannot be written, the reservation of the first is removed. Its devices stay.
func TestUndo(t *testing.T) {
	pod := podWith("p", "one", "two")
	api, claims := stored(pod, reservedFor(allocated(claimOf("one"), "n1", "d9"), "other"),
		claimOf("two", request("r", "gpu")))
	a := attempt(t, pod, claims, slice("n1", "d1"))
	refused := errors.New("refused")
	api.Before = func(verb string, _ schema.GroupVersionResource, o metav1.Object) error {
		if verb == "update" && o.GetName() == "two" {
			return refused
		}
		return nil
	}
	s, err := a.Store(t.Context(), api, "n1")
	if !errors.Is(err, refused) || len(s.reserved) != 1 {
		t.Fatalf("%+v, %v", s, err)
	}
	for range 2 { // a second call is harmless
		if err := a.Undo(t.Context(), api, s); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range controllertest.All[*resourcev1.ResourceClaim](api) {
		if c.Name == "one" && (!slices.Equal(users(c), []string{"other"}) || c.Status.Allocation == nil) {
			t.Errorf("claim one is reserved for %v, allocation %v", users(c), c.Status.Allocation)
		}
	}
	api.Remove(s.reserved[0])
	if err := a.Undo(t.Context(), api, s); err != nil {
		t.Errorf("of a claim that is gone: %v", err)
	}
}

// For extended resources a claim is created; the pod's status says which request serves which
// container.
func TestStoreOfExtendedResources(t *testing.T) { // S9.61
	pod := requesting(podWith("p"), "example.com/nic")
	api, _ := stored(pod)
	a := attempt(t, pod, nil, deviceClass("nic", "example.com/nic"), slice("n1", "d1"))
	s, err := a.Store(t.Context(), api, "n1")
	if err != nil {
		t.Fatal(err)
	}
	made := controllertest.All[*resourcev1.ResourceClaim](api)
	if len(made) != 1 || !podclaims.IsExtended(pod, made[0]) || !podclaims.IsReserved(made[0], pod) ||
		made[0].Status.Allocation == nil || !slices.Contains(made[0].Finalizers, resourcev1.Finalizer) {
		t.Fatalf("claims %v", made)
	}
	status := controllertest.All[*corev1.Pod](api)[0].Status.ExtendedResourceClaimStatus
	if status == nil || status.ResourceClaimName != made[0].Name || len(status.RequestMappings) != 1 ||
		status.RequestMappings[0].ResourceName != "example.com/nic" {
		t.Errorf("the pod's status has %+v", status)
	}
	for range 2 { // the second time, it is gone
		if err := a.Undo(t.Context(), api, s); err != nil {
			t.Fatal(err)
		}
	}
	if left := controllertest.All[*resourcev1.ResourceClaim](api); len(left) != 0 {
		t.Errorf("left %v", left)
	}
}

// Undo deletes the claim that Store made, not another one that now has its name.
func TestUndoDeletesOnlyItsClaim(t *testing.T) {
	mine := claimOf("c")
	another := claimOf("c")
	another.UID, another.Finalizers = "another", []string{resourcev1.Finalizer}
	api, _ := stored(podWith("p"), another)
	if err := Delete(t.Context(), api, mine); err != nil {
		t.Error(err)
	}
	left := controllertest.All[*resourcev1.ResourceClaim](api)
	if len(left) != 1 || left[0].DeletionTimestamp != nil || len(left[0].Finalizers) != 1 {
		t.Errorf("left %v", left)
	}
	api.Before = func(string, schema.GroupVersionResource, metav1.Object) error {
		return apierrors.NewForbidden(resourcev1.Resource("resourceclaims"), "c", errors.New("no"))
	}
	if err := Delete(t.Context(), api, left[0]); err == nil {
		t.Error("an error was not returned")
	}
}

// A webhook that refuses the writes of Undo as if the claims were gone, or others: it is an error, since they keep
// their reservations.
func TestUndoThatIsRefused(t *testing.T) {
	for _, refused := range []error{apierrors.NewNotFound(resourcev1.Resource("resourceclaims"), "c"),
		apierrors.NewConflict(resourcev1.Resource("resourceclaims"), "c", errors.New("a webhook says so"))} {
		pod := podWith("p", "c")
		api, claims := stored(pod, claimOf("c", request("r", "gpu")))
		a := attempt(t, pod, claims, slice("n1", "d1"))
		s, err := a.Store(t.Context(), api, "n1")
		if err != nil {
			t.Fatal(err)
		}
		api.Before = func(verb string, _ schema.GroupVersionResource, _ metav1.Object) error {
			if verb == "get" {
				return nil
			}
			return refused
		}
		if err := a.Undo(t.Context(), api, s); !errors.Is(err, refused) {
			t.Errorf("undo: %v, want %v", err, refused)
		}
		if err := Delete(t.Context(), api, s.Claims[0]); !errors.Is(err, refused) {
			t.Errorf("delete: %v, want %v", err, refused)
		}
		api.Remove(s.Claims[0])
		if err := errors.Join(a.Undo(t.Context(), api, s), Delete(t.Context(), api, s.Claims[0])); err != nil {
			t.Errorf("of a claim that is gone: %v", err)
		}
	}
}

// The pod waits for the drivers of all its devices, until the first limit of those that are not ready.
func TestReady(t *testing.T) { // S9.28
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	waiting := func(name string, since time.Time) *resourcev1.ResourceClaim {
		c := allocated(claimOf(name), "n1", "d-"+name)
		c.Status.Allocation.AllocationTimestamp = new(metav1.NewTime(since))
		c.Status.Allocation.Devices.Results[0].BindingConditions = []string{"attached"}
		c.Status.Allocation.Devices.Results[0].BindingFailureConditions = []string{"broken"}
		return c
	}
	withCondition := func(c *resourcev1.ResourceClaim, condition string) *resourcev1.ResourceClaim {
		c = c.DeepCopy()
		r := &c.Status.Allocation.Devices.Results[0]
		c.Status.Devices = []resourcev1.AllocatedDeviceStatus{{Driver: r.Driver, Pool: r.Pool, Device: r.Device,
			Conditions: []metav1.Condition{{Type: condition, Status: metav1.ConditionTrue}}}}
		return c
	}
	one, two := waiting("one", now.Add(-time.Second)), waiting("two", now.Add(-2*time.Second))
	plain := allocated(claimOf("plain"), "n1", "d")
	s := &Stored{Claims: []*resourcev1.ResourceClaim{one, two, plain}}
	x := index(one, two, plain)
	expect := func(what string, wantReady bool, left time.Duration, wantErr error) {
		t.Helper()
		ready, until, err := s.Ready(x, now, time.Minute)
		if ready != wantReady || !errors.Is(err, wantErr) {
			t.Errorf("%s: %v, %v", what, ready, err)
		}
		if err == nil && !ready && !until.Equal(now.Add(left)) {
			t.Errorf("%s: it waits until %v", what, until)
		}
	}
	expect("none", false, 58*time.Second, nil)
	x.SetClaim(withCondition(two, "attached"))
	expect("one of two", false, 59*time.Second, nil)
	x.SetClaim(withCondition(one, "attached"))
	expect("both", true, 0, nil)
	x.SetClaim(withCondition(one, "broken"))
	expect("broken", false, 0, podclaims.ErrBinding)
	x.SetClaim(waiting("one", now.Add(-time.Hour)))
	expect("late", false, 0, podclaims.ErrBindingTimeout)
	x.SetClaim(claimOf("one"))
	expect("without devices", false, 0, podclaims.ErrDeallocated)
	another := claimOf("one")
	another.UID = "another"
	x.SetClaim(another)
	for range 2 {
		if _, _, err := s.Ready(x, now, time.Minute); err == nil || err.Error() !=
			"claim ns/one got deleted in the meantime" {
			t.Errorf("beside %v: %v", x.Claims(), err)
		}
		x.RemoveClaim(another)
	}
}

// A write whose response is lost may have taken effect: Store returns the claim with its devices, so that no other pod
// gets them, and Undo removes its reservation. Reads that fail are repeated.
func TestStoreWithoutAResponse(t *testing.T) { // S9.26
	for name, test := range map[string]struct {
		failed  error
		devices bool
	}{
		"no response":     {errors.New("connection reset by peer"), true},
		"a timeout":       {apierrors.NewTimeoutError("it takes long", 1), true},
		"a refused write": {apierrors.NewForbidden(resourcev1.Resource("resourceclaims"), "c", nil), false},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				pod := podWith("p", "c")
				api, claims := stored(pod, claimOf("c", request("r", "gpu")))
				a := attempt(t, pod, claims, slice("n1", "d1"))
				fails := func(_ string, _ schema.GroupVersionResource, o metav1.Object) error {
					if c, ok := o.(*resourcev1.ResourceClaim); ok && c.Status.Allocation != nil {
						return test.failed
					}
					return nil
				}
				if test.devices {
					api.After = fails
				} else {
					api.Before = fails
				}
				reads := 0
				api.PrependReactor("get", "resourceclaims", func(ktesting.Action) (bool, runtime.Object, error) {
					reads++
					return reads < 4, nil, errors.New("connection refused")
				})
				s, err := a.Store(t.Context(), api, "n1")
				if !errors.Is(err, test.failed) || reads > 0 != test.devices {
					t.Fatalf("Store returns %v after %d reads", err, reads)
				}
				got := len(s.Claims) == 1 && s.Claims[0].Status.Allocation != nil && len(s.reserved) == 1
				if got != test.devices {
					t.Errorf("claims %+v, reserved %d", s.Claims, len(s.reserved))
				}
				api.After, api.Before = nil, nil
				if err := a.Undo(t.Context(), api, s); err != nil {
					t.Fatal(err)
				}
				for _, c := range controllertest.All[*resourcev1.ResourceClaim](api) {
					if podclaims.IsReserved(c, pod) || (c.Status.Allocation != nil) != test.devices {
						t.Errorf("after the end: %+v", c.Status)
					}
				}
			})
		})
	}
}

// The read after a lost response ends when the claim is gone, or replaced by another one of its name, or when the
// scheduler stops, also if no read ever succeeds.
func TestReadAfterALostResponseEnds(t *testing.T) { // S9.26
	lost := errors.New("connection reset by peer")
	for name, test := range map[string]struct {
		answer *resourcev1.ResourceClaim
		err    error
		waits  time.Duration
	}{
		"gone":     {nil, apierrors.NewNotFound(resourcev1.Resource("resourceclaims"), "c"), 0},
		"replaced": {&resourcev1.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Name: "c", UID: "another"}}, nil, 0},
		"never":    {nil, errors.New("connection refused"), time.Minute},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				pod := podWith("p", "c")
				api, _ := stored(pod, claimOf("c", request("r", "gpu")))
				api.PrependReactor("get", "resourceclaims", func(ktesting.Action) (bool, runtime.Object, error) {
					return true, test.answer, test.err
				})
				ctx, stop := context.WithTimeout(t.Context(), time.Minute)
				defer stop()
				began := time.Now()
				written := &resourcev1.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Name: "c", UID: "first"}}
				var s Stored
				s.look(ctx, api, written, pod, lost)
				if len(s.Claims)+len(s.reserved) > 0 || time.Since(began) != test.waits {
					t.Errorf("claims %v, reserved %v after %v", s.Claims, s.reserved, time.Since(began))
				}
			})
		})
	}
}
