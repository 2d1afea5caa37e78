package volume

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"carob/internal/base/securepath"
	corevolume "carob/internal/core/volume"
	"carob/internal/node/csi"
	"carob/internal/node/spec"
)

// claimProtection is the finalizer of a claim that is being deleted but still used (S7.5).
const claimProtection = "kubernetes.io/pvc-protection"

// mapStep is upstream's name of the step that maps the block device of a local volume.
const mapStep = "MapVolume.SetUpDevice failed"

// stepError is an error of a step with its own message (L10.25, S3.23).
type stepError struct {
	step, volume string
	err          error
}

func (e *stepError) Error() string {
	return fmt.Sprintf("%s for volume %q : %v", e.step, e.volume, e.err)
}

func (e *stepError) Unwrap() error { return e.err }

// persistent sets up the volume of a claim. The kernel's state is the only state: mounts below
// the pod's directory, and the links of block devices. Remove finds both.
func (m *Manager) persistent(ctx context.Context, p *podVolumes, v *corev1.Volume) (spec.Volume, error) {
	name, own := corevolume.ClaimOf(p.pod, v)
	bad := func(why string) (spec.Volume, error) {
		return spec.Volume{}, &claimError{p.pod.Namespace, name, why}
	}
	if m.cfg.Persistent == nil {
		return bad("persistent volumes are not supported by this node")
	}
	c, err := m.cfg.Persistent.VolumeClaim(ctx, p.pod.Namespace, name)
	switch {
	case err != nil:
		return bad("failed to fetch PVC from API server: " + err.Error())
	case own && !metav1.IsControlledBy(c, p.pod):
		return bad(fmt.Sprintf("PVC %s/%s was not created for pod %s/%s (pod is not owner)", c.Namespace, c.Name,
			p.pod.Namespace, p.pod.Name))
	case c.DeletionTimestamp != nil && !slices.Contains(c.Finalizers, claimProtection):
		return bad("PVC is being deleted")
	case c.Status.Phase == corev1.ClaimLost || !corevolume.FullyBound(c):
		// The phase Bound is written a moment after the binding, which is complete without it.
		return bad("PVC is not bound")
	}
	pv, err := m.cfg.Persistent.PersistentVolume(ctx, c.Spec.VolumeName)
	if err != nil {
		return bad(fmt.Sprintf("failed to fetch PV %s from API server: %v", c.Spec.VolumeName, err))
	}
	if r := pv.Spec.ClaimRef; r == nil || r.UID != c.UID {
		return bad(fmt.Sprintf("PV %s is not bound to this PVC", pv.Name))
	}
	mounted, mapped := uses(p.pod, v.Name)
	block := corevolume.ModeOf(pv) == corev1.PersistentVolumeBlock
	switch {
	case block && mounted:
		return bad(fmt.Sprintf("volume %s has volumeMode Block, but is specified in volumeMounts", v.Name))
	case !block && mapped:
		return bad(fmt.Sprintf("volume %s has volumeMode Filesystem, but is specified in volumeDevices", v.Name))
	}
	if m.cfg.Object != nil {
		if node := m.cfg.Object(); node != nil && !corevolume.Reaches(pv, node) {
			return spec.Volume{}, &stepError{"MountVolume.NodeAffinity check failed", pv.Name,
				errors.New("no matching NodeSelectorTerms")}
		}
	}
	if err := m.takeSingle(p.uid, pv); err != nil {
		return spec.Volume{}, &stepError{"MountVolume.SetUp failed", pv.Name, err}
	}
	readOnly := v.PersistentVolumeClaim != nil && v.PersistentVolumeClaim.ReadOnly
	label := ""
	if m.cfg.SELinux && !block {
		if label, err = mountLabel(p.pod, v.Name); err != nil {
			if m.cfg.NotLabelled != nil {
				_, several := errors.AsType[*labelsError](err)
				m.cfg.NotLabelled(corevolume.AccessMode(pv), several)
			}
			return spec.Volume{}, &labelError{err}
		}
	}
	if pv.Spec.CSI != nil {
		set, err := m.driven(ctx, pv.Name, csi.Request{Pod: p.pod, Volume: v, Claim: c, PV: pv, Block: block,
			ReadOnly: readOnly, SELinux: label})
		set.Claim = name
		return set, err
	}
	set := spec.Volume{ReadOnly: readOnly, Claim: name, Persistent: corevolume.PluginName(pv)}
	if block {
		var linked bool
		if r := remoteOf(pv); r != nil && r.nfs == nil {
			set.Device, linked, err = m.mapRemote(ctx, p, v, r)
		} else {
			set.Device, linked, err = m.blockDevice(p.uid, pv)
		}
		if err != nil {
			return set, &stepError{mapStep, pv.Name, err}
		}
		if linked && m.cfg.Event != nil { // L10.26
			m.cfg.Event(p.pod, corev1.EventTypeNormal, "SuccessfulMountVolume", fmt.Sprintf(
				"MapVolume.MapPodDevice succeeded for volume %q volumeMapPath %q", pv.Name, m.devicesDir(p.uid)))
		}
		return set, nil
	}
	if err := m.fileSystem(ctx, p, v, pv, &set); err != nil {
		if _, ok := errors.AsType[*stepError](err); !ok {
			err = &stepError{"MountVolume.SetUp failed", pv.Name, err}
		}
		return set, err
	}
	return set, nil
}

