package vpas

import (
	"encoding/json"
	"errors"
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"carob/internal/core/workload"
	"carob/internal/core/workload/vpa"
	"carob/internal/sim/fakeapi"
)

var errBudget = errors.New("the disruption budget does not allow it")

// ready reports whether a pod counts for a disruption budget.
func ready(p *corev1.Pod) bool {
	return p.DeletionTimestamp == nil && p.Status.Phase == corev1.PodRunning && workload.Ready(p)
}

// healthy returns how many pods are, without one.
func (w *world) healthy(but types.UID) int {
	n := 0
	for _, p := range fakeapi.All[*corev1.Pod](w.API) {
		if p.UID != but && ready(p) {
			n++
		}
	}
	return n
}

// evictable is the result of the eviction API.
func (w *world) evictable(uid types.UID) bool {
	p, there := w.Get(uid).(*corev1.Pod)
	return !there || p.Status.Phase == corev1.PodPending || w.healthy(uid) >= w.budget
}

// accepted passes a resize to a kubelet.
func (w *world) accepted(p *corev1.Pod) {
	// A second resize that comes while the first is in flight, which the controller has not seen, is the same to it.
	f := fate{until: w.Now.Add(time.Second), since: w.resizes[p.UID].since}
	if !w.Faultless {
		f.kind = w.IntN(fates)
		f.until = w.Now.Add(time.Duration(w.IntN(90)) * time.Minute)
	}
	w.resizes[p.UID] = f
}

// within checks amounts by a policy: minAllowed, which maxAllowed overrules.
func within(what string, p *vpa.ResourcePolicy, list corev1.ResourceList) {
	policy := p.ContainerPolicies[0]
	for name, q := range list { // any order: each is checked
		if least, there := policy.MinAllowed[name]; there && q.Cmp(least) < 0 {
			fakeapi.Break(Bounds, "%s is %s of %s, minAllowed is %s", what, q.String(), name, least.String())
		}
		if most, there := policy.MaxAllowed[name]; there && q.Cmp(most) > 0 {
			fakeapi.Break(Bounds, "%s is %s of %s, maxAllowed is %s", what, q.String(), name, most.String())
		}
	}
}

// recommended checks a stored status, by the policy of the generation that it is for.
func (w *world) recommended(s vpa.Status) {
	for _, c := range s.Recommendation.Containers {
		p := w.policies[*s.ObservedGeneration]
		within("the target", p, c.Target)
		within("the lower bound", p, c.LowerBound)
		within("the upper bound", p, c.UpperBound)
	}
}

// sized checks a pod that an autoscaler has sized.
func (w *world) sized(v *vpa.VerticalPodAutoscaler, p *corev1.Pod) {
	if v.Status.Recommendation.For("c") != nil {
		within("the request of a new pod", w.policies[v.Generation], p.Spec.Containers[0].Resources.Requests)
	}
}

// sizes reads the requests in a patch.
func sizes(round *vpa.Round, p *corev1.Pod) corev1.ResourceList {
	patch, err := round.Patch(p)
	var ops []struct {
		Path  string
		Value json.RawMessage
	}
	err = errors.Join(err, json.Unmarshal(patch, &ops))
	var r corev1.ResourceRequirements
	for _, op := range ops {
		if strings.HasPrefix(op.Path, "/spec/containers/0/") {
			err = errors.Join(err, json.Unmarshal(op.Value, &r))
		}
	}
	if err != nil {
		panic(err)
	}
	return r.Requests
}

// restarted checks the recommendation of a new process with the checkpoints and without new samples. OOM kills and
// deletions since the checkpoints may change it.
func (w *world) restarted(m *vpa.Model, s vpa.Status, pods []*corev1.Pod, err error) {
	if err != nil {
		fakeapi.Break(Restart, "%v", err)
	}
	b := w.before
	if b == nil || slices.ContainsFunc(pods, func(p *corev1.Pod) bool {
		for _, c := range p.Status.ContainerStatuses {
			if t := c.LastTerminationState.Terminated; t != nil && !t.FinishedAt.Time.Before(b.at.Add(-24*time.Hour)) {
				return true
			}
		}
		return false
	}) {
		return
	}
	for _, old := range b.status.Recommendation.Containers {
		now := s.Recommendation.For(old.ContainerName)
		if now == nil {
			fakeapi.Break(Restart, "nothing is recommended any more")
		}
		for name, had := range old.UncappedTarget { // any order: each is checked
			has := now.UncappedTarget[name]
			ratio := has.AsApproximateFloat64() / had.AsApproximateFloat64()
			if (ratio < 0.94 || ratio > 1.06) && !w.holds(m) {
				fakeapi.Break(Restart, "%s was %s, and is %s", name, had.String(), has.String())
			}
		}
	}
}

// holds reports whether a model has the stored samples, apart from rounding: at the exact limit of a percentile,
// rounding moves it to the next bucket with samples.
func (w *world) holds(m *vpa.Model) bool {
	all := fakeapi.All[*checkpoint](w.API)
	for _, p := range m.Checkpoints(vpa.Name{Namespace: "n", Name: "web"}, w.Now) {
		i := slices.IndexFunc(all, func(c *checkpoint) bool { return c.Spec == p.Spec })
		if i < 0 || !alike(p.Status.CPUHistogram.BucketWeights, all[i].Status.CPUHistogram.BucketWeights) ||
			!alike(p.Status.MemoryHistogram.BucketWeights, all[i].Status.MemoryHistogram.BucketWeights) {
			return false
		}
	}
	return len(all) > 0
}

