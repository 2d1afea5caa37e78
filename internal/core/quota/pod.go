package quota

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	resourcehelper "k8s.io/component-helpers/resource"

	"carob/internal/base/seconds"
	"carob/internal/core/resources"
)

var podKind = schema.GroupResource{Resource: "pods"}

const podsCount corev1.ResourceName = "count/pods"

const (
	hugePages         = corev1.ResourceHugePagesPrefix
	requestsHugePages = corev1.ResourceRequestsHugePagesPrefix
	requests          = corev1.DefaultResourceRequestsPrefix
)

func podRules() Kind {
	return Kind{
		Group: podKind, counts: podCounts, concerns: podConcerns, inScope: podInScope, missing: podMissing,
		usage: func(o runtime.Object, now time.Time) (corev1.ResourceList, error) {
			pod, err := asPod(o)
			if err != nil {
				return nil, err
			}
			return PodUsage(pod, now), nil
		},
	}
}

func asPod(o runtime.Object) (*corev1.Pod, error) {
	pod, ok := o.(*corev1.Pod)
	if !ok {
		return nil, fmt.Errorf("expected a pod, got %T", o)
	}
	return pod, nil
}

// podCounts: creates, resizes, and updates that move a pod in or out of the scopes Terminating and
// NotTerminating.
func podCounts(w Write) bool {
	switch w.Subresource {
	case "resize":
		return w.Update
	case "":
		if w.Update {
			pod, ok := w.Object.(*corev1.Pod)
			old, okOld := w.Old.(*corev1.Pod)
			return ok && okOld && endsByItself(pod) != endsByItself(old)
		}
		return w.Create
	}
	return false
}

func podConcerns(n corev1.ResourceName) bool {
	switch n {
	case podsCount, corev1.ResourcePods, corev1.ResourceCPU, corev1.ResourceMemory, corev1.ResourceEphemeralStorage,
		corev1.ResourceRequestsCPU, corev1.ResourceRequestsMemory,
		corev1.ResourceRequestsEphemeralStorage, corev1.ResourceLimitsCPU, corev1.ResourceLimitsMemory,
		corev1.ResourceLimitsEphemeralStorage:
		return true
	}
	s := string(n)
	if strings.HasPrefix(s, hugePages) || strings.HasPrefix(s, requestsHugePages) {
		return true
	}
	name, ok := strings.CutPrefix(s, requests)
	return ok && (!isNative(s) || strings.HasPrefix(name, resourcev1.ResourceDeviceClassPrefix))
}

// isNative reports whether a name is one of Kubernetes' own resources.
func isNative(name string) bool {
	return !strings.Contains(name, "/") || strings.Contains(name, corev1.ResourceDefaultNamespacePrefix)
}

// isExtended reports whether a container may request a resource that is not Kubernetes' own.
func isExtended(name string) bool {
	return !isNative(name) && !strings.HasPrefix(name, requests) ||
		strings.HasPrefix(name, resourcev1.ResourceDeviceClassPrefix)
}

// PodUsage returns the usage of a pod. A pod that has terminated, or whose deletion is overdue,
// counts only as an object.
func PodUsage(pod *corev1.Pod, now time.Time) corev1.ResourceList {
	out := corev1.ResourceList{podsCount: count(1)}
	if pod.Status.Phase == corev1.PodFailed || pod.Status.Phase == corev1.PodSucceeded {
		return out
	}
	if pod.DeletionTimestamp != nil && pod.DeletionGracePeriodSeconds != nil {
		// A grace that is longer than a duration can be is not over: such a pod goes on running.
		if now.After(pod.DeletionTimestamp.Add(seconds.Duration(*pod.DeletionGracePeriodSeconds))) {
			return out
		}
	}
	o := resourcehelper.PodResourcesOptions{UseStatusResources: true}
	maps.Copy(out, take(resourcehelper.PodRequests(pod, o), resourcehelper.PodLimits(pod, o)))
	return out
}

// take converts requests and limits to the names that quotas use.
func take(req, limits corev1.ResourceList) corev1.ResourceList {
	out := corev1.ResourceList{corev1.ResourcePods: count(1)}
	for name, q := range req { // any order: each name is separate
		switch {
		case name == corev1.ResourceCPU || name == corev1.ResourceMemory || name == corev1.ResourceEphemeralStorage ||
			strings.HasPrefix(string(name), hugePages):
			out[name] = q
			out[requests+name] = q
		case isExtended(string(name)):
			out[requests+name] = q
		}
	}
	for name, q := range limits { // any order: each name is separate
		if name == corev1.ResourceCPU || name == corev1.ResourceMemory || name == corev1.ResourceEphemeralStorage {
			out["limits."+name] = q
		}
	}
	return out
}

