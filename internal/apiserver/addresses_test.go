package apiserver

import (
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
)

// Service addresses have IPAddress objects. If another client creates one, no Service gets its address.
func TestServiceAddressObjects(t *testing.T) {
	dir := t.TempDir()
	r := start(t, dir)
	c := r.admin(t)
	ctx := t.Context()
	addresses := c.NetworkingV1().IPAddresses()
	ranges, err := c.NetworkingV1().ServiceCIDRs().Get(ctx, "kubernetes", metav1.GetOptions{})
	if err != nil || !meta.IsStatusConditionTrue(ranges.Status.Conditions, networkingv1.ServiceCIDRConditionReady) {
		t.Fatalf("the default range is %v, %v", ranges, err)
	}
	if _, err := addresses.Get(ctx, "10.96.0.1", metav1.GetOptions{}); err != nil {
		t.Errorf("the address of the kubernetes Service: %v", err)
	}
	create := func(name, ip string) (*corev1.Service, error) {
		return c.CoreV1().Services("default").Create(ctx, &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: name},
			Spec: corev1.ServiceSpec{ClusterIP: ip, Ports: []corev1.ServicePort{{Port: 80}}}}, metav1.CreateOptions{})
	}
	svc, err := create("9-digits-first", "")
	if err != nil {
		t.Fatal(err)
	}
	a, err := addresses.Get(ctx, svc.Spec.ClusterIP, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if p := a.Spec.ParentRef; p.Resource != "services" || p.Namespace != "default" || p.Name != svc.Name ||
		a.Labels[networkingv1.LabelManagedBy] != "ipallocator.k8s.io" {
		t.Errorf("the record is %v %v", a.Labels, p)
	}
	if err := c.CoreV1().Services("default").Delete(ctx, svc.Name, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := addresses.Get(ctx, svc.Spec.ClusterIP, metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("after the service: %v, want not found", err)
	}

	mine := &networkingv1.IPAddress{ObjectMeta: metav1.ObjectMeta{Name: "10.96.7.7"},
		Spec: networkingv1.IPAddressSpec{ParentRef: &networkingv1.ParentReference{Group: "example.com",
			Resource: "gateways", Name: "g"}}}
	if _, err := addresses.Create(ctx, mine, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := create("taken", "10.96.7.7"); err == nil ||
		!strings.Contains(err.Error(), "provided IP is already allocated") {
		t.Errorf("a service with the reserved address: %v", err)
	}
	if err := addresses.Delete(ctx, mine.Name, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := create("taken", "10.96.7.7"); err != nil {
		t.Errorf("after the reservation: %v", err)
	}
	if _, err := addresses.Create(ctx, mine, metav1.CreateOptions{}); !apierrors.IsAlreadyExists(err) {
		t.Errorf("reserving a service's address: %v", err)
	}

	generated, err := c.CoreV1().Services("default").Create(ctx,
		&corev1.Service{ObjectMeta: metav1.ObjectMeta{GenerateName: "some-"},
			Spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{{Port: 80}}}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if a, err := addresses.Get(ctx, generated.Spec.ClusterIP, metav1.GetOptions{}); err != nil ||
		a.Spec.ParentRef.Name != generated.Name {
		t.Errorf("the record of %s is of %v, %v", generated.Name, a.Spec.ParentRef, err)
	}
	// A rejected service keeps nothing.
	before := records(t, c)
	if _, err := create("Not-A-Name", ""); !apierrors.IsInvalid(err) {
		t.Errorf("a bad name: %v", err)
	}
	if after := records(t, c); after != before {
		t.Errorf("%d addresses instead of %d after a refused service", after, before)
	}

	// What a crash left is corrected: a record without a service is deleted, a missing one is
	// created again.
	stray := &networkingv1.IPAddress{ObjectMeta: metav1.ObjectMeta{Name: "10.96.9.9",
		Labels: map[string]string{networkingv1.LabelManagedBy: "ipallocator.k8s.io"}}, Spec: mine.Spec}
	if _, err := addresses.Create(ctx, stray, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := addresses.Delete(ctx, "10.96.7.7", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	r.stop()
	again := start(t, dir).admin(t).NetworkingV1().IPAddresses()
	if _, err := again.Get(ctx, stray.Name, metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("the stray record: %v, want not found", err)
	}
	if _, err := again.Get(ctx, "10.96.7.7", metav1.GetOptions{}); err != nil {
		t.Errorf("the missing record: %v", err)
	}
}

func records(t *testing.T, c kubernetes.Interface) int {
	t.Helper()
	list, err := c.NetworkingV1().IPAddresses().List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return len(list.Items)
}

// Services get addresses of every ready range, and of none that is being deleted.
func TestServiceRanges(t *testing.T) {
	c := start(t, t.TempDir()).admin(t)
	ctx := t.Context()
	ranges := c.NetworkingV1().ServiceCIDRs()
	create := func(name, ip string) error {
		_, err := c.CoreV1().Services("default").Create(ctx, &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: name},
			Spec: corev1.ServiceSpec{ClusterIP: ip, Ports: []corev1.ServicePort{{Port: 80}}}}, metav1.CreateOptions{})
		return err
	}
	more, err := ranges.Create(ctx,
		&networkingv1.ServiceCIDR{ObjectMeta: metav1.ObjectMeta{Name: "more", Finalizers: []string{"example.com/keep"}},
			Spec: networkingv1.ServiceCIDRSpec{CIDRs: []string{"10.200.0.0/28"}}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	// A range without a status is usable, one that is not ready is not.
	if err := create("early", "10.200.0.5"); err != nil {
		t.Error(err)
	}
	meta.SetStatusCondition(&more.Status.Conditions,
		metav1.Condition{Type: networkingv1.ServiceCIDRConditionReady, Status: metav1.ConditionFalse, Reason: "Test"})
	if more, err = ranges.UpdateStatus(ctx, more, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := create("refused", "10.200.0.3"); err == nil ||
		!strings.Contains(err.Error(), "does not match the current range") {
		t.Errorf("of a range that is not ready: %v", err)
	}
	meta.SetStatusCondition(&more.Status.Conditions,
		metav1.Condition{Type: networkingv1.ServiceCIDRConditionReady, Status: metav1.ConditionTrue, Reason: "Test"})
	if _, err := ranges.UpdateStatus(ctx, more, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := create("one", "10.200.0.3"); err != nil {
		t.Error(err)
	}
	if err := create("two", "10.200.0.3"); err == nil ||
		!strings.Contains(err.Error(), "provided IP is already allocated") {
		t.Errorf("twice the same: %v", err)
	}
	if err := ranges.Delete(ctx, "more", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := create("late", "10.200.0.4"); err == nil ||
		!strings.Contains(err.Error(), "does not match the current range") {
		t.Errorf("after the range was deleted: %v", err)
	}
	// A dry run has other words for it, as upstream.
	svc := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: "outside"},
		Spec: corev1.ServiceSpec{ClusterIP: "192.0.2.1", Ports: []corev1.ServicePort{{Port: 80}}}}
	const words = "the provided IP (192.0.2.1) is not in the valid range. The range of valid IPs is 10.96.0.0/16"
	if _, err := c.CoreV1().Services("default").Create(ctx, svc,
		metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}}); err == nil || !strings.Contains(err.Error(), words) {
		t.Errorf("a dry run: %v", err)
	}
}

// With any number of concurrent writes, an address or port belongs to one service, and none is lost
// when a request is rejected or conflicts with a newer object.
func TestServiceRaces(t *testing.T) {
	cfg := newConfig(t, t.TempDir())
	cfg.NodePorts = [2]int{30000, 30009} // one for each writer, one that is stored, one spare
	c := startWith(t, cfg).admin(t)
	services := c.CoreV1().Services("default")
	create := func(name string, spec corev1.ServiceSpec) error {
		spec.Ports = []corev1.ServicePort{{Port: 80}}
		_, err := services.Create(t.Context(), &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: spec},
			metav1.CreateOptions{})
		return err
	}
	if err := create("shared", corev1.ServiceSpec{}); err != nil {
		t.Fatal(err)
	}
	var won atomic.Int32
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			if create(fmt.Sprint("racer-", i), corev1.ServiceSpec{ClusterIP: "10.96.0.50"}) == nil {
				won.Add(1)
			}
			for j := range 10 {
				kind := []corev1.ServiceType{corev1.ServiceTypeNodePort, corev1.ServiceTypeExternalName,
					corev1.ServiceTypeClusterIP}[(i+j)%3]
				_, err := services.Patch(t.Context(), "shared", types.MergePatchType,
					fmt.Appendf(nil, `{"spec":{"type":%q,"externalName":"far.example"}}`, kind), metav1.PatchOptions{})
				if err != nil && !apierrors.IsConflict(err) {
					t.Errorf("to %s: %v", kind, err)
				}
			}
		})
	}
	wg.Wait()
	if won.Load() != 1 {
		t.Errorf("%d services got one address", won.Load())
	}
	if err := services.Delete(t.Context(), "shared", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	if n := records(t, c); n != 2 { // the kubernetes Service and the winner
		t.Errorf("%d addresses are taken", n)
	}
	for i := range 10 {
		if err := create(fmt.Sprint("port-", i), corev1.ServiceSpec{Type: corev1.ServiceTypeNodePort}); err != nil {
			t.Errorf("a port is lost: %v", err)
		}
	}
}
