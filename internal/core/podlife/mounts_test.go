package podlife

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
)

// The status of a read-only mount shows how it was mounted: IfPossible is Enabled only where the
// runtime can do it (L4.32).
func TestStatusOfReadOnlyMounts(t *testing.T) {
	for _, tc := range []struct {
		requested *corev1.RecursiveReadOnlyMode
		readOnly  bool
		can       bool
		want      corev1.RecursiveReadOnlyMode // empty: not set
	}{
		{new(corev1.RecursiveReadOnlyIfPossible), true, true, corev1.RecursiveReadOnlyEnabled},
		{new(corev1.RecursiveReadOnlyIfPossible), true, false, corev1.RecursiveReadOnlyDisabled},
		{new(corev1.RecursiveReadOnlyEnabled), true, true, corev1.RecursiveReadOnlyEnabled},
		{new(corev1.RecursiveReadOnlyDisabled), true, true, corev1.RecursiveReadOnlyDisabled},
		{nil, true, true, corev1.RecursiveReadOnlyDisabled},
		{nil, false, true, ""},
	} {
		c := &corev1.Container{VolumeMounts: []corev1.VolumeMount{{Name: "v", MountPath: "/v", ReadOnly: tc.readOnly,
			RecursiveReadOnly: tc.requested}}}
		m := &machine{in: Input{Node: Node{RecursiveReadOnly: tc.can}}}
		list := m.volumeMounts(&podContainer{spec: c}, nil)
		var got corev1.RecursiveReadOnlyMode
		if len(list) == 1 && list[0].RecursiveReadOnly != nil {
			got = *list[0].RecursiveReadOnly
		}
		if got != tc.want {
			t.Errorf("%v, can %t: %q, want %q", tc.requested, tc.can, got, tc.want)
		}
		m.in.Node.RecursiveReadOnly = !tc.can // a reported value stays
		if again := m.volumeMounts(&podContainer{spec: c},
			&corev1.ContainerStatus{VolumeMounts: list}); &again[0] != &list[0] {
			t.Errorf("%v: it changed", tc.requested)
		}
	}
}
