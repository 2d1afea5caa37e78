package vpa

import (
	"encoding/json"
	"fmt"
	"math"
	"os"
	"testing"
	"time"

	autoscalingv1 "k8s.io/api/autoscaling/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
)

// trace is a series of usage, and the results of upstream's recommender 1.8.1 for it.
// testdata/upstream.json was written by a program that feeds upstream's model; the usage of each
// container follows from next.
type trace struct {
	Name                          string
	Containers, Pods, Samples     int
	Step                          time.Duration
	CPU, CPUSpread                int64
	Memory, MemorySpread          int64
	Request                       int64
	Kills                         []int // before which samples the containers were killed
	Recommended                   []ContainerRecommendation
	CPUHistogram, MemoryHistogram HistogramCheckpoint // of the first container, without running windows
}

func next(x *uint32) int64 {
	*x = (*x*1103515245 + 12345) & 0x7fffffff
	return int64(*x >> 8)
}

var traceStart = time.Date(2026, 3, 1, 7, 30, 0, 0, time.UTC)

// autoscaler returns an autoscaler with the target Deployment d, whose pods have the label app=x.
func autoscaler(change ...func(*VerticalPodAutoscaler)) *VerticalPodAutoscaler {
	v := &VerticalPodAutoscaler{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "v", UID: "v", Generation: 1},
		Spec: Spec{TargetRef: &autoscalingv1.CrossVersionObjectReference{APIVersion: "apps/v1", Kind: "Deployment",
			Name: "d"}}}
	for _, c := range change {
		c(v)
	}
	return v
}

func targetOf(v *VerticalPodAutoscaler) []Target {
	return []Target{{VPA: v, Selector: labels.SelectorFromSet(labels.Set{"app": "x"})}}
}

// podOf returns a running pod with containers c0, c1, …
func podOf(name string, containers int, request int64) *corev1.Pod {
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, Labels: map[string]string{"app": "x"}},
		Status: corev1.PodStatus{Phase: corev1.PodRunning}}
	for i := range containers {
		c := corev1.Container{Name: fmt.Sprintf("c%d", i)}
		if request > 0 {
			c.Resources.Requests = corev1.ResourceList{
				corev1.ResourceMemory: *resource.NewQuantity(request, resource.BinarySI)}
		}
		p.Spec.Containers = append(p.Spec.Containers, c)
		p.Status.ContainerStatuses = append(p.Status.ContainerStatuses, corev1.ContainerStatus{Name: c.Name})
	}
	return p
}

func killed(pod *corev1.Pod, at time.Time) {
	for i := range pod.Status.ContainerStatuses {
		pod.Status.ContainerStatuses[i].LastTerminationState.Terminated = &corev1.ContainerStateTerminated{
			Reason: "OOMKilled", StartedAt: metav1.NewTime(at.Add(-time.Hour)), FinishedAt: metav1.NewTime(at)}
	}
}

// W9.21–W9.31 compared with figures of upstream's code.
func TestAsUpstream(t *testing.T) {
	text, err := os.ReadFile("testdata/upstream.json")
	if err != nil {
		t.Fatal(err)
	}
	var traces []trace
	if err := json.Unmarshal(text, &traces); err != nil {
		t.Fatal(err)
	}
	for i := range traces {
		t.Run(traces[i].Name, func(t *testing.T) { traces[i].check(t, uint32(i+1)) })
	}
}

func (c *trace) check(t *testing.T, x uint32) {
	m := NewModel()
	m.SetTargets(targetOf(autoscaler()))
	var pods []*corev1.Pod
	for p := range c.Pods {
		pods = append(pods, podOf(fmt.Sprintf("p%d", p), c.Containers, c.Request))
	}
	m.SetPods(pods, traceStart)
	for n := range c.Samples {
		at := traceStart.Add(time.Duration(n) * c.Step)
		for _, k := range c.Kills {
			if k == n {
				for _, p := range pods {
					killed(p, at.Add(-time.Second))
				}
				m.SetPods(pods, at)
			}
		}
		for _, p := range pods {
			for k := range p.Spec.Containers {
				s := Sample{Pod: Name{"ns", p.Name}, Container: p.Spec.Containers[k].Name, At: at}
				s.CPU = c.CPU + next(&x)%c.CPUSpread
				s.Memory = c.Memory + next(&x)*4096%c.MemorySpread
				m.AddSample(s, at)
			}
		}
	}
	now := traceStart.Add(time.Duration(c.Samples) * c.Step)
	status, err := m.Recommend(Name{"ns", "v"}, now)
	if err != nil {
		t.Fatal(err)
	}
	got, want := status.Recommendation, &Recommendation{Containers: c.Recommended}
	if !equality.Semantic.DeepEqual(got, want) {
		t.Errorf("recommended\n%s\nupstream\n%s", jsonOf(got), jsonOf(want))
	}
	if a, b := jsonOf(got), jsonOf(want); a != b {
		t.Errorf("amounts are written as\n%s\nupstream\n%s", a, b)
	}
	p := m.Checkpoints(Name{"ns", "v"}, now)[0]
	for _, h := range []struct {
		what      string
		got, want HistogramCheckpoint
	}{{"cpu", p.Status.CPUHistogram, c.CPUHistogram}, {"memory", p.Status.MemoryHistogram, c.MemoryHistogram}} {
		if math.Abs(h.got.TotalWeight-h.want.TotalWeight) > 1e-9*h.want.TotalWeight {
			t.Errorf("%s: total weight %v, upstream %v", h.what, h.got.TotalWeight, h.want.TotalWeight)
		}
		h.got.TotalWeight = h.want.TotalWeight
		if jsonOf(h.got) != jsonOf(h.want) {
			t.Errorf("%s: checkpoint\n%s\nupstream\n%s", h.what, jsonOf(h.got), jsonOf(h.want))
		}
	}
}

func jsonOf(x any) string {
	text, err := json.Marshal(x)
	if err != nil {
		panic(err)
	}
	return string(text)
}
