package reconciler

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"carob/internal/base/slowkeys"
)

// A key whose requests are not answered, such as that of a ReplicaSet whose pods a hanging webhook reviews, does not
// stop those of other namespaces; its own namespace waits. Each key runs once, however long it takes.
func TestSlowKeys(t *testing.T) {
	for _, tc := range []struct {
		name        string
		workers     int
		slow        string
		hang        time.Duration
		first, last string // when the key of the other namespace started, and the end of the last entry
	}{
		{"late", 2, "slow/%d", 30 * time.Second, "b/x@2s", "@1m0s"},
		{"fast enough", 2, "slow/%d", 900 * time.Millisecond, "b/x@4.5s", "b/x@4.5s"},
		{"never", 2, "slow/%d", 0, "b/x@2s", "b/x@2s"},
		{"many namespaces", 2, "slow-%d/a", 30 * time.Second, "b/x@5s", "b/x@5s"},
		{"without namespaces", 2, "slow-%d", 30 * time.Second, "b/x@5s", "b/x@5s"},
		{"one after the other", 1, "slow/%d", 30 * time.Second, "b/x@5m0s", "b/x@5m0s"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var ended atomic.Int32
			run(t, tc.workers, func(c *calls) Func {
				return func(ctx context.Context, key string) (time.Duration, error) {
					c.note(key)
					switch {
					case !strings.HasPrefix(key, "slow"):
					case tc.hang == 0:
						<-ctx.Done()
					default:
						time.Sleep(tc.hang)
					}
					ended.Add(1)
					return 0, nil
				}
			}, func(l *Reconciler, c *calls) {
				for i := range 10 {
					l.Add(fmt.Sprintf(tc.slow, i))
					synctest.Wait()
				}
				l.Add("b/x")
				l.Add(fmt.Sprintf(tc.slow, 9)) // again, while it waits
				time.Sleep(time.Hour)
				synctest.Wait()
				c.mu.Lock()
				defer c.mu.Unlock()
				if !slices.Contains(c.list, tc.first) || !strings.HasSuffix(c.list[len(c.list)-1], tc.last) {
					t.Errorf("started: %v", c.list)
				}
				if tc.hang == 0 {
					return
				}
				if len(c.list) != 11 || ended.Load() != 11 {
					t.Errorf("%d started, %d ended", len(c.list), ended.Load())
				}
				if !l.running.Empty() {
					t.Errorf("left over: %+v", l.running)
				}
			})
		})
	}
}

// However many keys of however many namespaces are slow, the number of those that run is bounded.
func TestSlowKeysAreBounded(t *testing.T) {
	run(t, 4, func(c *calls) Func {
		return func(ctx context.Context, key string) (time.Duration, error) {
			c.note(key)
			<-ctx.Done()
			return 0, nil
		}
	}, func(l *Reconciler, c *calls) {
		for i := range 10000 {
			l.Add(fmt.Sprintf("%d/%d", i%100, i))
		}
		time.Sleep(time.Hour)
		synctest.Wait()
		c.mu.Lock()
		defer c.mu.Unlock()
		if len(c.list) != slowkeys.InAll+4 {
			t.Errorf("%d keys run", len(c.list))
		}
	})
}