func alike(a, b map[int]uint32) bool {
	return maps.EqualFunc(a, b, func(x, y uint32) bool { return max(x, y)-min(x, y) <= 2 })
}

// checker checks one pass of the updater by the controller's view.
type checker struct {
	w        *world
	v        *vpa.VerticalPodAutoscaler
	live     int // pods of the group
	running  int
	taken    int // running pods that were disturbed
	tolerant int
	refused  map[types.UID]bool // resizes that the API has refused
	seen     map[types.UID]*corev1.Pod
}

func newChecker(w *world, v *vpa.VerticalPodAutoscaler, pods []*corev1.Pod) *checker {
	c := &checker{w: w, v: v, tolerant: w.replicas / 2, refused: map[types.UID]bool{},
		seen: map[types.UID]*corev1.Pod{}}
	for _, p := range pods {
		if p.DeletionTimestamp == nil && p.Spec.NodeName != "" && !workload.Terminal(p) {
			c.live++
			if p.Status.Phase == corev1.PodRunning {
				c.running++
			}
		}
		c.seen[p.UID] = p
	}
	return c
}

// disturbed checks the invariants of evictions and resizes.
func (c *checker) disturbed(p *corev1.Pod) {
	policy := c.v.Spec.UpdatePolicy
	if m := *policy.UpdateMode; m == vpa.ModeOff || m == vpa.ModeInitial {
		fakeapi.Break(Quiet, "pod %s is changed in mode %s", p.Name, m)
	}
	least := 2
	if policy.MinReplicas != nil {
		least = int(*policy.MinReplicas)
	}
	if c.live < least {
		fakeapi.Break(Least, "pod %s is changed, one of %d: minReplicas is %d", p.Name, c.live, least)
	}
	if p.Status.Phase != corev1.PodRunning {
		return
	}
	c.taken++
	if left := c.running - c.taken; left < c.w.replicas-c.tolerant &&
		(c.tolerant > 0 || c.taken > 1 || c.running != c.w.replicas) {
		fakeapi.Break(Half, "%d of %d pods, %d of which ran, are changed in one look", c.taken, c.w.replicas, c.running)
	}
}

// resized checks a resize.
func (c *checker) resized(p *corev1.Pod) {
	for _, c := range c.seen[p.UID].Status.Conditions {
		if c.Type == corev1.PodResizePending || c.Type == corev1.PodResizeInProgress {
			fakeapi.Break(Single, "pod %s is resized again, its condition is %s", p.Name, c.Type)
		}
	}
	c.disturbed(p)
}

// evicted checks an eviction that left so many healthy pods.
func (c *checker) evicted(p *corev1.Pod, healthy int) {
	if p.Status.Phase != corev1.PodPending && healthy < c.w.budget {
		fakeapi.Break(Budget, "pod %s goes, %d are left of %d", p.Name, healthy, c.w.budget)
	}
	if *c.v.Spec.UpdatePolicy.UpdateMode == vpa.ModeInPlaceOrRecreate && !c.refused[p.UID] && !c.failed(p) {
		fakeapi.Break(InPlace, "pod %s is evicted", p.Name)
	}
	c.disturbed(p)
}

// failed reports whether a resize of a pod has failed or takes too long.
func (c *checker) failed(p *corev1.Pod) bool {
	took := c.w.Now.Sub(c.w.resizes[p.UID].since)
	return slices.ContainsFunc(c.seen[p.UID].Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == corev1.PodResizePending && (c.Reason == corev1.PodReasonInfeasible || took > 5*time.Minute) ||
			c.Type == corev1.PodResizeInProgress && took > time.Hour
	})
}

// checkEnd checks the recommendation for a load that has not changed for days, and the requests of
// pods.
func (w *world) checkEnd() {
	v := &w.scaler().VerticalPodAutoscaler
	c := v.Status.Recommendation.For("c")
	if c == nil {
		fakeapi.Break(Ends, "nothing is recommended: %+v", v.Status)
	}
	for name, q := range c.UncappedTarget { // any order: each is checked
		// The upper border of the load's bucket, plus 15 %; at least the minimum of a pod.
		had := float64(w.load.milli)
		first, floor, got := 10.0, 25.0, float64(q.MilliValue())
		if name == corev1.ResourceMemory {
			had, first, floor, got = float64(w.load.bytes), 1e7, 250<<20, float64(q.Value())
		}
		if got < had || got > max(floor, (had*1.05+first)*1.15) {
			fakeapi.Break(Ends, "%s is recommended of %s, containers use %+v", q.String(), name, w.load)
		}
	}
	if m := v.Mode(); m == vpa.ModeOff || m == vpa.ModeInitial {
		return
	}
	pods := slices.DeleteFunc(fakeapi.All[*corev1.Pod](w.API), workload.Terminal)
	if len(pods) != w.replicas {
		fakeapi.Break(Ends, "%d pods of %d", len(pods), w.replicas)
	}
	for _, p := range pods {
		has, _ := vpa.Actual(p, "c")
		for name, q := range has { // any order: each is checked
			low, high := c.LowerBound[name], c.UpperBound[name]
			if q.Cmp(low) < 0 || q.Cmp(high) > 0 {
				fakeapi.Break(Ends, "pod %s has %s of %s, the bounds are %s and %s", p.Name, q.String(), name,
					low.String(), high.String())
			}
		}
	}
}
