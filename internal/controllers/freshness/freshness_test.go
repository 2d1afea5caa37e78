package freshness

import (
	"slices"
	"strconv"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
	"pgregory.net/rapid"

	"carob/internal/controllers/source"
)

func pod(name string, version int) *corev1.Pod {
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "n", Name: name, UID: types.UID("uid-" + name),
		ResourceVersion: strconv.Itoa(version)}}
}

func ending(p *corev1.Pod) *corev1.Pod {
	p.DeletionTimestamp = &metav1.Time{}
	return p
}

type world struct {
	*Tracker
	pods, sets *source.Watch
	woken      []string
}

type fataler interface {
	Helper()
	Fatal(args ...any)
}

func newWorld(t fataler, pods ...any) *world {
	t.Helper()
	api := fake.NewClientset()
	w := &world{pods: source.Pods(api), sets: source.ReplicaSets(api)}
	var err error
	if w.Tracker, err = New(func(key string) { w.woken = append(w.woken, key) }, w.pods, w.sets); err != nil {
		t.Fatal(err)
	}
	for _, err := range []error{w.pods.Replace(pods, "10"), w.sets.Replace(nil, "10")} {
		if err != nil {
			t.Fatal(err)
		}
	}
	return w
}

func (w *world) expect(t *testing.T, what string, fresh bool, woken ...string) {
	t.Helper()
	if w.Fresh("k") != fresh {
		t.Errorf("%s: fresh is %v", what, !fresh)
	}
	if !slices.Equal(w.woken, woken) {
		t.Errorf("%s: woken %q, want %q", what, w.woken, woken)
	}
	w.woken = nil
}

// W0.8, W0.17: a key waits until the watches show what its last pass has written.
func TestWritesAreSeenFirst(t *testing.T) {
	w := newWorld(t)
	w.expect(t, "nothing written", true)
	w.Wrote("k", w.pods, pod("a", 12))
	w.Wrote("k", w.pods, pod("b", 11)) // responses come in any order
	w.expect(t, "written", false)
	if !w.Fresh("other") {
		t.Error("another key waits, too")
	}
	_ = w.pods.Add(pod("b", 11))
	w.expect(t, "half seen", false)
	_ = w.pods.Add(pod("a", 12))
	w.expect(t, "seen", true, "k")
	_ = w.pods.Add(pod("a", 12))
	w.expect(t, "seen twice", true)
}

func TestWritesOfSeveralKinds(t *testing.T) {
	w := newWorld(t)
	w.Wrote("k", w.pods, pod("a", 12))
	w.Wrote("k", w.sets, pod("s", 13)) // any object does
	_ = w.sets.Bookmark("13")
	w.expect(t, "one kind seen", false)
	_ = w.pods.Add(pod("a", 12))
	w.expect(t, "both seen", true, "k")
}

// The event arrives before the response to the write.
func TestEventBeforeResponse(t *testing.T) {
	w := newWorld(t)
	_ = w.pods.Add(pod("a", 12))
	w.Wrote("k", w.pods, pod("a", 12))
	w.expect(t, "early event", true)
}

// A pod that is created and deleted between two lists has no event: the list ends the wait, and
// queues the key, because the pod is missing.
func TestEventsLost(t *testing.T) {
	w := newWorld(t)
	w.Wrote("k", w.pods, pod("a", 12))
	_ = w.pods.Replace(nil, "15")
	w.expect(t, "list without the pod", true, "k")
	w.Wrote("k", w.pods, pod("b", 14))
	w.expect(t, "the answer came after that list", true, "k")
	w.Wrote("k", w.pods, pod("c", 16))
	_ = w.pods.Bookmark("16")
	w.expect(t, "bookmark", true, "k")
}

