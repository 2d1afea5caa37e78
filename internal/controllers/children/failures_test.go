package children

import (
	"maps"
	"slices"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"carob/internal/controllers/controllertest"
	"carob/internal/core/workload"
)

// Failures are those of one generation of one object, and are forgotten with it, and when they are old.
func TestFailures(t *testing.T) {
	var f Failures
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	add := func(uid string, generation int64, place string, at time.Time) {
		f.Add("ns/a", types.UID(uid), generation, map[string]workload.Failure{place: {At: at, Wait: time.Second}})
	}
	want := func(what, uid string, generation int64, places ...string) {
		t.Helper()
		controllertest.Equal(t, what, slices.Sorted(maps.Keys(f.Of("ns/a", types.UID(uid), generation))), places...)
	}
	want("none", "1", 1)
	add("1", 1, "n1", now)
	add("1", 1, "n2", now.Add(time.Minute))
	want("two", "1", 1, "n1", "n2")
	want("another object", "2", 1)
	want("another generation", "1", 2)
	f.Of("ns/a", "1", 1)["n3"] = workload.Failure{} // a copy
	want("unchanged", "1", 1, "n1", "n2")
	add("1", 1, "n4", now.Add(keptFor+time.Second))
	want("one is old", "1", 1, "n2", "n4")
	add("1", 2, "n5", now)
	want("the next generation", "1", 2, "n5")
	want("the one before", "1", 1)
	f.Forget("ns/a")
	want("forgotten", "1", 2)
}
