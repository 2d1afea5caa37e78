package flow

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"
)

// The pages of a list are estimated by one count.
func TestCountedOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		objects, counted := int64(10_000), 0
		d := New(Config{Count: func(_ context.Context, r schema.GroupResource) (int64, error) {
			counted++
			switch r.Resource {
			case "configmaps":
				return objects, nil
			case "empty":
				return 0, nil
			}
			return 0, errors.New("unknown")
		}})
		want := func(n int64, counts int) {
			t.Helper()
			counted = 0
			for range 20 {
				if s, err := d.stats("configmaps"); err != nil || s.ObjectCount != n {
					t.Fatalf("%d objects and %v, want %d", s.ObjectCount, err, n)
				}
			}
			if counted != counts {
				t.Errorf("counted %d times, want %d", counted, counts)
			}
		}
		want(10_000, 1)
		objects = 7
		want(10_000, 0)
		time.Sleep(countedFor)
		want(7, 1)
		for i := range 1000 { // resources invented by clients are not stored
			for _, name := range []string{"empty", fmt.Sprint("made-up-", i)} {
				if _, err := d.stats(name); err == nil {
					t.Fatalf("%s has objects", name)
				}
			}
		}
		if len(d.counts) != 1 {
			t.Errorf("%d counts are kept", len(d.counts))
		}
	})
}
