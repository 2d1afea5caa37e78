// Package resources counts what pods request and what nodes have, and converts requests and limits
// to cgroup values.
//
// Scheduler and node agent use the same Ledger, so a pod that the scheduler assigns is a pod that
// the agent admits. All functions are pure functions of API objects: they must never read the
// machine.
//
// Contract: docs/spec/pod-lifecycle.md.
package resources

import (
	"cmp"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// Amount is a quantity of every resource that a pod can use, as integers, so that the scheduler's
// inner loop neither parses nor allocates.
type Amount struct {
	MilliCPU         int64    // thousandths of a core
	Memory           int64    // bytes
	EphemeralStorage int64    // bytes
	Scalars          []Scalar // hugepages (bytes) and extended resources (pieces), sorted by name
}

// Scalar is a quantity of one other resource.
type Scalar struct {
	Name  corev1.ResourceName
	Value int64
}

// AmountOf converts a resource list. "pods" is not an amount: a Ledger counts pods itself.
func AmountOf(list corev1.ResourceList) Amount {
	var a Amount
	for _, name := range slices.Sorted(maps.Keys(list)) {
		q := list[name]
		switch {
		case name == corev1.ResourceCPU:
			a.MilliCPU = q.MilliValue()
		case name == corev1.ResourceMemory:
			a.Memory = q.Value()
		case name == corev1.ResourceEphemeralStorage:
			a.EphemeralStorage = q.Value()
		case IsScalar(name):
			a.Scalars = append(a.Scalars, Scalar{Name: name, Value: q.Value()})
		}
	}
	return a
}

// IsZero reports whether a holds nothing at all.
func (a Amount) IsZero() bool {
	return a.MilliCPU == 0 && a.Memory == 0 && a.EphemeralStorage == 0 && len(a.Scalars) == 0
}

// Scalar returns the quantity of another resource and whether it is known.
func (a Amount) Scalar(name corev1.ResourceName) (int64, bool) {
	i, found := a.find(name)
	if !found {
		return 0, false
	}
	return a.Scalars[i].Value, true
}

// add adds sign·b to a in place. Scalars that become zero stay known.
func (a *Amount) add(b Amount, sign int64) {
	a.MilliCPU += sign * b.MilliCPU
	a.Memory += sign * b.Memory
	a.EphemeralStorage += sign * b.EphemeralStorage
	for _, s := range b.Scalars {
		i, found := a.find(s.Name)
		if !found {
			a.Scalars = slices.Insert(a.Scalars, i, Scalar{Name: s.Name})
		}
		a.Scalars[i].Value += sign * s.Value
	}
}

func (a Amount) find(name corev1.ResourceName) (int, bool) {
	return slices.BinarySearchFunc(a.Scalars, name,
		func(s Scalar, n corev1.ResourceName) int { return cmp.Compare(s.Name, n) })
}

// IsExtended reports whether name is an extended resource: a domain-qualified
// name outside kubernetes.io, such as example.com/gpu.
func IsExtended(name corev1.ResourceName) bool {
	s := string(name)
	if !strings.Contains(s, "/") || strings.HasPrefix(s, corev1.DefaultResourceRequestsPrefix) {
		return false
	}
	domain, _, _ := strings.Cut(s, "/")
	return domain != "kubernetes.io" && !strings.HasSuffix(domain, ".kubernetes.io")
}

// IsHugePages reports whether name is hugepages-<size>.
func IsHugePages(name corev1.ResourceName) bool {
	return strings.HasPrefix(string(name), corev1.ResourceHugePagesPrefix)
}

// IsScalar reports whether name is counted among Amount.Scalars.
func IsScalar(name corev1.ResourceName) bool {
	return IsHugePages(name) || IsExtended(name) ||
		strings.HasPrefix(string(name), corev1.ResourceAttachableVolumesPrefix) ||
		strings.Contains(string(name), corev1.ResourceDefaultNamespacePrefix)
}

// SameList reports whether two lists have the same amounts, in any notation.
func SameList(a, b corev1.ResourceList) bool {
	return maps.EqualFunc(a, b, func(x, y resource.Quantity) bool { return x.Cmp(y) == 0 })
}
