package spec

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// A pod in a user namespace sees the owners of its volumes and files as they are on disk; each mount has the mappings
// (L3.163).
func TestMountsInUserNamespace(t *testing.T) {
	ids := []*cri.IDMapping{{HostId: 65536, Length: 65536}}
	for name, hostUsers := range map[string]*bool{"unset": nil, "host's": new(true), "own": new(false)} {
		t.Run(name, func(t *testing.T) {
			pod, node := testPod(), testNode()
			pod.Spec.HostUsers = hostUsers
			c := &pod.Spec.Containers[0]
			c.VolumeMounts = []corev1.VolumeMount{{Name: "a", MountPath: "/a"},
				{Name: "a", MountPath: "/s", SubPath: "x"}, {Name: "image", MountPath: "/i"}}
			a := &api{volumes: map[string]Volume{"a": {HostPath: "/vols/a"},
				"image": {Image: &cri.ImageSpec{Image: "i"}, ReadOnly: true}}}
			in := ContainerInput{Pod: pod, Container: c, Node: node, PodIPs: []string{"10.1.0.2"},
				Image: Image{Ref: "sha256:1"}}
			own := hostUsers != nil && !*hostUsers
			if own {
				in.UserNS = &cri.UserNamespace{Mode: cri.NamespaceMode_POD, Uids: ids, Gids: ids}
			}
			config, err := Assemble(t.Context(), in, a, a)
			if err != nil {
				t.Fatal(err)
			}
			if len(config.Mounts) != 5 {
				t.Fatalf("%d mounts, want 3 volumes, the hosts file and the termination message: %v",
					len(config.Mounts), config.Mounts)
			}
			for _, m := range config.Mounts {
				want := own && m.Image == nil
				if got := len(m.UidMappings) == 1 && len(m.GidMappings) == 1; got != want {
					t.Errorf("%s: mapped %v, want %v", m.ContainerPath, got, want)
				}
			}
		})
	}
}
