package volume

import (
	"context"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"carob/internal/node/csi"
)

// labelRecorder is a node with CSI drivers that records the requested labels.
type labelRecorder struct {
	fullNode
	labels []string
}

func (a *labelRecorder) SetUp(_ context.Context, req csi.Request) (csi.Ready, error) {
	a.labels = append(a.labels, req.SELinux)
	return csi.Ready{Path: "/v"}, a.err
}

func level(s string) *corev1.SELinuxOptions { return &corev1.SELinuxOptions{Level: s} }

// Which label a volume is mounted with (S4.74, S0.4, S0.5).
func TestMountLabel(t *testing.T) {
	const label = "system_u:object_r:container_file_t:s0:c1,c2"
	mount := []corev1.VolumeMount{{Name: "v", MountPath: "/v"}}
	for name, tc := range map[string]struct {
		change    func(p *corev1.PodSpec)
		want, err string
	}{
		"none":  {func(*corev1.PodSpec) {}, "", ""},
		"pod's": {func(p *corev1.PodSpec) { p.SecurityContext.SELinuxOptions = level("s0:c1,c2") }, label, ""},
		"without level": {func(p *corev1.PodSpec) {
			p.SecurityContext.SELinuxOptions = &corev1.SELinuxOptions{Type: "t"}
		}, "", ""},
		"container's": {func(p *corev1.PodSpec) {
			p.SecurityContext.SELinuxOptions = level("s9")
			p.Containers[0].SecurityContext = &corev1.SecurityContext{SELinuxOptions: level("s0:c1,c2")}
		}, label, ""},
		"container without the volume": {func(p *corev1.PodSpec) {
			p.SecurityContext.SELinuxOptions = level("s0:c1,c2")
			p.Containers = append(p.Containers, corev1.Container{Name: "b",
				SecurityContext: &corev1.SecurityContext{SELinuxOptions: level("s9")}})
		}, label, ""},
		"mount option": {func(p *corev1.PodSpec) {
			p.SecurityContext.SELinuxOptions = level("s0:c1,c2")
			p.SecurityContext.SELinuxChangePolicy = new(corev1.SELinuxChangePolicyMountOption)
		}, label, ""},
		"recursive": {func(p *corev1.PodSpec) {
			p.SecurityContext.SELinuxOptions = level("s0:c1,c2")
			p.SecurityContext.SELinuxChangePolicy = new(corev1.SELinuxChangePolicyRecursive)
		}, "", ""},
		"two": {func(p *corev1.PodSpec) {
			p.SecurityContext.SELinuxOptions = level("s0:c1,c2")
			p.InitContainers = []corev1.Container{{Name: "i", VolumeMounts: mount,
				SecurityContext: &corev1.SecurityContext{SELinuxOptions: level("s1")}}}
		}, "", "multiple SELinux labels found: " + label + ",system_u:object_r:container_file_t:s1"},
		"ephemeral": {func(p *corev1.PodSpec) {
			p.SecurityContext.SELinuxOptions = level("s0:c1,c2")
			c := corev1.EphemeralContainerCommon{Name: "e", VolumeMounts: mount,
				SecurityContext: &corev1.SecurityContext{SELinuxOptions: level("s1")}}
			p.EphemeralContainers = []corev1.EphemeralContainer{{EphemeralContainerCommon: c}}
		}, "", "multiple SELinux labels found"},
		"hostile": {func(p *corev1.PodSpec) { p.SecurityContext.SELinuxOptions = level(`s0",suid,x="`) }, "",
			"failed to construct SELinux label"},
	} {
		pod := podWithClaim("p1")
		pod.Spec.SecurityContext = &corev1.PodSecurityContext{}
		tc.change(&pod.Spec)
		got, err := mountLabel(pod, "v")
		if got != tc.want || (err == nil) != (tc.err == "") || err != nil && !strings.Contains(err.Error(), tc.err) {
			t.Errorf("%s: %q, %v", name, got, err)
		}
	}
}

// The driver gets the label only where the kernel uses labels. A conflict is recorded as the kubelet records it.
func TestLabelOfClaim(t *testing.T) {
	for _, enabled := range []bool{false, true} {
		w, s, drivers := newWorld(t), bound(t.TempDir()), &labelRecorder{}
		s.volumes["pv"].Spec.PersistentVolumeSource = corev1.PersistentVolumeSource{
			CSI: &corev1.CSIPersistentVolumeSource{Driver: "d", VolumeHandle: "h"}}
		w.cfg.Persistent, w.cfg.CSI, w.cfg.SELinux = s, drivers, enabled
		pod := func(uid types.UID) *corev1.Pod {
			p := podWithClaim(string(uid))
			p.Spec.SecurityContext = &corev1.PodSecurityContext{SELinuxOptions: level("s0:c1")}
			return p
		}
		if err := w.Prepare(t.Context(), pod("p1")); err != nil {
			t.Fatal(err)
		}
		if got := drivers.labels[0]; (got == "system_u:object_r:container_file_t:s0:c1") != enabled {
			t.Errorf("enabled %t: %q", enabled, got)
		}
		drivers.err = &csi.LabelConflictError{Volume: "pv", Has: "a", Requested: "b"}
		const want = "FailedMount Unable to attach or mount volumes: unmounted volumes=[v], unattached volumes=[], " +
			`failed to process volumes=[v]: conflicting SELinux labels of volume pv: "a" and "b"`
		if err := w.Prepare(t.Context(), pod("p2")); err == nil || len(w.events) == 0 ||
			!strings.Contains(w.events[len(w.events)-1], strings.TrimPrefix(want, "FailedMount ")) {
			t.Errorf("%v; events %q", err, w.events)
		}
	}
}
