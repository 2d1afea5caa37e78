package autoscaler

import (
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"time"

	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	podresources "k8s.io/component-helpers/resource"

	"carob/internal/core/workload"
)

// Sample is the response of a metrics API for one metric. Values are thousandths (W8.24).
type Sample struct {
	Err error
	// Pods has a value for each pod, by name: Resource, ContainerResource and Pods metrics.
	Pods map[string]PodValue
	// Values are the values of an Object metric (one) or of an External one.
	Values []int64
}

// PodValue is the usage of one pod.
type PodValue struct {
	Value  int64
	At     time.Time
	Window time.Duration
}

// evaluation is the result of one metric.
type evaluation struct {
	size    int32
	name    string
	status  autoscalingv2.MetricStatus
	failure string // the reason of the condition and the event when there is an error
	err     error  // for the condition
	outer   error  // for the pass
}

func failed(reason, outer string, err error) evaluation {
	return evaluation{failure: reason, err: err, outer: fmt.Errorf("%s: %w", outer, err)}
}

// evaluate computes the size that the metric at i requires (W7.D).
func (p *plan) evaluate(i int) evaluation {
	spec := &p.HPA.Spec.Metrics[i]
	var s Sample
	if i < len(p.Samples) {
		s = p.Samples[i]
	} else {
		s.Err = errors.New("it was not read")
	}
	switch spec.Type {
	case autoscalingv2.ResourceMetricSourceType:
		m := spec.Resource
		e := p.resource(s, m.Name, "", m.Target)
		if e.err != nil {
			return failed("FailedGetResourceMetric", fmt.Sprintf("failed to get %s resource metric value", m.Name),
				e.err)
		}
		e.status = autoscalingv2.MetricStatus{Type: spec.Type,
			Resource: &autoscalingv2.ResourceMetricStatus{Name: m.Name, Current: e.status.Resource.Current}}
		return e
	case autoscalingv2.ContainerResourceMetricSourceType:
		m := spec.ContainerResource
		e := p.resource(s, m.Name, m.Container, m.Target)
		if e.err != nil {
			return failed("FailedGetContainerResourceMetric",
				fmt.Sprintf("failed to get %s container metric value", m.Container), e.err)
		}
		e.status = autoscalingv2.MetricStatus{Type: spec.Type,
			ContainerResource: &autoscalingv2.ContainerResourceMetricStatus{Name: m.Name, Container: m.Container,
				Current: e.status.Resource.Current}}
		return e
	case autoscalingv2.PodsMetricSourceType:
		return p.podsMetric(s, spec)
	case autoscalingv2.ObjectMetricSourceType:
		return p.object(s, spec)
	case autoscalingv2.ExternalMetricSourceType:
		return p.external(s, spec)
	}
	err := fmt.Errorf("unknown metric source type %q", string(spec.Type))
	return evaluation{failure: "InvalidMetricSourceType", err: err, outer: err}
}

// quantity writes thousandths like metrics servers.
func quantity(name corev1.ResourceName, milli int64) *resource.Quantity {
	format := resource.DecimalSI
	if name == corev1.ResourceMemory {
		format = resource.BinarySI
	}
	return resource.NewMilliQuantity(milli, format)
}

