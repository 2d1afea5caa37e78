package podlife

import (
	"fmt"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// steady is a running pod with three containers, one of them probed.
func steady() (State, Input) { return steadyOf("a", "b", "c") }

// manyNames returns n names.
func manyNames(n int) []string {
	var names []string
	for i := range n {
		names = append(names, fmt.Sprintf("c%03d", i))
	}
	return names
}

// steadyOf is a running pod with these containers, every third of them with a liveness probe.
func steadyOf(names ...string) (State, Input) {
	grace := int64(30)
	pod := &corev1.Pod{}
	pod.Name, pod.Namespace, pod.UID = "bench", "default", "uid-1"
	pod.Spec.RestartPolicy = corev1.RestartPolicyAlways
	pod.Spec.TerminationGracePeriodSeconds = &grace
	in := Input{Now: begin, Pod: pod, Node: Node{RuntimeName: "carob", HostIPs: []string{"192.168.0.1"}}}
	in.Observed.Volumes = VolumeState{Mounted: true, Present: true}
	in.Observed.Sandboxes = []Sandbox{{ID: "sb0", Ready: true, IPs: []string{"10.0.0.5"}}}
	for i, name := range names {
		c := corev1.Container{Name: name, Image: "nginx",
			VolumeMounts: []corev1.VolumeMount{{Name: "v", MountPath: "/v"}}}
		c.Resources.Requests = corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("100m"),
			corev1.ResourceMemory: resource.MustParse("64Mi")}
		if i%3 == 0 {
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
	for _, n := range []int{1, 3, 10, 500} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			s, in := steadyOf(manyNames(n)...)
			in.Now = in.Now.Add(5 * time.Second)
			b.ReportAllocs()
			for b.Loop() {
				Step(s, in)
			}
		})
	}
}

// BenchmarkStepProbe measures the two calls of Step for a probe: its begin and its result, of every third container.
func BenchmarkStepProbe(b *testing.B) {
	for _, n := range []int{1, 2, 10, 500} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			_, in := steadyOf(manyNames(n)...)
			var s State
			b.ReportAllocs()
			for b.Loop() {
				var out Output
				s, out = Step(s, in)
				for _, begin := range out.Begin {
					a := begin.Action.(RunProbe)
					in.Probes = append(in.Probes, ProbeResult{Key: a.Key(), Container: a.Container,
						ContainerID: a.ContainerID, Type: a.Type, Verdict: ProbeSuccess})
				}
				if len(in.Probes) != (n+2)/3 {
					b.Fatal(len(in.Probes), "probes")
				}
				s, _ = Step(s, in)
				in.Probes = nil
				in.Now = in.Now.Add(10 * time.Second)
			}
		})
	}
}

// BenchmarkStepDeletion measures the deletion of a pod whose containers end one after another: a call of Step for each.
func BenchmarkStepDeletion(b *testing.B) {
	for _, n := range []int{1, 10, 500} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			first, in := steadyOf(manyNames(n)...)
			in.Pod.DeletionTimestamp, in.Pod.DeletionGracePeriodSeconds = &metav1.Time{Time: begin}, new(int64(30))
			running := in.Observed.Containers
			b.ReportAllocs()
			for b.Loop() {
				in.Observed.Containers = slices.Clone(running)
				in.Done = nil
				s, out := Step(first, in)
				for i := range n {
					c := &in.Observed.Containers[i]
					c.State, c.FinishedAt = ContainerExited, in.Now
					s, _ = Step(s, in)
				}
				if len(out.Begin) != n {
					b.Fatal(len(out.Begin), "stops")
				}
			}
		})
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