// podMissing: with a quota on cpu or memory, each container must set its request or limit, unless
// the pod has pod-level resources.
func podMissing(required []corev1.ResourceName, o runtime.Object) error {
	pod, err := asPod(o)
	if err != nil {
		return err
	}
	if resourcehelper.IsPodLevelResourcesSet(pod) {
		return nil
	}
	missing := map[string][]string{}
	look := func(c *corev1.Container) {
		has := take(c.Resources.Requests, c.Resources.Limits)
		for _, n := range required {
			switch n {
			case corev1.ResourceCPU, corev1.ResourceMemory, corev1.ResourceRequestsCPU, corev1.ResourceRequestsMemory,
				corev1.ResourceLimitsCPU, corev1.ResourceLimitsMemory:
				if _, ok := has[n]; !ok && !slices.Contains(missing[string(n)], c.Name) {
					missing[string(n)] = append(missing[string(n)], c.Name)
				}
			}
		}
	}
	for i := range pod.Spec.Containers {
		look(&pod.Spec.Containers[i])
	}
	for i := range pod.Spec.InitContainers {
		look(&pod.Spec.InitContainers[i])
	}
	if len(missing) == 0 {
		return nil
	}
	var parts []string
	for name, containers := range missing { // any order: sorted below
		slices.Sort(containers)
		parts = append(parts, name+" for: "+strings.Join(containers, ","))
	}
	slices.Sort(parts)
	return fmt.Errorf("must specify %s", strings.Join(parts, "; "))
}

func podInScope(s corev1.ScopedResourceSelectorRequirement, o runtime.Object) (bool, error) {
	pod, err := asPod(o)
	if err != nil {
		return false, err
	}
	switch s.ScopeName {
	case corev1.ResourceQuotaScopeTerminating:
		return endsByItself(pod), nil
	case corev1.ResourceQuotaScopeNotTerminating:
		return !endsByItself(pod), nil
	case corev1.ResourceQuotaScopeBestEffort:
		return resources.QoS(pod) == corev1.PodQOSBestEffort, nil
	case corev1.ResourceQuotaScopeNotBestEffort:
		return resources.QoS(pod) != corev1.PodQOSBestEffort, nil
	case corev1.ResourceQuotaScopeCrossNamespacePodAffinity:
		return looksElsewhere(pod), nil
	case corev1.ResourceQuotaScopePriorityClass:
		if s.Operator == corev1.ScopeSelectorOpExists {
			return pod.Spec.PriorityClassName != "", nil
		}
		selector, err := asSelector(s)
		if err != nil {
			return false, err
		}
		set := labels.Set{}
		if pod.Spec.PriorityClassName != "" {
			set[string(corev1.ResourceQuotaScopePriorityClass)] = pod.Spec.PriorityClassName
		}
		return selector.Matches(set), nil
	}
	return false, nil
}

// endsByItself: the scope Terminating selects pods with a deadline.
func endsByItself(pod *corev1.Pod) bool {
	return pod.Spec.ActiveDeadlineSeconds != nil && *pod.Spec.ActiveDeadlineSeconds >= 0
}

// looksElsewhere reports whether an affinity term selects pods of other namespaces.
func looksElsewhere(pod *corev1.Pod) bool {
	a := pod.Spec.Affinity
	if a == nil {
		return false
	}
	var terms []corev1.PodAffinityTerm
	var weighted []corev1.WeightedPodAffinityTerm
	if a.PodAffinity != nil {
		terms = append(terms, a.PodAffinity.RequiredDuringSchedulingIgnoredDuringExecution...)
		weighted = append(weighted, a.PodAffinity.PreferredDuringSchedulingIgnoredDuringExecution...)
	}
	if a.PodAntiAffinity != nil {
		terms = append(terms, a.PodAntiAffinity.RequiredDuringSchedulingIgnoredDuringExecution...)
		weighted = append(weighted, a.PodAntiAffinity.PreferredDuringSchedulingIgnoredDuringExecution...)
	}
	for i := range weighted {
		terms = append(terms, weighted[i].PodAffinityTerm)
	}
	return slices.ContainsFunc(terms,
		func(t corev1.PodAffinityTerm) bool { return len(t.Namespaces) > 0 || t.NamespaceSelector != nil })
}
