// Package devices allocates devices of ResourceClaims to pods for the scheduler (dynamic resource allocation).
// Index is the scheduler's state of claims, classes, slices and taint rules; Attempt runs
// k8s.io/dynamic-resource-allocation's allocator on nodes for one pod; Store writes an allocation to the API. The
// package must never choose a node.
//
// The scheduler's loop owns the Index. An Attempt belongs to its caller, and reads only immutable parts of the
// Index.
//
// Contract: S9.C and S9.F in docs/spec/storage-and-node.md.
package devices

import (
	"maps"
	"slices"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/dynamic-resource-allocation/cel"
	"k8s.io/dynamic-resource-allocation/structured"

	"carob/internal/core/podclaims"
)

// cachedExpressions is the number of cached compiled CEL expressions.
const cachedExpressions = 32

// Index is the scheduler's snapshot of everything that allocations need. Objects in it are read
// only.
type Index struct {
	claims     map[types.NamespacedName]*resourcev1.ResourceClaim
	classes    map[string]*resourcev1.DeviceClass // replaced when it changes: attempts read it
	byResource map[corev1.ResourceName]*resourcev1.DeviceClass
	slices     map[string]*resourcev1.ResourceSlice
	rules      map[string]*resourcev1.DeviceTaintRule
	tainted    []*resourcev1.ResourceSlice // slices with rules; nil: to be computed
	// devices of claims that are being written, by pod and claim, so that no other pod gets them
	inFlight    map[types.UID]map[types.UID]*resourcev1.AllocationResult
	expressions *cel.Cache // nil until the first attempt
}

// NewIndex returns an empty Index.
func NewIndex() *Index {
	return &Index{
		claims:     map[types.NamespacedName]*resourcev1.ResourceClaim{},
		classes:    map[string]*resourcev1.DeviceClass{},
		byResource: map[corev1.ResourceName]*resourcev1.DeviceClass{},
		slices:     map[string]*resourcev1.ResourceSlice{},
		rules:      map[string]*resourcev1.DeviceTaintRule{},
		inFlight:   map[types.UID]map[types.UID]*resourcev1.AllocationResult{},
	}
}

func nameOf(o metav1.Object) types.NamespacedName {
	return types.NamespacedName{Namespace: o.GetNamespace(), Name: o.GetName()}
}

// SetClaim stores a version of a claim, unless a newer one is stored: the scheduler's own writes are stored before
// the watch shows them. It returns the previous version, nil if there was none, and whether it was stored.
func (x *Index) SetClaim(c *resourcev1.ResourceClaim) (before *resourcev1.ResourceClaim, taken bool) {
	before = x.claims[nameOf(c)]
	if before != nil && before.UID == c.UID && version(c) < version(before) {
		return before, false
	}
	x.claims[nameOf(c)] = c
	return before, true
}

func version(o metav1.Object) uint64 {
	n, err := strconv.ParseUint(o.GetResourceVersion(), 10, 64)
	if err != nil {
		return 0 // of a fake API: the last one applies
	}
	return n
}

// RemoveClaim removes a claim, unless another one has its name by now.
func (x *Index) RemoveClaim(c *resourcev1.ResourceClaim) {
	if have := x.claims[nameOf(c)]; have != nil && have.UID == c.UID {
		delete(x.claims, nameOf(c))
	}
}

// Claims returns all claims, in no order.
func (x *Index) Claims() []*resourcev1.ResourceClaim { return slices.Collect(maps.Values(x.claims)) }

// SetClass stores a version of a class.
func (x *Index) SetClass(c *resourcev1.DeviceClass) {
	x.classes = maps.Clone(x.classes)
	x.classes[c.Name] = c
	x.byResource = podclaims.Classes(x.classes)
}

// RemoveClass removes a class.
func (x *Index) RemoveClass(c *resourcev1.DeviceClass) {
	x.classes = maps.Clone(x.classes)
	delete(x.classes, c.Name)
	x.byResource = podclaims.Classes(x.classes)
}

// Classes returns the names of all classes.
func (x *Index) Classes() []*resourcev1.DeviceClass { return slices.Collect(maps.Values(x.classes)) }

// SetSlice stores a version of a slice.
func (x *Index) SetSlice(s *resourcev1.ResourceSlice) { x.slices[s.Name], x.tainted = s, nil }

// RemoveSlice removes a slice.
func (x *Index) RemoveSlice(s *resourcev1.ResourceSlice) {
	delete(x.slices, s.Name)
	x.tainted = nil
}

