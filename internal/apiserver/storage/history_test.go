package storage

import (
	"fmt"
	"slices"
	"strconv"
	"testing"
	"time"

	schedulingv1 "k8s.io/api/scheduling/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"

	"carob/internal/base/gctuning"
	"carob/internal/base/testwait"
)

// recorded are the versions of the changes that the cache has, oldest first.
func (c classes) recorded(t *testing.T) []uint64 {
	t.Helper()
	h := c.Interface.(zeroCopyStore).Interface.(queuedCache).cut.history
	if h.mu == nil {
		t.Fatal("the cache is not built as it was: see history.go")
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	var versions []uint64
	for i := *h.start; i < *h.end; i++ {
		versions = append(versions, h.ring.Index(i%*h.capacity).Elem().FieldByName("ResourceVersion").Uint())
	}
	return versions
}

// isNewest reports whether some is a part of all, up to its end.
func isNewest(some, all []uint64) bool {
	return len(some) <= len(all) && slices.Equal(some, all[len(all)-len(some):])
}

// When the process becomes idle, the cache drops changes that the engine also has. No client is affected: neither a
// running watch, nor one that begins before the cut, nor a list of that time.
func TestHistoryIsCutUnseen(t *testing.T) {
	for name, own := range map[string]bool{"client": false, "part of this process": true} {
		t.Run(name, func(t *testing.T) {
			c, ctx := openClasses(t, Eager), t.Context()
			if own {
				ctx = asPart(ctx)
			}
			if _, err := c.options.Wait(ctx, time.Minute); err != nil {
				t.Fatal(err)
			}
			first := c.create(t, "", "a")
			running := c.watch(t, ctx, classesRoot, all(first.ResourceVersion))
			const changes = 5 * ringSize
			want := make([]string, 0, changes)
			versions := []uint64{versionOf(watch.Event{Object: first})}
			for i := range changes {
				c.update(t, "", "a", int32(i+1))
				want = append(want, fmt.Sprintf("MODIFIED a=%d", i+1))
				e := <-running.ResultChan() // one after the other: on a busy machine a watch that lags may be ended
				if got := short(e); got != want[i] {
					t.Fatalf("change %d: %s, want %s", i, got, want[i])
				}
				versions = append(versions, versionOf(e))
			}
			middle := versions[changes/2]
			testwait.For(t, "the cache has the last change", func() bool {
				have := c.recorded(t)
				return len(have) > 0 && have[len(have)-1] == versions[changes]
			})
			before := c.recorded(t)
			if err := gctuning.Settle(); err != nil {
				t.Fatal(err)
			}
			after := c.recorded(t)
			if len(after) == 0 || len(after) >= len(before) || !isNewest(after, versions) {
				t.Errorf("of the changes %v, %v are remembered, want the newest ones", before, after)
			}
			shared := c.Interface.(zeroCopyStore).Interface.(queuedCache).shared
			shared.mu.Lock()
			joined := len(shared.subscribers)
			var recent []uint64
			for _, r := range shared.recent {
				recent = append(recent, r.version)
			}
			shared.mu.Unlock()
			if own == (joined > 0) || len(recent) > len(after) || !isNewest(recent, versions) {
				t.Errorf("%d clients share a watch that remembers the changes %v, want the newest ones, as the cache: %v",
					joined, recent, after)
			}
			late := c.watch(t, ctx, classesRoot, all(first.ResourceVersion))
			for i, w := range want {
				if got := short(<-late.ResultChan()); got != w {
					t.Fatalf("change %d after the cut: %s, want %s", i, got, w)
				}
			}
			// Both receive what happens after the cut.
			c.update(t, "", "a", -1)
			for _, w := range []watch.Interface{running, late} {
				if got, want := short(<-w.ResultChan()), "MODIFIED a=-1"; got != want {
					t.Errorf("%s, want %s", got, want)
				}
			}
			// A list of that time.
			opts := all(strconv.FormatUint(middle, 10))
			opts.ResourceVersionMatch = metav1.ResourceVersionMatchExact
			var list schedulingv1.PriorityClassList
			if err := c.GetList(ctx, classesRoot, opts, &list); err != nil || len(list.Items) != 1 ||
				list.Items[0].Value != changes/2 {
				t.Errorf("%v %v", list.Items, err)
			}
			// A second cut has nothing to do, and one after more changes cuts again.
			for i := range 2 * ringSize {
				c.update(t, "", "a", int32(1000+i))
			}
			last := c.watch(t, ctx, classesRoot, all(first.ResourceVersion))
			for range 2 {
				if err := gctuning.Settle(); err != nil {
					t.Fatal(err)
				}
			}
			for range changes + 1 + 2*ringSize - 1 {
				<-last.ResultChan()
			}
			if got, want := short(<-last.ResultChan()), fmt.Sprintf("MODIFIED a=%d", 1000+2*ringSize-1); got != want {
				t.Errorf("%s, want %s", got, want)
			}
		})
	}
}
