package volume

import (
	"cmp"
	"crypto/sha256"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
)

// CSIPlugin is the name of the plugin of all CSI volumes (S0.65).
const CSIPlugin = "kubernetes.io/csi"

// Handle names a volume of a CSI driver.
type Handle struct{ Driver, ID string }

// UniqueName returns the name of a volume in the status of nodes (S0.66).
func (h Handle) UniqueName() corev1.UniqueVolumeName {
	return corev1.UniqueVolumeName(CSIPlugin + "/" + h.Driver + "^" + h.ID)
}

// ParseUniqueName is the reverse of UniqueName; false: it is of another plugin.
func ParseUniqueName(name corev1.UniqueVolumeName) (Handle, bool) {
	rest, ok := strings.CutPrefix(string(name), CSIPlugin+"/")
	if !ok {
		return Handle{}, false
	}
	driver, id, ok := strings.Cut(rest, "^")
	return Handle{driver, id}, ok && driver != "" && id != ""
}

// AttachmentName returns the name of the VolumeAttachment of a volume and a node (S4.30).
func (h Handle) AttachmentName(node string) string {
	return "csi-" + hexHash(h.ID+h.Driver+node)
}

// Hash returns the name of the directory where the volume is staged (S4.66).
func (h Handle) Hash() string { return hexHash(h.ID) }

// EphemeralHandle is the volume that a driver makes for one pod (S4.68).
func EphemeralHandle(driver, podUID, volume string) Handle {
	return Handle{driver, "csi-" + hexHash(podUID+volume)}
}

func hexHash(text string) string {
	return fmt.Sprintf("%x", sha256.Sum256([]byte(text)))
}

// HandleOf returns the driver's volume of a persistent volume; false: it is not a CSI volume.
func HandleOf(v *corev1.PersistentVolume) (Handle, bool) {
	if v == nil || v.Spec.CSI == nil {
		return Handle{}, false
	}
	return Handle{v.Spec.CSI.Driver, v.Spec.CSI.VolumeHandle}, true
}

// DriverRules defines how volumes of a driver are handled.
type DriverRules struct {
	Attach          bool // a VolumeAttachment is needed before the volume is used
	PodInfo         bool // the driver gets facts about the pod
	Republish       bool // the volume is published again while it is used
	SELinuxMount    bool
	TokensInSecrets bool
	Capacity        bool // CSIStorageCapacity objects report the free storage
	NeedsDriver     bool // pods run only on nodes with the driver (S2.53)
	Modes           []storagev1.VolumeLifecycleMode
	FSGroup         storagev1.FSGroupPolicy
	Tokens          []storagev1.TokenRequest
	Refresh         int64 // seconds between reads of the volume limit of a node; 0: never
	Object          bool  // the CSIDriver object exists
}

// RulesOf returns the rules of a driver; nil: it has no CSIDriver object (S4.14, S4.C).
func RulesOf(d *storagev1.CSIDriver) DriverRules {
	r := DriverRules{Attach: true, Modes: []storagev1.VolumeLifecycleMode{storagev1.VolumeLifecyclePersistent},
		FSGroup: storagev1.ReadWriteOnceWithFSTypeFSGroupPolicy}
	if d == nil {
		return r
	}
	is := func(b *bool, otherwise bool) bool {
		if b == nil {
			return otherwise
		}
		return *b
	}
	s := &d.Spec
	r.Object = true
	r.Attach, r.PodInfo, r.Republish = is(s.AttachRequired, true), is(s.PodInfoOnMount, false),
		is(s.RequiresRepublish, false)
	r.SELinuxMount, r.TokensInSecrets = is(s.SELinuxMount, false), is(s.ServiceAccountTokenInSecrets, false)
	r.Capacity, r.NeedsDriver = is(s.StorageCapacity, false), is(s.PreventPodSchedulingIfMissing, false)
	if len(s.VolumeLifecycleModes) > 0 {
		r.Modes = s.VolumeLifecycleModes
	}
	if s.FSGroupPolicy != nil {
		r.FSGroup = *s.FSGroupPolicy
	}
	if s.NodeAllocatableUpdatePeriodSeconds != nil {
		r.Refresh = *s.NodeAllocatableUpdatePeriodSeconds
	}
	r.Tokens = s.TokenRequests
	return r
}

// Allows returns why a driver does not support volumes of a mode; nil: it does (S4.18).
func (r DriverRules) Allows(driver string, mode storagev1.VolumeLifecycleMode) error {
	switch {
	case slices.Contains(r.Modes, mode):
		return nil
	case !r.Object:
		return fmt.Errorf("volume mode %q not supported by driver %s (no CSIDriver object)", mode, driver)
	default:
		return fmt.Errorf("volume mode %q not supported by driver %s (only supports %q)", mode, driver, r.Modes)
	}
}

