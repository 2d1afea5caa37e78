package daemonset

import (
	"cmp"
	"slices"
	"strconv"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"carob/internal/core/placement"
	"carob/internal/core/workload"
)

// Kind is the kind of DaemonSets.
func Kind() schema.GroupVersionKind { return appsv1.SchemeGroupVersion.WithKind("DaemonSet") }

// generationLabel is the pod label with the template generation (W4.2).
const generationLabel = "pod-template-generation"

// tolerations are added to every daemon pod (W4.17); the last one only with hostNetwork.
var tolerations = [...]struct {
	key    string
	effect corev1.TaintEffect
}{
	{corev1.TaintNodeNotReady, corev1.TaintEffectNoExecute},
	{corev1.TaintNodeUnreachable, corev1.TaintEffectNoExecute},
	{corev1.TaintNodeDiskPressure, corev1.TaintEffectNoSchedule},
	{corev1.TaintNodeMemoryPressure, corev1.TaintEffectNoSchedule},
	{corev1.TaintNodePIDPressure, corev1.TaintEffectNoSchedule},
	{corev1.TaintNodeUnschedulable, corev1.TaintEffectNoSchedule},
	{corev1.TaintNodeNetworkUnavailable, corev1.TaintEffectNoSchedule},
}

// tolerate returns the tolerations of a daemon pod: those of the template and those of all daemon pods, which replace
// template tolerations of the same taint.
func tolerate(spec *corev1.PodSpec) []corev1.Toleration {
	list := slices.Clone(spec.Tolerations)
	for _, t := range tolerations {
		if t.key == corev1.TaintNodeNetworkUnavailable && !spec.HostNetwork {
			continue
		}
		add := corev1.Toleration{Key: t.key, Operator: corev1.TolerationOpExists, Effect: t.effect}
		i := slices.IndexFunc(list, func(o corev1.Toleration) bool {
			return o.Key == add.Key && o.Effect == add.Effect && o.Operator == add.Operator && o.Value == add.Value
		})
		if i < 0 {
			list = append(list, add)
		} else if !equality.Semantic.DeepEqual(list[i], add) {
			list[i] = add // without tolerationSeconds
		}
	}
	return list
}

// Pod returns the pod for a node (W4.17–W4.19).
func Pod(set *appsv1.DaemonSet, hash, node string) (*corev1.Pod, error) {
	pod, err := workload.NewPod(workload.Owner{Object: set, Kind: Kind()}, &set.Spec.Template)
	if err != nil {
		return nil, err
	}
	pod.Spec.Tolerations = tolerate(&set.Spec.Template.Spec)
	if n, ok := generation(set); ok {
		pod.Labels[generationLabel] = n
	}
	pod.Labels[appsv1.ControllerRevisionHashLabelKey] = hash
	if pod.Spec.Affinity == nil {
		pod.Spec.Affinity = &corev1.Affinity{}
	}
	if pod.Spec.Affinity.NodeAffinity == nil {
		pod.Spec.Affinity.NodeAffinity = &corev1.NodeAffinity{}
	}
	// It replaces the required terms of the template, which Eligible has checked (W4.18).
	byName := corev1.NodeSelectorRequirement{
		Key: metav1.ObjectNameField, Operator: corev1.NodeSelectorOpIn, Values: []string{node}}
	pod.Spec.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution = &corev1.NodeSelector{
		NodeSelectorTerms: []corev1.NodeSelectorTerm{{MatchFields: []corev1.NodeSelectorRequirement{byName}}}}
	return pod, nil
}

// Target returns the node that a pod runs on or is created for (W4.31), or "".
func Target(pod *corev1.Pod) string {
	if pod.Spec.NodeName != "" {
		return pod.Spec.NodeName
	}
	a := pod.Spec.Affinity
	if a == nil || a.NodeAffinity == nil || a.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution == nil {
		return ""
	}
	for _, term := range a.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms {
		for _, f := range term.MatchFields {
			if f.Key == metav1.ObjectNameField && f.Operator == corev1.NodeSelectorOpIn {
				if len(f.Values) != 1 {
					return ""
				}
				return f.Values[0]
			}
		}
	}
	return ""
}

// generation returns the template generation of the set, or false if the annotation is missing or malformed.
func generation(set *appsv1.DaemonSet) (string, bool) {
	n, err := strconv.ParseInt(set.Annotations[appsv1.DeprecatedTemplateGeneration], 10, 64)
	return strconv.FormatInt(n, 10), err == nil
}

// updated reports whether a pod has the set's template, by hash or by template generation (W4.50).
func updated(set *appsv1.DaemonSet, hash string, pod *corev1.Pod) bool {
	if hash != "" && pod.Labels[appsv1.ControllerRevisionHashLabelKey] == hash {
		return true
	}
	n, ok := generation(set)
	return ok && pod.Labels[generationLabel] == n
}

// first orders the pods of a node: scheduled first, then the older, then by name (W4.37).
func first(a, b *corev1.Pod) int {
	scheduled := func(p *corev1.Pod) int {
		if p.Spec.NodeName != "" {
			return 0
		}
		return 1
	}
	return cmp.Or(cmp.Compare(scheduled(a), scheduled(b)), a.CreationTimestamp.Compare(b.CreationTimestamp.Time),
		cmp.Compare(a.Name, b.Name))
}

// Eligible decides on which nodes pods of a set should run. Create it with NewEligible for one
// version of a set.
type Eligible struct{ pod *placement.Pod }

// NewEligible prepares the set's template for Of.
func NewEligible(set *appsv1.DaemonSet) Eligible {
	spec := set.Spec.Template.Spec
	spec.Tolerations = tolerate(&spec)
	return Eligible{placement.Prepare(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: set.Namespace}, Spec: spec})}
}

// Of returns whether a pod should run on the node, and whether an existing one should continue to run (W4.10–W4.17).
func (e Eligible) Of(node *corev1.Node) (run, stay bool) { return e.pod.Suits(node) }
