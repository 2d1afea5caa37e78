package vpa

import (
	"fmt"
	"maps"
	"math"
	"math/big"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// Ranges combines the limit ranges of a namespace: the lowest maximum, the highest minimum. nil:
// there is none.
type Ranges struct {
	Container, Pod *corev1.LimitRangeItem
}

// RangesOf combines limit ranges.
func RangesOf(all []*corev1.LimitRange) Ranges {
	var out Ranges
	for _, r := range all {
		for i := range r.Spec.Limits {
			switch item := &r.Spec.Limits[i]; item.Type {
			case corev1.LimitTypeContainer:
				out.Container = narrow(out.Container, item)
			case corev1.LimitTypePod:
				out.Pod = narrow(out.Pod, item)
			}
		}
	}
	return out
}

func narrow(have, item *corev1.LimitRangeItem) *corev1.LimitRangeItem {
	if item.Min == nil && item.Max == nil && item.Default == nil {
		return have
	}
	if have == nil {
		have = &corev1.LimitRangeItem{Type: item.Type, Min: corev1.ResourceList{}, Max: corev1.ResourceList{},
			Default: corev1.ResourceList{}}
	}
	for _, name := range slices.Sorted(maps.Keys(item.Max)) {
		if q, there := have.Max[name]; !there || q.Cmp(item.Max[name]) > 0 {
			have.Max[name] = item.Max[name]
		}
	}
	for _, name := range slices.Sorted(maps.Keys(item.Min)) {
		if q, there := have.Min[name]; !there || q.Cmp(item.Min[name]) < 0 {
			have.Min[name] = item.Min[name]
		}
	}
	maps.Copy(have.Default, item.Default)
	return have
}

// Fit returns the recommendation of an autoscaler for a pod, within the limit ranges of the
// namespace and the policy, and the adjustments by container (W9.72).
func Fit(v *VerticalPodAutoscaler, pod *corev1.Pod, ranges Ranges) (*Recommendation, map[string][]string) {
	notes := map[string][]string{}
	if v.Status.Recommendation == nil {
		return &Recommendation{}, notes
	}
	r := v.Status.Recommendation.clone()
	fitPod(r, pod, ranges.Pod)
	out := &Recommendation{}
	for _, c := range r.Containers {
		if !slices.ContainsFunc(pod.Spec.Containers,
			func(of corev1.Container) bool { return of.Name == c.ContainerName }) {
			continue
		}
		policy := v.Spec.ResourcePolicy.Policy(c.ContainerName)
		requests, limits := Actual(pod, c.ContainerName)
		fit := func(list corev1.ResourceList) []string {
			changes := append(fitContainer(list, requests, limits, ranges.Container), policy.bound(list)...)
			if !policy.requestsOnly() {
				return changes
			}
			for _, name := range slices.Sorted(maps.Keys(limits)) {
				if q, there := list[name]; there && q.Cmp(limits[name]) > 0 {
					list[name] = limits[name]
					changes = append(changes, string(name)+" capped to container limit")
				}
			}
			return changes
		}
		if changes := fit(c.Target); len(changes) > 0 {
			notes[c.ContainerName] = changes
		}
		fit(c.LowerBound)
		fit(c.UpperBound)
		out.Containers = append(out.Containers, c)
	}
	return out, notes
}

// fitContainer limits requests so that they and their limits fit a limit range.
func fitContainer(list, requests, limits corev1.ResourceList, item *corev1.LimitRangeItem) (notes []string) {
	if item == nil {
		return nil
	}
	for _, name := range slices.Sorted(maps.Keys(list)) {
		low, high := item.Min[name], item.Max[name]
		lowest := requestFor(name, requests[name], limits[name], low, item.Default[name])
		if lowest.Cmp(low) < 0 {
			lowest = low
		}
		if atLeast(list, name, lowest) {
			notes = append(notes, string(name)+" capped to fit Min in container LimitRange")
		}
		if atMost(list, name, requestFor(name, requests[name], limits[name], high, item.Default[name])) {
			notes = append(notes, string(name)+" capped to fit Max in container LimitRange")
		}
	}
	return notes
}

// requestFor returns the request that corresponds to a limit in the original proportion; zero
// without a limit.
func requestFor(name corev1.ResourceName, request, limit, bound, standard resource.Quantity) resource.Quantity {
	if limit.IsZero() {
		limit = standard
	}
	switch {
	case limit.IsZero():
		return resource.Quantity{}
	case request.IsZero():
		return bound
	}
	out, _ := proportion(name, request, bound, limit, false)
	return out
}

// limitFor returns the limit for a recommended request that keeps the proportion of limit to request
// (W9.71). set is false if there is none. why is the reason, also when the limit is too large for a
// number.
func limitFor(name corev1.ResourceName, limit, request, recommended,
	standard resource.Quantity) (out resource.Quantity, set bool, why string) {
	if limit.IsZero() {
		limit = standard
	}
	switch {
	case limit.IsZero():
		return out, false, fmt.Sprintf("%s: limit NOT set since originalLimit is nil or 0", name)
	case recommended.IsZero():
		return out, false, fmt.Sprintf("%s: limit NOT set since recommendedRequest is nil or 0", name)
	case request.IsZero() || request.Cmp(limit) == 0:
		return recommended, true, ""
	}
	out, fits := proportion(name, limit, recommended, request, false)
	if !fits {
		why = fmt.Sprintf("%s: failed to keep limit to request ratio; capping limit to int64", name)
	}
	return out, true, why
}

// proportion returns a × b / c, in milli-cores or bytes, rounded down or up; the largest number if
// it overflows.
func proportion(name corev1.ResourceName, a, b, c resource.Quantity, up bool) (out resource.Quantity, fits bool) {
	read := func(q resource.Quantity) *big.Int { return big.NewInt(q.Value()) }
	of := func(n int64) resource.Quantity { return *resource.NewQuantity(n, a.Format) }
	if name == corev1.ResourceCPU {
		read = func(q resource.Quantity) *big.Int { return big.NewInt(q.MilliValue()) }
		of = func(n int64) resource.Quantity { return *resource.NewMilliQuantity(n, a.Format) }
	}
	by := read(c)
	if by.Sign() <= 0 {
		return a, true
	}
	n, rest := new(big.Int).DivMod(new(big.Int).Mul(read(a), read(b)), by, new(big.Int))
	if up && rest.Sign() > 0 {
		n.Add(n, big.NewInt(1))
	}
	if !n.IsInt64() {
		return of(math.MaxInt64), false
	}
	return of(n.Int64()), true
}

// fitPod scales the recommendations for all containers of a pod, so that their sum fits a limit
// range for pods.
func fitPod(r *Recommendation, pod *corev1.Pod, item *corev1.LimitRangeItem) {
	if item == nil {
		return
	}
	for i := range pod.Spec.Containers {
		name := pod.Spec.Containers[i].Name
		if requests, _ := Actual(pod, name); r.For(name) == nil && len(requests) > 0 {
			r.Containers = append(r.Containers,
				ContainerRecommendation{ContainerName: name, Target: requests.DeepCopy()})
		}
	}
	for _, of := range []func(*ContainerRecommendation) corev1.ResourceList{
		func(c *ContainerRecommendation) corev1.ResourceList { return c.UpperBound },
		func(c *ContainerRecommendation) corev1.ResourceList { return c.Target },
		func(c *ContainerRecommendation) corev1.ResourceList { return c.LowerBound },
	} {
		for _, name := range []corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory} {
			fitSum(r, pod, item, name, of)
		}
	}
}

