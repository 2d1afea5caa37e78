package csi

import (
	"context"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"carob/test/csidriver"
)

// A driver refuses an expansion on the node again and again, and the user requests less: then the node gives the
// expansion up, so that the resizer can begin anew (S5.18).
func TestExpandRefused(t *testing.T) {
	for _, code := range []codes.Code{codes.Internal, codes.PermissionDenied, codes.FailedPrecondition} {
		t.Run(code.String(), func(t *testing.T) { testExpandRefused(t, code) })
	}
	for _, code := range []codes.Code{codes.DeadlineExceeded, codes.Aborted} {
		if final(status.Error(code, "")) || final(&transient{status.Error(codes.Internal, "")}) {
			t.Error(code, "is no final answer")
		}
	}
}

func testExpandRefused(t *testing.T, code codes.Code) {
	w := newWorld(t, csidriver.Config{}, unattached(nil))
	r := w.request("u1", "pv", false)
	claims := w.client.CoreV1().PersistentVolumeClaims("ns")
	if err := w.client.Tracker().Add(r.PV); err != nil {
		t.Fatal(err)
	}
	if _, err := claims.Create(t.Context(), r.Claim, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := w.SetUp(t.Context(), r); err != nil {
		t.Fatal(err)
	}
	claim := func(change func(c *corev1.PersistentVolumeClaim)) *corev1.PersistentVolumeClaim {
		c, err := claims.Get(t.Context(), r.Claim.Name, metav1.GetOptions{})
		if err == nil && change != nil {
			change(c)
			c, err = claims.Update(t.Context(), c, metav1.UpdateOptions{})
		}
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	request := func(c *corev1.PersistentVolumeClaim, size string) {
		c.Spec.Resources.Requests = corev1.ResourceList{corev1.ResourceStorage: resource.MustParse(size)}
	}
	claim(func(c *corev1.PersistentVolumeClaim) {
		request(c, "3Gi")
		c.Status.AllocatedResources = c.Spec.Resources.Requests
		c.Status.AllocatedResourceStatuses = map[corev1.ResourceName]corev1.ClaimResourceStatus{
			corev1.ResourceStorage: corev1.PersistentVolumeClaimNodeResizePending}
	})
	w.driver.Fault(func(_ context.Context, m string, _ any) error {
		if m == "NodeExpandVolume" {
			return status.Error(code, "not today")
		}
		return nil
	})
	look := func() corev1.ClaimResourceStatus {
		w.Manager.mu.Lock()
		tg := w.targets[targetKey{"u1", "pv"}]
		tg.size.refused = false // as after a restart of the pod
		u := tg.use
		w.Manager.mu.Unlock()
		_ = w.lookOnce(t.Context(), u, tg)
		return claim(nil).Status.AllocatedResourceStatuses[corev1.ResourceStorage]
	}
	// The same size is tried again, and a condition has the reason.
	for range 2 {
		if got := look(); got != corev1.PersistentVolumeClaimNodeResizeInProgress {
			t.Fatal(got)
		}
	}
	const refused = corev1.PersistentVolumeClaimNodeResizeError
	if got := claim(nil).Status.Conditions; len(got) != 1 || got[0].Type != refused ||
		!strings.Contains(got[0].Message, "not today") {
		t.Fatalf("%+v", got)
	}
	claim(func(c *corev1.PersistentVolumeClaim) { request(c, "2Gi") })
	for range 2 { // and then no more
		if got := look(); got != corev1.PersistentVolumeClaimNodeResizeInfeasible {
			t.Fatal(got)
		}
	}
	if got := len(w.driver.Calls("NodeExpandVolume")); got != 3 {
		t.Fatal(got, "calls of the driver")
	}
}
