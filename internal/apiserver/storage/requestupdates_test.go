package storage

import (
	"context"
	"fmt"
	"testing"

	schedulingv1 "k8s.io/api/scheduling/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/storage"
)

// A request that updates an object and deletes it costs two transactions, however far the watch cache is.
func TestDeletionAfterUpdate(t *testing.T) {
	c := openReady(t, Eager)
	const n = 50
	for i := range n {
		c.create(t, "n", fmt.Sprint("c", i))
	}
	remove := func(ctx context.Context, key string, update, validate func(o *schedulingv1.PriorityClass) error) error {
		out := &schedulingv1.PriorityClass{}
		if err := c.GuaranteedUpdate(ctx, key, out, false, nil,
			storage.SimpleUpdate(func(obj runtime.Object) (runtime.Object, error) {
				obj.(*schedulingv1.PriorityClass).Value = 9
				return obj, update(obj.(*schedulingv1.PriorityClass))
			}), nil); err != nil {
			return err
		}
		uid := out.UID
		if err := c.Delete(ctx, key, out, &storage.Preconditions{UID: &uid},
			func(_ context.Context, o runtime.Object) error { return validate(o.(*schedulingv1.PriorityClass)) }, nil,
			storage.DeleteOptions{}); err != nil {
			return err
		}
		if out.Value != 9 || out.ResourceVersion == "" {
			t.Errorf("the deletion returned %+v", out)
		}
		return nil
	}
	nothing := func(*schedulingv1.PriorityClass) error { return nil }
	before := c.engine.server.AppliedIndex()
	all := WithUpdates(t.Context())
	for i := range n {
		ctx := WithUpdates(t.Context())
		if i%2 == 0 {
			ctx = all // a request that deletes several
		}
		if err := remove(ctx, fmt.Sprint(classesRoot, "/n/c", i), nothing, nothing); err != nil {
			t.Fatal(err)
		}
	}
	if made := c.engine.server.AppliedIndex() - before; made > 2*n+2 { // the log has a few entries of its own
		t.Errorf("%d transactions for %d deletions", made, n)
	}

	// If another request writes between the two, the deletion decides by the newer object.
	key := classesRoot + "/n/raced"
	c.create(t, "n", "raced")
	ctx := WithUpdates(t.Context())
	if err := c.GuaranteedUpdate(ctx, key, &schedulingv1.PriorityClass{}, false, nil,
		storage.SimpleUpdate(func(obj runtime.Object) (runtime.Object, error) {
			obj.(*schedulingv1.PriorityClass).Value = 1
			return obj, nil
		}), nil); err != nil {
		t.Fatal(err)
	}
	c.update(t, "n", "raced", 2)
	var requests []int32
	if err := c.Delete(ctx, key, &schedulingv1.PriorityClass{}, nil, func(_ context.Context, o runtime.Object) error {
		requests = append(requests, o.(*schedulingv1.PriorityClass).Value)
		return nil
	}, nil, storage.DeleteOptions{}); err != nil || len(requests) != 2 || requests[1] != 2 {
		t.Errorf("requested for values %d, %v", requests, err)
	}
}
