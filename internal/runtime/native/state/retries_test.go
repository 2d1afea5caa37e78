package state

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"
)

// A failed operation is repeated until it succeeds, also twice and also after more were added;
// after Close none is.
func TestRetries(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		failed := errors.New("no descriptors")
		tried, other := 0, 0
		r := NewRetries()
		r.Add("removing", "a", failed, func(context.Context) error {
			if tried++; tried < 3 {
				return failed
			}
			return nil
		})
		if synctest.Wait(); tried != 0 || !r.Pending() {
			t.Errorf("tried %d times at once, pending %v", tried, r.Pending())
		}
		time.Sleep(firstRetry)
		r.Add("writing", "b", failed, func(context.Context) error { other++; return nil })
		time.Sleep(8 * firstRetry)
		if synctest.Wait(); tried != 3 || other != 1 || r.Pending() {
			t.Errorf("tried %d and %d times, pending %v", tried, other, r.Pending())
		}
		r.Add("removing", "c", failed, func(context.Context) error { return failed })
		r.Close()
		r.Add("removing", "d", failed, func(context.Context) error { t.Error("tried after the end"); return nil })
		time.Sleep(time.Hour)
	})
}
