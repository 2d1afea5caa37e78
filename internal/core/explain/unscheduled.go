package explain

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"carob/internal/core/podstatus"
	"carob/internal/core/resources"
)

// Room is what a pod that is not scheduled needs of the cluster.
type Room struct {
	Nodes []corev1.Node
	// Pods are those of the cluster. Empty if they could not be read: then only the size of the nodes is known.
	Pods []corev1.Pod
}

// NeedsRoom reports whether the message of a pod's condition PodScheduled is about its nodes, and whether it is about
// what the other pods take of them.
func NeedsRoom(p *corev1.Pod) (nodes, pods bool) {
	c := podstatus.Condition(p.Status.Conditions, corev1.PodScheduled)
	if p.Spec.NodeName != "" || c == nil || c.Status != corev1.ConditionFalse {
		return false, false
	}
	pods = p.Status.NominatedNodeName != "" || strings.Contains(c.Message, "Insufficient ") ||
		strings.Contains(c.Message, "Too many pods")
	nodes = pods || strings.Contains(c.Message, "untolerated taint")
	return nodes || strings.Contains(c.Message, "were unschedulable"), pods
}

// unfit compares a pod with the reasons in the scheduler's message: what it needs, what the nodes have, and what helps.
func unfit(p *corev1.Pod, message string, room Room) string {
	var out []string
	if strings.Contains(message, "didn't match Pod's node affinity/selector") && len(p.Spec.NodeSelector) > 0 {
		text := labelsText(p.Spec.NodeSelector)
		out = append(out, fmt.Sprintf("its nodeSelector is %s: `kubectl label node NODE %s` labels a node", text,
			strings.ReplaceAll(text, ",", " ")))
	}
	if strings.Contains(message, "didn't have free ports") {
		out = append(out, "it needs "+hostPorts(p))
	}
	out = append(out, neighbours(p, message)...)
	requests := resources.Requests(p)
	for _, name := range slices.Sorted(maps.Keys(requests)) {
		if strings.Contains(message, "Insufficient "+string(name)) {
			out = append(out, fmt.Sprintf("it requests %s %s%s", name, size(name, requests[name]), room.left(p, name)))
		}
	}
	for i := range room.Nodes {
		n := &room.Nodes[i]
		if i == mostNamed {
			break
		}
		if allowed := n.Status.Allocatable[corev1.ResourcePods]; strings.Contains(message, "Too many pods") {
			out = append(out, fmt.Sprintf("node %s runs at most %s pods (--max-pods)", n.Name, allowed.String()))
		}
		if strings.Contains(message, "were unschedulable") && n.Spec.Unschedulable {
			out = append(out, fmt.Sprintf("node %s is cordoned: `kubectl uncordon %[1]s` lets pods on it again", n.Name))
		}
		if strings.Contains(message, "untolerated taint") {
			out = append(out, taintsOf(n)...)
		}
	}
	if ending := room.preempted(p.Status.NominatedNodeName); len(ending) > 0 {
		out = append(out, fmt.Sprintf("it waits for pods on node %s that it preempted and that have not ended: %s",
			p.Status.NominatedNodeName, some(ending)))
	}
	return after("; ", strings.Join(out, "; "))
}

