package vpa

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"
)

const (
	// leastReplicas is the minimum number of live pods of a group before one of them is changed
	// (W9.52).
	leastReplicas = 2
	// tolerated is the share of a group that may be changed at a time (W9.53).
	tolerated = 0.5
	// grownUp is the age from which pods with requests within the bounds are changed, if these differ
	// by leastChange (W9.54).
	grownUp     = 12 * time.Hour
	leastChange = 0.1
	// quick is the time after its start in which an OOM kill causes an immediate change of a pod
	// (W9.54).
	quick = 10 * time.Minute
	// How long a resize may be in flight before the pod is evicted (W9.59).
	deferredFor   = 5 * time.Minute
	inProgressFor = time.Hour
)

// Owner is the controller of a pod.
type Owner struct{ Kind, Name string }

// OwnerOf returns the controller of a pod.
func OwnerOf(pod *corev1.Pod) (Owner, bool) {
	c := metav1.GetControllerOfNoCopy(pod)
	if c == nil {
		return Owner{}, false
	}
	return Owner{c.Kind, c.Name}, true
}

// group are the pods of one owner (W9.53).
type group struct {
	configured, running, tolerance int
	evicted, resized               int // in this round
}

// mayDisturb reports whether one more pod may be changed.
func (g *group) mayDisturb() bool {
	return g.running-g.evicted-g.resized > g.configured-g.tolerance ||
		g.tolerance == 0 && g.configured == g.running && g.evicted == 0 && g.resized == 0
}

// Step is an action for a pod.
type Step int

// The steps.
const (
	Wait   Step = iota // not now
	Resize             // in place
	Evict              // its owner creates another one, which admission sizes
)

// Resizes holds the start times of resizes in flight, by the UID of the pod. It is kept between
// rounds.
type Resizes map[types.UID]time.Time

// Keep removes all pods except these.
func (r Resizes) Keep(pods map[types.UID]bool) {
	maps.DeleteFunc(r, func(uid types.UID, _ time.Time) bool { return !pods[uid] })
}

// Round is one pass over the pods of an autoscaler. The caller gets the Candidates, then the Step of
// each in turn, and reports what was done. It is not safe for concurrent use.
type Round struct {
	vpa    *VerticalPodAutoscaler
	ranges Ranges
	now    time.Time
	pods   []*corev1.Pod
	groups map[Owner]*group
	since  Resizes
}

// Updates reports whether an autoscaler changes running pods at all.
func Updates(v *VerticalPodAutoscaler) bool {
	switch v.Mode() {
	case ModeRecreate, ModeAuto, ModeInPlaceOrRecreate:
		return v.Status.Recommendation != nil
	default:
		return false
	}
}

// Live reports whether a pod is one that can be changed (W9.51).
func Live(pod *corev1.Pod) bool {
	return pod.DeletionTimestamp == nil && pod.Spec.NodeName != "" && pod.Status.Phase != corev1.PodSucceeded &&
		pod.Status.Phase != corev1.PodFailed
}

// NewRound starts a round with the live pods of an autoscaler. configured returns the replicas of an
// owner; false if unknown or zero.
func NewRound(v *VerticalPodAutoscaler, pods []*corev1.Pod, configured func(Owner) (int, bool), ranges Ranges,
	since Resizes, now time.Time) *Round {
	r := &Round{vpa: v, ranges: ranges, now: now, groups: map[Owner]*group{}, since: since}
	by := map[Owner][]*corev1.Pod{}
	for _, pod := range pods {
		if o, owned := OwnerOf(pod); owned && Live(pod) {
			r.pods = append(r.pods, pod)
			by[o] = append(by[o], pod)
		}
	}
	required := leastReplicas
	if p := v.Spec.UpdatePolicy; p != nil && p.MinReplicas != nil {
		required = int(*p.MinReplicas)
	}
	for o, pods := range by { // any order: a map is made
		g := &group{configured: len(pods)}
		if len(pods) < required {
			continue
		}
		if o.Kind != "Job" {
			n, known := configured(o)
			if !known || n <= 0 {
				continue
			}
			g.configured = n
		}
		g.tolerance = int(float64(g.configured) * tolerated)
		for _, pod := range pods {
			if pod.Status.Phase != corev1.PodPending {
				g.running++
			}
			if !resizing(pod) {
				delete(since, pod.UID)
			} else if _, known := since[pod.UID]; !known {
				since[pod.UID] = now
			}
		}
		r.groups[o] = g
	}
	return r
}

