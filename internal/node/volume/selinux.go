package volume

import (
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"carob/internal/base/selinuxlabel"
)

// labelsError means that containers of a pod use one persistent volume with several SELinux labels, which its mount
// cannot have (S4.74).
type labelsError struct{ labels []string }

func (e *labelsError) Error() string {
	return "multiple SELinux labels found: " + strings.Join(e.labels, ",")
}

// SELinuxEnabled reports whether the kernel of this machine checks SELinux labels: it enforces or logs.
func SELinuxEnabled() bool {
	_, err := os.Stat("/sys/fs/selinux/enforce")
	return err == nil
}

// labelError is why a volume cannot be mounted with a pod's SELinux label.
type labelError struct{ err error }

func (e *labelError) Error() string { return e.err.Error() }
func (e *labelError) Unwrap() error { return e.err }

// mountLabel is the SELinux label that a persistent volume is mounted with for a pod, if its driver supports that; "":
// the files are labelled one by one, or not at all. A label without a level of its own is none: each runtime has
// another default.
func mountLabel(pod *corev1.Pod, volume string) (string, error) {
	labels := map[string]bool{}
	leveled := true
	var bad error
	add := func(own *corev1.SecurityContext, mounts []corev1.VolumeMount) {
		o := effective(pod.Spec.SecurityContext, own)
		if o == nil || !slices.ContainsFunc(mounts, func(m corev1.VolumeMount) bool { return m.Name == volume }) {
			return
		}
		_, files, err := selinuxlabel.Labels(selinuxlabel.Options{User: o.User, Role: o.Role, Type: o.Type,
			Level: o.Level})
		if err != nil {
			bad = err
		}
		labels[files] = true
		leveled = leveled && o.Level != ""
	}
	for i := range pod.Spec.InitContainers {
		add(pod.Spec.InitContainers[i].SecurityContext, pod.Spec.InitContainers[i].VolumeMounts)
	}
	for i := range pod.Spec.Containers {
		add(pod.Spec.Containers[i].SecurityContext, pod.Spec.Containers[i].VolumeMounts)
	}
	for i := range pod.Spec.EphemeralContainers {
		add(pod.Spec.EphemeralContainers[i].SecurityContext, pod.Spec.EphemeralContainers[i].VolumeMounts)
	}
	sorted := slices.Sorted(maps.Keys(labels))
	switch {
	case bad != nil:
		return "", fmt.Errorf("failed to construct SELinux label: %w", bad)
	case len(sorted) > 1:
		return "", &labelsError{sorted}
	case len(sorted) == 0, !leveled, recursive(pod):
		return "", nil
	}
	return sorted[0], nil
}

// effective are the SELinux options of a container: its own, or the pod's.
func effective(pod *corev1.PodSecurityContext, own *corev1.SecurityContext) *corev1.SELinuxOptions {
	if own != nil && own.SELinuxOptions != nil {
		return own.SELinuxOptions
	}
	if pod != nil {
		return pod.SELinuxOptions
	}
	return nil
}

// recursive reports whether the pod requests that files are labelled one by one.
func recursive(pod *corev1.Pod) bool {
	s := pod.Spec.SecurityContext
	return s != nil && s.SELinuxChangePolicy != nil && *s.SELinuxChangePolicy == corev1.SELinuxChangePolicyRecursive
}
