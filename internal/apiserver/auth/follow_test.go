package auth

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/internalversion"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
)

// closing is a source whose watches end after a time, without an error.
type closing struct {
	Source
	after time.Duration
	stop  func()
	lists int
}

func (c *closing) List(context.Context, *internalversion.ListOptions) (runtime.Object, error) {
	if c.lists++; c.lists > 100 {
		c.stop() // time does not pass
	}
	return &corev1.PodList{}, nil
}

func (c *closing) Watch(context.Context, *internalversion.ListOptions) (watch.Interface, error) {
	w := watch.NewFake()
	if c.after == 0 {
		w.Stop()
	} else {
		time.AfterFunc(c.after, w.Stop)
	}
	return w, nil
}

// A watch that ends at once, again and again, costs one list per second; one that lasted is repeated at once.
func TestFollowPauses(t *testing.T) {
	for after, want := range map[time.Duration]int{0: 10, 5 * time.Second: 2} {
		synctest.Test(t, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second-time.Millisecond)
			defer cancel()
			src := &closing{after: after, stop: cancel}
			follow(ctx, src, func(map[string]runtime.Object) {}, func(string, runtime.Object) {})
			time.Sleep(after) // the last watch
			if src.lists != want {
				t.Errorf("watches of %v: %d lists, want %d", after, src.lists, want)
			}
		})
	}
}
