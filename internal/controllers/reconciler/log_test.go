package reconciler

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr/funcr"
	"k8s.io/klog/v2"
)

// A key that fails for a day is in the log a few times, not once a minute: a thousand Jobs that a quota rejects wrote
// 360 MB per day.
func TestFailuresAreLoggedRarely(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var lines atomic.Int64
		ctx, cancel := context.WithCancel(klog.NewContext(t.Context(),
			funcr.New(func(_, _ string) { lines.Add(1) }, funcr.Options{})))
		attempts := 0
		l := New("test", 1, func(context.Context, string) (time.Duration, error) {
			attempts++
			return 0, errors.New("exceeded quota")
		})
		done := make(chan struct{})
		go func() { l.Run(ctx); close(done) }()
		l.Add("a")
		time.Sleep(24 * time.Hour)
		cancel()
		<-done
		if n := lines.Load(); attempts < 1400 || n < 8 || n > 12 {
			t.Errorf("%d attempts wrote %d lines", attempts, n)
		}
	})
}
