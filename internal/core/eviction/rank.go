package eviction

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"carob/internal/core/resources"
)

// Usage is what a pod uses on the node.
type Usage struct {
	Pod        *corev1.Pod // read only
	Memory     int64       // working set, bytes
	Processes  int64
	Containers []ContainerUsage
	Volumes    []VolumeUsage // those on the node's disk
	// Files are files of the pod that its containers can write: its hosts file, termination
	// messages.
	FileBytes, FileInodes int64
}

// ContainerUsage is what one container uses.
type ContainerUsage struct {
	Name        string
	Memory      int64 // working set, bytes
	Layer, Logs int64 // writable layer and logs, bytes
	LayerInodes int64
	LogInodes   int64
}

// VolumeUsage is the size of an emptyDir.
type VolumeUsage struct {
	Name          string
	Bytes, Inodes int64
}

// measure returns a pod's usage of the resource of a signal. If images have their own file system,
// writable layers count there, and all other files on the node's file system.
func (u *Usage) measure(s Signal, split bool) int64 {
	switch s {
	case MemoryAvailable:
		return u.Memory
	case PIDAvailable:
		return u.Processes
	case NodeFsAvailable, NodeFsInodesFree, ImageFsAvailable, ImageFsInodesFree:
	}
	onNode := s == NodeFsAvailable || s == NodeFsInodesFree
	inodes := s.Resource() == "inodes"
	total := int64(0)
	count := func(bytes, pieces int64) {
		if inodes {
			total += pieces
		} else {
			total += bytes
		}
	}
	for _, c := range u.Containers {
		if !split || !onNode {
			count(c.Layer, c.LayerInodes)
		}
		if !split || onNode {
			count(c.Logs, c.LogInodes)
		}
	}
	if !split || onNode {
		count(u.FileBytes, u.FileInodes)
	}
	for _, v := range u.Volumes {
		if !split || onNode {
			count(v.Bytes, v.Inodes)
		}
	}
	return total
}

// Rank returns the pods that may be evicted for a signal, in the order of eviction (L7.148).
// Critical pods are never evicted.
func Rank(s Signal, pods []Usage, split bool) []Usage {
	type ranked struct {
		Usage
		over     bool // uses more than it requests
		priority int32
		beyond   int64
	}
	var list []ranked
	for _, u := range pods {
		if resources.IsCritical(u.Pod) {
			continue
		}
		r := ranked{Usage: u, beyond: u.measure(s, split)}
		if u.Pod.Spec.Priority != nil {
			r.priority = *u.Pod.Spec.Priority
		}
		if name := s.Resource(); name == corev1.ResourceMemory || name == corev1.ResourceEphemeralStorage {
			q := resources.SpecRequests(u.Pod)[name]
			r.over = q.CmpInt64(r.beyond) < 0
			if q.CmpInt64(math.MaxInt64) > 0 { // as a number it would be another one
				q = *resource.NewQuantity(math.MaxInt64, resource.DecimalSI)
			}
			r.beyond -= q.Value()
		}
		list = append(list, r)
	}
	slices.SortStableFunc(list, func(a, b ranked) int {
		if a.over != b.over {
			if a.over {
				return -1
			}
			return 1
		}
		return cmp.Or(cmp.Compare(a.priority, b.priority), cmp.Compare(b.beyond, a.beyond))
	})
	out := make([]Usage, len(list))
	for i := range list {
		out[i] = list[i].Usage
	}
	return out
}

// Message is the reason for an eviction, for the status and the event.
type Message struct {
	Message     string
	Annotations map[string]string // of the event (L7.149)
}

// Explain returns why a pod is evicted for a threshold (L7.150).
func Explain(t Threshold, all []Observation, u Usage) Message {
	name := t.Signal.Resource()
	var message strings.Builder
	fmt.Fprintf(&message, "The node was low on resource: %v. ", name)
	if o, ok := find(all, t.Signal); ok {
		fmt.Fprintf(&message, "Threshold quantity: %s, available: %s. ", quantity(t.Min.Of(o.Capacity), name),
			quantity(o.Available, name))
	}
	notes := map[string]string{"starved_resource": string(name)}
	if r := u.Pod.Spec.Resources; r != nil && name == corev1.ResourceMemory {
		if request, ok := r.Requests[name]; ok {
			fmt.Fprintf(&message, "Pod %s was using %s, request is %s, has larger consumption of %v. ", u.Pod.Name,
				quantity(u.Memory, name), request.String(), name)
			notes["offending_pod"], notes["offending_pod_usage"] = u.Pod.Name, quantity(u.Memory, name)
		}
	}
	var who, used []string
	for i := range u.Containers {
		c := &u.Containers[i]
		var uses int64
		switch name {
		case corev1.ResourceMemory:
			uses = c.Memory
		case corev1.ResourceEphemeralStorage:
			uses = c.Layer + c.Logs
		default:
			continue
		}
		request, ok := requestOf(u.Pod, c.Name, name)
		if !ok || request.CmpInt64(uses) >= 0 {
			continue
		}
		fmt.Fprintf(&message, "Container %s was using %s, request is %s, has larger consumption of %v. ", c.Name,
			quantity(uses, name), request.String(), name)
		who, used = append(who, c.Name), append(used, quantity(uses, name))
	}
	notes["offending_containers"], notes["offending_containers_usage"] = strings.Join(who, ","), strings.Join(used, ",")
	return Message{Message: message.String(), Annotations: notes}
}

// requestOf returns a container's request; false: it is an ephemeral container, which has none.
func requestOf(pod *corev1.Pod, container string, name corev1.ResourceName) (resource.Quantity, bool) {
	for _, list := range [][]corev1.Container{pod.Spec.Containers, pod.Spec.InitContainers} {
		for i := range list {
			if list[i].Name == container {
				return list[i].Resources.Requests[name], true
			}
		}
	}
	return resource.Quantity{}, false
}

// quantity formats bytes with a binary suffix, counts with a decimal one.
func quantity(n int64, name corev1.ResourceName) string {
	format := resource.DecimalSI
	if name == corev1.ResourceMemory || name == corev1.ResourceEphemeralStorage {
		format = resource.BinarySI
	}
	return resource.NewQuantity(n, format).String()
}

// Grace is the grace period of an evicted pod (L7.151).
func Grace(t Threshold, maxGrace time.Duration) time.Duration {
	if t.Grace == 0 {
		return time.Second // L0.55
	}
	return maxGrace
}
