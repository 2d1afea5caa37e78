package volume

import (
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// NoNodeExpansion reports whether the volume of a claim needs no expansion on nodes (S5.11).
const NoNodeExpansion = "volume.kubernetes.io/node-expansion-not-required"

// NodeExpansion is the expansion of a volume on a node that uses it.
type NodeExpansion struct {
	Size resource.Quantity
	// Claim is the claim before the driver is called; nil: nothing is written, before and after.
	Claim *corev1.PersistentVolumeClaim
}

// ForNode decides whether a node enlarges a volume (S5.13, S5.14). known is the last size on the node, zero for none.
// nil: there is nothing to do.
func ForNode(c *corev1.PersistentVolumeClaim, v *corev1.PersistentVolume, known resource.Quantity) *NodeExpansion {
	size, have := v.Spec.Capacity[corev1.ResourceStorage], c.Status.Capacity[corev1.ResourceStorage]
	allocated, planned := c.Status.AllocatedResources[corev1.ResourceStorage]
	switch c.Status.AllocatedResourceStatuses[corev1.ResourceStorage] {
	case corev1.PersistentVolumeClaimNodeResizePending, corev1.PersistentVolumeClaimNodeResizeInProgress:
		if !planned || allocated.Cmp(have) <= 0 {
			return nil
		}
		c = c.DeepCopy()
		c.Status.AllocatedResourceStatuses[corev1.ResourceStorage] = corev1.PersistentVolumeClaimNodeResizeInProgress
		return &NodeExpansion{Size: allocated, Claim: c}
	case "":
	default:
		return nil // the controller handles it
	}
	switch {
	case size.Cmp(have) > 0 && !planned: // a resizer without allocatedResourceStatuses
		return &NodeExpansion{Size: size, Claim: c.DeepCopy()}
	case !known.IsZero() && size.Cmp(known) > 0 && have.Cmp(size) >= 0 && !has(c.Annotations, NoNodeExpansion) &&
		slices.Contains(v.Spec.AccessModes, corev1.ReadWriteMany): // another node has expanded it
		return &NodeExpansion{Size: size}
	}
	return nil
}

// Expanded returns a claim whose volume has its new size (S5.8).
func Expanded(c *corev1.PersistentVolumeClaim, size resource.Quantity) *corev1.PersistentVolumeClaim {
	c = c.DeepCopy()
	if c.Status.Capacity == nil {
		c.Status.Capacity = corev1.ResourceList{}
	}
	c.Status.Capacity[corev1.ResourceStorage] = size
	delete(c.Status.AllocatedResourceStatuses, corev1.ResourceStorage)
	if len(c.Status.AllocatedResourceStatuses) == 0 {
		c.Status.AllocatedResourceStatuses = nil
	}
	c.Status.Conditions = withoutResize(c.Status.Conditions)
	return c
}

// GivesUp reports whether a final error of the expansion ends it, so that the resizer can begin with the size that the
// user requests now: because the error is infeasible, or because that size is another one, and the driver has refused
// this expansion before (S5.17, S5.18).
func (e *NodeExpansion) GivesUp(infeasible, before bool) bool {
	if infeasible || e.Claim == nil {
		return infeasible
	}
	want := e.Claim.Spec.Resources.Requests[corev1.ResourceStorage]
	return before && want.Cmp(e.Size) != 0
}

// NodeResizeFailed returns a claim whose volume a driver has refused to expand on the node. If that is for good, the
// node does not try again (S5.7).
func NodeResizeFailed(c *corev1.PersistentVolumeClaim, forGood bool, why error,
	now metav1.Time) *corev1.PersistentVolumeClaim {
	c = c.DeepCopy()
	if forGood {
		if c.Status.AllocatedResourceStatuses == nil {
			c.Status.AllocatedResourceStatuses = map[corev1.ResourceName]corev1.ClaimResourceStatus{}
		}
		c.Status.AllocatedResourceStatuses[corev1.ResourceStorage] = corev1.PersistentVolumeClaimNodeResizeInfeasible
	}
	condition := corev1.PersistentVolumeClaimCondition{Type: corev1.PersistentVolumeClaimNodeResizeError,
		Status: corev1.ConditionTrue, LastTransitionTime: now,
		Message: fmt.Sprintf("failed to expand pvc with %v", why)}
	c.Status.Conditions = slices.DeleteFunc(c.Status.Conditions, func(o corev1.PersistentVolumeClaimCondition) bool {
		if o.Type == condition.Type && o.Message == condition.Message {
			condition.LastTransitionTime = o.LastTransitionTime
		}
		return o.Type == condition.Type
	})
	c.Status.Conditions = append(c.Status.Conditions, condition)
	return c
}