func (r *Round) group(pod *corev1.Pod) *group {
	o, _ := OwnerOf(pod)
	return r.groups[o]
}

// resizing reports whether a resize is in flight.
func resizing(pod *corev1.Pod) bool {
	for _, c := range pod.Status.Conditions {
		if c.Type == corev1.PodResizePending || c.Type == corev1.PodResizeInProgress {
			return c.Status == corev1.ConditionTrue
		}
	}
	return false
}

// Step returns the present action for a pod (W9.58, W9.59).
func (r *Round) Step(pod *corev1.Pod) Step {
	g := r.group(pod)
	if r.vpa.Mode() != ModeInPlaceOrRecreate {
		if r.MayEvict(pod) {
			return Evict
		}
		return Wait
	}
	switch {
	case g == nil || pod.Status.Phase == corev1.PodPending || !g.mayDisturb():
		return Wait
	case !resizing(pod):
		return Resize
	case r.stuck(pod):
		return Evict
	}
	return Wait
}

// MayEvict reports whether a pod may be evicted now.
func (r *Round) MayEvict(pod *corev1.Pod) bool {
	g := r.group(pod)
	switch {
	case g == nil:
		return false
	case pod.Status.Phase == corev1.PodPending:
		return true
	}
	return g.mayDisturb() && (!resizing(pod) || r.stuck(pod))
}

// stuck reports whether a resize in flight has failed, or takes too long.
func (r *Round) stuck(pod *corev1.Pod) bool {
	took := r.now.Sub(r.since[pod.UID])
	for _, c := range pod.Status.Conditions {
		if c.Type == corev1.PodResizePending {
			return c.Reason != corev1.PodReasonDeferred || took > deferredFor
		}
	}
	for _, c := range pod.Status.Conditions {
		if c.Type == corev1.PodResizeInProgress {
			return c.Reason != "" || c.Message != "" || took > inProgressFor
		}
	}
	return false
}

// Resized records that a pod was resized in this round.
func (r *Round) Resized(pod *corev1.Pod) { r.group(pod).resized++ }

// Evicted records that a pod was evicted in this round.
func (r *Round) Evicted(pod *corev1.Pod) {
	if pod.Status.Phase != corev1.PodPending {
		r.group(pod).evicted++
	}
}

// need is the difference between the requests of a pod and the recommendation.
type need struct {
	pod           *corev1.Pod
	outside, more bool
	difference    float64
}

// Candidates returns the pods that differ from the recommendation and may change: first those that
// need more, then those with the largest difference (W9.54 to W9.56).
func (r *Round) Candidates() []*corev1.Pod {
	var all []need
	for _, pod := range r.pods {
		if r.Step(pod) == Wait {
			continue
		}
		recommended, _ := Fit(r.vpa, pod, r.ranges)
		n := r.need(pod, recommended)
		if r.exceeds(n) && r.admits(pod, recommended) {
			all = append(all, n)
		}
	}
	slices.SortStableFunc(all, func(a, b need) int {
		if a.more != b.more {
			if a.more {
				return -1
			}
			return 1
		}
		return cmp.Compare(b.difference, a.difference)
	})
	out := make([]*corev1.Pod, len(all))
	for i := range all {
		out[i] = all[i].pod
	}
	return out
}

func (r *Round) need(pod *corev1.Pod, recommended *Recommendation) need {
	n := need{pod: pod}
	observed := Observed(pod)
	requested, wanted := map[corev1.ResourceName]int64{}, map[corev1.ResourceName]int64{}
	for i := range pod.Spec.Containers {
		name := pod.Spec.Containers[i].Name
		c := recommended.For(name)
		if c == nil || !observed(name) {
			continue
		}
		requests, _ := Actual(pod, name)
		for _, res := range slices.Sorted(maps.Keys(c.Target)) {
			target := c.Target[res]
			wanted[res] += target.MilliValue()
			request, there := requests[res]
			if !there {
				n.more, n.outside = true, true
				continue
			}
			requested[res] += request.MilliValue()
			n.more = n.more || target.MilliValue() > request.MilliValue()
			low, bounded := c.LowerBound[res]
			n.outside = n.outside || bounded && request.Cmp(low) < 0
			high, bounded := c.UpperBound[res]
			n.outside = n.outside || bounded && request.Cmp(high) > 0
		}
	}
	for _, res := range slices.Sorted(maps.Keys(wanted)) {
		had := math.Max(float64(requested[res]), 1)
		n.difference += math.Abs(had-float64(wanted[res])) / had
	}
	return n
}