// neighbours names the rules about other pods that keep a pod off the nodes.
func neighbours(p *corev1.Pod, message string) (out []string) {
	a := p.Spec.Affinity
	if a != nil && a.PodAffinity != nil && strings.Contains(message, "didn't match pod affinity rules") {
		for _, t := range a.PodAffinity.RequiredDuringSchedulingIgnoredDuringExecution {
			out = append(out, fmt.Sprintf("its podAffinity requires pods with %s in its %s",
				metav1.FormatLabelSelector(t.LabelSelector), t.TopologyKey))
		}
	}
	if a != nil && a.PodAntiAffinity != nil && strings.Contains(message, "didn't match pod anti-affinity rules") {
		for _, t := range a.PodAntiAffinity.RequiredDuringSchedulingIgnoredDuringExecution {
			out = append(out, fmt.Sprintf("its podAntiAffinity forbids pods with %s in its %s",
				metav1.FormatLabelSelector(t.LabelSelector), t.TopologyKey))
		}
	}
	if strings.Contains(message, "didn't match pod topology spread constraints") {
		for _, c := range p.Spec.TopologySpreadConstraints {
			if c.WhenUnsatisfiable != corev1.DoNotSchedule {
				continue
			}
			text := fmt.Sprintf("its topology spread over %s has maxSkew %d", c.TopologyKey, c.MaxSkew)
			if c.MinDomains != nil {
				text += fmt.Sprintf(" and minDomains %d", *c.MinDomains)
			}
			out = append(out, text+" for pods with "+metav1.FormatLabelSelector(c.LabelSelector))
		}
	}
	return out
}

// preempted returns the pods on a node that are being deleted because of a preemption.
func (r Room) preempted(node string) (out []string) {
	for i := range r.Pods {
		p := &r.Pods[i]
		c := podstatus.Condition(p.Status.Conditions, corev1.DisruptionTarget)
		if node != "" && p.Spec.NodeName == node &&
			p.DeletionTimestamp != nil && c != nil && c.Reason == corev1.PodReasonPreemptionByScheduler {
			out = append(out, p.Namespace+"/"+p.Name)
		}
	}
	return out
}

func taintsOf(n *corev1.Node) (out []string) {
	for i := range n.Spec.Taints {
		if t := &n.Spec.Taints[i]; t.Effect != corev1.TaintEffectPreferNoSchedule {
			out = append(out, fmt.Sprintf("node %s has the taint %s", n.Name, t.ToString()))
		}
	}
	return out
}

// left describes how much of a resource is left on the node that has most of it left. Nodes without the labels that the
// pod selects do not count.
func (r Room) left(pod *corev1.Pod, name corev1.ResourceName) string {
	var node string
	var most, total resource.Quantity
	for i := range r.Nodes {
		n := &r.Nodes[i]
		if !labels.SelectorFromSet(pod.Spec.NodeSelector).Matches(labels.Set(n.Labels)) {
			continue
		}
		has := n.Status.Allocatable[name]
		free := has.DeepCopy()
		for j := range r.Pods {
			p := &r.Pods[j]
			ended := p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed
			if p.Spec.NodeName == n.Name && !ended {
				free.Sub(resources.Requests(p)[name])
			}
		}
		if node == "" || free.Cmp(most) > 0 {
			node, most, total = n.Name, free, has
		}
	}
	switch {
	case node == "":
		return ""
	case len(r.Pods) == 0:
		return fmt.Sprintf(", and node %s has %s", node, size(name, total))
	}
	return fmt.Sprintf(", and node %s has %s of %s left", node, size(name, most), size(name, total))
}

// size formats an amount for readers: bytes with at most one decimal, in the largest unit that fits.
func size(name corev1.ResourceName, q resource.Quantity) string {
	switch {
	case name != corev1.ResourceMemory && name != corev1.ResourceEphemeralStorage && !resources.IsHugePages(name):
		return q.String()
	case q.Sign() <= 0:
		return "0"
	}
	n, unit := float64(q.Value()), 0
	units := []string{"", "Ki", "Mi", "Gi", "Ti"}
	for n >= 1024 && unit < len(units)-1 {
		n, unit = n/1024, unit+1
	}
	return strings.TrimSuffix(fmt.Sprintf("%.1f", n), ".0") + units[unit]
}

func hostPorts(p *corev1.Pod) string {
	var out []string
	for _, list := range [][]corev1.Container{p.Spec.InitContainers, p.Spec.Containers} {
		for i := range list {
			for _, port := range list[i].Ports {
				if port.HostPort > 0 {
					out = append(out, fmt.Sprint(port.HostPort))
				}
			}
		}
	}
	if len(out) == 1 {
		return "host port " + out[0] + ", which another pod uses"
	}
	return "host ports " + some(out) + "; other pods use some of them"
}