// driven has a CSI driver set up a volume; errors contain name.
func (m *Manager) driven(ctx context.Context, name string, req csi.Request) (spec.Volume, error) {
	var driver string
	if req.PV != nil {
		driver = req.PV.Spec.CSI.Driver
	} else {
		driver = req.Volume.CSI.Driver
	}
	set := spec.Volume{Persistent: corevolume.CSIPlugin + ":" + driver}
	if m.cfg.CSI == nil {
		return set, &stepError{"MountVolume.SetUp failed", name, fmt.Errorf(
			"kubernetes.io/csi: driver name %s not found in the list of registered CSI drivers", driver)}
	}
	ready, err := m.cfg.CSI.SetUp(ctx, req)
	if step, ok := errors.AsType[*csi.StepError](err); ok {
		return set, &stepError{step.Step + " failed", name, step.Err}
	}
	if conflict, ok := errors.AsType[*csi.LabelConflictError](err); ok {
		return set, &labelError{conflict}
	}
	if err != nil {
		return set, err
	}
	set.HostPath, set.Device, set.ReadOnly, set.Relabel = ready.Path, ready.Device, ready.ReadOnly, ready.Relabel
	if ready.GivesGroup {
		security := req.Pod.Spec.SecurityContext
		policy := security.FSGroupChangePolicy
		onMismatch := policy != nil && *policy == corev1.FSGroupChangeOnRootMismatch
		if err := m.giveToGroup(ctx, req.Pod, set.HostPath, *security.FSGroup, onMismatch); err != nil {
			return set, &stepError{"MountVolume.SetUp failed", name, fmt.Errorf("applyFSGroup failed: %w", err)}
		}
	}
	return set, nil
}

// used reports whether a container of a pod uses a volume; others are not set up.
func used(pod *corev1.Pod, name string) bool {
	mounted, mapped := uses(pod, name)
	return mounted || mapped
}

// uses returns how the containers of a pod use a volume.
func uses(pod *corev1.Pod, name string) (mounted, mapped bool) {
	look := func(mounts []corev1.VolumeMount, devices []corev1.VolumeDevice) {
		mounted = mounted || slices.ContainsFunc(mounts, func(m corev1.VolumeMount) bool { return m.Name == name })
		mapped = mapped || slices.ContainsFunc(devices, func(d corev1.VolumeDevice) bool { return d.Name == name })
	}
	for i := range pod.Spec.InitContainers {
		look(pod.Spec.InitContainers[i].VolumeMounts, pod.Spec.InitContainers[i].VolumeDevices)
	}
	for i := range pod.Spec.Containers {
		look(pod.Spec.Containers[i].VolumeMounts, pod.Spec.Containers[i].VolumeDevices)
	}
	for i := range pod.Spec.EphemeralContainers {
		look(pod.Spec.EphemeralContainers[i].VolumeMounts, pod.Spec.EphemeralContainers[i].VolumeDevices)
	}
	return mounted, mapped
}

// singleDir has a file for each ReadWriteOncePod volume of a pod, from before the volume is set up until the pod's
// directory goes: after a restart, the agent reads there which of two pods has it.
const singleDir = "single"

// takeSingle allows only one pod at a time to use a ReadWriteOncePod volume.
func (m *Manager) takeSingle(uid types.UID, pv *corev1.PersistentVolume) error {
	if !slices.Contains(pv.Spec.AccessModes, corev1.ReadWriteOncePod) {
		return nil
	}
	if err := checkName(pv.Name); err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.single == nil {
		found, err := m.findSingle()
		if err != nil {
			return err
		}
		m.single = found
	}
	if user, ok := m.single[pv.Name]; ok && user != uid {
		return errors.New("volume uses the ReadWriteOncePod access mode and is already in use by another pod")
	}
	dir := filepath.Join(m.podDir(uid), singleDir)
	if err := os.MkdirAll(dir, 0o750); err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(dir, pv.Name), nil, 0o600); err != nil {
		return err
	}
	m.single[pv.Name] = uid
	return nil
}