// GivesGroup reports whether the agent gives the files of a volume to the pod's group (S4.70).
func (r DriverRules) GivesGroup(fsType string, modes []corev1.PersistentVolumeAccessMode) bool {
	switch r.FSGroup {
	case storagev1.FileFSGroupPolicy:
		return true
	case storagev1.NoneFSGroupPolicy:
		return false
	default:
		return fsType != "" && (slices.Contains(modes, corev1.ReadWriteOnce) ||
			slices.Contains(modes, corev1.ReadWriteOncePod))
	}
}

// PodInfo returns the facts of a pod for a driver (S4.17).
func PodInfo(pod *corev1.Pod, mode storagev1.VolumeLifecycleMode) map[string]string {
	return map[string]string{
		"csi.storage.k8s.io/pod.name": pod.Name, "csi.storage.k8s.io/pod.namespace": pod.Namespace,
		"csi.storage.k8s.io/pod.uid": string(
			pod.UID,
		), "csi.storage.k8s.io/serviceAccount.name": pod.Spec.ServiceAccountName,
		"csi.storage.k8s.io/ephemeral": strconv.FormatBool(mode == storagev1.VolumeLifecycleEphemeral),
	}
}

// DriverVersion returns the highest version of a list, which must be of the first major version
// (S4.8).
func DriverVersion(offered []string) (string, error) {
	var best string
	for _, text := range offered {
		if n, ok := parseVersion(text); !ok || n[0] < 1 {
			continue
		}
		if best == "" || NewerVersion(text, best) {
			best = text
		}
	}
	switch n, _ := parseVersion(best); {
	case len(offered) == 0:
		return "", fmt.Errorf("no versions offered")
	case best == "":
		return "", fmt.Errorf("none of the versions %q is at least 1.0 and has the form of one", offered)
	case n[0] > 1:
		return "", fmt.Errorf("the highest version %q is not supported: it must be below 2.0", best)
	}
	return best, nil
}

// NewerVersion reports whether a version is higher than another; both must be valid versions.
func NewerVersion(a, b string) bool {
	x, _ := parseVersion(a)
	y, _ := parseVersion(b)
	return slices.Compare(x[:], y[:]) > 0
}

// parseVersion reads MAJOR.MINOR[.PATCH][-…], with or without a v before it.
func parseVersion(text string) (n [3]uint64, ok bool) {
	text = strings.TrimPrefix(text, "v")
	if i := strings.IndexAny(text, "-+"); i >= 0 {
		text = text[:i]
	}
	parts := strings.Split(text, ".")
	if len(parts) < 1 || len(parts) > 3 {
		return n, false
	}
	for i, p := range parts {
		var err error
		if n[i], err = strconv.ParseUint(p, 10, 32); err != nil {
			return [3]uint64{}, false
		}
	}
	return n, true
}

// InstallDriver returns a CSINode with a driver added (S4.10). limit is how many volumes fit on the node; nil:
// any number.
func InstallDriver(n *storagev1.CSINode, driver, nodeID string, limit *int32, topology []string) *storagev1.CSINode {
	n = n.DeepCopy()
	slices.Sort(topology)
	entry := storagev1.CSINodeDriver{Name: driver, NodeID: nodeID, TopologyKeys: topology}
	if limit != nil {
		entry.Allocatable = &storagev1.VolumeNodeResources{Count: limit}
	}
	n.Spec.Drivers = slices.DeleteFunc(
		n.Spec.Drivers,
		func(d storagev1.CSINodeDriver) bool { return d.Name == driver },
	)
	n.Spec.Drivers = append(n.Spec.Drivers, entry)
	slices.SortFunc(n.Spec.Drivers, func(a, b storagev1.CSINodeDriver) int { return cmp.Compare(a.Name, b.Name) })
	return n
}

// RemoveDriver returns a CSINode without a driver (S4.11).
func RemoveDriver(n *storagev1.CSINode, driver string) *storagev1.CSINode {
	n = n.DeepCopy()
	n.Spec.Drivers = slices.DeleteFunc(
		n.Spec.Drivers,
		func(d storagev1.CSINodeDriver) bool { return d.Name == driver },
	)
	return n
}

// TopologyLabels returns the labels that a driver adds to a node. An existing label with another
// value is an error (S4.10).
func TopologyLabels(driver string, have, segments map[string]string) (map[string]string, error) {
	added := map[string]string{}
	for _, k := range slices.Sorted(maps.Keys(segments)) {
		v, ok := have[k]
		if ok && v != segments[k] {
			return nil, fmt.Errorf(
				"detected topology value collision: driver reported %q:%q but existing label is %q:%q",
				k,
				segments[k],
				k,
				v,
			)
		}
		if !ok {
			added[k] = segments[k]
		}
	}
	return added, nil
}
