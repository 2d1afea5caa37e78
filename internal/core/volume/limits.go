package volume

import (
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
)

// Limits is the scheduler's plugin that counts volumes of CSI drivers (S2.50).
const Limits Plugin = "NodeVolumeLimits"

// The reasons of nodes (S2.14, S2.50, S2.53).
const (
	reasonSpace  = "node(s) did not have enough free storage"
	reasonLimit  = "node(s) exceed max volume count"
	reasonDriver = " CSI driver is not installed on the node"
)

// Drivers provides the objects of CSI drivers and their volumes on nodes.
type Drivers interface {
	Driver(name string) *storagev1.CSIDriver // nil: there is no object
	DriversOn(node string) *storagev1.CSINode
	Capacities() []*storagev1.CSIStorageCapacity              // in any order
	AttachedTo(node string) []*storagev1.VolumeAttachment     // in any order
	ClaimsOn(node string, yield func(namespace, name string)) // of the pods of a node, some more than once
}

// AddDrivers adds the checks of CSI drivers to the needs of a pod.
func (n *Needs) AddDrivers(d Drivers) { n.drivers = d }

// handleOf returns the volume of a claim: one that does not exist yet counts for its provisioner (S2.51).
func handleOf(view View, c *corev1.PersistentVolumeClaim) (Handle, bool) {
	if c.Spec.VolumeName != "" {
		return HandleOf(view.Volume(c.Spec.VolumeName))
	}
	class, _ := ClassOf(c)
	if k := view.Class(class); class != "" && k != nil && Provisions(k) {
		return Handle{k.Provisioner, "claim " + c.Namespace + "/" + c.Name}, true
	}
	return Handle{}, false
}

// limits returns why a node cannot take more volumes, by their number.
func (n *Needs) limits(node *corev1.Node) *Refusal {
	if n.drivers == nil {
		return nil
	}
	wanted := map[string]map[Handle]bool{}
	for _, c := range slices.Concat(n.bound, n.delayed) {
		if h, ok := handleOf(n.view, c); ok {
			if wanted[h.Driver] == nil {
				wanted[h.Driver] = map[Handle]bool{}
			}
			wanted[h.Driver][h] = true
		}
	}
	if len(wanted) == 0 {
		return nil
	}
	on := n.drivers.DriversOn(node.Name)
	var have map[Handle]bool
	for _, driver := range slices.Sorted(maps.Keys(wanted)) {
		i := -1
		if on != nil {
			i = slices.IndexFunc(on.Spec.Drivers, func(d storagev1.CSINodeDriver) bool { return d.Name == driver })
		}
		if i < 0 {
			if RulesOf(n.drivers.Driver(driver)).NeedsDriver {
				return &Refusal{Limits, []string{driver + reasonDriver}}
			}
			continue
		}
		a := on.Spec.Drivers[i].Allocatable
		if a == nil || a.Count == nil {
			continue
		}
		if have == nil {
			have = n.volumesOn(node.Name)
		}
		used, added := 0, 0
		for h := range have { // any order: only counts
			if h.Driver == driver {
				used++
			}
		}
		for h := range wanted[driver] { // any order: only counts
			if !have[h] {
				added++
			}
		}
		if added > 0 && used+added > int(*a.Count) {
			return &Refusal{Limits, []string{reasonLimit}}
		}
	}
	return nil
}

// volumesOn returns the volumes of CSI drivers on a node, including those that are being attached.
func (n *Needs) volumesOn(node string) map[Handle]bool {
	have := map[Handle]bool{}
	n.drivers.ClaimsOn(node, func(namespace, name string) {
		if c := n.view.Claim(namespace, name); c != nil {
			if h, ok := handleOf(n.view, c); ok {
				have[h] = true
			}
		}
	})
	for _, a := range n.drivers.AttachedTo(node) {
		if name := a.Spec.Source.PersistentVolumeName; name != nil {
			if h, ok := HandleOf(n.view.Volume(*name)); ok {
				have[h] = true
			}
		}
	}
	return have
}

// room reports whether a driver has free storage for the volume of a claim that the node can use
// (S2.14).
func (n *Needs) room(k *storagev1.StorageClass, c *corev1.PersistentVolumeClaim, node *corev1.Node) bool {
	if n.drivers == nil || !RulesOf(n.drivers.Driver(k.Provisioner)).Capacity {
		return true
	}
	size := c.Spec.Resources.Requests[corev1.ResourceStorage]
	return slices.ContainsFunc(n.drivers.Capacities(), func(s *storagev1.CSIStorageCapacity) bool {
		most := s.MaximumVolumeSize
		if most == nil {
			most = s.Capacity
		}
		if s.StorageClassName != k.Name || most == nil || most.Cmp(size) < 0 || s.NodeTopology == nil {
			return false
		}
		selector, err := metav1.LabelSelectorAsSelector(s.NodeTopology)
		return err == nil && selector.Matches(labels.Set(node.Labels))
	})
}
