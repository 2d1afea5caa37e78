package reconciler

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/component-base/metrics/legacyregistry"
	"k8s.io/klog/v2"

	"carob/internal/controllers/metrics"
)

// calls records when keys were reconciled, in virtual time since the start.
type calls struct {
	mu    sync.Mutex
	began time.Time
	list  []string
}

func (c *calls) note(key string) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.list = append(c.list, fmt.Sprint(key, "@", time.Since(c.began)))
	return len(c.list)
}

func run(t *testing.T, workers int, f func(c *calls) Func, test func(l *Reconciler, c *calls)) {
	synctest.Test(t, func(t *testing.T) {
		c := &calls{began: time.Now()}
		l := New("test", workers, f(c))
		ctx, cancel := context.WithCancel(klog.NewContext(t.Context(), klog.New(nil))) // without a log
		done := make(chan struct{})
		go func() { l.Run(ctx); close(done) }()
		test(l, c)
		cancel()
		<-done
	})
}

func want(t *testing.T, c *calls, list ...string) {
	t.Helper()
	synctest.Wait()
	c.mu.Lock()
	defer c.mu.Unlock()
	if !slices.Equal(c.list, list) {
		t.Errorf("reconciled %v, want %v", c.list, list)
	}
}

// W0.10: a key that is added while it is reconciled is reconciled once more afterwards, never twice at a time.
func TestAddsWhileBusyAreMerged(t *testing.T) {
	run(t, 4, func(c *calls) Func {
		return func(_ context.Context, key string) (time.Duration, error) {
			c.note(key)
			time.Sleep(time.Second)
			return 0, nil
		}
	}, func(l *Reconciler, c *calls) {
		l.Add("a")
		synctest.Wait()
		l.Add("a")
		l.Add("a")
		l.Add("b")
		time.Sleep(5 * time.Second)
		want(t, c, "a@0s", "b@0s", "a@1s")
	})
}

func TestBackOffEndsWithSuccess(t *testing.T) {
	run(t, 1, func(c *calls) Func {
		return func(_ context.Context, key string) (time.Duration, error) {
			if n := c.note(key); n < 4 {
				return 0, errors.New("not yet")
			}
			return 0, nil
		}
	}, func(l *Reconciler, c *calls) {
		l.Add("a")
		time.Sleep(time.Hour)
		want(t, c, "a@0s", "a@20ms", "a@60ms", "a@140ms")
	})
}

func TestRequestedReconciliation(t *testing.T) {
	run(t, 1, func(c *calls) Func {
		return func(_ context.Context, key string) (time.Duration, error) {
			if c.note(key) < 3 {
				return time.Minute, nil
			}
			return 0, nil
		}
	}, func(l *Reconciler, c *calls) {
		l.AddAfter("a", time.Second)
		l.AddAfter("a", time.Hour)
		time.Sleep(2 * time.Hour)
		want(t, c, "a@1s", "a@1m1s", "a@2m1s")
	})
}

func TestWorkersAreBounded(t *testing.T) {
	run(t, 2, func(c *calls) Func {
		return func(_ context.Context, key string) (time.Duration, error) {
			c.note(key)
			time.Sleep(time.Second)
			return 0, nil
		}
	}, func(l *Reconciler, c *calls) {
		for _, key := range []string{"a", "b", "c"} {
			l.Add(key)
			synctest.Wait()
		}
		time.Sleep(3 * time.Second)
		want(t, c, "a@0s", "b@0s", "c@1s")
	})
}

// Waiting, running, failed and stuck keys are measured, the last also without events.
func TestMeasured(t *testing.T) {
	metrics.Register()
	queue := rand.Text() // the figures of a name add up for as long as the process runs
	synctest.Test(t, func(t *testing.T) {
		fail, began := true, time.Now()
		l := New(queue, 1, func(_ context.Context, key string) (time.Duration, error) {
			time.Sleep(10 * time.Second)
			if fail {
				fail = false
				return 0, errors.New("not yet")
			}
			return 0, nil
		})
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { l.Run(ctx); close(done) }()
		l.Add("a")
		synctest.Wait()
		l.Add("b")
		l.Add("b")
		expect := func(depth, adds, retries, unfinished, waits, works float64) {
			t.Helper()
			synctest.Wait()
			l.measure()
			for name, want := range map[string]float64{"depth": depth, "adds_total": adds, "retries_total": retries,
				"unfinished_work_seconds": unfinished, "longest_running_processor_seconds": unfinished,
				"queue_duration_seconds": waits, "work_duration_seconds": works} {
				if got := measured(t, queue, "workqueue_"+name); got != want {
					t.Errorf("after %v: %s is %v, want %v", time.Since(began), name, got, want)
				}
			}
		}
		time.Sleep(4 * time.Second)
		expect(1, 2, 0, 4, 1, 0) // a works, b waits
		time.Sleep(7 * time.Second)
		expect(1, 3, 1, 1, 2, 1) // a has failed and waits again, b works
		time.Sleep(time.Minute)
		expect(0, 3, 1, 0, 3, 3)
		cancel()
		<-done
	})
}

// measured returns a figure of a queue; of a histogram the number of observations.
func measured(t *testing.T, queue, family string) float64 {
	t.Helper()
	all, err := legacyregistry.DefaultGatherer.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range all {
		for _, m := range f.Metric {
			if f.GetName() == family && len(m.Label) == 1 && m.Label[0].GetValue() == queue {
				return m.GetCounter().GetValue() + m.GetGauge().GetValue() + float64(m.GetHistogram().GetSampleCount())
			}
		}
	}
	t.Errorf("no %s", family)
	return 0
}

// A change of a key that has failed often is reconciled within a second, not after the minute of its back-off, also
// when it comes during an attempt; changes that come all the time lead to no more than one attempt per second.
func TestChangesEndTheBackOff(t *testing.T) {
	run(t, 1, func(c *calls) Func {
		return func(_ context.Context, key string) (time.Duration, error) {
			c.note(key)
			time.Sleep(10 * time.Millisecond)
			return 0, errors.New("not yet")
		}
	}, func(l *Reconciler, c *calls) {
		attempts := func() int {
			synctest.Wait()
			c.mu.Lock()
			defer c.mu.Unlock()
			return len(c.list)
		}
		l.Add("a")
		time.Sleep(time.Hour + 30*time.Second) // in the middle of a wait
		before := attempts()
		l.Add("a")
		time.Sleep(5 * time.Millisecond)
		l.Add("a") // during the attempt
		if got := attempts(); got != before+1 {
			t.Errorf("%d attempts at the change", got-before)
		}
		time.Sleep(1100 * time.Millisecond)
		if got := attempts(); got != before+2 {
			t.Errorf("%d attempts after the second change", got-before)
		}
		for range 1000 {
			time.Sleep(100 * time.Millisecond)
			l.Add("a")
		}
		if got := attempts() - before; got < 90 || got > 105 {
			t.Errorf("%d attempts in 100 seconds", got)
		}
	})
}
