package podlife

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// steady is a running pod with three containers, one of them probed.
func steady() (State, Input) {
	grace := int64(30)
	pod := &corev1.Pod{}
	pod.Name, pod.Namespace, pod.UID = "bench", "default", "uid-1"
	pod.Spec.RestartPolicy = corev1.RestartPolicyAlways
	pod.Spec.TerminationGracePeriodSeconds = &grace
	in := Input{Now: begin, Pod: pod, Node: Node{RuntimeName: "carob", HostIPs: []string{"192.168.0.1"}}}
	in.Observed.Volumes = VolumeState{Mounted: true, Present: true}
	in.Observed.Sandboxes = []Sandbox{{ID: "sb0", Ready: true, IPs: []string{"10.0.0.5"}}}
	for _, name := range []string{"a", "b", "c"} {
		c := corev1.Container{Name: name, Image: "nginx",
			VolumeMounts: []corev1.VolumeMount{{Name: "v", MountPath: "/v"}}}
		c.Resources.Requests = corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("100m"),
			corev1.ResourceMemory: resource.MustParse("64Mi")}
		if name == "a" {
			c.LivenessProbe = &corev1.Probe{PeriodSeconds: 10, FailureThreshold: 3}
		}
		pod.Spec.Containers = append(pod.Spec.Containers, c)
		in.Observed.Containers = append(in.Observed.Containers, Container{ID: name + "-0", Name: name, SandboxID: "sb0",
			State: ContainerRunning, StartedAt: begin, Image: "nginx", ImageRef: "sha256:nginx",
			Hash: DefinitionHash(name, "nginx")})
	}
	s, _ := Step(State{}, in)
	return s, in
}

// BenchmarkStepSteady measures Step for a pod without changes.
func BenchmarkStepSteady(b *testing.B) {
	s, in := steady()
	in.Now = in.Now.Add(5 * time.Second)
	b.ReportAllocs()
	for b.Loop() {
		Step(s, in)
	}
}

// BenchmarkStepExit measures Step for a container that has ended and is restarted.
func BenchmarkStepExit(b *testing.B) {
	s, in := steady()
	in.Now = in.Now.Add(5 * time.Second)
	in.Observed.Containers[1].State = ContainerExited
	in.Observed.Containers[1].FinishedAt = in.Now
	in.Observed.Images = []ImageState{{Image: "nginx", Ref: "sha256:nginx"}}
	b.ReportAllocs()
	for b.Loop() {
		Step(s, in)
	}
}
