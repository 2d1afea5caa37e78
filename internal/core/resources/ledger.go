package resources

import (
	"math"

	corev1 "k8s.io/api/core/v1"
)

// Ledger counts what one node has and what its pods hold of it. The zero value
// is a node that has nothing. One goroutine owns a Ledger.
type Ledger struct {
	Allocatable Amount
	MaxPods     int64
	Used        Amount
	Pods        int64 // pods counted in
	ScoreUsed   struct{ MilliCPU, Memory int64 }
}

// SetNode takes the node's allocatable quantities; what pods hold stays counted.
func (l *Ledger) SetNode(node *corev1.Node) {
	l.Allocatable = AmountOf(node.Status.Allocatable)
	l.MaxPods = node.Status.Allocatable.Pods().Value()
}

// Add counts a pod in.
func (l *Ledger) Add(d Demand) { l.count(d, 1) }

// Remove counts a pod out; d must be what Add was given.
func (l *Ledger) Remove(d Demand) { l.count(d, -1) }

func (l *Ledger) count(d Demand, sign int64) {
	l.Used.add(d.Amount, sign)
	l.Pods += sign
	l.ScoreUsed.MilliCPU += sign * d.ScoreMilliCPU
	l.ScoreUsed.Memory += sign * d.ScoreMemory
}

// Clone returns an independent copy.
func (l *Ledger) Clone() Ledger {
	c := *l
	c.Used.Scalars = append([]Scalar(nil), l.Used.Scalars...)
	return c
}

// Shortage is one resource a node has too little of, with the figures of L3.20:
// cpu in thousandths of a core, the others in bytes or pieces.
type Shortage struct {
	Name      corev1.ResourceName
	Requested int64
	Used      int64
	Capacity  int64
}

// Hopeless reports that the node could not serve the request even without any other pod (L2.32).
func (s Shortage) Hopeless() bool { return s.Name != corev1.ResourcePods && s.Requested > s.Capacity }

// Fits returns what is missing on the node for one more pod, in the order pods,
// cpu, memory, ephemeral storage, then further resources by name; nil when the
// pod fits (L2.20, L3.37). Resources the pod does not ask for are not looked at,
// so an overcommitted node still takes pods that want nothing of it.
func Fits(l *Ledger, d Demand) []Shortage {
	var short []Shortage
	if l.Pods+1 > l.MaxPods {
		short = append(short, Shortage{corev1.ResourcePods, 1, l.Pods, l.MaxPods})
	}
	if exceeds(d.MilliCPU, l.Used.MilliCPU, l.Allocatable.MilliCPU) {
		short = append(short, Shortage{corev1.ResourceCPU, d.MilliCPU, l.Used.MilliCPU, l.Allocatable.MilliCPU})
	}
	if exceeds(d.Memory, l.Used.Memory, l.Allocatable.Memory) {
		short = append(short, Shortage{corev1.ResourceMemory, d.Memory, l.Used.Memory, l.Allocatable.Memory})
	}
	if exceeds(d.EphemeralStorage, l.Used.EphemeralStorage, l.Allocatable.EphemeralStorage) {
		short = append(short, Shortage{corev1.ResourceEphemeralStorage, d.EphemeralStorage, l.Used.EphemeralStorage, l.Allocatable.EphemeralStorage})
	}
	for _, s := range d.Scalars {
		used, _ := l.Used.Scalar(s.Name)
		capacity, _ := l.Allocatable.Scalar(s.Name)
		if exceeds(s.Value, used, capacity) {
			short = append(short, Shortage{s.Name, s.Value, used, capacity})
		}
	}
	return short
}

// FitsNow is Fits when only the answer matters; it does not allocate.
func FitsNow(l *Ledger, d Demand) bool {
	if l.Pods+1 > l.MaxPods ||
		exceeds(d.MilliCPU, l.Used.MilliCPU, l.Allocatable.MilliCPU) ||
		exceeds(d.Memory, l.Used.Memory, l.Allocatable.Memory) ||
		exceeds(d.EphemeralStorage, l.Used.EphemeralStorage, l.Allocatable.EphemeralStorage) {
		return false
	}
	for _, s := range d.Scalars {
		used, _ := l.Used.Scalar(s.Name)
		capacity, _ := l.Allocatable.Scalar(s.Name)
		if exceeds(s.Value, used, capacity) {
			return false
		}
	}
	return true
}

func exceeds(request, used, capacity int64) bool { return request > 0 && request > capacity-used }

// LeastAllocated scores 0–100 by the share of cpu and memory that stays free
// once the pod is on the node (L2.10).
func LeastAllocated(l *Ledger, d Demand) int64 {
	free := func(capacity, used int64) (score, weight int64) {
		if capacity == 0 {
			return 0, 0
		}
		if used > capacity {
			return 0, 1
		}
		return (capacity - used) * 100 / capacity, 1
	}
	cpu, cpuWeight := free(l.Allocatable.MilliCPU, l.ScoreUsed.MilliCPU+d.ScoreMilliCPU)
	memory, memoryWeight := free(l.Allocatable.Memory, l.ScoreUsed.Memory+d.ScoreMemory)
	if cpuWeight+memoryWeight == 0 {
		return 0
	}
	return (cpu + memory) / (cpuWeight + memoryWeight)
}

// Balanced scores 0–100 by how evenly cpu and memory would be used with the pod
// on the node: 100 less the standard deviation of the two shares (L2.10).
func Balanced(l *Ledger, d Demand) int64 {
	share := func(used, capacity int64) float64 { return min(float64(used)/float64(capacity), 1) }
	if l.Allocatable.MilliCPU == 0 || l.Allocatable.Memory == 0 {
		return 100
	}
	cpu := share(l.Used.MilliCPU+d.MilliCPU, l.Allocatable.MilliCPU)
	memory := share(l.Used.Memory+d.Memory, l.Allocatable.Memory)
	return int64((1 - math.Abs(cpu-memory)/2) * 100)
}
