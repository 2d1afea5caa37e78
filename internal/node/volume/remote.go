package volume

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"carob/internal/base/removetree"
	"carob/internal/base/securepath"
	"carob/internal/node/remotedisk"
	"carob/internal/node/spec"
)

// remote is a volume on another machine: a file system of an NFS server, or a disk.
type remote struct {
	name     string // of the volume in errors
	nfs      *corev1.NFSVolumeSource
	disk     remotedisk.Disk
	auth     *corev1.ISCSIPersistentVolumeSource // has the CHAP settings; nil: none
	fsType   string
	readOnly bool
	options  []string // of mounts
}

// remoteOf returns the remote volume of a persistent volume; nil: it is of another kind.
func remoteOf(pv *corev1.PersistentVolume) *remote {
	s := &pv.Spec.PersistentVolumeSource
	r := &remote{name: pv.Name, options: pv.Spec.MountOptions, auth: s.ISCSI, nfs: s.NFS}
	switch {
	case s.NFS != nil:
		r.readOnly = s.NFS.ReadOnly
	case s.ISCSI != nil:
		r.fsType, r.readOnly = s.ISCSI.FSType, s.ISCSI.ReadOnly
	case s.FC != nil:
		r.fsType, r.readOnly = s.FC.FSType, s.FC.ReadOnly
	default:
		return nil
	}
	r.disk, _ = remotedisk.Of(s.ISCSI, s.FC, pv.Name)
	return r
}

// inlineRemote returns the remote volume that a pod itself names; nil: it is of another kind.
func inlineRemote(pod *corev1.Pod, v *corev1.Volume) *remote {
	pv := &corev1.PersistentVolume{}
	pv.Name = v.Name
	s := &pv.Spec.PersistentVolumeSource
	s.NFS, s.FC = v.NFS, v.FC
	if v.ISCSI != nil {
		s.ISCSI = remotedisk.Inline(v.ISCSI, pod.Namespace)
	}
	return remoteOf(pv)
}

// disksDir has the records of a pod's remote disks. They go after the disks.
func (m *Manager) disksDir(uid types.UID) string { return filepath.Join(m.podDir(uid), "disks") }

// diskDirs are the directories with the records of all pods.
func (m *Manager) diskDirs() ([]string, error) {
	pods, err := m.OnDisk()
	if err != nil {
		return nil, err
	}
	var dirs []string
	for _, uid := range pods {
		dirs = append(dirs, m.disksDir(uid))
	}
	return dirs, nil
}

// inline sets up a remote volume that the pod itself names.
func (m *Manager) inline(ctx context.Context, p *podVolumes, v *corev1.Volume, r *remote) (spec.Volume, error) {
	set := spec.Volume{}
	if err := m.mountRemote(ctx, p, v, r, &set); err != nil {
		return set, err
	}
	return set, m.toGroup(ctx, p, r.nfs == nil, &set)
}

// mountRemote mounts a remote volume.
func (m *Manager) mountRemote(ctx context.Context, p *podVolumes, v *corev1.Volume, r *remote,
	set *spec.Volume) error {
	dir := m.volumeDir(p.uid, v.Name)
	set.HostPath, set.ReadOnly = dir, set.ReadOnly || r.readOnly
	list := append([]string(nil), r.options...)
	if r.readOnly {
		list = append(list, "ro")
	}
	if r.nfs != nil {
		return mountOnce(ctx, dir, "nfs", r.nfs.Server+":"+r.nfs.Path, list)
	}
	if securepath.IsMounted(dir) {
		return nil
	}
	device, err := m.attachRemote(ctx, p, v, r)
	if err != nil {
		return err
	}
	return mountDisk(ctx, dir, cmp.Or(r.fsType, "ext4"), device, list)
}

// attachRemote attaches a remote disk, and returns its device.
func (m *Manager) attachRemote(ctx context.Context, p *podVolumes, v *corev1.Volume, r *remote) (string, error) {
	var s remotedisk.Secrets
	if a := r.auth; a != nil && (a.DiscoveryCHAPAuth || a.SessionCHAPAuth) {
		s.Discovery, s.Session = a.DiscoveryCHAPAuth, a.SessionCHAPAuth
		if a.SecretRef == nil {
			return "", errors.New("iSCSI CHAP needs a secretRef")
		}
		secret, err := m.cfg.Objects.Secret(ctx, cmp.Or(a.SecretRef.Namespace, p.pod.Namespace), a.SecretRef.Name)
		if err != nil {
			return "", fmt.Errorf("get the secret for iSCSI CHAP: %w", err)
		}
		s.Values = secret.Data
	}
	return m.disks.Attach(ctx, m.disksDir(p.uid), v.Name, r.disk, s)
}

// mapRemote makes a remote disk a block device of the pod, and reports whether it is new.
func (m *Manager) mapRemote(ctx context.Context, p *podVolumes, v *corev1.Volume, r *remote) (string, bool, error) {
	_, err := os.Stat(filepath.Join(m.disksDir(p.uid), v.Name))
	device, attachErr := m.attachRemote(ctx, p, v, r)
	return device, err != nil, attachErr
}

// releaseRemote detaches the remote disks of a pod, after everything that may use them is unmounted.
func (m *Manager) releaseRemote(ctx context.Context, uid types.UID) error {
	records := m.disksDir(uid)
	if _, err := os.Lstat(records); errors.Is(err, os.ErrNotExist) {
		return nil
	}
	entries, err := os.ReadDir(m.podDir(uid))
	if err != nil {
		return fmt.Errorf("find the volumes of a pod: %w", err)
	}
	for _, e := range entries {
		path := filepath.Join(m.podDir(uid), e.Name())
		if path != records && e.Name() != singleDir { // the pod has the volume until it is detached
			if err := removetree.All(path); err != nil {
				return err
			}
		}
	}
	return m.disks.Detach(ctx, records)
}
