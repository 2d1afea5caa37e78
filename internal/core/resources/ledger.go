package resources

import (
	corev1 "k8s.io/api/core/v1"
)

// Ledger counts the resources of one node and those that its pods occupy. The zero value is a node
// without resources. One goroutine owns a Ledger.
type Ledger struct {
	Allocatable Amount
	MaxPods     int64
	Used        Amount
	Pods        int64 // number of pods
	ScoreUsed   struct{ MilliCPU, Memory int64 }
}

// SetNode sets the node's allocatable quantities; the resources of its pods stay counted.
func (l *Ledger) SetNode(node *corev1.Node) {
	l.Allocatable = AmountOf(node.Status.Allocatable)
	l.MaxPods = node.Status.Allocatable.Pods().Value()
}

// Add adds a pod.
func (l *Ledger) Add(d Demand) { l.count(d, 1) }

// Remove removes a pod; d must be the value passed to Add.
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

// Shortage is a resource of which the node has too little, with the values of L3.20: cpu in
// millicores, others in bytes or pieces.
type Shortage struct {
	Name      corev1.ResourceName
	Requested int64
	Used      int64
	Capacity  int64
}

// Permanent reports whether the node could not satisfy the request even without any other pod
// (L2.32).
func (s Shortage) Permanent() bool { return s.Name != corev1.ResourcePods && s.Requested > s.Capacity }

// Fits returns what the node lacks for one more pod, in the order pods, cpu, memory, ephemeral
// storage, then other resources by name; nil if the pod fits (L2.20, L3.37). Resources that the pod
// does not request are not checked, so an overcommitted node still accepts pods without requests.
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
		short = append(short, Shortage{corev1.ResourceEphemeralStorage, d.EphemeralStorage, l.Used.EphemeralStorage,
			l.Allocatable.EphemeralStorage})
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

// FitsNow is Fits without the details; it does not allocate.
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
