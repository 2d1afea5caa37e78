package resources

import (
	"math"

	corev1 "k8s.io/api/core/v1"
)

// Weighted is a resource and its weight in a score.
type Weighted struct {
	Name   corev1.ResourceName
	Weight int64 // 1–100
}

// Point is a point of a function from utilization to score, both 0–100, which is linear between
// points.
type Point struct{ Utilization, Score int64 }

// use is how much of a resource is used on the node with the pod and without it, and the node's
// capacity. An other resource that the pod does not request does not count: all three are 0.
func use(l *Ledger, d Demand, name corev1.ResourceName, countUnrequested bool) (with, without, capacity int64) {
	switch name {
	case corev1.ResourceCPU:
		if countUnrequested {
			return l.ScoreUsed.MilliCPU + d.ScoreMilliCPU, l.ScoreUsed.MilliCPU, l.Allocatable.MilliCPU
		}
		return l.Used.MilliCPU + d.MilliCPU, l.Used.MilliCPU, l.Allocatable.MilliCPU
	case corev1.ResourceMemory:
		if countUnrequested {
			return l.ScoreUsed.Memory + d.ScoreMemory, l.ScoreUsed.Memory, l.Allocatable.Memory
		}
		return l.Used.Memory + d.Memory, l.Used.Memory, l.Allocatable.Memory
	case corev1.ResourceEphemeralStorage:
		return l.Used.EphemeralStorage + d.EphemeralStorage, l.Used.EphemeralStorage, l.Allocatable.EphemeralStorage
	}
	wanted, _ := d.Scalar(name)
	if wanted == 0 {
		return 0, 0, 0
	}
	used, _ := l.Used.Scalar(name)
	capacity, _ = l.Allocatable.Scalar(name)
	return used + wanted, used, capacity
}

// mean is the weighted mean of a score over the resources that the node has.
func mean(l *Ledger, d Demand, of []Weighted, score func(used, capacity int64) int64) int64 {
	var sum, weights int64
	for _, r := range of {
		if with, _, capacity := use(l, d, r.Name, true); capacity != 0 {
			sum += score(with, capacity) * r.Weight
			weights += r.Weight
		}
	}
	if weights == 0 {
		return 0
	}
	return sum / weights
}

// LeastAllocated scores 0–100 by the share of each resource that stays free with the pod on the
// node (L2.10).
func LeastAllocated(l *Ledger, d Demand, of []Weighted) int64 {
	return mean(l, d, of, func(used, capacity int64) int64 {
		if used > capacity {
			return 0
		}
		return (capacity - used) * 100 / capacity
	})
}

// MostAllocated scores 0–100 by the share of each resource that is used with the pod on the node.
func MostAllocated(l *Ledger, d Demand, of []Weighted) int64 {
	return mean(l, d, of, func(used, capacity int64) int64 { return min(used, capacity) * 100 / capacity })
}

// RequestedToCapacityRatio scores 0–100 by a function of the share of each resource that is used
// with the pod on the node. Resources that score 0 do not count.
func RequestedToCapacityRatio(l *Ledger, d Demand, of []Weighted, shape []Point) int64 {
	var sum, weights int64
	for _, r := range of {
		with, _, capacity := use(l, d, r.Name, true)
		if capacity == 0 {
			continue
		}
		if score := valueAt(shape, min(with, capacity)*100/capacity); score > 0 {
			sum += score * r.Weight
			weights += r.Weight
		}
	}
	if weights == 0 {
		return 0
	}
	return int64(math.Round(float64(sum) / float64(weights)))
}

// valueAt is the value of a piecewise linear function, constant outside its points.
func valueAt(shape []Point, x int64) int64 {
	for i, p := range shape {
		if x > p.Utilization {
			continue
		}
		if i == 0 {
			return p.Score
		}
		q := shape[i-1]
		return q.Score + (p.Score-q.Score)*(x-q.Utilization)/(p.Utilization-q.Utilization)
	}
	if len(shape) == 0 {
		return 0
	}
	return shape[len(shape)-1].Score
}

// Balanced scores 50–100 by how much more evenly the resources are used with the pod on the node
// than without it; 75 if there is no difference (L2.10).
func Balanced(l *Ledger, d Demand, of []Weighted) int64 {
	var with, without shares
	for _, r := range of {
		if a, b, capacity := use(l, d, r.Name, false); capacity != 0 {
			with.add(float64(a) / float64(capacity))
			without.add(float64(b) / float64(capacity))
		}
	}
	return 50 + (50+with.evenness()-without.evenness())/2
}

// shares sums the shares of resources, for their standard deviation.
type shares struct {
	n            int
	first, last  float64
	sum, squares float64
}

func (s *shares) add(share float64) {
	share = min(share, 1)
	if s.n == 0 {
		s.first = share
	}
	s.n++
	s.last = share
	s.sum += share
	s.squares += share * share
}

// evenness is 100 minus the standard deviation, in hundredths.
func (s *shares) evenness() int64 {
	var deviation float64
	switch {
	case s.n == 2:
		deviation = math.Abs(s.first-s.last) / 2
	case s.n > 2:
		m := s.sum / float64(s.n)
		deviation = math.Sqrt(max(s.squares/float64(s.n)-m*m, 0))
	}
	return int64((1 - deviation) * 100)
}
