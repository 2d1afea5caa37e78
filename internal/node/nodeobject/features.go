package nodeobject

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/version"
	features "k8s.io/component-helpers/nodedeclaredfeatures"
)

// kubernetesVersion is the version whose features the agent has.
var kubernetesVersion = version.MajorMinor(1, 37)

// gates are the features of that version that pods may require of their node, and that this agent has (L0.1–L0.3).
type gates struct{}

// Enabled implements features.FeatureGate.
func (gates) Enabled(name string) bool {
	return slices.Contains([]string{
		"RestartAllContainersOnContainerExits",
		"InPlacePodVerticalScalingInitContainers",
		"InPlacePodLevelResourcesVerticalScaling",
	}, name)
}

// declaredFeatures is the list of them for the Node object, sorted.
func declaredFeatures() []string {
	return features.DefaultFramework.DiscoverNodeFeatures(&features.NodeConfiguration{FeatureGates: gates{},
		Version: kubernetesVersion})
}

// MissingFeatures are the features that a pod requires of its node and this agent does not have, sorted (L3.34).
func MissingFeatures(pod *corev1.Pod) ([]string, error) {
	needs, err := features.DefaultFramework.InferForPodScheduling(&features.PodInfo{Spec: &pod.Spec,
		Status: &pod.Status}, kubernetesVersion)
	if err != nil {
		return nil, err
	}
	return unsatisfied(needs)
}

// MissingForUpdate are the features that the change of a pod requires of its node and this agent does not have, sorted
// (L10.16).
func MissingForUpdate(old, pod *corev1.Pod) ([]string, error) {
	if len(old.Spec.InitContainers) != len(pod.Spec.InitContainers) {
		return nil, nil // can't be; the framework goes by their places
	}
	needs, err := features.DefaultFramework.InferForPodUpdate(&features.PodInfo{Spec: &old.Spec, Status: &old.Status},
		&features.PodInfo{Spec: &pod.Spec, Status: &pod.Status}, kubernetesVersion)
	if err != nil {
		return nil, err
	}
	return unsatisfied(needs)
}

func unsatisfied(needs features.FeatureSet) ([]string, error) {
	if needs.IsEmpty() {
		return nil, nil
	}
	f := features.DefaultFramework
	match, err := f.MatchNodeFeatureSet(needs, f.TryMap(declaredFeatures()))
	if err != nil {
		return nil, err
	}
	return match.UnsatisfiedRequirements, nil
}
