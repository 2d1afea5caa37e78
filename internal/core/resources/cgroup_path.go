package resources

import (
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// CgroupPath is a cgroup path as steps from the agent's root, outermost first: kubepods, burstable,
// pod<uid> (L3.117d).
type CgroupPath []string

// QoSCgroup is the cgroup of a QoS class. Guaranteed pods have no level of their own.
func QoSCgroup(class corev1.PodQOSClass) CgroupPath {
	switch class {
	case corev1.PodQOSBurstable:
		return CgroupPath{"kubepods", "burstable"}
	case corev1.PodQOSBestEffort:
		return CgroupPath{"kubepods", "besteffort"}
	default:
		return CgroupPath{"kubepods"}
	}
}

// PodCgroupPath is the cgroup of a pod of that class.
func PodCgroupPath(class corev1.PodQOSClass, uid types.UID) CgroupPath {
	return append(QoSCgroup(class), "pod"+string(uid))
}

// Cgroupfs is the path for the cgroupfs driver: /kubepods/burstable/pod<uid>.
func (p CgroupPath) Cgroupfs() string { return "/" + strings.Join(p, "/") }

// Systemd is the name for the systemd driver: kubepods-burstable-pod<uid>.slice, with "_" for "-" inside a step.
func (p CgroupPath) Systemd() string {
	steps := make([]string, len(p))
	for i, s := range p {
		steps[i] = strings.ReplaceAll(s, "-", "_")
	}
	return strings.Join(steps, "-") + ".slice"
}
