package summary

import (
	"context"
	"path/filepath"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"carob/internal/core/volume"
	"carob/internal/node/csi"
	"carob/internal/node/spec"
)

// volumeKey names the measurement of a volume, logKey that of the log of a container.
func volumeKey(uid types.UID, volume string) string { return "volume/" + string(uid) + "/" + volume }
func logKey(uid types.UID, container string) string { return "log/" + string(uid) + "/" + container }

// local reports whether a volume counts as ephemeral storage of its pod (S12.46).
func local(v *corev1.Volume) bool {
	return v.ConfigMap != nil || v.EmptyDir != nil && v.EmptyDir.Medium == corev1.StorageMediumDefault
}

// measurementOf is how a volume is measured; nil if kubelets do not measure it, or it has figures as a claim.
func measurementOf(v *corev1.Volume, at spec.Volume) func(context.Context) []Fs {
	whole := func(context.Context) []Fs { return fileSystem(at.HostPath) }
	content := func(ctx context.Context) []Fs { return directory(ctx, at.HostPath) }
	switch {
	case at.Device != "":
		return func(context.Context) []Fs { return blockDevice(at.Device) }
	case at.HostPath == "":
		return nil
	case local(v), v.Secret != nil, v.DownwardAPI != nil, v.Projected != nil:
		return content
	case v.EmptyDir != nil, v.NFS != nil, v.ISCSI != nil, v.FC != nil:
		return whole
	}
	switch at.Persistent {
	case "kubernetes.io/nfs", "kubernetes.io/iscsi", "kubernetes.io/fc":
		return whole
	}
	return nil
}

// ofPod are the measurements of a pod: of its volumes, and of the logs of the containers that run.
func (s *Source) ofPod(pod *corev1.Pod, containers []Sample) []measurement {
	var list []measurement
	var set map[string]spec.Volume
	if s.cfg.Volumes != nil {
		set = s.cfg.Volumes(pod.UID)
	}
	for i := range pod.Spec.Volumes {
		v := &pod.Spec.Volumes[i]
		at, ok := set[v.Name]
		if !ok {
			continue
		}
		if measure := measurementOf(v, at); measure != nil {
			list = append(list, measurement{volumeKey(pod.UID, v.Name), volumePeriod, measure})
		}
	}
	if s.cfg.Logs != nil {
		dir := s.cfg.Logs(pod)
		for _, c := range containers {
			path := filepath.Join(dir, c.Container)
			list = append(list, measurement{logKey(pod.UID, c.Container), filePeriod,
				func(ctx context.Context) []Fs { return directory(ctx, path) }})
		}
	}
	return list
}

// claimOf is the claim of a volume; nil: it has none.
func claimOf(pod *corev1.Pod, v *corev1.Volume) *ClaimRef {
	name, _ := volume.ClaimOf(pod, v)
	if name == "" {
		return nil
	}
	return &ClaimRef{Name: name, Namespace: pod.Namespace}
}

// volumes are the figures of the volumes of a pod, by name: claims are those that drivers report, and known those that
// were measured.
func volumes(pod *corev1.Pod, claims []Volume, known map[string][]Fs) []Volume {
	list := slices.Clone(claims)
	for i := range pod.Spec.Volumes {
		v := &pod.Spec.Volumes[i]
		if slices.ContainsFunc(claims, func(c Volume) bool { return c.Name == v.Name }) {
			continue
		}
		if found := known[volumeKey(pod.UID, v.Name)]; len(found) > 0 {
			list = append(list, Volume{Fs: found[0], Name: v.Name, PVCRef: claimOf(pod, v)})
		}
	}
	slices.SortFunc(list, func(a, b Volume) int { return strings.Compare(a.Name, b.Name) })
	return list
}

// ephemeral is what a pod uses of the node's disk: writable layers, logs and local volumes (S12.46). It is not known
// before each of them is: a part would look like the whole.
func ephemeral(pod *corev1.Pod, disk *Fs, containers []Container, known map[string][]Fs,
	set map[string]spec.Volume) *Fs {
	if disk == nil {
		return nil
	}
	var bytes, inodes uint64
	add := func(f *Fs) bool {
		if f == nil || f.UsedBytes == nil {
			return false
		}
		bytes += *f.UsedBytes
		if f.InodesUsed != nil {
			inodes += *f.InodesUsed
		}
		return true
	}
	for i := range containers {
		if !add(containers[i].Rootfs) || !add(containers[i].Logs) {
			return nil
		}
	}
	for i := range pod.Spec.Volumes {
		v := &pod.Spec.Volumes[i]
		if _, ok := set[v.Name]; !ok || !local(v) {
			continue
		}
		found := known[volumeKey(pod.UID, v.Name)]
		if len(found) == 0 || !add(&found[0]) {
			return nil
		}
	}
	out := *disk
	out.UsedBytes, out.InodesUsed = &bytes, &inodes
	return &out
}

// claims are the figures of the claims that pods use, by the UID of the pod.
func (s *Source) claims() map[string][]Volume {
	if s.cfg.Claims == nil {
		return nil
	}
	byUID := make(map[string][]Volume)
	for _, c := range s.cfg.Claims() {
		byUID[c.Pod.UID] = append(byUID[c.Pod.UID], reported(&c))
	}
	return byUID
}

// reported leaves out what a driver does not report, such as the inodes of a block device.
func reported(c *csi.Stats) Volume {
	v := Volume{Name: c.Pod.Volume, PVCRef: &ClaimRef{Name: c.Claim, Namespace: c.Namespace}}
	size := func(n int64) *uint64 {
		if n < 0 {
			return nil
		}
		u := uint64(n)
		return &u
	}
	v.Fs = Fs{Time: c.At, CapacityBytes: size(c.Capacity), UsedBytes: size(c.Used), AvailableBytes: size(c.Available),
		Inodes: size(c.Inodes), InodesUsed: size(c.InodesUsed), InodesFree: size(c.InodesFree)}
	return v
}
