package keylock

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
)

func TestLocks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var k Locks
		first, err := k.Acquire(t.Context(), "a")
		if err != nil {
			t.Fatal(err)
		}
		other, err := k.Acquire(t.Context(), "b") // does not wait for a
		if err != nil {
			t.Fatal(err)
		}
		other()
		gaveUp := errors.New("gave up")
		ctx, cancel := context.WithCancelCause(t.Context())
		failed := make(chan error)
		go func() { failed <- k.Lock(ctx, "a") }()
		next := make(chan struct{})
		go func() {
			defer close(next)
			if err := k.Lock(t.Context(), "a"); err != nil {
				t.Error(err)
			}
		}()
		synctest.Wait()
		cancel(gaveUp)
		if err := <-failed; !errors.Is(err, gaveUp) {
			t.Errorf("who gave up got %v", err)
		}
		select {
		case <-next:
			t.Error("two have the key")
		default:
		}
		first()
		<-next
		k.Unlock("a")
		if len(k.held) != 0 {
			t.Errorf("%d keys are kept that nobody holds", len(k.held))
		}
	})
}
