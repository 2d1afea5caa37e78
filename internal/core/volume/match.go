package volume

import (
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"
)

// find returns the volume for a claim that names none: one that is its own already, else the smallest that
// fits, of those with the fewest access modes (S1.36 to S1.39). With delay, the scheduler chooses the second
// kind.
func find(volumes []*corev1.PersistentVolume, c *corev1.PersistentVolumeClaim, delay bool) *corev1.PersistentVolume {
	for _, group := range byModes(volumes, c.Spec.AccessModes) {
		if v := bestOf(group, c, func(*corev1.PersistentVolume) bool { return !delay }); v != nil {
			return v
		}
	}
	return nil
}

// MayBind reports whether ForClaim may bind an unbound claim to the volume, or what it reports depends on the volume.
func MayBind(view View, c *corev1.PersistentVolumeClaim, v *corev1.PersistentVolume) bool {
	if c.Spec.VolumeName != "" {
		return c.Spec.VolumeName == v.Name
	}
	class, _ := ClassOf(c)
	delay := class != "" && DelayedClass(view.Class(class))
	return find([]*corev1.PersistentVolume{v}, c, delay) != nil
}

// findOn does what find does for one node, without the volumes of taken (S2.12).
func findOn(volumes []*corev1.PersistentVolume, c *corev1.PersistentVolumeClaim, node *corev1.Node,
	taken map[string]bool) *corev1.PersistentVolume {
	var free []*corev1.PersistentVolume
	for _, v := range volumes {
		if !taken[v.Name] && offers(v, c.Spec.AccessModes) {
			free = append(free, v)
		}
	}
	v := bestOf(free, c, func(v *corev1.PersistentVolume) bool { return Reaches(v, node) })
	if v != nil && !Reaches(v, node) {
		return nil // it is the claim's own, but not usable on this node
	}
	return v
}

// byModes returns the volumes with at least the access modes, in groups of equal modes, the fewest
// first.
func byModes(volumes []*corev1.PersistentVolume,
	wanted []corev1.PersistentVolumeAccessMode) [][]*corev1.PersistentVolume {
	var groups [][]*corev1.PersistentVolume
	for _, v := range volumes {
		if !offers(v, wanted) {
			continue
		}
		i := slices.IndexFunc(groups, func(g []*corev1.PersistentVolume) bool {
			return len(g[0].Spec.AccessModes) == len(v.Spec.AccessModes) && offers(g[0], v.Spec.AccessModes)
		})
		if i < 0 {
			groups = append(groups, []*corev1.PersistentVolume{v})
		} else {
			groups[i] = append(groups[i], v)
		}
	}
	slices.SortStableFunc(groups, func(a, b []*corev1.PersistentVolume) int {
		return len(a[0].Spec.AccessModes) - len(b[0].Spec.AccessModes)
	})
	return groups
}

// bestOf returns the volume that is the claim's own, else the smallest that allowed accepts.
func bestOf(volumes []*corev1.PersistentVolume, c *corev1.PersistentVolumeClaim,
	allowed func(*corev1.PersistentVolume) bool) *corev1.PersistentVolume {
	wanted := c.Spec.Resources.Requests[corev1.ResourceStorage]
	class, _ := ClassOf(c)
	selector := labels.Everything()
	if c.Spec.Selector != nil {
		s, err := metav1.LabelSelectorAsSelector(c.Spec.Selector)
		if err != nil {
			return nil // validation rejects it
		}
		selector = s
	}
	var best *corev1.PersistentVolume
	for _, v := range volumes {
		size := v.Spec.Capacity[corev1.ResourceStorage]
		if v.Spec.ClaimRef != nil && !IsFor(v, c) || size.Cmp(wanted) < 0 || modeOfClaim(c) != ModeOf(v) ||
			attributesClass(c.Spec.VolumeAttributesClassName) != attributesClass(v.Spec.VolumeAttributesClassName) ||
			v.DeletionTimestamp != nil && !halfBound(v, c) {
			continue
		}
		if IsFor(v, c) {
			return v
		}
		if v.Status.Phase != corev1.VolumeAvailable || !selector.Matches(labels.Set(v.Labels)) ||
			ClassOfVolume(v) != class || !allowed(v) {
			continue
		}
		if best == nil {
			best = v
		} else if least := best.Spec.Capacity[corev1.ResourceStorage]; size.Cmp(least) < 0 {
			best = v
		}
	}
	return best
}

// halfBound reports whether a binding has begun that a deletion of the volume must not interrupt: the
// volume stays until the claim is deleted, as if its deletion had been requested a moment later.
func halfBound(v *corev1.PersistentVolume, c *corev1.PersistentVolumeClaim) bool {
	return v.Status.Phase == corev1.VolumeBound && IsFor(v, c) && v.Spec.ClaimRef.UID == c.UID
}

// mismatch returns why a volume that a claim names does not suit it; "" if it does (S1.47).
func mismatch(v *corev1.PersistentVolume, c *corev1.PersistentVolumeClaim) string {
	wanted, size := c.Spec.Resources.Requests[corev1.ResourceStorage], v.Spec.Capacity[corev1.ResourceStorage]
	class, _ := ClassOf(c)
	switch {
	case v.DeletionTimestamp != nil:
		return fmt.Sprintf("the volume is marked for deletion %q", v.Name)
	case size.Cmp(wanted) < 0:
		return "requested PV is too small"
	case ClassOfVolume(v) != class:
		return "storageClassName does not match"
	case attributesClass(c.Spec.VolumeAttributesClassName) != attributesClass(v.Spec.VolumeAttributesClassName):
		return "volumeAttributesClassName does not match"
	case modeOfClaim(c) != ModeOf(v):
		return "incompatible volumeMode"
	case !offers(v, c.Spec.AccessModes):
		return "incompatible accessMode"
	}
	return ""
}

// Reaches reports whether a volume can be used on a node. Affinity that cannot be parsed matches no
// node.
func Reaches(v *corev1.PersistentVolume, node *corev1.Node) bool {
	if v.Spec.NodeAffinity == nil || v.Spec.NodeAffinity.Required == nil {
		return true
	}
	s, err := nodeaffinity.NewNodeSelector(v.Spec.NodeAffinity.Required)
	return err == nil && s.Match(node)
}
