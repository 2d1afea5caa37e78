package delayq

import (
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// TestQueueEqualsSortedMap compares the queue with a plain map and a linear search.
func TestQueueEqualsSortedMap(t *testing.T) {
	start := time.Unix(1000, 0)
	rapid.Check(t, func(t *rapid.T) {
		var q Queue[int]
		model := map[int]time.Time{}
		t.Repeat(map[string]func(*rapid.T){
			"set": func(t *rapid.T) {
				key, due := rapid.IntRange(0, 5).Draw(t, "key"),
					start.Add(time.Duration(rapid.IntRange(0, 9).Draw(t, "due"))*time.Second)
				if rapid.Bool().Draw(t, "earlier") {
					q.SetEarlier(key, due)
					if old, ok := model[key]; ok && !due.Before(old) {
						return
					}
				} else {
					q.Set(key, due)
				}
				model[key] = due
			},
			"remove": func(t *rapid.T) {
				key := rapid.IntRange(0, 5).Draw(t, "key")
				_, want := model[key]
				if got := q.Remove(key); got != want {
					t.Fatalf("Remove(%d) = %v", key, got)
				}
				delete(model, key)
			},
			"due": func(t *rapid.T) {
				now := start.Add(time.Duration(rapid.IntRange(0, 9).Draw(t, "now")) * time.Second)
				key, ok := q.Due(now)
				if !ok {
					for k, due := range model {
						if !due.After(now) {
							t.Fatalf("%d is due and not given", k)
						}
					}
					return
				}
				for k, due := range model {
					if due.Before(model[key]) {
						t.Fatalf("%d given before %d", key, k)
					}
				}
				if model[key].After(now) {
					t.Fatalf("%d given too early", key)
				}
				delete(model, key)
			},
			"": func(t *rapid.T) {
				if q.Len() != len(model) {
					t.Fatalf("%d keys, want %d", q.Len(), len(model))
				}
				next, ok := q.Next()
				if ok != (len(model) > 0) {
					t.Fatal("Next disagrees")
				}
				for k, due := range model {
					if due.Before(next) || !q.Has(k) {
						t.Fatal("Next is not the earliest, or a key is lost")
					}
				}
			},
		})
	})
}

func TestSameTimeKeepsOrder(t *testing.T) {
	var q Queue[string]
	now := time.Unix(1, 0)
	for _, k := range []string{"c", "a", "b"} {
		q.Set(k, now)
	}
	var got []string
	for k, ok := q.Due(now); ok; k, ok = q.Due(now) {
		got = append(got, k)
	}
	if !slices.Equal(got, []string{"c", "a", "b"}) {
		t.Error(got)
	}
}
