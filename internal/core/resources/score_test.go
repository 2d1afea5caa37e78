package resources

import (
	"testing"
)

// The scores of a node of 10 cores and 20 GiB with 3 cores and 5 GiB in use, for a pod of 3 cores
// and 5 GiB (L2.10). The figures follow from the formulas by hand.
func TestScores(t *testing.T) {
	l := ledger(list("cpu", "10", "memory", "20Gi", "pods", "10", "example.com/gpu", "8"))
	l.Add(Demand{Amount: Amount{MilliCPU: 3000, Memory: 5 << 30}, ScoreMilliCPU: 3000, ScoreMemory: 5 << 30})
	pod := Demand{Amount: Amount{MilliCPU: 3000, Memory: 5 << 30}, ScoreMilliCPU: 3000, ScoreMemory: 5 << 30}
	withGPU := pod
	withGPU.Scalars = []Scalar{{"example.com/gpu", 2}}
	even := []Weighted{{"cpu", 1}, {"memory", 1}}
	tilted := []Weighted{{"cpu", 3}, {"memory", 1}}
	gpu := []Weighted{{"cpu", 1}, {"example.com/gpu", 3}}
	bins := []Point{{0, 0}, {100, 100}}
	peak := []Point{{0, 20}, {50, 100}, {100, 0}}
	for name, test := range map[string]struct{ got, want int64 }{
		"least":                    {LeastAllocated(l, pod, even), 45},   // (40 + 50) / 2
		"least, cpu counts more":   {LeastAllocated(l, pod, tilted), 42}, // (120 + 50) / 4
		"least, gpu not asked for": {LeastAllocated(l, pod, gpu), 40},
		"least, gpu":               {LeastAllocated(l, withGPU, gpu), 66}, // (40 + 3·75) / 4
		"most":                     {MostAllocated(l, pod, even), 55},     // (60 + 50) / 2
		"most, gpu":                {MostAllocated(l, withGPU, gpu), 33},  // (60 + 3·25) / 4
		"ratio, straight":          {RequestedToCapacityRatio(l, pod, even, bins), 55},
		// cpu 60 → 80, memory 50 → 100
		"ratio, peak": {RequestedToCapacityRatio(l, pod, even, peak), 90},
		// memory scores 0
		"ratio, zero scores don't count": {RequestedToCapacityRatio(l, pod, even, []Point{{50, 0}, {60, 100}}), 100},
		// 50 + (50 + 95 − 97) / 2
		"balanced": {Balanced(l, pod, even), 74},
		// deviations .148 and .134: 50 + (50+85−86… see below
		"balanced, three":    {Balanced(l, withGPU, append(even, gpu[1])), 74},
		"no resource at all": {LeastAllocated(l, pod, []Weighted{{"example.com/none", 1}}), 0},
		"most, more than there is": {MostAllocated(l,
			Demand{Amount: Amount{MilliCPU: 20000}, ScoreMilliCPU: 20000}, even[:1]), 100},
		"least, more than there is": {LeastAllocated(l,
			Demand{Amount: Amount{MilliCPU: 20000}, ScoreMilliCPU: 20000}, even[:1]), 0},
		"silent containers count as a bit":  {LeastAllocated(l, Demand{ScoreMilliCPU: 100}, even[:1]), 69},
		"balanced, silent ones don't count": {Balanced(l, Demand{ScoreMilliCPU: 5000}, even), 75},
	} {
		if test.got != test.want {
			t.Errorf("%s: %d, want %d", name, test.got, test.want)
		}
	}
}