// resource evaluates a resource of pods or of one of their containers.
func (p *plan) resource(s Sample, name corev1.ResourceName, container string,
	target autoscalingv2.MetricTarget) evaluation {
	var current autoscalingv2.MetricValueStatus
	var e evaluation
	switch {
	case target.AverageValue != nil:
		size, usage, err := int32(0), int64(0), s.Err
		if err != nil {
			err = fmt.Errorf("unable to get metrics for resource %s: %w", name, err)
		} else {
			size, usage, err = p.byPods(s.Pods, name, average{target: target.AverageValue.MilliValue()})
		}
		if err != nil {
			return evaluation{err: fmt.Errorf("failed to get %s usage: %w", name, err)}
		}
		e.size, e.name, current.AverageValue = size, fmt.Sprintf("%s resource", name), quantity(name, usage)
	case target.AverageUtilization != nil:
		u := utilization{target: *target.AverageUtilization}
		size, percent, err := int32(0), int64(0), s.Err
		if err != nil {
			err = fmt.Errorf("unable to get metrics for resource %s: %w", name, err)
		} else {
			u.requests = func() (map[string]int64, error) { return requests(p.Pods, container, name) }
			size, percent, err = p.byPods(s.Pods, name, &u)
		}
		if err != nil {
			return evaluation{err: fmt.Errorf("failed to get %s utilization: %w", name, err)}
		}
		e.size, e.name = size, fmt.Sprintf("%s resource utilization (percentage of request)", name)
		if container != "" {
			e.name = fmt.Sprintf("%s container resource utilization (percentage of request)", name)
		}
		current.AverageUtilization, current.AverageValue = new(clamp(percent)), quantity(name, u.raw)
	default:
		return evaluation{
			err: errors.New(
				"invalid resource metric source: neither an average utilization target nor an average value (usage) target was set")}
	}
	e.status.Resource = &autoscalingv2.ResourceMetricStatus{Current: current}
	return e
}

func clamp(n int64) int32 { return int32(max(math.MinInt32, min(math.MaxInt32, n))) }

func (p *plan) podsMetric(s Sample, spec *autoscalingv2.MetricSpec) evaluation {
	m := spec.Pods
	fail := func(err error) evaluation {
		return failed("FailedGetPodsMetric", "failed to get pods metric value", err)
	}
	if s.Err != nil {
		return fail(fmt.Errorf("unable to get metric %s: %w", m.Metric.Name, s.Err))
	}
	if m.Target.AverageValue == nil {
		return fail(errors.New("invalid pods metric source: no average value target was set"))
	}
	size, usage, err := p.byPods(s.Pods, "", average{target: m.Target.AverageValue.MilliValue()})
	if err != nil {
		return fail(err)
	}
	return evaluation{size: size, name: "pods metric " + m.Metric.Name,
		status: autoscalingv2.MetricStatus{Type: spec.Type, Pods: &autoscalingv2.PodsMetricStatus{
			Metric: m.Metric, Current: autoscalingv2.MetricValueStatus{AverageValue: quantity("", usage)}}}}
}

func (p *plan) object(s Sample, spec *autoscalingv2.MetricSpec) evaluation {
	m := spec.Object
	fail := func(err error) evaluation {
		return failed("FailedGetObjectMetric", "failed to get object metric value", err)
	}
	if s.Err == nil && len(s.Values) != 1 {
		s.Err = fmt.Errorf("unable to fetch metrics from custom metrics API: the custom metrics API server returned "+
			"%d results when we asked for exactly one", len(s.Values)) // W8.21
	}
	if s.Err != nil {
		s.Err = fmt.Errorf("unable to get metric %s on %s %s/%s: %w", m.Metric.Name, m.DescribedObject.Kind,
			p.HPA.Namespace, m.DescribedObject.Name, s.Err)
	}
	out := evaluation{status: autoscalingv2.MetricStatus{Type: spec.Type,
		Object: &autoscalingv2.ObjectMetricStatus{DescribedObject: m.DescribedObject, Metric: m.Metric}}}
	current := &out.status.Object.Current
	switch {
	case m.Target.Type == autoscalingv2.ValueMetricType && m.Target.Value != nil:
		size, usage, err := p.byValue(s, m.Target.Value.MilliValue())
		if err != nil {
			return fail(err)
		}
		out.size, out.name, current.Value = size, fmt.Sprintf("%s metric %s", m.DescribedObject.Kind, m.Metric.Name),
			quantity("", usage)
	case m.Target.Type == autoscalingv2.AverageValueMetricType && m.Target.AverageValue != nil:
		if s.Err != nil {
			return fail(fmt.Errorf("failed to get %s object metric: %w", m.Metric.Name, s.Err))
		}
		size, usage := p.byShare(s, m.Target.AverageValue.MilliValue())
		out.size, out.name, current.AverageValue = size,
			fmt.Sprintf("external metric %s(%+v)", m.Metric.Name, m.Metric.Selector), quantity("", usage)
	default:
		return fail(
			errors.New("invalid object metric source: neither a value target nor an average value target was set"))
	}
	return out
}

