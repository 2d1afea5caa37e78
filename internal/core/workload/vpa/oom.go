package vpa

import (
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// kills returns the times of a container's OOM kills in its status, oldest first.
func kills(pod *corev1.Pod, name string) (at []time.Time) {
	for i := range pod.Status.ContainerStatuses {
		s := &pod.Status.ContainerStatuses[i]
		if s.Name != name {
			continue
		}
		for _, t := range []*corev1.ContainerStateTerminated{s.LastTerminationState.Terminated, s.State.Terminated} {
			if t != nil && t.Reason == "OOMKilled" && !t.FinishedAt.IsZero() {
				at = append(at, t.FinishedAt.Time)
			}
		}
	}
	return at
}

// AddEviction records that a node evicted a container's pod for its memory, when it used this many
// bytes (W9.27).
func (m *Model) AddEviction(pod Name, containerName string, bytes int64, at, now time.Time) {
	p := m.pods[pod]
	if p == nil {
		return
	}
	if c := p.containers[containerName]; c != nil && at.After(c.peaks.Killed) {
		c.peaks.Killed = at
		c.addOOM(m.shared(pod.Namespace, p, containerName, now).usage, bytes, at)
	}
}

// Evicted is the reason of pods and events of pods that a node evicted.
const Evicted = "Evicted"

// EvictedForMemory returns the containers that were evicted for their memory according to an event
// of a node agent, and how many bytes each used (W9.27).
func EvictedForMemory(e *corev1.Event) map[string]int64 {
	if e.Reason != Evicted || e.InvolvedObject.Kind != "Pod" {
		return nil
	}
	// The resource is named once, or once for each container.
	starved := strings.Split(e.Annotations["starved_resource"], ",")
	who := strings.Split(e.Annotations["offending_containers"], ",")
	used := strings.Split(e.Annotations["offending_containers_usage"], ",")
	if len(who) != len(used) || len(starved) != 1 && len(starved) != len(who) {
		return nil
	}
	out := map[string]int64{}
	for i := range who {
		q, err := resource.ParseQuantity(used[i])
		if err == nil && who[i] != "" && starved[min(i, len(starved)-1)] == string(corev1.ResourceMemory) {
			out[who[i]] = q.Value()
		}
	}
	return out
}
