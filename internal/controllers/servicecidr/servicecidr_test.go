package servicecidr

import (
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"

	"carob/internal/controllers/controllertest"
	"carob/internal/controllers/inventory"
)

func ranged(name string, cidrs ...string) networkingv1.ServiceCIDR {
	return networkingv1.ServiceCIDR{ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(name)},
		Spec: networkingv1.ServiceCIDRSpec{CIDRs: cidrs}}
}

func address(ip string) networkingv1.IPAddress {
	return networkingv1.IPAddress{ObjectMeta: metav1.ObjectMeta{Name: ip,
		Labels: map[string]string{networkingv1.LabelManagedBy: "ipallocator.k8s.io"}}}
}

func TestInUse(t *testing.T) {
	leaving := ranged("other", "10.96.0.0/24")
	leaving.DeletionTimestamp = &metav1.Time{Time: time.Unix(1, 0)}
	for name, tc := range map[string]struct {
		others []networkingv1.ServiceCIDR
		used   []string
		want   bool
	}{
		"nobody":                         {used: []string{"10.97.0.1", "fd01::1"}},
		"a service":                      {used: []string{"10.96.0.9"}, want: true},
		"a service of the second family": {used: []string{"fd00::9"}, want: true},
		"a wider range stays": {others: []networkingv1.ServiceCIDR{ranged("wide", "10.96.0.0/16")},
			used: []string{"10.96.0.9"}},
		"a range that stays has not all": {others: []networkingv1.ServiceCIDR{ranged("half", "10.96.0.0/28")},
			used: []string{"10.96.0.9", "10.96.0.99"}, want: true},
		"the other range is deleted itself": {others: []networkingv1.ServiceCIDR{leaving}, used: []string{"10.96.0.9"},
			want: true},
	} {
		r := ranged("r", "10.96.0.0/24", "fd00::/112")
		var used []networkingv1.IPAddress
		for _, ip := range tc.used {
			used = append(used, address(ip))
		}
		if got := inUse(&r, append(tc.others, r), used); got != tc.want {
			t.Errorf("%s: %t, want %t", name, got, tc.want)
		}
	}
}

// A range becomes ready, stays while one of its addresses is in use, and is removed afterwards.
func TestLife(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, a := ranged("r", "10.97.0.0/24"), address("10.97.0.9")
		client := fake.NewClientset(&r, &a)
		c := New(client, inventory.New(nil, nil, 0))
		api := client.NetworkingV1().ServiceCIDRs()
		done := make(chan struct{})
		go func() { c.Run(t.Context()); close(done) }()
		t.Cleanup(func() { <-done })
		notify := func(o *networkingv1.ServiceCIDR) {
			c.Changed(
				inventory.Kind{GroupVersionResource: networkingv1.SchemeGroupVersion.WithResource("servicecidrs")},
				&metav1.PartialObjectMetadata{ObjectMeta: o.ObjectMeta})
			synctest.Wait()
		}
		get := func() *networkingv1.ServiceCIDR {
			o, err := api.Get(t.Context(), "r", metav1.GetOptions{})
			if err != nil {
				t.Fatal(err)
			}
			return o
		}
		notify(&r)
		if o := get(); !slices.Equal(o.Finalizers, []string{finalizer}) ||
			!meta.IsStatusConditionTrue(o.Status.Conditions, networkingv1.ServiceCIDRConditionReady) {
			t.Fatalf("a new range: %v %v", o.Finalizers, o.Status)
		}
		deleted := get()
		deleted.DeletionTimestamp = &metav1.Time{Time: time.Now()}
		if _, err := api.Update(t.Context(), deleted, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		notify(deleted)
		o := get()
		if cond := meta.FindStatusCondition(o.Status.Conditions,
			networkingv1.ServiceCIDRConditionReady); cond.Status != metav1.ConditionFalse ||
			cond.Reason != "Terminating" || len(o.Finalizers) != 1 {
			t.Fatalf("a deleted range in use: %v %v", o.Finalizers, o.Status)
		}
		if err := client.NetworkingV1().IPAddresses().Delete(t.Context(), a.Name, metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		c.Gone(inventory.Kind{GroupVersionResource: networkingv1.SchemeGroupVersion.WithResource("ipaddresses")},
			&metav1.PartialObjectMetadata{ObjectMeta: a.ObjectMeta})
		synctest.Wait()
		if o := get(); len(o.Finalizers) != 1 {
			t.Error("the controller did not wait for a request in flight")
		}
		time.Sleep(grace)
		synctest.Wait()
		if o, err := api.Get(t.Context(), "r", metav1.GetOptions{}); !apierrors.IsNotFound(err) &&
			len(o.Finalizers) != 0 {
			t.Errorf("no longer in use: %v, %v", o, err)
		}
	})
}

// A webhook refuses a write as if the range did not exist, or as a conflict: it is tried again.
func TestRefusedWrites(t *testing.T) {
	for _, refusal := range controllertest.Refusals(ranges) {
		r := ranged("r", "10.97.0.0/24")
		r.ResourceVersion = "1"
		client := fake.NewClientset(&r)
		c := New(client, inventory.New(nil, nil, 0))
		refused := func(resource string) {
			t.Helper()
			controllertest.FailOnce(client, "update", resource, refusal)
			if _, err := c.reconcile(t.Context(), "r"); !errors.Is(err, refusal) {
				t.Errorf("%s: %v, want %v", resource, err, refusal)
			}
		}
		refused("servicecidrs")
		refused("servicecidrs/status")
		if _, err := c.reconcile(t.Context(), "r"); err != nil {
			t.Error(err)
		}
		api := client.NetworkingV1().ServiceCIDRs()
		o, err := api.Get(t.Context(), "r", metav1.GetOptions{})
		if err != nil || len(o.Finalizers) != 1 {
			t.Fatal(o, err)
		}
		o.DeletionTimestamp = &metav1.Time{Time: time.Now().Add(-2 * grace)}
		if _, err := api.Update(t.Context(), o, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		refused("servicecidrs")
		if _, err := c.reconcile(t.Context(), "r"); err != nil {
			t.Error(err)
		}
		if o, err := api.Get(t.Context(), "r", metav1.GetOptions{}); err == nil && len(o.Finalizers) > 0 {
			t.Error(o.Finalizers)
		}
	}
}
