package volume

import (
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/resource"
)

// ClaimInput holds everything that a decision about a claim depends on.
type ClaimInput struct {
	Claim *corev1.PersistentVolumeClaim // as it was last read or written
	View  View
	// Unscheduled are the names of the pods without a node that use the claim and have not ended.
	Unscheduled []string
}

// ForClaim decides about a claim (S1.E to S1.G).
func ForClaim(in ClaimInput) Step {
	c := in.Claim
	if Completed(c) {
		return boundBefore(in)
	}
	if c.Spec.VolumeName == "" {
		return unnamed(in)
	}
	v := in.View.Volume(c.Spec.VolumeName)
	switch {
	case v == nil:
		return pending(c)
	case v.Spec.ClaimRef == nil:
		if why := mismatch(v, c); why != "" {
			return pending(c, warning("VolumeMismatch", "Cannot bind to requested volume %q: %s", v.Name, why))
		}
		return bind(v, c)
	case IsFor(v, c):
		return bind(v, c)
	case has(c.Annotations, BoundByController):
		return Step{Pending: true, Err: fmt.Errorf("invalid binding of claim %s/%s to volume %q: volume already claimed "+
			"by %s/%s", c.Namespace, c.Name, v.Name, v.Spec.ClaimRef.Namespace, v.Spec.ClaimRef.Name)}
	default:
		return pending(c, warning("FailedBinding", "volume %q already bound to a different claim.", v.Name))
	}
}

// unnamed decides about a claim that is bound to nothing and names no volume.
func unnamed(in ClaimInput) Step {
	c := in.Claim
	name, known := ClassOf(c)
	class := in.View.Class(name)
	delay := name != "" && DelayedClass(class)
	if v := find(in.View.Volumes(), c, delay); v != nil {
		return bind(v, c)
	}
	if !known {
		// S1.33: as if the class had existed when the claim was created.
		if d := PickDefault(in.View.Classes()); d != nil {
			c = c.DeepCopy()
			c.Spec.StorageClassName = &d.Name
			return Step{Write: Write{Claim: c}, Pending: true}
		}
	}
	switch {
	case delay && !has(c.Annotations, SelectedNode):
		return pending(c, waits(in.Unscheduled))
	case name == "":
		return pending(c, normal("FailedBinding",
			"no persistent volumes available for this claim and no storage class is set"))
	case class == nil:
		return pending(c, warning("ProvisioningFailed", "storageclass.storage.k8s.io %q not found", name))
	case !Provisions(class):
		return pending(c, warning("ProvisioningFailed", "no volume plugin matched name: %s", class.Provisioner))
	}
	if c.Annotations[StorageProvisioner] != class.Provisioner ||
		c.Annotations[BetaStorageProvisioner] != class.Provisioner {
		c = c.DeepCopy()
		annotate(&c.Annotations, StorageProvisioner, class.Provisioner)
		annotate(&c.Annotations, BetaStorageProvisioner, class.Provisioner)
		return Step{Write: Write{Claim: c}, Pending: true}
	}
	return pending(c, normal("ExternalProvisioning", "Waiting for a volume to be created either by the external "+
		"provisioner '%s' or manually by the system administrator. If volume creation is delayed, please verify that "+
		"the provisioner is running and correctly registered.", class.Provisioner))
}

// waits reports what a claim with delayed binding waits for (S1.43).
func waits(pods []string) Event {
	switch len(pods) {
	case 0:
		return normal("WaitForFirstConsumer", "waiting for first consumer to be created before binding")
	case 1:
		return normal("WaitForPodScheduled", "waiting for pod %s to be scheduled", pods[0])
	default:
		return normal("WaitForPodScheduled", "waiting for pods %s to be scheduled", strings.Join(pods, ","))
	}
}

// boundBefore decides about a claim whose binding was complete once (S1.G).
func boundBefore(in ClaimInput) Step {
	c := in.Claim
	if c.Spec.VolumeName == "" {
		return lost(c, "ClaimLost", "Bound claim has lost reference to PersistentVolume. Data on the volume is lost!")
	}
	v := in.View.Volume(c.Spec.VolumeName)
	switch {
	case v == nil:
		return lost(c, "ClaimLost", "Bound claim has lost its PersistentVolume. Data on the volume is lost!")
	case v.Spec.ClaimRef == nil || v.Spec.ClaimRef.UID == c.UID:
		return bind(v, c)
	default:
		return lost(c, "ClaimMisbound", "Two claims are bound to the same volume, this one is bound incorrectly")
	}
}

