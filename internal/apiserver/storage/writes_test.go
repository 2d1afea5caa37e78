package storage

import (
	"context"
	"errors"
	"fmt"
	"testing"

	schedulingv1 "k8s.io/api/scheduling/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/storage"
)

func (c classes) writes(t *testing.T) uint64 {
	t.Helper()
	n, ok := c.engine.Writes(schedulingv1.Resource("priorityclasses"))
	if !ok {
		t.Fatal("the writes are not known")
	}
	return n
}

// Every write is counted when its caller gets the result, whether the kind has a cache or not;
// reads are not counted.
func TestWritesAreCounted(t *testing.T) {
	for name, caching := range map[string]Caching{"eager": Eager, "lazy": Lazy, "uncached": Uncached} {
		t.Run(name, func(t *testing.T) {
			c := openClasses(t, caching)
			last := c.writes(t)
			for _, step := range []struct {
				name  string
				write bool
				do    func()
			}{
				{"create", true, func() { c.create(t, "n", "a") }},
				{"get", false, func() {
					if err := c.Get(t.Context(), classesRoot+"/n/a", storage.GetOptions{},
						&schedulingv1.PriorityClass{}); err != nil {
						t.Fatal(err)
					}
				}},
				{"update", true, func() { c.update(t, "n", "a", 5) }},
				{"delete", true, func() {
					if err := c.Delete(t.Context(), classesRoot+"/n/a", &schedulingv1.PriorityClass{}, nil,
						storage.ValidateAllObjectFunc, nil, storage.DeleteOptions{}); err != nil {
						t.Fatal(err)
					}
				}},
			} {
				step.do()
				if n := c.writes(t); (n != last) != step.write {
					t.Errorf("%s: %d writes after %d", step.name, n, last)
				} else {
					last = n
				}
			}
		})
	}
}

// fails is a store whose writes end with an error.
type fails struct {
	storage.Interface
	err error
}

func (f *fails) Create(context.Context, string, runtime.Object, runtime.Object, uint64) error {
	return f.err
}

func (f *fails) GuaranteedUpdate(context.Context, string, runtime.Object, bool, *storage.Preconditions,
	storage.UpdateFunc, runtime.Object) error {
	return f.err
}

// After a write with an unknown result, nothing is known until one that started later has
// succeeded.
func TestWritesGivenUp(t *testing.T) {
	type step struct {
		create bool
		err    error
		known  bool
	}
	refused := apierrors.NewForbidden(schedulingv1.Resource("priorityclasses"), "a", nil)
	for _, steps := range [][]step{
		{{true, nil, true}, {true, storage.NewKeyExistsError("k", 0), true}, {false, refused, true},
			{false, fmt.Errorf("check: %w", refused), true}},
		{{true, context.Canceled, false}, {false, nil, false}, {true, storage.NewKeyExistsError("k", 0), false},
			{true, nil, true}},
		{{false, errors.New("etcdserver: request timed out"), false}, {true, context.DeadlineExceeded, false},
			{true, nil, true}, {true, context.Canceled, false}},
	} {
		f := &fails{}
		c := counted{f, &tally{}}
		for i, s := range steps {
			f.err = s.err
			before, _ := c.tally.known()
			if s.create {
				_ = c.Create(t.Context(), "k", nil, nil, 0)
			} else {
				_ = c.GuaranteedUpdate(t.Context(), "k", nil, false, nil, nil, nil)
			}
			if after, known := c.tally.known(); known != s.known || after == before {
				t.Errorf("step %d of %v: known %v, %d after %d", i, steps, known, after, before)
			}
		}
	}
	// One that started before the abandoned one proves nothing.
	var l tally
	began := l.lost.Load()
	l.end(context.Canceled, l.lost.Load(), true)
	l.end(nil, began, true)
	if _, known := l.known(); known {
		t.Error("a write that began earlier settles the fate of a lost one")
	}
}
