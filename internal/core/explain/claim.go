package explain

import (
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
)

// Claim explains a PersistentVolumeClaim. class is the StorageClass that it names, nil if there is none of that name;
// volume is the one that it names or is bound to, nil if there is none. r.Pods are the pods that use the claim.
func Claim(c *corev1.PersistentVolumeClaim, class *storagev1.StorageClass, volume *corev1.PersistentVolume, r Related,
	now time.Time) (out Lines) {
	var users []string
	for _, p := range r.Pods {
		if p.Status.Phase != corev1.PodSucceeded && p.Status.Phase != corev1.PodFailed {
			users = append(users, p.Name)
		}
	}
	out.object(c, unrecorded, now)
	if c.DeletionTimestamp != nil && len(users) > 0 {
		out.warn("is used by %s", named("pod", users))
	}
	switch c.Status.Phase {
	case corev1.ClaimBound:
		size := c.Status.Capacity[corev1.ResourceStorage]
		out.info("is bound to volume %s (%s)", c.Spec.VolumeName, size.String())
	case corev1.ClaimLost:
		out.warn("has lost its volume %s: it does not exist any more, or is bound to another claim", c.Spec.VolumeName)
	default:
		out.unbound(c, class, volume, users)
	}
	for _, o := range c.Status.Conditions {
		if o.Status == corev1.ConditionTrue {
			out.warn("%s: %s", o.Type, because(o.Reason, o.Message))
		}
	}
	if out.Problems() {
		out.events(r.Events, now)
	}
	return out
}

// unbound explains what a claim without a volume waits for.
func (l *Lines) unbound(c *corev1.PersistentVolumeClaim, class *storagev1.StorageClass, volume *corev1.PersistentVolume,
	users []string) {
	name := ""
	if c.Spec.StorageClassName != nil {
		name = *c.Spec.StorageClassName
	}
	switch {
	case c.Spec.VolumeName != "" && volume == nil:
		l.warn("waits for volume %s, which does not exist", c.Spec.VolumeName)
	case c.Spec.VolumeName != "":
		l.warn("waits for volume %s: %s", c.Spec.VolumeName, bound(volume))
	case c.Spec.StorageClassName == nil:
		l.warn("names no StorageClass, and no StorageClass is the default")
	case name == "":
		l.warn("waits for a volume without a class that fits it: no provisioner creates one")
	case class == nil:
		l.warn("its StorageClass %q does not exist", name)
	case class.VolumeBindingMode != nil && *class.VolumeBindingMode == storagev1.VolumeBindingWaitForFirstConsumer &&
		len(users) == 0:
		l.warn("waits for the first pod that uses it: its StorageClass %q binds only then", name)
	case class.Provisioner == "kubernetes.io/no-provisioner":
		l.warn("waits for a volume of class %q that fits it: no provisioner creates one", name)
	case len(users) > 0:
		l.warn("waits for a volume from %s; it is used by %s", class.Provisioner, named("pod", users))
	default:
		l.warn("waits for a volume from %s", class.Provisioner)
	}
}

func bound(v *corev1.PersistentVolume) string {
	if ref := v.Spec.ClaimRef; ref != nil {
		return fmt.Sprintf("it is %s, and reserved for claim %s/%s", v.Status.Phase, ref.Namespace, ref.Name)
	}
	return fmt.Sprintf("it is %s", v.Status.Phase)
}