func (p *plan) external(s Sample, spec *autoscalingv2.MetricSpec) evaluation {
	m := spec.External
	fail := func(err error) evaluation {
		return failed("FailedGetExternalMetric", fmt.Sprintf("failed to get %s external metric value", m.Metric.Name),
			err)
	}
	if s.Err != nil {
		s.Err = fmt.Errorf("unable to get external metric %s/%s/%+v: %w", p.HPA.Namespace, m.Metric.Name,
			m.Metric.Selector, s.Err)
	}
	out := evaluation{name: fmt.Sprintf("external metric %s(%+v)", m.Metric.Name, m.Metric.Selector),
		status: autoscalingv2.MetricStatus{Type: spec.Type,
			External: &autoscalingv2.ExternalMetricStatus{Metric: m.Metric}}}
	current := &out.status.External.Current
	switch {
	case m.Target.AverageValue != nil:
		if s.Err != nil {
			return fail(fmt.Errorf("failed to get %s external metric: %w", m.Metric.Name, s.Err))
		}
		size, usage := p.byShare(s, m.Target.AverageValue.MilliValue())
		out.size, current.AverageValue = size, quantity("", usage)
	case m.Target.Value != nil:
		size, usage, err := p.byValue(s, m.Target.Value.MilliValue())
		if err != nil {
			return fail(fmt.Errorf("failed to get external metric %s: %w", m.Metric.Name, err))
		}
		out.size, current.Value = size, quantity("", usage)
	default:
		return fail(
			errors.New("invalid external metric source: neither a value target nor an average value target was set"))
	}
	return out
}

// within reports whether a ratio is so close to 1 that the size does not change (W7.43).
func (p *plan) within(ratio float64) bool {
	down, up := defaultTolerance, defaultTolerance
	if b := p.HPA.Spec.Behavior; b != nil {
		if b.ScaleDown != nil && b.ScaleDown.Tolerance != nil {
			down = b.ScaleDown.Tolerance.AsApproximateFloat64()
		}
		if b.ScaleUp != nil && b.ScaleUp.Tolerance != nil {
			up = b.ScaleUp.Tolerance.AsApproximateFloat64()
		}
	}
	return 1-down <= ratio && ratio <= 1+up
}

// total adds up values.
func total(values []int64) int64 {
	sum := int64(0)
	for _, v := range values {
		sum = plus(sum, v)
	}
	return sum
}

// plus adds two numbers, up to the largest and down to the smallest one. Values come from metrics servers.
func plus(a, b int64) int64 {
	switch {
	case b > 0 && a > math.MaxInt64-b:
		return math.MaxInt64
	case b < 0 && a < math.MinInt64-b:
		return math.MinInt64
	}
	return a + b
}

// percentage returns a share in percent, within the numbers that there are.
func percentage(part, whole int64) int64 {
	if exact := part * 100; exact/100 == part {
		return exact / whole
	}
	if f := 100 * (float64(part) / float64(whole)); f > -math.MaxInt64 && f < math.MaxInt64 {
		return int64(f)
	} else if f < 0 {
		return -math.MaxInt64
	}
	return math.MaxInt64
}

