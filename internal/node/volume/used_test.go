package volume

import (
	"os"
	"path/filepath"
	"testing"

	corev1 "k8s.io/api/core/v1"
)

// A volume that no container uses is not set up: what it lacks keeps nobody waiting. An ephemeral container that uses
// it comes later, and has it set up then.
func TestUsedVolumes(t *testing.T) {
	w := newWorld(t)
	pod := podWith("u1", volume("v", corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}))
	pod.Spec.Volumes = append(pod.Spec.Volumes,
		volume("missing", corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: "missing"}}),
		volume("late", corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}))
	set := w.mustPrepare(pod)
	if len(set) != 1 || set["v"].HostPath == "" || !w.State(pod).Mounted {
		t.Fatalf("%v, mounted: %v", set, w.State(pod).Mounted)
	}
	pod = pod.DeepCopy()
	debug := corev1.EphemeralContainerCommon{Name: "e",
		VolumeMounts: []corev1.VolumeMount{{Name: "late", MountPath: "/late"}}}
	pod.Spec.EphemeralContainers = []corev1.EphemeralContainer{{EphemeralContainerCommon: debug}}
	if w.State(pod).Mounted {
		t.Error("the volume of the ephemeral container counts as mounted")
	}
	kept := filepath.Join(set["v"].HostPath, "f")
	if err := os.WriteFile(kept, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	now := w.mustPrepare(pod)
	if len(now) != 2 || now["late"].HostPath == "" || len(set) != 1 || !w.State(pod).Mounted {
		t.Errorf("%v, mounted: %v", now, w.State(pod).Mounted)
	}
	if _, err := os.Stat(kept); err != nil {
		t.Error(err)
	}
}
