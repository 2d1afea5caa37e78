package volume

import (
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// PVInput holds everything that a decision about a volume depends on.
type PVInput struct {
	Volume *corev1.PersistentVolume      // as it was last read or written
	Claim  *corev1.PersistentVolumeClaim // of the name in Volume's claimRef; nil if it does not exist
	// Confirmed means that Claim was just read from the API server, not from a watch.
	Confirmed bool
}

// ForVolume decides about a volume (S1.H, S1.I).
func ForVolume(in PVInput) Step {
	v, ref := in.Volume, in.Volume.Spec.ClaimRef
	if ref == nil || ref.UID == "" {
		return Step{Write: phase(v, corev1.VolumeAvailable, "")}
	}
	c := in.Claim
	if c != nil && c.UID != ref.UID {
		c = nil // another claim with the same name
	}
	if c == nil {
		ended := v.Status.Phase == corev1.VolumeReleased || v.Status.Phase == corev1.VolumeFailed
		if !ended && !in.Confirmed {
			return Step{Confirm: true}
		}
		return release(v)
	}
	switch {
	case c.Spec.VolumeName == "" && modeOfClaim(c) != ModeOf(v):
		onVolume := warning("VolumeMismatch", "Cannot bind PersistentVolume to requested PersistentVolumeClaim %q due to "+
			"incompatible volumeMode.", c.Name)
		onClaim := warning("VolumeMismatch", "Cannot bind PersistentVolume %q to requested PersistentVolumeClaim due to "+
			"incompatible volumeMode.", v.Name)
		onClaim.Claim = c
		return Step{Events: []Event{onVolume, onClaim}}
	case c.Spec.VolumeName == "":
		return Step{WakeClaim: true}
	case c.Spec.VolumeName == v.Name:
		return Step{Write: phase(v, corev1.VolumeBound, "")}
	case has(v.Annotations, ProvisionedBy) &&
		v.Spec.PersistentVolumeReclaimPolicy == corev1.PersistentVolumeReclaimDelete:
		return release(v)
	default:
		return unbind(v)
	}
}

// release reclaims a volume without a claim according to its policy (S1.83 to S1.86).
func release(v *corev1.PersistentVolume) Step {
	if v.Status.Phase != corev1.VolumeReleased && v.Status.Phase != corev1.VolumeFailed {
		return Step{Write: phase(v, corev1.VolumeReleased, "")}
	}
	switch v.Spec.PersistentVolumeReclaimPolicy {
	case corev1.PersistentVolumeReclaimRetain:
		return Step{}
	case corev1.PersistentVolumeReclaimDelete:
		if External(v) {
			return Step{} // its provisioner will delete it
		}
		return failed(v, "VolumeFailedDelete", "error getting deleter volume plugin for volume \""+v.Name+
			"\": no deletable volume plugin matched")
	case corev1.PersistentVolumeReclaimRecycle:
		return failed(v, "VolumeFailedRecycle", "No recycler plugin found for the volume!")
	default:
		return failed(v, "VolumeUnknownReclaimPolicy", "Volume has unrecognized PersistentVolumeReclaimPolicy")
	}
}

// External reports whether another program deletes a volume.
func External(v *corev1.PersistentVolume) bool {
	by, ok := v.Annotations[ProvisionedBy]
	return v.Spec.CSI != nil || ok && !strings.HasPrefix(by, inTree)
}

// failed reports this once: the phase and its message stay.
func failed(v *corev1.PersistentVolume, reason, message string) Step {
	if v.Status.Phase == corev1.VolumeFailed && v.Status.Message == message {
		return Step{}
	}
	return Step{Write: phase(v, corev1.VolumeFailed, message), Events: []Event{warning(reason, "%s", message)}}
}

// unbind makes a volume available whose claim has another (S1.79).
func unbind(v *corev1.PersistentVolume) Step {
	v = v.DeepCopy()
	if has(v.Annotations, BoundByController) {
		v.Spec.ClaimRef = nil
		delete(v.Annotations, BoundByController)
	} else {
		v.Spec.ClaimRef.UID = ""
	}
	return Step{Write: Write{Volume: v}}
}

// phase sets the phase of a volume unless it is set already.
func phase(v *corev1.PersistentVolume, phase corev1.PersistentVolumePhase, message string) Write {
	if v.Status.Phase == phase && v.Status.Message == message {
		return Write{}
	}
	v = v.DeepCopy()
	v.Status.Phase, v.Status.Message = phase, message
	return Write{Volume: v, Status: true}
}
