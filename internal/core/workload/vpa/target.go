package vpa

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
)

// Ref names a controller.
type Ref struct{ APIVersion, Kind, Namespace, Name string }

// Controller holds the facts of an object that controls pods or other controllers.
type Controller struct {
	WellKnown bool // Deployment, ReplicaSet, StatefulSet, DaemonSet, Job, CronJob, ReplicationController
	// Scalable: it is of another kind, with a scale subresource.
	Scalable bool
	Parent   *metav1.OwnerReference // its own controller
	// Selector of its pods; nil, with the reason in Unselected, when there is none.
	Selector   labels.Selector
	Unselected error
}

// Controllers finds a controller. It returns an error if the controller does not exist or cannot be
// read.
type Controllers func(Ref) (Controller, error)

// errCycle: owners that own each other.
var errCycle = errors.New("cycle detected in ownership chain")

// Topmost follows the owners of a controller to the topmost one that is well known or scalable
// (W9.12); the zero Ref when none is.
func Topmost(of Controllers, from Ref) (Ref, error) {
	top, seen := Ref{}, map[Ref]bool{}
	for at := from; ; {
		if seen[at] {
			return Ref{}, errCycle
		}
		seen[at] = true
		if at.Kind == "Node" {
			return top, nil // mirrors of static pods: owned by a node, which has no scale
		}
		c, err := of(at)
		if err != nil {
			if at != from { // a missing owner of an existing controller
				return top, nil
			}
			return Ref{}, err
		}
		if c.WellKnown || c.Scalable {
			top = at
		}
		if c.Parent == nil {
			return top, nil
		}
		at = Ref{c.Parent.APIVersion, c.Parent.Kind, at.Namespace, c.Parent.Name}
	}
}

// Resolve finds the pods of an autoscaler (W9.12).
func Resolve(of Controllers, v *VerticalPodAutoscaler) Target {
	t := v.Spec.TargetRef
	if t == nil {
		return Target{VPA: v,
			Problem: "Cannot read targetRef. Reason: targetRef not defined. If this is a v1beta1 object, switch to v1"}
	}
	ref := Ref{t.APIVersion, t.Kind, v.Namespace, t.Name}
	text := fmt.Sprintf("%s.%s/%s", t.APIVersion, t.Kind, t.Name)
	c, err := of(ref)
	if err == nil {
		err = c.Unselected
	}
	if err != nil {
		return Target{VPA: v, Problem: "Cannot read targetRef. Reason: " + err.Error()}
	}
	const check = "is a topmost well-known or scalable controller"
	switch top, err := Topmost(of, ref); {
	case err != nil:
		return Target{VPA: v, Problem: fmt.Sprintf("Error checking if target %s %s: %s", text, check, err)}
	case top == Ref{}:
		return Target{VPA: v, Problem: fmt.Sprintf("Unknown error during checking if target %s %s", text, check)}
	case top != ref:
		return Target{VPA: v, Problem: "The target " + text + " has a parent controller but it should point to a " +
			"topmost well-known or scalable controller"}
	}
	return Target{VPA: v, Selector: c.Selector}
}

// Controlling returns the autoscaler that changes a pod: of those whose target is the pod's topmost
// controller and whose selector matches, the oldest, then the one with the smaller name (W9.13). nil
// for none.
func Controlling(of Controllers, pod *corev1.Pod, targets []Target) *VerticalPodAutoscaler {
	owner := metav1.GetControllerOfNoCopy(pod)
	if owner == nil || !slices.ContainsFunc(targets, func(t Target) bool { return t.fits(pod) }) {
		return nil
	}
	top, err := Topmost(of, Ref{owner.APIVersion, owner.Kind, pod.Namespace, owner.Name})
	if err != nil {
		return nil
	}
	var best *VerticalPodAutoscaler
	for _, t := range targets {
		r := t.VPA.Spec.TargetRef
		if !t.fits(pod) || r.Kind != top.Kind || r.Name != top.Name ||
			r.APIVersion != "" && groupOf(r.APIVersion) != groupOf(top.APIVersion) {
			continue
		}
		if best == nil || older(t.VPA, best) {
			best = t.VPA
		}
	}
	return best
}

// groupOf returns the API group of an apiVersion.
func groupOf(apiVersion string) string {
	group, _, grouped := strings.Cut(apiVersion, "/")
	if !grouped {
		return ""
	}
	return group
}

func (t Target) fits(pod *corev1.Pod) bool {
	return t.Selector != nil && t.VPA.Spec.TargetRef != nil && t.VPA.Namespace == pod.Namespace &&
		t.Selector.Matches(labels.Set(pod.Labels))
}

func older(a, b *VerticalPodAutoscaler) bool {
	if !a.CreationTimestamp.Equal(&b.CreationTimestamp) {
		return a.CreationTimestamp.Before(&b.CreationTimestamp)
	}
	return a.Name < b.Name
}