// findSingle finds which pods have ReadWriteOncePod volumes since an earlier start.
func (m *Manager) findSingle() (map[string]types.UID, error) {
	found := map[string]types.UID{}
	pods, err := m.OnDisk()
	if err != nil {
		return nil, err
	}
	for _, uid := range pods {
		volumes, err := os.ReadDir(filepath.Join(m.podDir(uid), singleDir))
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, fmt.Errorf("find the ReadWriteOncePod volumes of pods: %w", err)
		}
		for _, v := range volumes {
			found[v.Name()] = uid
		}
	}
	return found, nil
}

// fileSystem makes a volume's files reachable.
func (m *Manager) fileSystem(ctx context.Context, p *podVolumes, v *corev1.Volume, pv *corev1.PersistentVolume,
	set *spec.Volume) error {
	dir := m.volumeDir(p.uid, v.Name)
	owned := true
	var err error
	switch src := &pv.Spec.PersistentVolumeSource; {
	case src.Local != nil:
		err = local(ctx, pv, dir, set)
	case src.HostPath != nil:
		owned = false // fsGroup never applies (S4.73)
		host, herr := hostPath(src.HostPath)
		set.HostPath, err = host.HostPath, herr
	default:
		r := remoteOf(pv)
		if r == nil {
			return errors.New("no volume plugin matched: " +
				"this node supports local, hostPath, nfs, iscsi, fc and csi volumes")
		}
		owned = r.nfs == nil
		err = m.mountRemote(ctx, p, v, r, set)
	}
	if err != nil {
		return err
	}
	return m.toGroup(ctx, p, owned, set)
}

// toGroup gives the files of a volume that belong to the pod to its fsGroup.
func (m *Manager) toGroup(ctx context.Context, p *podVolumes, owned bool, set *spec.Volume) error {
	set.Relabel = owned
	if group := fsGroup(p.pod); group != nil && owned && !set.ReadOnly {
		policy := p.pod.Spec.SecurityContext.FSGroupChangePolicy
		return m.giveToGroup(ctx, p.pod, set.HostPath, *group,
			policy != nil && *policy == corev1.FSGroupChangeOnRootMismatch)
	}
	return nil
}

// local makes a local volume accessible: a directory as it is, or bind-mounted with the volume's
// mount options; or the file system on a block device, which is created if there is none.
func local(ctx context.Context, pv *corev1.PersistentVolume, dir string, set *spec.Volume) error {
	path := pv.Spec.Local.Path
	info, err := os.Stat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return &stepError{"MountVolume.NewMounter initialization failed", pv.Name,
			fmt.Errorf("path %q does not exist", path)}
	case err != nil:
		return err
	case info.IsDir() && len(pv.Spec.MountOptions) == 0:
		set.HostPath = path
		return nil
	case info.IsDir():
		set.HostPath = dir
		return bind(path, dir, pv.Spec.MountOptions)
	case info.Mode()&(fs.ModeDevice|fs.ModeCharDevice) == fs.ModeDevice:
		set.HostPath = dir
		kind := "ext4"
		if pv.Spec.Local.FSType != nil && *pv.Spec.Local.FSType != "" {
			kind = *pv.Spec.Local.FSType
		}
		return mountDisk(ctx, dir, kind, path, pv.Spec.MountOptions)
	default:
		return fmt.Errorf("only directory and block device are supported: %q is neither", path)
	}
}

// localPlugin is the name of upstream's plugin for local volumes.
const localPlugin = "kubernetes.io/local-volume"

// bind mounts a directory a second time with options of its own.
func bind(path, dir string, list []string) error {
	flags, err := bindFlags(list)
	if err != nil {
		return err
	}
	if !securepath.IsMounted(dir) {
		if err := os.MkdirAll(dir, 0o750); err != nil {
			return err
		}
		if err := unix.Mount(path, dir, "", unix.MS_BIND, ""); err != nil {
			return &os.PathError{Op: "bind mount " + path + " on", Path: dir, Err: err}
		}
	}
	// Also of a mount that is there: an earlier process may have ended before it set them.
	if err := unix.Mount("", dir, "", unix.MS_BIND|unix.MS_REMOUNT|flags, ""); err != nil {
		_ = unix.Unmount(dir, unix.MNT_DETACH) // the next attempt starts over
		return &os.PathError{Op: "set mount options of", Path: dir, Err: err}
	}
	return nil
}

// bindFlags are the mount options that a directory can have.
func bindFlags(list []string) (uintptr, error) {
	known := map[string]uintptr{"bind": 0, "defaults": 0, "rw": 0, "ro": unix.MS_RDONLY, "nosuid": unix.MS_NOSUID,
		"nodev": unix.MS_NODEV, "noexec": unix.MS_NOEXEC, "noatime": unix.MS_NOATIME, "nodiratime": unix.MS_NODIRATIME,
		"relatime": unix.MS_RELATIME}
	var flags uintptr
	for _, o := range list {
		f, ok := known[o]
		if !ok {
			return 0, fmt.Errorf("mount option %q is not supported for a directory", o)
		}
		flags |= f
	}
	return flags, nil
}
