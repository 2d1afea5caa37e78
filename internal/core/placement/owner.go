package placement

import (
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
)

// OwnerKind is a kind of object that selects pods.
type OwnerKind string

// The kinds whose pods are spread by default (L2.10).
const (
	Service               OwnerKind = "Service"
	ReplicationController OwnerKind = "ReplicationController"
	ReplicaSet            OwnerKind = "ReplicaSet"
	StatefulSet           OwnerKind = "StatefulSet"
)

// Owner names one object that selects pods.
type Owner struct {
	Kind            OwnerKind
	Namespace, Name string
}

// controllerOf returns the controller of a pod if its pods are spread by default, else zero.
func controllerOf(pod *corev1.Pod) Owner {
	ref := metav1.GetControllerOfNoCopy(pod)
	if ref == nil {
		return Owner{}
	}
	kinds := map[[2]string]OwnerKind{
		{"v1", "ReplicationController"}: ReplicationController,
		{"apps/v1", "ReplicaSet"}:       ReplicaSet,
		{"apps/v1", "StatefulSet"}:      StatefulSet,
	}
	kind, ok := kinds[[2]string{ref.APIVersion, ref.Kind}]
	if !ok {
		return Owner{}
	}
	return Owner{Kind: kind, Namespace: pod.Namespace, Name: ref.Name}
}

// SetOwner sets the selector of an object that selects pods. A Service or ReplicationController
// without selector selects nothing.
func (c *Cluster) SetOwner(o Owner, selector *metav1.LabelSelector) Event {
	if o.Kind == Service {
		if selector == nil || len(selector.MatchLabels) == 0 {
			return c.RemoveOwner(o)
		}
		services := c.services[o.Namespace]
		if services == nil {
			services = map[string]labels.Set{}
			c.services[o.Namespace] = services
		}
		if maps.Equal(services[o.Name], selector.MatchLabels) {
			return Event{}
		}
		services[o.Name] = selector.MatchLabels
		c.owners++
		return Event{owners: true}
	}
	parsed := selectorOf(selector)
	if old, ok := c.controllers[o]; ok && old.String() == parsed.String() {
		return Event{}
	}
	c.controllers[o] = parsed
	c.owners++
	return Event{owners: true}
}

// RemoveOwner removes an object that selects pods.
func (c *Cluster) RemoveOwner(o Owner) Event {
	if o.Kind == Service {
		if _, ok := c.services[o.Namespace][o.Name]; !ok {
			return Event{}
		}
		if delete(c.services[o.Namespace], o.Name); len(c.services[o.Namespace]) == 0 {
			delete(c.services, o.Namespace)
		}
		c.owners++
		return Event{owners: true}
	}
	if _, ok := c.controllers[o]; !ok {
		return Event{}
	}
	delete(c.controllers, o)
	c.owners++
	return Event{owners: true}
}

// siblings selects the pods that belong together with p: those of its Services and
// of its controller; nil when it has neither.
func (c *Cluster) siblings(p *Pod) labels.Selector {
	merged := labels.Set{}
	services := c.services[p.Object.Namespace]
	for _, name := range slices.Sorted(maps.Keys(services)) {
		if labels.SelectorFromValidatedSet(services[name]).Matches(labels.Set(p.Object.Labels)) {
			maps.Copy(merged, services[name])
		}
	}
	selector := labels.SelectorFromValidatedSet(merged)
	if own, ok := c.controllers[p.controller]; ok {
		requirements, _ := own.Requirements()
		selector = selector.Add(requirements...)
	}
	if selector.Empty() {
		return nil
	}
	return selector
}

// defaultSpread returns the constraints of one strictness of a pod that has none of its own
// (L2.10).
func (c *Cluster) defaultSpread(p *Pod, hard bool) []spreadConstraint {
	when := corev1.ScheduleAnyway
	if hard {
		when = corev1.DoNotSchedule
	}
	constraints := spreadConstraints(p.profile.DefaultSpread, nil, when)
	if len(constraints) == 0 {
		return nil
	}
	selector := c.siblings(p)
	if selector == nil {
		return nil
	}
	for i := range constraints {
		constraints[i].selector = selector
	}
	return constraints
}