// exceeds reports whether the difference of a pod is large enough.
func (r *Round) exceeds(n need) bool {
	killed := r.killedEarly(n.pod)
	if killed && n.difference == 0 {
		return false
	}
	if n.outside || killed {
		return true
	}
	start := n.pod.Status.StartTime
	return start != nil && !r.now.Before(start.Add(grownUp)) && n.difference >= leastChange
}

// killedEarly reports whether a scaled container was recently OOM-killed soon after its start.
func (r *Round) killedEarly(pod *corev1.Pod) bool {
	observed := Observed(pod)
	for i := range pod.Status.ContainerStatuses {
		s := &pod.Status.ContainerStatuses[i]
		t := s.LastTerminationState.Terminated
		if t != nil && t.Reason == "OOMKilled" && t.FinishedAt.Sub(t.StartedAt.Time) < quick &&
			r.now.Sub(t.FinishedAt.Time) < quick && observed(s.Name) &&
			!r.vpa.Spec.ResourcePolicy.Policy(s.Name).off() {
			return true
		}
	}
	return false
}

// admits reports whether the requirements of the policy hold for one of the containers (W9.56).
func (r *Round) admits(pod *corev1.Pod, recommended *Recommendation) bool {
	p := r.vpa.Spec.UpdatePolicy
	if p == nil {
		return true
	}
	for i := range pod.Spec.Containers {
		name := pod.Spec.Containers[i].Name
		c := recommended.For(name)
		if c == nil {
			continue
		}
		requests, _ := Actual(pod, name)
		_, cpu := requests[corev1.ResourceCPU]
		_, memory := requests[corev1.ResourceMemory]
		if !cpu || !memory || !slices.ContainsFunc(p.EvictionRequirements,
			func(q EvictionRequirement) bool { return !q.holds(requests, c.Target) }) {
			return true
		}
	}
	return false
}

func (q EvictionRequirement) holds(requests, targets corev1.ResourceList) bool {
	return slices.ContainsFunc(q.Resources, func(name corev1.ResourceName) bool {
		request, target := requests[name], targets[name]
		switch q.ChangeRequirement {
		case TargetHigherThanRequests:
			return target.MilliValue() > request.MilliValue()
		case TargetLowerThanRequests:
			return target.MilliValue() < request.MilliValue()
		}
		return false
	})
}

// Observed reports which containers the pod had at admission; those that were added later are not
// changed. Without the annotation, or if it is not a list of names, the pod had all of them.
func Observed(pod *corev1.Pod) func(container string) bool {
	text, there := pod.Annotations[ObservedAnnotation]
	names := strings.Split(text, namesSeparator)
	if text == "" {
		names = nil
	}
	for _, name := range names {
		if len(validation.IsDNS1123Label(name)) > 0 {
			there = false
		}
	}
	return func(container string) bool { return !there || slices.Contains(names, container) }
}

// operation is one of a JSON patch.
type operation struct {
	Op    string `json:"op"`
	Path  string `json:"path"`
	Value any    `json:"value"`
}

// Patch returns the JSON patch of the resize subresource that sets the recommended requests of a
// pod; nil if the pod already has them.
func (r *Round) Patch(pod *corev1.Pod) ([]byte, error) {
	patch := []operation{{"test", "/metadata/uid", pod.UID}}
	for i, s := range Sizes(r.vpa, pod, r.ranges) {
		c := pod.Spec.Containers[i].Resources.DeepCopy()
		if merges(c.Requests, s.Requests) && merges(c.Limits, s.Limits) {
			continue
		}
		set(&c.Requests, s.Requests, "")
		set(&c.Limits, s.Limits, "")
		patch = append(patch, operation{"add", fmt.Sprintf("/spec/containers/%d/resources", i), c})
	}
	if len(patch) == 1 {
		return nil, nil
	}
	text, err := json.Marshal(patch)
	if err != nil {
		return nil, fmt.Errorf("write the resize of pod %s/%s: %w", pod.Namespace, pod.Name, err)
	}
	return text, nil
}

// merges reports whether list has all of more already.
func merges(list, more corev1.ResourceList) bool {
	for name, q := range more { // any order: all are compared
		if have, there := list[name]; !there || q.Cmp(have) != 0 {
			return false
		}
	}
	return true
}
