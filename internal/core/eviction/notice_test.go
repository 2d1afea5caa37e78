package eviction

import (
	"testing"

	"k8s.io/apimachinery/pkg/api/resource"
)

// S11.75: the kernel is to notify at the usage where the next threshold of memory is.
func TestUsageLimit(t *testing.T) {
	const gi = 1 << 30
	hard := Threshold{Signal: MemoryAvailable, Min: Amount{Quantity: new(resource.MustParse("1Gi"))}}
	soft := Threshold{Signal: MemoryAvailable, Min: Amount{Share: 0.25}, Grace: 1} // 4Gi
	disk := Threshold{Signal: NodeFsAvailable, Min: Amount{Share: 0.9}}
	for name, c := range map[string]struct {
		thresholds []Threshold
		available  int64
		want       int64 // 0: none lies ahead
	}{
		"none":                 {[]Threshold{disk}, 10 * gi, 0},
		"the hard one":         {[]Threshold{disk, hard}, 10 * gi, 12 * gi},
		"the soft one first":   {[]Threshold{hard, soft}, 10 * gi, 9 * gi},
		"in any order":         {[]Threshold{soft, hard}, 10 * gi, 9 * gi},
		"the soft one is left": {[]Threshold{hard, soft}, 3 * gi, 5 * gi},
		"exactly at it":        {[]Threshold{hard}, gi, 3 * gi},
		"all are reached":      {[]Threshold{hard, soft}, gi - 1, 0},
	} {
		o := Observation{Signal: MemoryAvailable, Available: c.available, Capacity: 16 * gi}
		got, ok := UsageLimit(Config{Thresholds: c.thresholds}, o, 3*gi)
		if ok != (c.want != 0) || ok && got != c.want {
			t.Errorf("%s: %d, %v, want %d", name, got, ok, c.want)
		}
	}
}

// A threshold that is passed while the kernel is being set up is not missed, and one that was reached before is not
// reported again.
func TestPassed(t *testing.T) {
	c := Config{Thresholds: []Threshold{
		{Signal: MemoryAvailable, Min: Amount{Quantity: new(resource.MustParse("100"))}},
		{Signal: PIDAvailable, Min: Amount{Quantity: new(resource.MustParse("1000"))}}}}
	for _, o := range []struct {
		before, after int64
		want          bool
	}{{200, 100, false}, {200, 99, true}, {100, 99, true}, {99, 98, false}, {99, 200, false}, {2000, 500, false}} {
		if got := Passed(c, Observation{Available: o.before}, Observation{Available: o.after}); got != o.want {
			t.Errorf("from %d to %d: %v", o.before, o.after, got)
		}
	}
}