// Slices returns all slices, in no order.
func (x *Index) Slices() []*resourcev1.ResourceSlice { return slices.Collect(maps.Values(x.slices)) }

// SetRule stores a version of a taint rule.
func (x *Index) SetRule(r *resourcev1.DeviceTaintRule) { x.rules[r.Name], x.tainted = r, nil }

// RemoveRule removes a taint rule.
func (x *Index) RemoveRule(r *resourcev1.DeviceTaintRule) {
	delete(x.rules, r.Name)
	x.tainted = nil
}

// Rules returns all taint rules, in no order.
func (x *Index) Rules() []*resourcev1.DeviceTaintRule { return slices.Collect(maps.Values(x.rules)) }

// Wanted returns the claims that the entries of a pod name, or why it has to wait.
func (x *Index) Wanted(pod *corev1.Pod) ([]*resourcev1.ResourceClaim, string) {
	return podclaims.Wanted(pod, func(name string) *resourcev1.ResourceClaim {
		return x.claims[types.NamespacedName{Namespace: pod.Namespace, Name: name}]
	})
}

// ByClass returns the extended resources of a pod that a class serves.
func (x *Index) ByClass(pod *corev1.Pod) []corev1.ResourceName {
	if len(x.byResource) == 0 {
		return nil
	}
	return podclaims.ByClass(pod, x.class)
}

func (x *Index) class(name corev1.ResourceName) *resourcev1.DeviceClass { return x.byResource[name] }

// tainted slices in the order of their names.
func (x *Index) slicesWithTaints() []*resourcev1.ResourceSlice {
	if x.tainted == nil {
		var list []*resourcev1.ResourceSlice
		for _, name := range slices.Sorted(maps.Keys(x.slices)) {
			list = append(list, x.slices[name])
		}
		var rules []*resourcev1.DeviceTaintRule
		for _, name := range slices.Sorted(maps.Keys(x.rules)) {
			rules = append(rules, x.rules[name])
		}
		x.tainted = podclaims.Tainted(list, rules)
	}
	return x.tainted
}

// Reserve reserves the devices that an attempt found on a node, until Release.
func (x *Index) Reserve(a *Attempt, node string) {
	got := map[types.UID]*resourcev1.AllocationResult{}
	maps.Copy(got, a.resultsOn(node))
	if len(got) > 0 {
		x.inFlight[a.pod.UID] = got
	}
}

// Release ends a reservation: the claims have their allocations, or never will. It reports whether there was one.
func (x *Index) Release(pod types.UID) bool {
	_, reserved := x.inFlight[pod]
	delete(x.inFlight, pod)
	return reserved
}

// beingAllocated reports whether a claim is being allocated for a pod.
func (x *Index) beingAllocated(claim types.UID) bool {
	for _, claims := range x.inFlight { // any order: only reads
		if claims[claim] != nil {
			return true
		}
	}
	return false
}

// used returns the devices that no other pod may get: those of all claims, and those in flight.
func (x *Index) used() structured.AllocatedState {
	state := structured.AllocatedState{AllocatedDevices: sets.New[structured.DeviceID](),
		AllocatedSharedDeviceIDs: sets.New[structured.SharedDeviceID](),
		AggregatedCapacity:       structured.NewConsumedCapacityCollection()}
	counted := sets.New[types.UID]()
	for _, c := range x.claims {
		if c.Status.Allocation != nil {
			counted.Insert(c.UID)
			count(&state, c.Status.Allocation)
		}
	}
	for _, claims := range x.inFlight {
		for uid, a := range claims {
			if !counted.Has(uid) { // otherwise the API already has it
				count(&state, a)
			}
		}
	}
	return state
}

func count(state *structured.AllocatedState, a *resourcev1.AllocationResult) {
	for i := range a.Devices.Results {
		r := &a.Devices.Results[i]
		if r.AdminAccess != nil && *r.AdminAccess {
			continue // not in use by it (S9.4)
		}
		id := structured.MakeDeviceID(r.Driver, r.Pool, r.Device)
		if r.ShareID == nil {
			state.AllocatedDevices.Insert(id)
			continue
		}
		state.AllocatedSharedDeviceIDs.Insert(structured.MakeSharedDeviceID(id, r.ShareID))
		if r.ConsumedCapacity != nil {
			state.AggregatedCapacity.Insert(structured.NewDeviceConsumedCapacity(id, r.ConsumedCapacity))
		}
	}
}
