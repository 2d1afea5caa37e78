package core

import (
	"context"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/sets"

	"carob/internal/kinds/registry"
	"carob/internal/kinds/table"
)

// prepareNode sets podCIDRs and podCIDR to agree: a client that uses only one of the fields changes
// both. A kubelet configuration source no longer has an effect; only an existing one is kept.
func prepareNode(s, old *corev1.NodeSpec) {
	if old == nil || old.ConfigSource == nil { //nolint:staticcheck // stored objects may have it
		s.ConfigSource = nil //nolint:staticcheck // clients may send it
	}
	if old == nil || old.PodPreemptionPolicy == nil {
		s.PodPreemptionPolicy = nil // InPlacePodVerticalScalingSchedulerPreemption is off
	}
	switch {
	case s.PodCIDR != "" && (len(s.PodCIDRs) == 0 || s.PodCIDRs[0] != s.PodCIDR):
		s.PodCIDRs = []string{s.PodCIDR}
	case s.PodCIDR == "" && len(s.PodCIDRs) > 0:
		s.PodCIDR = s.PodCIDRs[0]
	}
}

func nodes() *registry.Resource {
	return registry.Of[corev1.Node, corev1.NodeList](registry.Resource{
		Kind: registry.CoreKind("Node"), Plural: "nodes", ShortNames: []string{"no"}, Cluster: true, Status: true,
		StatusMetadata: true, NoGeneration: true,
		CreateStatus: true,
		PrepareCreate: func(_ context.Context, obj runtime.Object) {
			n := obj.(*corev1.Node)
			prepareNode(&n.Spec, nil)
			n.Status.Config = nil //nolint:staticcheck // clients may send it
		},
		PrepareStatusUpdate: func(_ context.Context, obj, old runtime.Object) {
			if old.(*corev1.Node).Status.Config == nil { //nolint:staticcheck // stored objects may have it
				obj.(*corev1.Node).Status.Config = nil //nolint:staticcheck // clients may send it
			}
		},
		PrepareUpdate: func(_ context.Context, obj, old runtime.Object) {
			prepareNode(&obj.(*corev1.Node).Spec, &old.(*corev1.Node).Spec)
		},
		Fields: map[string]func(runtime.Object) string{
			"spec.unschedulable": func(o runtime.Object) string {
				return strconv.FormatBool(o.(*corev1.Node).Spec.Unschedulable)
			},
		},
		Table: table.Kind{
			Columns: []table.Column{table.NameColumn, {Name: "Status", Description: "The status of the node"},
				{Name: "Roles", Description: "The roles of the node"},
				table.AgeColumn, {Name: "Version", Description: "Kubelet Version reported by the node."},
				{Name: "Internal-IP", Wide: true},
				{Name: "External-IP", Wide: true}, {Name: "OS-Image", Wide: true}, {Name: "Kernel-Version", Wide: true},
				{Name: "Container-Runtime", Wide: true}},
			Row: nodeRow,
		},
	})
}

func nodeRow(o runtime.Object, now time.Time) []any {
	n := o.(*corev1.Node)
	status := "Unknown"
	for _, c := range n.Status.Conditions {
		if c.Type != corev1.NodeReady {
			continue
		}
		if status = "NotReady"; c.Status == corev1.ConditionTrue {
			status = "Ready"
		}
	}
	if n.Spec.Unschedulable {
		status += ",SchedulingDisabled"
	}
	address := func(t corev1.NodeAddressType) string {
		for _, a := range n.Status.Addresses {
			if a.Type == t {
				return a.Address
			}
		}
		return table.None
	}
	or := func(s string) string {
		if s == "" {
			return table.Unknown
		}
		return s
	}
	i := n.Status.NodeInfo
	return []any{n.Name, status, table.OrNone(nodeRoles(n)), table.Age(n.CreationTimestamp, now), i.KubeletVersion,
		address(corev1.NodeInternalIP),
		address(corev1.NodeExternalIP), or(i.OSImage), or(i.KernelVersion), or(i.ContainerRuntimeVersion)}
}

func nodeRoles(n *corev1.Node) string {
	const prefix = "node-role.kubernetes.io/"
	roles := sets.New[string]()
	for k, v := range n.Labels {
		if r, ok := strings.CutPrefix(k, prefix); ok && r != "" {
			roles.Insert(r)
		} else if k == "kubernetes.io/role" && v != "" {
			roles.Insert(v)
		}
	}
	return strings.Join(sets.List(roles), ",")
}