func fitSum(r *Recommendation, pod *corev1.Pod, item *corev1.LimitRangeItem, name corev1.ResourceName,
	of func(*ContainerRecommendation) corev1.ResourceList) {
	low, high := item.Min[name], item.Max[name]
	var sum, limits resource.Quantity // of requests and limits
	var lists []corev1.ResourceList   // that have the resource
	for i := range pod.Spec.Containers {
		container := pod.Spec.Containers[i].Name
		had, limited := Actual(pod, container)
		wanted := had[name]
		if c := r.For(container); c != nil {
			if q, there := of(c)[name]; there {
				wanted = q
				lists = append(lists, of(c))
			}
		}
		if l, set, _ := limitFor(name, limited[name], had[name], wanted, item.Default[name]); set {
			limits.Add(l)
		}
		sum.Add(wanted)
	}
	scale := func(to, from resource.Quantity, up bool) {
		for _, list := range lists {
			list[name], _ = proportion(name, list[name], to, from, up)
		}
	}
	switch {
	case limits.IsZero() || sum.IsZero():
	case low.Cmp(sum) > 0:
		scale(low, sum, name == corev1.ResourceCPU)
	case !high.IsZero() && high.Cmp(limits) < 0:
		scale(high, limits, false)
	case low.Cmp(limits) > 0:
		scale(low, limits, false)
	}
}