func TestDeletionsAreSeenFirst(t *testing.T) {
	for what, event := range map[string]func(w *world) error{
		"marked":       func(w *world) error { return w.pods.Update(ending(pod("a", 12))) },
		"gone":         func(w *world) error { return w.pods.Delete(pod("a", 13)) },
		"list":         func(w *world) error { return w.pods.Replace(nil, "20") },
		"list, marked": func(w *world) error { return w.pods.Replace([]any{ending(pod("a", 12))}, "20") },
		"list, namesake": func(w *world) error {
			p := pod("a", 14)
			p.UID = "another"
			return w.pods.Replace([]any{p}, "20")
		},
		"namesake": func(w *world) error { p := pod("a", 14); p.UID = "another"; return w.pods.Add(p) },
	} {
		t.Run(what, func(t *testing.T) {
			w := newWorld(t, pod("a", 5))
			w.Deleted("k", w.pods, pod("a", 5))
			w.expect(t, "deleted", false)
			_ = w.pods.Update(pod("a", 11)) // another client's write before the deletion
			w.expect(t, "another change", false)
			if err := event(w); err != nil {
				t.Fatal(err)
			}
			w.expect(t, what, true, "k")
			if err := event(w); err != nil {
				t.Fatal(err)
			}
			w.expect(t, what+" twice", true)
			// The event arrives before the response.
			w.Deleted("k", w.pods, pod("a", 5))
			w.expect(t, "answer after the event", true)
		})
	}
}

// An owner that is created again under its name is planned when the writes of the earlier one have
// been observed; no state of them is left.
func TestRecreatedOwner(t *testing.T) {
	w := newWorld(t, pod("a", 5))
	w.Wrote("k", w.pods, pod("b", 12))
	w.Deleted("k", w.pods, pod("a", 5))
	// The owner is deleted and created again; the garbage collector deletes both pods.
	_ = w.pods.Delete(pod("a", 15))
	w.expect(t, "the newer one is gone from the watch", true, "k")
	_ = w.pods.Delete(pod("b", 16))
	w.expect(t, "all gone", true)
	for _, u := range w.kinds {
		if len(u.versions)+len(u.deleted)+len(u.deletions) != 0 || u.least != 0 {
			t.Errorf("something is left: %+v", u)
		}
	}
}

// With random writes, deletions, events, duplicates, losses and lists: a key is fresh exactly when
// its writes have been observed, and it is queued when this becomes true.
func TestRandomHistories(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := newWorld(t)
		server := map[string]*corev1.Pod{} // what is stored
		version := 10                      // of the server
		var events []*corev1.Pod           // not delivered yet; a deletion has no UID
		delivered := func(p *corev1.Pod) {
			if p.UID == "" {
				p = p.DeepCopy()
				p.UID = types.UID("uid-" + p.Name)
				_ = w.pods.Delete(p)
			} else {
				_ = w.pods.Add(p)
			}
		}
		needs := 0 // the version of the newest write
		deleting := map[types.UID]*corev1.Pod{}
		stale := false
		for i := range rapid.IntRange(1, 60).Draw(t, "steps") {
			switch rapid.IntRange(0, 5).Draw(t, "step") {
			case 0, 1: // create
				version++
				p := pod("p"+strconv.Itoa(i), version)
				server[p.Name] = p
				events = append(events, p)
				for rapid.Bool().Draw(t, "delivered before the answer") && len(events) > 0 {
					delivered(events[0])
					events = events[1:]
				}
				w.Wrote("k", w.pods, p)
				needs = version
			case 2: // delete one that the watch shows
				for _, obj := range w.pods.Objects().List() {
					p := obj.(*corev1.Pod)
					if stored := server[p.Name]; stored != nil {
						version++
						delete(server, p.Name)
						gone := pod(p.Name, version)
						gone.UID = ""
						events = append(events, gone)
					}
					w.Deleted("k", w.pods, p)
					deleting[p.UID] = p
					break
				}
			case 3, 4: // deliver an event
				if len(events) > 0 {
					delivered(events[0])
					if rapid.Bool().Draw(t, "twice") {
						delivered(events[0])
					}
					events = events[1:]
				}
			case 5: // all events are lost, a list comes
				events = nil
				var list []any
				for _, p := range server {
					list = append(list, p)
				}
				_ = w.pods.Replace(list, strconv.Itoa(version))
			}
			want := w.pods.Version() >= uint64(needs)
			for _, p := range deleting {
				if _, there, _ := w.pods.Objects().GetByKey("n/" + p.Name); there {
					want = false
				}
			}
			if got := w.Fresh("k"); got != want {
				t.Fatalf("step %d: fresh is %v", i, got)
			}
			if stale && want && len(w.woken) == 0 {
				t.Fatalf("step %d: fresh again, and wake is not called", i)
			}
			stale, w.woken = !want, nil
		}
	})
}
