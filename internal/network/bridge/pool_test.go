package bridge

import (
	"context"
	"testing"
	"testing/synctest"
	"time"
)

// A pool leaves the processors and the kernel's lock to the pod that took a place, but not when it has few others.
func TestPoolPauses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		made := 0
		p := startPool(t.Context(), 8, func(context.Context) (*place, error) {
			made++
			return &place{}, nil
		}, func(*place) {})
		defer p.close()
		expect := func(what string, want int) {
			t.Helper()
			if synctest.Wait(); made != want {
				t.Errorf("%s: %d places were made, want %d", what, made, want)
			}
		}
		expect("a new pool", 2)
		p.take()
		time.Sleep(poolPause - 1)
		expect("just after one was taken", 2)
		time.Sleep(time.Nanosecond)
		expect("after the pause", 3)
		p.take()
		p.take()
		expect("less than half are left", 5)
		p.take()
		p.take()
		if p.take() != nil {
			t.Error("an empty pool has a place")
		}
		expect("one was missing: it doubles", 9)
	})
}
