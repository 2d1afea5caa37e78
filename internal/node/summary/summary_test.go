package summary

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/opencontainers/cgroups"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
	stats "k8s.io/kubelet/pkg/apis/stats/v1alpha1"

	"carob/internal/node/csi"
	"carob/internal/node/spec"
)

// world is a node with a pod that has a volume of each kind.
type world struct {
	*Source
	pod     *corev1.Pod
	samples []Sample
	whole   map[string]*cri.PodSandboxStats
	images  int
}

func n(v uint64) *cri.UInt64Value { return &cri.UInt64Value{Value: v} }

func volumeOf(name string, src corev1.VolumeSource) corev1.Volume {
	return corev1.Volume{Name: name, VolumeSource: src}
}

func newWorld(t *testing.T) *world {
	dir := t.TempDir()
	w := &world{pod: &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "p", UID: "u"}}}
	set := map[string]spec.Volume{}
	for _, v := range []corev1.Volume{
		volumeOf("scratch", corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}),
		volumeOf("memory", corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{Medium: "Memory"}}),
		volumeOf("config", corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{}}),
		volumeOf("secret", corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{}}),
		volumeOf("fields", corev1.VolumeSource{DownwardAPI: &corev1.DownwardAPIVolumeSource{}}),
		volumeOf("token", corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{}}),
		volumeOf("host", corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{}}),
		volumeOf("claim", corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{
			ClaimName: "c"}}),
		volumeOf("nfs", corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{
			ClaimName: "n"}}),
		volumeOf("own", corev1.VolumeSource{Ephemeral: &corev1.EphemeralVolumeSource{}}),
	} {
		w.pod.Spec.Volumes = append(w.pod.Spec.Volumes, v)
		at := spec.Volume{HostPath: filepath.Join(dir, v.Name)}
		if err := os.Mkdir(at.HostPath, 0o700); err != nil {
			t.Fatal(err)
		}
		if v.Name == "nfs" || v.Name == "own" {
			at.Persistent = "kubernetes.io/nfs"
		}
		set[v.Name] = at
	}
	logs := filepath.Join(dir, "logs", "c")
	if err := os.MkdirAll(logs, 0o700); err != nil {
		t.Fatal(err)
	}
	for path, size := range map[string]int{filepath.Join(logs, "0.log"): 8 << 10,
		filepath.Join(dir, "scratch", "f"): 64 << 10, filepath.Join(dir, "secret", "f"): 256 << 10} {
		if err := os.WriteFile(path, make([]byte, size), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	w.samples = []Sample{{Pod: w.pod, Container: "c", Started: time.Unix(5, 0), Stats: &cri.ContainerStats{
		Attributes: &cri.ContainerAttributes{Id: "id"},
		Cpu:        &cri.CpuUsage{UsageCoreNanoSeconds: n(1)}, Memory: &cri.MemoryUsage{UsageBytes: n(2)},
		Swap: &cri.SwapUsage{SwapUsageBytes: n(3)}, Io: &cri.IoUsage{Psi: &cri.PsiStats{}},
		WritableLayer: &cri.FilesystemUsage{UsedBytes: n(512 << 10), InodesUsed: n(9)}}}}
	w.whole = map[string]*cri.PodSandboxStats{"u": {Linux: &cri.LinuxPodSandboxStats{
		Cpu: &cri.CpuUsage{UsageCoreNanoSeconds: n(4)}, Memory: &cri.MemoryUsage{UsageBytes: n(5)},
		Io: &cri.IoUsage{Psi: &cri.PsiStats{}}, Process: &cri.ProcessUsage{ProcessCount: n(6)},
		Network: &cri.NetworkUsage{DefaultInterface: &cri.NetworkInterfaceUsage{Name: "eth0", RxBytes: n(7)}}}}}
	w.Source = New(Config{
		Node: "n1", Root: dir, Volumes: func(types.UID) map[string]spec.Volume { return set },
		Logs: func(*corev1.Pod) string { return filepath.Join(dir, "logs") },
		Claims: func() []csi.Stats {
			s := csi.Stats{Namespace: "ns", Claim: "c", Capacity: 10, Used: 4, Available: 6, Inodes: -1, InodesUsed: -1,
				InodesFree: -1}
			s.Pod.UID, s.Pod.Volume = "u", "claim"
			return []csi.Stats{s}
		},
		Images: func(context.Context, *cri.ImageFsInfoRequest) (*cri.ImageFsInfoResponse, error) {
			w.images++
			return &cri.ImageFsInfoResponse{ImageFilesystems: []*cri.FilesystemUsage{{UsedBytes: n(11),
				InodesUsed: n(12), FsId: &cri.FilesystemIdentifier{Mountpoint: dir}}}}, nil
		},
		System: func() []Container { return []Container{OwnProcess("kubelet", time.Unix(1, 0))} },
	})
	w.disks.slow = time.Hour
	t.Cleanup(w.Close)
	return w
}

// shown requests the summary until the measurements of the first request are there.
func (w *world) shown(t *testing.T) *Summary {
	s := w.Whole(t.Context(), w.samples, w.whole)
	for s.Node.Runtime == nil || s.Pods[0].Ephemeral == nil {
		if t.Context().Err() != nil {
			t.Fatal("never measured")
		}
		s = w.Whole(t.Context(), w.samples, w.whole)
	}
	return s
}

// Every part that kubelets have is there, and ephemeral storage is the sum of its parts (S12.40, S12.46, S12.47).
func TestWhole(t *testing.T) { synctest.Test(t, whole) }

func whole(t *testing.T) {
	w := newWorld(t)
	s := w.shown(t)
	var upstream stats.Summary
	strict := json.NewDecoder(strings.NewReader(asJSON(t, s)))
	strict.DisallowUnknownFields()
	if err := strict.Decode(&upstream); err != nil || len(upstream.Pods) != 1 ||
		upstream.Pods[0].EphemeralStorage == nil || len(upstream.Pods[0].VolumeStats) != 9 ||
		upstream.Node.Runtime.ContainerFs == nil {
		t.Errorf("not the form of upstream: %v", err)
	}
	if s.Node.NodeName != "n1" || s.Node.Fs == nil || s.Node.Network == nil || s.Node.Rlimit == nil ||
		*s.Node.Runtime.ImageFs.UsedBytes != 11 || *s.Node.Runtime.ContainerFs.InodesUsed != 12 ||
		*s.Node.Runtime.ImageFs.CapacityBytes != *s.Node.Fs.CapacityBytes {
		t.Errorf("node: %s", asJSON(t, s.Node))
	}
	if sys := s.Node.System; len(sys) != 1 || sys[0].Name != "kubelet" || *sys[0].CPU.UsageCoreNanoSeconds == 0 ||
		*sys[0].Memory.WorkingSetBytes < 1<<20 || *sys[0].Memory.PageFaults == 0 || sys[0].StartTime.Unix() != 1 {
		t.Errorf("system: %s", asJSON(t, sys))
	}
	p := s.Pods[0]
	if p.PodRef != (Ref{"p", "ns", "u"}) || *p.CPU.UsageCoreNanoSeconds != 4 || *p.Memory.UsageBytes != 5 ||
		*p.Network.RxBytes != 7 || *p.Processes.Count != 6 || p.IO == nil || *p.Swap.UsageBytes != 3 {
		t.Errorf("pod: %s", asJSON(t, p))
	}
	c := p.Containers[0]
	if c.Name != "c" || c.StartTime.Unix() != 5 || *c.Swap.UsageBytes != 3 || c.IO == nil ||
		*c.Rootfs.UsedBytes != 512<<10 || *c.Rootfs.CapacityBytes != *s.Node.Fs.CapacityBytes ||
		*c.Logs.UsedBytes < 8<<10 {
		t.Errorf("container: %s", asJSON(t, c))
	}
	var names []string
	used := map[string]uint64{}
	for _, v := range p.Volumes {
		name := v.Name
		if v.PVCRef != nil {
			name += "=" + v.PVCRef.Namespace + "/" + v.PVCRef.Name
		}
		names, used[v.Name] = append(names, name), *v.UsedBytes
	}
	const all = "claim=ns/c config fields memory nfs=ns/n own=ns/p-own scratch secret token"
	if got := strings.Join(names, " "); got != all || used["claim"] != 4 || used["scratch"] < 64<<10 {
		t.Errorf("volumes %s: %v", got, used)
	}
	sum := *c.Rootfs.UsedBytes + *c.Logs.UsedBytes + used["scratch"] + used["config"] // no secret, token, memory
	if *p.Ephemeral.UsedBytes != sum || *p.Ephemeral.CapacityBytes == 0 {
		t.Errorf("ephemeral storage %d, its parts %d", *p.Ephemeral.UsedBytes, sum)
	}
	w.Whole(t.Context(), w.samples, w.whole)
	if w.images != 1 {
		t.Errorf("images measured %d times", w.images)
	}
}

// With only CPU and memory nothing is measured on a disk, and nothing else is shown (S12.6).
func TestBrief(t *testing.T) {
	w := newWorld(t)
	s := w.Brief(w.samples, w.whole)
	p := s.Pods[0]
	if len(w.disks.known) != 0 || w.images != 0 || s.Node.Fs != nil || s.Node.Runtime != nil || s.Node.Network != nil ||
		s.Node.Rlimit != nil || p.Volumes != nil || p.Ephemeral != nil || p.Network != nil || p.Processes != nil ||
		p.Containers[0].Rootfs != nil || p.Containers[0].Logs != nil || s.Node.System[0].Swap != nil {
		t.Error(asJSON(t, s))
	}
	if s.Node.CPU == nil || s.Node.Memory == nil || p.CPU == nil || p.Memory == nil || p.Containers[0].CPU == nil ||
		p.Containers[0].Memory == nil || len(s.Node.System) != 1 {
		t.Error(asJSON(t, s))
	}
}

// While a part of a pod's storage is not known, the sum is not either; a runtime that fails leaves out its part.
func TestUnknownParts(t *testing.T) {
	w := newWorld(t)
	w.samples[0].Stats.WritableLayer = nil
	w.cfg.Images = func(context.Context, *cri.ImageFsInfoRequest) (*cri.ImageFsInfoResponse, error) {
		return nil, errors.New("not now")
	}
	s := w.Whole(t.Context(), w.samples, nil)
	for len(s.Pods[0].Volumes) < 9 && t.Context().Err() == nil {
		s = w.Whole(t.Context(), w.samples, nil)
	}
	if p := s.Pods[0]; p.Ephemeral != nil || p.Containers[0].Rootfs != nil || p.CPU != nil || s.Node.Runtime != nil {
		t.Error(asJSON(t, s))
	}
}

// The group of all pods, with both versions of cgroups: available memory only with a limit (S12.42).
func TestCgroup(t *testing.T) {
	st := &cgroups.Stats{}
	st.CpuStats.CpuUsage.TotalUsage = 5
	st.MemoryStats.Usage = cgroups.MemoryData{Usage: 100, Limit: 300}
	st.MemoryStats.Stats = map[string]uint64{"total_inactive_file": 40, "inactive_file": 1, "total_rss": 30}
	c := Cgroup("pods", st, time.Unix(1, 0))
	if *c.CPU.UsageCoreNanoSeconds != 5 || *c.Memory.WorkingSetBytes != 60 || *c.Memory.AvailableBytes != 240 ||
		*c.Memory.RSSBytes != 30 || c.IO != nil || c.CPU.PSI != nil {
		t.Error(asJSON(t, c))
	}
	st.MemoryStats.Usage.Limit = 9223372036854771712
	st.MemoryStats.Stats = map[string]uint64{"inactive_file": 400, "anon": 20}
	st.BlkioStats.PSI = &cgroups.PSIStats{Full: cgroups.PSIData{Total: 8}}
	c = Cgroup("pods", st, time.Unix(1, 0))
	if c.Memory.AvailableBytes != nil || *c.Memory.WorkingSetBytes != 0 || *c.Memory.RSSBytes != 20 ||
		c.IO.PSI.Full.Total != 8 {
		t.Error(asJSON(t, c))
	}
}
