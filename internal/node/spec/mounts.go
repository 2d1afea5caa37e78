package spec

import (
	"fmt"
	"path"
	"path/filepath"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

const hostsPath = "/etc/hosts"

// subPath is the expanded subPath of a mount; empty for the whole volume (L3.138).
func subPath(m *corev1.VolumeMount, env *environment) (string, error) {
	p := m.SubPath
	if m.SubPathExpr != "" {
		var missing []string
		var err error
		if p, missing, err = new(room).expand(m.SubPathExpr, env.get); err != nil {
			return "", err
		} else if len(missing) > 0 {
			return "", fmt.Errorf("missing value for %s", strings.Join(missing, ", "))
		}
	}
	switch {
	case p == "":
		return "", nil
	case path.IsAbs(p):
		return "", fmt.Errorf("error SubPath `%s` must not be an absolute path", p)
	case backsteps(p):
		return "", fmt.Errorf("unable to provision SubPath `%s`: must not contain '..'", p)
	}
	return p, nil
}

func backsteps(p string) bool {
	return slices.Contains(strings.Split(p, "/"), "..")
}

// mounts are the volume mounts, the hosts file and the termination message file.
func mounts(in *ContainerInput, env *environment) ([]*cri.Mount, error) {
	var list []*cri.Mount
	for i := range in.Container.VolumeMounts {
		m, err := volumeMount(in, env, i)
		if err != nil {
			return nil, err
		}
		list = append(list, m)
	}
	if in.Devices != nil {
		for _, m := range in.Devices.Mounts {
			if !slices.ContainsFunc(list, func(have *cri.Mount) bool { return have.ContainerPath == m.ContainerPath }) {
				list = append(list, &cri.Mount{ContainerPath: m.ContainerPath, HostPath: m.HostPath,
					Readonly: m.Readonly})
			}
		}
	}
	relabel := in.Container.SecurityContext == nil || !isTrue(in.Container.SecurityContext.Privileged)
	if in.Files.Hosts != "" {
		list = append(list, &cri.Mount{ContainerPath: hostsPath, HostPath: in.Files.Hosts, SelinuxRelabel: relabel})
	}
	if in.Files.TerminationLog != "" {
		list = append(list, &cri.Mount{ContainerPath: in.Container.TerminationMessagePath,
			HostPath: in.Files.TerminationLog, SelinuxRelabel: relabel})
	}
	if usesUserNS(in.Pod) {
		for _, m := range list {
			mapIDs(m, in.UserNS)
		}
	}
	return list, nil
}

// mapIDs maps the owners on disk to the same IDs inside the pod's user namespace: root's files stay root's, and the
// group of a volume stays the pod's fsGroup (L3.163). For image volumes the image store maps the owners.
func mapIDs(m *cri.Mount, ids *cri.UserNamespace) {
	if m.Image == nil {
		m.UidMappings, m.GidMappings = ids.GetUids(), ids.GetGids()
	}
}

func volumeMount(in *ContainerInput, env *environment, index int) (*cri.Mount, error) {
	vm, c := &in.Container.VolumeMounts[index], in.Container
	v, ok := in.Files.Volumes[vm.Name]
	if !ok {
		return nil, fmt.Errorf("cannot find volume %q to mount into container %q", vm.Name, c.Name)
	}
	m := &cri.Mount{
		ContainerPath:  containerPath(vm.MountPath),
		HostPath:       v.HostPath,
		Image:          v.Image,
		Readonly:       vm.ReadOnly || v.ReadOnly,
		SelinuxRelabel: v.Relabel,
		Propagation:    propagation(vm.MountPropagation),
	}
	sub, err := subPath(vm, env)
	switch {
	case err != nil:
		return nil, err
	case sub == "":
	case v.Image != nil:
		m.ImageSubPath = sub
	default:
		if m.HostPath, ok = in.Files.SubPaths[index]; !ok {
			return nil, fmt.Errorf("failed to prepare subPath for volumeMount %q of container %q", vm.Name, c.Name)
		}
	}
	if m.RecursiveReadOnly, err = recursiveReadOnly(in, vm); err != nil {
		return nil, err
	}
	return m, nil
}

// devices are the block volumes of a container.
func devices(in *ContainerInput) ([]*cri.Device, error) {
	var list []*cri.Device
	for _, d := range in.Container.VolumeDevices {
		v, ok := in.Files.Volumes[d.Name]
		if !ok || v.Device == "" {
			return nil, fmt.Errorf("cannot find volume %q to pass into container %q", d.Name, in.Container.Name)
		}
		permissions := "mrw"
		if v.ReadOnly {
			permissions = "r"
		}
		list = append(list, &cri.Device{HostPath: v.Device, ContainerPath: d.DevicePath, Permissions: permissions})
	}
	return list, nil
}

func containerPath(p string) string {
	if !filepath.IsAbs(p) {
		return "/" + p
	}
	return p
}

func propagation(p *corev1.MountPropagationMode) cri.MountPropagation {
	if p == nil {
		return cri.MountPropagation_PROPAGATION_PRIVATE
	}
	switch *p {
	case corev1.MountPropagationHostToContainer:
		return cri.MountPropagation_PROPAGATION_HOST_TO_CONTAINER
	case corev1.MountPropagationBidirectional:
		return cri.MountPropagation_PROPAGATION_BIDIRECTIONAL
	default:
		return cri.MountPropagation_PROPAGATION_PRIVATE
	}
}

func recursiveReadOnly(in *ContainerInput, vm *corev1.VolumeMount) (bool, error) {
	if vm.RecursiveReadOnly == nil || *vm.RecursiveReadOnly == corev1.RecursiveReadOnlyDisabled || !vm.ReadOnly {
		return false, nil
	}
	private := vm.MountPropagation == nil || *vm.MountPropagation == corev1.MountPropagationNone
	if in.Node.RecursiveReadOnly && private {
		return true, nil
	}
	if *vm.RecursiveReadOnly == corev1.RecursiveReadOnlyEnabled {
		return false,
			fmt.Errorf(
				"volume mount %q of container %q requires a recursive read-only mount, which the runtime does not support",
				vm.Name, in.Container.Name)
	}
	return false, nil
}
