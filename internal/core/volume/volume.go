// Package volume decides about persistent volumes: which volume a claim is bound to, in which order
// the binding is written, how a volume is reclaimed when its claim is gone, on which nodes the
// volumes of a pod can be used, and the volumes of the built-in local class. The controllers
// volumes and localpath and the scheduler drive it. It is a function of its arguments.
//
// Each decision about a claim or a volume is one Step with at most one write. The driver writes,
// and calls again with the API server's response, until there is nothing to write. So a driver that
// restarts between any two writes continues where it was.
//
// Contract: S1 to S3 in docs/spec/storage-and-node.md.
package volume

import (
	"cmp"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
)

// Annotations of claims and volumes (S1.15 to S1.26). For the first two only the presence matters.
const (
	BindCompleted          = "pv.kubernetes.io/bind-completed"
	BoundByController      = "pv.kubernetes.io/bound-by-controller"
	ProvisionedBy          = "pv.kubernetes.io/provisioned-by"
	StorageProvisioner     = "volume.kubernetes.io/storage-provisioner"
	BetaStorageProvisioner = "volume.beta.kubernetes.io/storage-provisioner"
	SelectedNode           = "volume.kubernetes.io/selected-node"
	PreResizeCapacity      = "volume.alpha.kubernetes.io/pre-resize-capacity"
	DefaultClass           = "storageclass.kubernetes.io/is-default-class"
	BetaDefaultClass       = "storageclass.beta.kubernetes.io/is-default-class"
)

// yes is the value of annotations whose presence matters.
const yes = "yes"

// View provides the cluster's objects to decisions. Its results are read only; nil means that an
// object does not exist.
type View interface {
	Claim(namespace, name string) *corev1.PersistentVolumeClaim
	Volume(name string) *corev1.PersistentVolume
	// Volumes returns all of them, in the order of their names.
	Volumes() []*corev1.PersistentVolume
	Class(name string) *storagev1.StorageClass
	// Classes returns all of them, in any order.
	Classes() []*storagev1.StorageClass
}

// Event is an event to record about Object, or about the claim or volume of the decision.
type Event struct {
	Type, Reason, Message string
	Volume                *corev1.PersistentVolume // nil: the object of the decision
	Claim                 *corev1.PersistentVolumeClaim
	Component             string // that records it; empty: the binder
}

// ExpandComponent is the controller that reports what the expansion of a claim waits for (S5.1).
const ExpandComponent = "volume_expand"

// Write is one call of the API; the zero value is none. The object is whole, with the resource
// version that was read: after a conflict the decision must be made again.
type Write struct {
	Claim  *corev1.PersistentVolumeClaim // to be updated
	Volume *corev1.PersistentVolume      // to be updated
	Status bool                          // the status, not everything else
}

// Nothing reports whether there is nothing to write.
func (w Write) Nothing() bool { return w.Claim == nil && w.Volume == nil }

// Step holds the next action.
type Step struct {
	Write  Write   // first
	Events []Event // if the write succeeded, or there is none
	// Pending means that the claim is not bound yet: check it again every 15 s, because its events
	// are repeated, and when a volume or a class appears (S0.30).
	Pending bool
	// Confirm requests whether the claim of a volume exists according to the API now (S1.74).
	Confirm bool
	// WakeClaim requests a decision about the claim of the volume (S1.76).
	WakeClaim bool
	Err       error // the decision failed; it is retried
}

// ClassOf is the name of a claim's class; "" for none. known is false when the claim does not set
// it.
func ClassOf(c *corev1.PersistentVolumeClaim) (name string, known bool) {
	if name, ok := c.Annotations[corev1.BetaStorageClassAnnotation]; ok {
		return name, true
	}
	if c.Spec.StorageClassName != nil {
		return *c.Spec.StorageClassName, true
	}
	return "", false
}

// ClassOfVolume is the name of a volume's class; "" for none.
func ClassOfVolume(v *corev1.PersistentVolume) string {
	if name, ok := v.Annotations[corev1.BetaStorageClassAnnotation]; ok {
		return name
	}
	return v.Spec.StorageClassName
}

// PickDefault returns the default class: the newest of several, then the first by name; nil if there is none
// (S1.32).
func PickDefault(classes []*storagev1.StorageClass) *storagev1.StorageClass {
	var best *storagev1.StorageClass
	for _, c := range classes {
		if c.Annotations[DefaultClass] != "true" && c.Annotations[BetaDefaultClass] != "true" {
			continue
		}
		if best == nil || younger(c, best) {
			best = c
		}
	}
	return best
}

func younger(a, b *storagev1.StorageClass) bool {
	if a.CreationTimestamp.Equal(&b.CreationTimestamp) {
		return a.Name < b.Name
	}
	return b.CreationTimestamp.Before(&a.CreationTimestamp)
}

// Completed reports whether the binding of a claim was completed before.
func Completed(c *corev1.PersistentVolumeClaim) bool { return has(c.Annotations, BindCompleted) }

