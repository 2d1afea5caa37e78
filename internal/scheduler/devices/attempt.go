package devices

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"
	"k8s.io/dynamic-resource-allocation/cel"
	"k8s.io/dynamic-resource-allocation/structured"

	"carob/internal/core/podclaims"
)

// unnamed is the UID of the claim for extended resources while it exists in memory only.
const unnamed types.UID = "extended-resources"

// The messages for nodes that do not fit (S9.22, S9.23, S9.61).
const (
	reasonElsewhere = "resourceclaim not available on the node"
	reasonNoDevices = "cannot allocate all claims"
	reasonStale     = "cannot schedule extended resource claim"
)

// Attempt finds devices for one pod.
type Attempt struct {
	pod       *corev1.Pod
	claims    []claim
	byClass   []corev1.ResourceName // extended resources that a class serves
	class     func(corev1.ResourceName) *resourcev1.DeviceClass
	stale     *resourcev1.ResourceClaim // for extended resources, of an attempt that failed
	allocator structured.Allocator      // nil: nothing has to be allocated
	limit     time.Duration
	binding   time.Duration
	now       time.Time

	found       map[string]*found
	unavailable map[types.UID]*resourcev1.ResourceClaim // that kept the pod from a node although they are allocated
}

// claim is one of the pod's claims.
type claim struct {
	object *resourcev1.ResourceClaim
	nodes  *nodeaffinity.NodeSelector // of its allocation; nil: any
}

// found holds the devices that one node offers.
type found struct {
	results  map[types.UID]*resourcev1.AllocationResult
	extended *resourcev1.ResourceClaim // to create; nil: none
	mappings []corev1.ContainerExtendedResourceRequest
	score    int64
}

// Limits of an attempt.
type Limits struct {
	Node    time.Duration // for the search on one node; 0: none
	Binding time.Duration // timeout for devices to become ready
}

// classes is a snapshot for the allocator.
type classes map[string]*resourcev1.DeviceClass

// List implements structured.DeviceClassLister.
func (c classes) List() ([]*resourcev1.DeviceClass, error) {
	return slices.Collect(maps.Values(c)), nil
}

// Get implements structured.DeviceClassLister.
func (c classes) Get(name string) (*resourcev1.DeviceClass, error) {
	if class := c[name]; class != nil {
		return class, nil
	}
	return nil, apierrors.NewNotFound(resourcev1.Resource("deviceclasses"), name)
}

// features are those that are on in Kubernetes 1.37 (S0.11 to S0.13).
func features() structured.Features {
	return structured.Features{AdminAccess: true, PrioritizedList: true, PartitionableDevices: true, DeviceTaints: true,
		DeviceBindingAndStatus: true, ConsumableCapacity: true, FractionalCapacityRange: true}
}

// Begin checks whether a pod can get devices at all. why is the reason if not (S9.21); then the Attempt is nil, as it
// is if the pod needs none.
func (x *Index) Begin(ctx context.Context, pod *corev1.Pod, limits Limits, now time.Time) (a *Attempt, why string,
	err error) {
	list, why := x.Wanted(pod)
	if why != "" {
		return nil, why, nil
	}
	a = &Attempt{pod: pod, byClass: x.ByClass(pod), limit: limits.Node, binding: limits.Binding, now: now,
		found: map[string]*found{}, unavailable: map[types.UID]*resourcev1.ResourceClaim{}}
	byResource := x.byResource
	a.class = func(name corev1.ResourceName) *resourcev1.DeviceClass { return byResource[name] }
	if len(list) == 0 && len(a.byClass) == 0 {
		return nil, "", nil
	}
	allocates := len(a.byClass) > 0
	for _, c := range list {
		one := claim{object: c}
		switch {
		case podclaims.Full(c, pod):
			return nil, "resourceclaim in use", nil
		case c.Status.Allocation != nil:
			if s := c.Status.Allocation.NodeSelector; s != nil {
				if one.nodes, err = nodeaffinity.NewNodeSelector(s); err != nil {
					return nil, "", fmt.Errorf("nodes of the allocation of claim %s: %w", nameOf(c), err)
				}
			}
		case x.beingAllocated(c.UID):
			return nil, fmt.Sprintf("resource claim %s is in the process of being allocated", nameOf(c)), nil
		default:
			allocates = true
			if why := podclaims.UnknownClass(c, func(class string) bool { return x.classes[class] != nil }); why != "" {
				return nil, why, nil
			}
		}
		a.claims = append(a.claims, one)
	}
	if len(a.byClass) > 0 {
		for _, c := range x.claims { // any order: there is at most one
			if podclaims.IsExtended(pod, c) {
				a.stale = c
			}
		}
	}
	if allocates {
		if x.expressions == nil {
			x.expressions = cel.NewCache(cachedExpressions, cel.Features{EnableConsumableCapacity: true})
		}
		a.allocator, err = structured.NewAllocator(ctx, features(), x.used(), classes(x.classes), x.slicesWithTaints(),
			x.expressions)
		if err != nil {
			return nil, "", err
		}
	}
	return a, "", nil
}

