package apiserver

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"
)

// TestRepeat: while updates of the kubernetes Service fail, signals do not multiply the repetitions.
func TestRepeat(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		changed, ended := make(chan struct{}, 1), make(chan struct{})
		calls, result := 0, errors.New("the store does not respond")
		go func() {
			defer close(ended)
			repeat(ctx, changed, nil, func() error { calls++; return result })
		}()
		for range 10 {
			signal(changed)
			time.Sleep(serviceDelay)
			synctest.Wait()
		}
		if calls != 10 {
			t.Errorf("%d updates for 10 signals", calls)
		}
		for second := 1; second <= 5; second++ {
			time.Sleep(serviceRetry + serviceDelay)
			synctest.Wait()
			if calls != 10+second {
				t.Fatalf("%d updates after %d waits without a signal", calls-10, second)
			}
		}
		result = nil
		time.Sleep(serviceRetry + serviceDelay)
		synctest.Wait()
		calls = 0
		time.Sleep(time.Minute)
		synctest.Wait()
		if calls != 0 {
			t.Errorf("%d updates after a success without a signal", calls)
		}
		cancel()
		<-ended
	})
}