// FullyBound reports whether a pod can use a claim (S2.9).
func FullyBound(c *corev1.PersistentVolumeClaim) bool { return c.Spec.VolumeName != "" && Completed(c) }

// DelayedClass reports whether claims of a class are bound when a pod uses them (S1.50).
func DelayedClass(c *storagev1.StorageClass) bool {
	return c != nil && c.VolumeBindingMode != nil && *c.VolumeBindingMode == storagev1.VolumeBindingWaitForFirstConsumer
}

// Provisions reports whether volumes of a class are provisioned.
func Provisions(c *storagev1.StorageClass) bool {
	return c.Provisioner != "" && !strings.HasPrefix(c.Provisioner, inTree)
}

// inTree begins the names of provisioners and plugins that would be part of Kubernetes itself. None is.
const inTree = "kubernetes.io/"

func has(m map[string]string, key string) bool { _, ok := m[key]; return ok }

// annotate sets an annotation of an object that is a copy.
func annotate(m *map[string]string, key, value string) {
	if *m == nil {
		*m = map[string]string{}
	}
	(*m)[key] = value
}

// IsFor reports whether a volume is bound to a claim, or reserved for it by a user.
func IsFor(v *corev1.PersistentVolume, c *corev1.PersistentVolumeClaim) bool {
	r := v.Spec.ClaimRef
	return r != nil && r.Namespace == c.Namespace && r.Name == c.Name && (r.UID == "" || r.UID == c.UID)
}

func modeOfClaim(c *corev1.PersistentVolumeClaim) corev1.PersistentVolumeMode {
	if c.Spec.VolumeMode != nil {
		return *c.Spec.VolumeMode
	}
	return corev1.PersistentVolumeFilesystem
}

// ModeOf returns whether a volume is a file system or a block device.
func ModeOf(v *corev1.PersistentVolume) corev1.PersistentVolumeMode {
	if v.Spec.VolumeMode != nil {
		return *v.Spec.VolumeMode
	}
	return corev1.PersistentVolumeFilesystem
}

// PluginName returns the name of upstream's plugin for a volume, as in metrics (S1.96).
func PluginName(v *corev1.PersistentVolume) string {
	switch s := &v.Spec.PersistentVolumeSource; {
	case s.CSI != nil:
		return CSIPlugin + ":" + s.CSI.Driver
	case s.Local != nil:
		return "kubernetes.io/local-volume"
	case s.HostPath != nil:
		return "kubernetes.io/host-path"
	case s.NFS != nil:
		return "kubernetes.io/nfs"
	case s.ISCSI != nil:
		return "kubernetes.io/iscsi"
	case s.FC != nil:
		return "kubernetes.io/fc"
	default:
		return "N/A"
	}
}

// AccessMode abbreviates the widest access mode of a volume, as metrics do: "RWX"; "inline" for a volume of a pod
// itself.
func AccessMode(v *corev1.PersistentVolume) string {
	if v == nil {
		return "inline"
	}
	for _, m := range [...]struct {
		mode  corev1.PersistentVolumeAccessMode
		short string
	}{{corev1.ReadWriteMany, "RWX"}, {corev1.ReadOnlyMany, "ROX"}, {corev1.ReadWriteOnce, "RWO"},
		{corev1.ReadWriteOncePod, "RWOP"}} {
		if slices.Contains(v.Spec.AccessModes, m.mode) {
			return m.short
		}
	}
	return ""
}

func attributesClass(name *string) string {
	if name == nil {
		return ""
	}
	return *name
}

// offers reports whether a volume has all access modes that are wanted.
func offers(v *corev1.PersistentVolume, wanted []corev1.PersistentVolumeAccessMode) bool {
	for _, m := range wanted {
		if !slices.Contains(v.Spec.AccessModes, m) {
			return false
		}
	}
	return true
}

// SortVolumes orders volumes by name.
func SortVolumes(list []*corev1.PersistentVolume) {
	slices.SortFunc(list, func(a, b *corev1.PersistentVolume) int { return cmp.Compare(a.Name, b.Name) })
}

// ClaimsOf returns the names of the claims that a pod uses, including those of its generic ephemeral
// volumes.
func ClaimsOf(pod *corev1.Pod) []string {
	var names []string
	for i := range pod.Spec.Volumes {
		if name, _ := ClaimOf(pod, &pod.Spec.Volumes[i]); name != "" && !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	return names
}

// ClaimOf returns the claim of one volume of a pod; "" for other kinds of volumes. own means that
// it is created for the pod.
func ClaimOf(pod *corev1.Pod, v *corev1.Volume) (name string, own bool) {
	switch {
	case v.PersistentVolumeClaim != nil:
		return v.PersistentVolumeClaim.ClaimName, false
	case v.Ephemeral != nil:
		return pod.Name + "-" + v.Name, true
	}
	return "", false
}
