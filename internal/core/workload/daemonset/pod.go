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

// Kind is the kind of the owner.
func Kind() schema.GroupVersionKind { return appsv1.SchemeGroupVersion.WithKind("DaemonSet") }

// generationLabel carries the generation of the template on pods (W4.2).
const generationLabel = "pod-template-generation"

// tolerations are what every daemon pod tolerates (W4.17); the last one only on the host's network.
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

// tolerate returns the tolerations of a set's pods: those of the template, and those of every daemon pod in the place
// of one that covers the same taint.
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
			list[i] = add // for as long as it takes
		}
	}
	return list
}

// Pod returns the pod of a set for one node (W4.17–W4.19), to be created.
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
	// Instead of what the template requires, for the set has looked at that already.
	pod.Spec.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution = &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{
		MatchFields: []corev1.NodeSelectorRequirement{{Key: metav1.ObjectNameField, Operator: corev1.NodeSelectorOpIn, Values: []string{node}}},
	}}}
	return pod, nil
}

// Target is the node that a pod runs on or is meant for (W4.31); empty when it is meant for none.
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

// generation is the generation of the set's template as pods carry it; false when the set has none that can be read.
func generation(set *appsv1.DaemonSet) (string, bool) {
	n, err := strconv.ParseInt(set.Annotations[appsv1.DeprecatedTemplateGeneration], 10, 64)
	return strconv.FormatInt(n, 10), err == nil
}

// updated reports whether a pod is made from the set's template: by hash, or by the older generation (W4.50).
func updated(set *appsv1.DaemonSet, hash string, pod *corev1.Pod) bool {
	if hash != "" && pod.Labels[appsv1.ControllerRevisionHashLabelKey] == hash {
		return true
	}
	n, ok := generation(set)
	return ok && pod.Labels[generationLabel] == n
}

// first orders pods of a node: scheduled before not, then the older, then by name (W4.37).
func first(a, b *corev1.Pod) int {
	scheduled := func(p *corev1.Pod) int {
		if p.Spec.NodeName != "" {
			return 0
		}
		return 1
	}
	return cmp.Or(cmp.Compare(scheduled(a), scheduled(b)), a.CreationTimestamp.Compare(b.CreationTimestamp.Time), cmp.Compare(a.Name, b.Name))
}

// Eligible says on which nodes a set wants its pods. Make it with NewEligible for one version of a set.
type Eligible struct{ pod *placement.Pod }

// NewEligible prepares the set's template for Of.
func NewEligible(set *appsv1.DaemonSet) Eligible {
	spec := set.Spec.Template.Spec
	spec.Tolerations = tolerate(&spec)
	return Eligible{placement.Prepare(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: set.Namespace}, Spec: spec})}
}

// Of says whether the set wants a pod on the node, and whether one that is there may stay (W4.10–W4.17).
func (e Eligible) Of(node *corev1.Node) (run, stay bool) { return e.pod.Suits(node) }