// byValue compares one value with its target (W7.41).
func (p *plan) byValue(s Sample, target int64) (size int32, usage int64, err error) {
	if s.Err != nil {
		return 0, 0, s.Err
	}
	usage = total(s.Values)
	ratio := float64(usage) / float64(target)
	switch {
	case p.Scale.Wanted == 0:
		return ceil(ratio), usage, nil
	case p.within(ratio):
		return p.Scale.Wanted, usage, nil
	case len(p.Pods) == 0:
		return 0, 0,
			errors.New("unable to calculate ready pods: no pods returned by selector while calculating replica count")
	}
	ready := 0
	for _, pod := range p.Pods {
		if pod.Status.Phase == corev1.PodRunning && workload.Ready(pod) {
			ready++
		}
	}
	return ceil(ratio * float64(ready)), usage, nil
}

// byShare compares the share of each pod in a value with its target (W7.42).
func (p *plan) byShare(s Sample, target int64) (size int32, usage int64) {
	sum := float64(total(s.Values))
	pods := float64(p.Scale.Current)
	size = p.Scale.Current
	if !p.within(sum / (float64(target) * pods)) {
		size = ceil(sum / float64(target))
	}
	if pods == 0 {
		pods = 1 // the share of none is all of it
	}
	if share := math.Ceil(sum / pods); share < math.MaxInt64 {
		return size, int64(share)
	}
	return size, math.MaxInt64
}

// aim is the target that the usage of pods is compared with.
type aim interface {
	// ratio returns usage by aim, and the usage as the status reports it.
	ratio(values map[string]int64) (ratio float64, usage int64, err error)
	// fallback is the assumed usage of a pod without a metric when the metrics suggest fewer pods.
	fallback(pod string) int64
}

// average is a target for the mean of all pods.
type average struct{ target int64 }

func (a average) ratio(values map[string]int64) (float64, int64, error) {
	mean := total(slices.Collect(maps.Values(values))) / int64(len(values)) // any order: a sum
	return float64(mean) / float64(a.target), mean, nil
}

func (a average) fallback(string) int64 { return a.target }

// utilization is a target in percent of the requests of pods.
type utilization struct {
	target   int32
	requests func() (map[string]int64, error)

	requested map[string]int64
	raw       int64 // the mean usage, of the first ratio
	computed  bool
}

func (u *utilization) ratio(values map[string]int64) (float64, int64, error) {
	if u.requested == nil {
		var err error
		if u.requested, err = u.requests(); err != nil {
			return 0, 0, err
		}
	}
	used, requested, n := int64(0), int64(0), int64(0)
	for pod, v := range values { // any order: sums
		if r, ok := u.requested[pod]; ok {
			used, requested, n = plus(used, v), plus(requested, r), n+1
		}
	}
	if requested == 0 {
		return 0, 0, errors.New("no metrics returned matched known pods")
	}
	percent := percentage(used, requested)
	if !u.computed {
		u.computed, u.raw = true, used/n
	}
	return float64(percent) / float64(u.target), percent, nil
}

// fallback returns the whole request, or the target if that is more (W7.39).
func (u *utilization) fallback(pod string) int64 {
	return u.requested[pod] * int64(max(100, u.target)) / 100
}