// bind returns the next of the four writes that bind a claim, or nothing when it is bound (S1.60).
func bind(v *corev1.PersistentVolume, c *corev1.PersistentVolumeClaim) Step {
	if claimed, changed := claimedBy(v, c); changed {
		return Step{Write: Write{Volume: claimed}}
	}
	if v.Status.Phase != corev1.VolumeBound {
		return Step{Write: phase(v, corev1.VolumeBound, "")}
	}
	if c.Spec.VolumeName != v.Name || !Completed(c) {
		c = c.DeepCopy()
		if c.Spec.VolumeName != v.Name {
			c.Spec.VolumeName = v.Name
			annotate(&c.Annotations, BoundByController, yes)
		}
		annotate(&c.Annotations, BindCompleted, yes)
		return Step{Write: Write{Claim: c}}
	}
	w, err := boundStatus(v, c)
	step := Step{Write: w, Err: err}
	if size := c.Spec.Resources.Requests.Storage(); c.Status.Phase == corev1.ClaimBound &&
		size.Cmp(*c.Status.Capacity.Storage()) > 0 { // S5.1; volumes are expanded by other controllers, also carob's
		step.Events = []Event{{Type: corev1.EventTypeNormal, Reason: "ExternalExpanding", Component: ExpandComponent,
			Message: "waiting for an external controller to expand this PVC"}}
	}
	return step
}

func claimedBy(v *corev1.PersistentVolume, c *corev1.PersistentVolumeClaim) (*corev1.PersistentVolume, bool) {
	if IsFor(v, c) && v.Spec.ClaimRef.UID == c.UID {
		return v, false
	}
	prebound := IsFor(v, c)
	v = v.DeepCopy()
	v.Spec.ClaimRef = Ref(c)
	if !prebound {
		annotate(&v.Annotations, BoundByController, yes)
	}
	return v, true
}

// Ref returns the reference of a volume to its claim.
func Ref(c *corev1.PersistentVolumeClaim) *corev1.ObjectReference {
	return &corev1.ObjectReference{Kind: "PersistentVolumeClaim", APIVersion: "v1", Namespace: c.Namespace,
		Name: c.Name,
		UID:  c.UID, ResourceVersion: c.ResourceVersion}
}

// boundStatus writes the status of a claim that is bound. The capacity is the volume's present one
// (S1.61).
func boundStatus(v *corev1.PersistentVolume, c *corev1.PersistentVolumeClaim) (Write, error) {
	old := c
	c = c.DeepCopy()
	c.Status.AccessModes = v.Spec.AccessModes
	if c.Status.Phase != corev1.ClaimBound {
		size, ok := v.Spec.Capacity[corev1.ResourceStorage]
		if !ok {
			return Write{}, fmt.Errorf("PersistentVolume %q is without a storage capacity", v.Name)
		}
		if before, ok := v.Annotations[PreResizeCapacity]; ok {
			if q, err := resource.ParseQuantity(before); err == nil {
				size = q
			}
		}
		c.Status.Phase = corev1.ClaimBound
		c.Status.Capacity = corev1.ResourceList{corev1.ResourceStorage: size}
		c.Status.CurrentVolumeAttributesClassName = v.Spec.VolumeAttributesClassName
	}
	if equality.Semantic.DeepEqual(old.Status, c.Status) {
		return Write{}, nil
	}
	return Write{Claim: c, Status: true}, nil
}

// pending keeps a claim in phase Pending.
func pending(c *corev1.PersistentVolumeClaim, events ...Event) Step {
	return Step{Write: unboundStatus(c, corev1.ClaimPending), Events: events, Pending: true}
}

// lost reports that the data of a claim is gone, once (S1.70).
func lost(c *corev1.PersistentVolumeClaim, reason, message string) Step {
	if c.Status.Phase == corev1.ClaimLost {
		return Step{Write: unboundStatus(c, corev1.ClaimLost)}
	}
	return Step{Write: unboundStatus(c, corev1.ClaimLost), Events: []Event{warning(reason, "%s", message)}}
}

// unboundStatus returns a status with a phase and no values of a volume (S1.51).
func unboundStatus(c *corev1.PersistentVolumeClaim, phase corev1.PersistentVolumeClaimPhase) Write {
	s := &c.Status
	if s.Phase == phase && len(s.AccessModes) == 0 && len(s.Capacity) == 0 &&
		s.CurrentVolumeAttributesClassName == nil {
		return Write{}
	}
	c = c.DeepCopy()
	c.Status.Phase, c.Status.AccessModes, c.Status.Capacity = phase, nil, nil
	c.Status.CurrentVolumeAttributesClassName = nil
	return Write{Claim: c, Status: true}
}

func normal(reason, format string, args ...any) Event {
	return Event{Type: corev1.EventTypeNormal, Reason: reason, Message: fmt.Sprintf(format, args...)}
}

func warning(reason, format string, args ...any) Event {
	return Event{Type: corev1.EventTypeWarning, Reason: reason, Message: fmt.Sprintf(format, args...)}
}
