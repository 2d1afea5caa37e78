package reconciler

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// W0.11: however many keys the API refuses, they are tried ten times a second in all. Every key is tried again within
// 1000 s, one that is changed within a second, and all of them soon after the first one succeeds. Other errors end
// within a minute.
func TestManyRefusedKeys(t *testing.T) {
	quota := apierrors.NewForbidden(schema.GroupResource{Resource: "pods"}, "p", errors.New("exceeded quota"))
	for _, tc := range []struct {
		name        string
		err         error
		keys        int
		least, most int // attempts in 1000 s
	}{
		{"few", fmt.Errorf("create: %w", quota), 10, 10 * 15, 10 * 18},
		{"many", fmt.Errorf("create: %w", quota), 2000, 9000, 11000},
		{"invalid", apierrors.NewInvalid(schema.GroupKind{Kind: "Pod"}, "p", nil), 2000, 9000, 11000},
		{"very many", quota, 15000, 14000, 16000},
		{"the store is away", errors.New("no answer"), 2000, 2000 * 15, 2000 * 18},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var attempts, successes atomic.Int64
			var allow atomic.Bool
			run(t, 8, func(*calls) Func {
				return func(context.Context, string) (time.Duration, error) {
					attempts.Add(1)
					if allow.Load() {
						successes.Add(1)
						return 0, nil
					}
					return 0, tc.err
				}
			}, func(l *Reconciler, _ *calls) {
				for i := range tc.keys {
					l.Add(fmt.Sprintf("ns/%d", i))
				}
				time.Sleep(3000 * time.Second)
				before := attempts.Load()
				time.Sleep(1000 * time.Second)
				if got := int(attempts.Load() - before); got < tc.least || got > tc.most {
					t.Errorf("%d attempts in 1000 s", got)
				}
				if tc.keys == 10 {
					before = attempts.Load()
					l.Add("ns/7")
					time.Sleep(1100 * time.Millisecond)
					synctest.Wait()
					if got := attempts.Load() - before; got != 1 {
						t.Errorf("%d attempts after a change", got)
					}
				}
				allow.Store(true)
				time.Sleep(80 * time.Second)
				synctest.Wait()
				if got := successes.Load(); got != int64(tc.keys) {
					t.Errorf("%d of %d keys within 80 s after the first could succeed", got, tc.keys)
				}
				if len(l.refusals.keys) != 0 {
					t.Errorf("left over: %+v", l.refusals)
				}
			})
		})
	}
}

// After a success, two refused keys of the same namespace are tried: it says nothing about other namespaces, and while
// a quota stays full, each pod that ends costs no more than these attempts.
func TestRefusedKeysFollowASuccess(t *testing.T) {
	quota := apierrors.NewForbidden(schema.GroupResource{Resource: "pods"}, "p", errors.New("exceeded quota"))
	var allow atomic.Bool
	run(t, 8, func(c *calls) Func {
		return func(_ context.Context, key string) (time.Duration, error) {
			c.note(key)
			if allow.Load() && key == "a/1" {
				return 0, nil
			}
			return 0, quota
		}
	}, func(l *Reconciler, c *calls) {
		for i := range 5 {
			l.Add(fmt.Sprintf("a/%d", i))
			l.Add(fmt.Sprintf("b/%d", i))
		}
		time.Sleep(2000 * time.Second) // in the middle of their waits
		synctest.Wait()
		c.mu.Lock()
		c.list = nil
		c.mu.Unlock()
		allow.Store(true)
		l.Add("a/1")
		time.Sleep(2 * time.Second)
		synctest.Wait()
		c.mu.Lock()
		defer c.mu.Unlock()
		if len(c.list) != 3 || !strings.HasPrefix(c.list[0], "a/1@") || !strings.HasPrefix(c.list[1], "a/") ||
			!strings.HasPrefix(c.list[2], "a/") {
			t.Errorf("tried: %v", c.list)
		}
	})
}

// A refused key is tried every minute, although thousands are refused in another namespace.
func TestRefusedKeysOfOtherNamespaces(t *testing.T) {
	quota := apierrors.NewForbidden(schema.GroupResource{Resource: "pods"}, "p", errors.New("exceeded quota"))
	var attempts, others atomic.Int32
	run(t, 8, func(*calls) Func {
		return func(_ context.Context, key string) (time.Duration, error) {
			if key == "b/1" {
				attempts.Add(1)
			} else {
				others.Add(1)
			}
			return 0, quota
		}
	}, func(l *Reconciler, _ *calls) {
		for i := range 8000 {
			l.Add(fmt.Sprintf("a/%d", i))
		}
		l.Add("b/1")
		time.Sleep(3000 * time.Second)
		mine, all := attempts.Load(), others.Load()
		time.Sleep(1000 * time.Second)
		if mine, all = attempts.Load()-mine, others.Load()-all; mine < 15 || all > 11000 {
			t.Errorf("%d attempts of the only key of its namespace, %d of the others, in 1000 s", mine, all)
		}
	})
}