// byPods computes the number of pods from the usage of each of them (W7.30 to W7.40).
func (p *plan) byPods(metrics map[string]PodValue, name corev1.ResourceName, a aim) (size int32, usage int64,
	err error) {
	if len(p.Pods) == 0 {
		return 0, 0, errors.New("no pods returned by selector while calculating replica count")
	}
	values := make(map[string]int64, len(metrics))
	for pod, v := range metrics { // any order: a copy
		values[pod] = v.Value
	}
	ready := 0
	var unready, missing []string
	for _, pod := range p.Pods {
		v, measured := metrics[pod.Name]
		switch {
		case pod.DeletionTimestamp != nil || pod.Status.Phase == corev1.PodFailed:
			delete(values, pod.Name)
		case pod.Status.Phase == corev1.PodPending || measured && name == corev1.ResourceCPU && p.starts(pod, v):
			delete(values, pod.Name)
			unready = append(unready, pod.Name)
		case !measured:
			missing = append(missing, pod.Name)
		default:
			ready++
		}
	}
	if len(values) == 0 {
		return 0, 0, errors.New("did not receive metrics for targeted pods (pods might be unready)")
	}
	ratio, usage, err := a.ratio(values)
	if err != nil {
		return 0, 0, err
	}
	current := p.Scale.Wanted
	upWithUnready := len(unready) > 0 && ratio > 1
	if !upWithUnready && len(missing) == 0 {
		if p.within(ratio) {
			return current, usage, nil
		}
		return ceil(ratio * float64(ready)), usage, nil
	}
	for _, pod := range missing {
		switch {
		case ratio < 1:
			values[pod] = a.fallback(pod)
		case ratio > 1:
			values[pod] = 0
		}
	}
	if upWithUnready {
		for _, pod := range unready {
			values[pod] = 0
		}
	}
	again, _, err := a.ratio(values)
	if err != nil {
		return 0, 0, err
	}
	if p.within(again) || ratio < 1 && again > 1 || ratio > 1 && again < 1 {
		return current, usage, nil
	}
	size = ceil(again * float64(len(values)))
	if again < 1 && size > current || again > 1 && size < current {
		return current, usage, nil // the direction would be reversed
	}
	return size, usage, nil
}

// starts reports whether the CPU usage of a pod is that of its start (W7.34).
func (p *plan) starts(pod *corev1.Pod, v PodValue) bool {
	var ready *corev1.PodCondition
	for i := range pod.Status.Conditions {
		if pod.Status.Conditions[i].Type == corev1.PodReady {
			ready = &pod.Status.Conditions[i]
		}
	}
	if ready == nil || pod.Status.StartTime == nil {
		return true
	}
	changed := ready.LastTransitionTime.Time
	if pod.Status.StartTime.Add(cpuStart).After(p.Now) {
		return ready.Status == corev1.ConditionFalse || v.At.Before(changed.Add(v.Window))
	}
	return ready.Status == corev1.ConditionFalse && pod.Status.StartTime.Add(firstReadiness).After(changed)
}

// requests returns the requests of pods, or of one of their containers, by name (W7.36).
func requests(all []*corev1.Pod, container string, name corev1.ResourceName) (map[string]int64, error) {
	out := make(map[string]int64, len(all))
	for _, pod := range all {
		if container == "" && podresources.IsPodLevelRequestsSet(pod) {
			q, ok := podresources.PodRequests(pod, podresources.PodResourcesOptions{})[name]
			if !ok {
				return nil, fmt.Errorf("missing pod-level request for %s in Pod %s", name, pod.Name)
			}
			out[pod.Name] = q.MilliValue()
			continue
		}
		sum, err := requestOf(pod, container, name)
		if err != nil {
			return nil, err
		}
		out[pod.Name] = sum
	}
	return out, nil
}

func requestOf(pod *corev1.Pod, container string, name corev1.ResourceName) (sum int64, err error) {
	found := container == ""
	add := func(c *corev1.Container) error {
		if container != "" && container != c.Name {
			return nil
		}
		found = true
		q, ok := c.Resources.Requests[name]
		if !ok {
			return fmt.Errorf("missing request for %s in container %s of Pod %s", name, c.Name, pod.Name)
		}
		sum += q.MilliValue()
		return nil
	}
	for i := range pod.Spec.Containers {
		if err := add(&pod.Spec.Containers[i]); err != nil {
			return 0, err
		}
	}
	for i := range pod.Spec.InitContainers {
		c := &pod.Spec.InitContainers[i]
		if c.RestartPolicy == nil || *c.RestartPolicy != corev1.ContainerRestartPolicyAlways {
			continue
		}
		if err := add(c); err != nil {
			return 0, err
		}
	}
	if !found {
		return 0, fmt.Errorf("container %s not found in Pod %s", container, pod.Name)
	}
	return sum, nil
}
