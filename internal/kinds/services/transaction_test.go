package services

import (
	"context"
	"errors"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// A repeated request keeps the allocations of its last attempt, and none if it is rejected. If it
// is unknown whether it was written, it keeps everything.
func TestTransaction(t *testing.T) {
	conflict := apierrors.NewConflict(corev1.Resource("services"), "a", errors.New("changed"))
	for name, c := range map[string]struct {
		answer error
		ports  int
		ips    int
	}{
		"written":           {nil, 1, 1},
		"refused":           {conflict, 0, 0},
		"nobody knows":      {context.DeadlineExceeded, 1, 1},
		"the store is slow": {apierrors.NewTimeoutError("slow", 1), 1, 1},
	} {
		m := newFakeStore("10.96.0.0/24")
		a := allocator(t, m)
		tx := &transaction{}
		ctx := context.WithValue(t.Context(), transactionKey{}, tx)
		for range 2 {
			s := service(func(*corev1.Service) {})
			finish, err := a.begin(ctx, s, nil, false)
			if err != nil {
				t.Fatal(err)
			}
			finish(ctx, true) // the store reports this before it writes
		}
		tx.end(ctx, c.answer)
		if len(m.held) != c.ips || len(a.ports.used) != c.ports {
			t.Errorf("%s: keeps %v %v", name, m.held, a.ports.used)
		}
	}
}

// The allocations of the old service are released only when the new one is stored.
func TestTransactionKeepsOld(t *testing.T) {
	for name, answer := range map[string]error{"written": nil,
		"refused": apierrors.NewConflict(corev1.Resource("services"), "a", errors.New("changed"))} {
		m := newFakeStore("10.96.0.0/24")
		a := allocator(t, m)
		old := service(func(*corev1.Service) {})
		finish, err := a.begin(t.Context(), old, nil, false)
		if err != nil {
			t.Fatal(err)
		}
		finish(t.Context(), true)
		s := old.DeepCopy()
		s.Spec.Type, s.Spec.ExternalName = corev1.ServiceTypeExternalName, "far.example"
		tx := &transaction{}
		ctx := context.WithValue(t.Context(), transactionKey{}, tx)
		if finish, err = a.begin(ctx, s, old, false); err != nil {
			t.Fatal(err)
		}
		finish(ctx, true)
		if len(m.held) != 1 || len(a.ports.used) != 1 {
			t.Errorf("%s: given back before the answer: %v %v", name, m.held, a.ports.used)
		}
		tx.end(ctx, answer)
		if kept := len(m.held) == 1 && len(a.ports.used) == 1; kept != (answer != nil) {
			t.Errorf("%s: keeps %v %v", name, m.held, a.ports.used)
		}
	}
}