// Try checks whether a node has the devices; why is the reason if not. An error ends the attempt: a claim or a
// class is invalid, or the search took too long.
func (a *Attempt) Try(ctx context.Context, node *corev1.Node) (why string, err error) {
	f := &found{results: map[types.UID]*resourcev1.AllocationResult{}}
	if why := a.extendedOn(f, node); why != "" {
		return why, nil
	}
	var missing []*resourcev1.ResourceClaim
	away := false
	for _, c := range a.claims {
		if c.object.Status.Allocation == nil {
			missing = append(missing, c.object)
			continue
		}
		_, err := podclaims.Ready(c.object, a.now, a.binding)
		if err != nil || c.nodes != nil && !c.nodes.Match(node) {
			away = true
			a.unavailable[c.object.UID] = c.object
		}
	}
	if f.extended != nil {
		missing = append(missing, f.extended)
	}
	if away {
		return reasonElsewhere, nil
	}
	if len(missing) > 0 {
		results, why, err := a.allocate(ctx, node, missing)
		if why != "" || err != nil {
			return why, err
		}
		for i, c := range missing {
			f.results[c.UID] = &results[i]
		}
	}
	for _, c := range a.claims {
		if result := f.results[c.object.UID]; result != nil {
			f.score += podclaims.Preference(c.object, result)
		} else {
			f.score += podclaims.Preference(c.object, c.object.Status.Allocation)
		}
	}
	a.found[node.Name] = f
	return "", nil
}

// extendedOn returns which extended resources a claim has to provide on a node.
func (a *Attempt) extendedOn(f *found, node *corev1.Node) string {
	if len(a.byClass) == 0 {
		return ""
	}
	if a.stale != nil {
		return reasonStale
	}
	var names []corev1.ResourceName
	for _, name := range a.byClass {
		if has := node.Status.Allocatable[name]; has.IsZero() {
			names = append(names, name)
		}
	}
	if len(names) > 0 {
		f.extended, f.mappings = podclaims.Extended(a.pod, names, a.class)
		f.extended.UID = unnamed
	}
	return ""
}

func (a *Attempt) allocate(ctx context.Context, node *corev1.Node, claims []*resourcev1.ResourceClaim) (
	[]resourcev1.AllocationResult, string, error) {
	if a.limit > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, a.limit)
		defer cancel()
	}
	results, err := a.allocator.Allocate(ctx, node, claims)
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		return nil, "", fmt.Errorf("node %s: timed out trying to allocate devices", node.Name)
	case errors.Is(err, structured.ErrFailedAllocationOnNode):
		return nil, err.Error(), nil
	case err != nil:
		return nil, "", err
	case len(results) != len(claims):
		return nil, reasonNoDevices, nil
	}
	return results, "", nil
}

// Scores returns the scores, 0 to 100, of the nodes that Try accepted: higher for earlier alternatives.
func (a *Attempt) Scores() map[string]int64 {
	most := int64(0)
	for _, f := range a.found { // any order: the largest
		most = max(most, f.score)
	}
	scores := map[string]int64{}
	if most > 0 {
		for name, f := range a.found { // any order: a map becomes a map
			scores[name] = f.score * 100 / most
		}
	}
	return scores
}

// Result returns the devices that a claim of the pod gets on a node; nil if it has an allocation already.
func (a *Attempt) Result(node string, claim types.UID) *resourcev1.AllocationResult {
	return a.resultsOn(node)[claim]
}

// Claims returns the claims that the entries of the pod name, as they were when the attempt began.
func (a *Attempt) Claims() []*resourcev1.ResourceClaim {
	var all []*resourcev1.ResourceClaim
	for _, c := range a.claims {
		all = append(all, c.object)
	}
	return all
}

// resultsOn returns the allocations of the pod's claims on a node.
func (a *Attempt) resultsOn(node string) map[types.UID]*resourcev1.AllocationResult {
	if f := a.found[node]; f != nil {
		return f.results
	}
	return nil
}

// Obstacle returns a claim that no other pod uses and whose allocation prevents the pod from running on any node:
// it should be deallocated, or deleted if it was created for extended resources (S9.29). Nil if there is none.
func (a *Attempt) Obstacle() (c *resourcev1.ResourceClaim, made bool) {
	for _, c := range a.claims {
		if a.unavailable[c.object.UID] != nil && podclaims.Freeable(c.object, a.pod) {
			return c.object, false
		}
	}
	return a.stale, a.stale != nil
}
