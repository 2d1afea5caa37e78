package nodeobject

import (
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
)

func TestMissingFeatures(t *testing.T) {
	resets := &corev1.Pod{}
	resets.Spec.Containers = []corev1.Container{
		{RestartPolicyRules: []corev1.ContainerRestartRule{
			{Action: corev1.ContainerRestartRuleActionRestartAllContainers}}}}
	no := false
	users := &corev1.Pod{}
	users.Spec.HostUsers, users.Spec.HostNetwork = &no, true
	for _, tt := range []struct {
		name string
		pod  *corev1.Pod
		want []string
	}{
		{"nothing", &corev1.Pod{}, nil},
		{"RestartAllContainers", resets, nil},
		{"own users in the host's network", users, []string{"UserNamespacesHostNetworkSupport"}},
	} {
		got, err := MissingFeatures(tt.pod)
		if err != nil || !slices.Equal(got, tt.want) {
			t.Errorf("%s: %v, %v, want %v", tt.name, got, err, tt.want)
		}
	}
	if want := []string{"InPlacePodLevelResourcesVerticalScaling", "InPlacePodVerticalScalingInitContainers",
		"RestartAllContainersOnContainerExits"}; !slices.Equal(declaredFeatures(), want) {
		t.Errorf("the node declares %v", declaredFeatures())
	}
}
