package e2e

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	stats "k8s.io/kubelet/pkg/apis/stats/v1alpha1"

	"carob/internal/base/testwait"
)

// bounds collects what of a summary is outside of the bounds that upstream's test has ([sig-node] Summary API).
type bounds struct{ wrong []string }

func (b *bounds) fails(format string, args ...any) {
	b.wrong = append(b.wrong, fmt.Sprintf(format, args...))
}

func (b *bounds) within(what string, v *uint64, low, high uint64) {
	switch {
	case v == nil:
		b.fails("%s is missing", what)
	case *v < low || *v > high:
		b.fails("%s is %d, not between %d and %d", what, *v, low, high)
	}
}

// recent allows twice upstream's minute: this machine may be busy with other tests.
func (b *bounds) recent(what string, t metav1.Time) {
	if age := time.Since(t.Time); age > 2*time.Minute || age < -time.Minute {
		b.fails("%s is of %v", what, t)
	}
}

const (
	kb, mb, tb = uint64(1000), uint64(1e6), uint64(1e12)
	most       = 100 * tb // of a disk
)

func (b *bounds) cpu(what string, c *stats.CPUStats, least uint64) {
	if c == nil {
		b.fails("%s: no CPU", what)
		return
	}
	b.recent(what+": CPU", c.Time)
	b.within(what+": rate of CPU", c.UsageNanoCores, least, 1e12)
	b.within(what+": CPU time", c.UsageCoreNanoSeconds, 1e7, 1e17)
}

func (b *bounds) memory(what string, m *stats.MemoryStats, limited bool, faults uint64) {
	if m == nil {
		b.fails("%s: no memory", what)
		return
	}
	b.recent(what+": memory", m.Time)
	if limited {
		b.within(what+": available memory", m.AvailableBytes, kb, tb)
	} else if m.AvailableBytes != nil {
		b.fails("%s: available memory without a limit", what)
	}
	b.within(what+": usage of memory", m.UsageBytes, 10*kb, tb)
	b.within(what+": working set", m.WorkingSetBytes, 10*kb, tb)
	b.within(what+": RSS", m.RSSBytes, kb, tb)
	b.within(what+": page faults", m.PageFaults, faults, 1e15)
	b.within(what+": major page faults", m.MajorPageFaults, 0, 1e15)
}

func (b *bounds) fs(what string, f *stats.FsStats, low, high uint64) {
	if f == nil {
		b.fails("%s: no file system", what)
		return
	}
	b.recent(what, f.Time)
	b.within(what+": available", f.AvailableBytes, 1, most)
	b.within(what+": capacity", f.CapacityBytes, mb, most)
	b.within(what+": used", f.UsedBytes, low, high)
	b.within(what+": free inodes", f.InodesFree, 0, 1e12)
	b.within(what+": inodes", f.Inodes, 0, 1e12)
	b.within(what+": used inodes", f.InodesUsed, 0, 1e12)
}

func (b *bounds) node(n *stats.NodeStats) {
	if n.NodeName != "e2e-node" || n.StartTime.IsZero() {
		b.fails("node %q started %v", n.NodeName, n.StartTime)
	}
	b.cpu("node", n.CPU, 1)
	b.memory("node", n.Memory, true, 1000)
	b.fs("node", n.Fs, kb, most)
	if n.Runtime == nil {
		b.fails("node: no runtime")
	} else {
		b.fs("images", n.Runtime.ImageFs, kb, most)
		b.fs("layers", n.Runtime.ContainerFs, kb, most)
	}
	if n.Network == nil || n.Network.Interfaces == nil || n.Network.Name != "" && n.Network.Name != "eth0" {
		b.fails("network of the node: %+v", n.Network)
	}
	if r := n.Rlimit; r == nil || *r.MaxPID <= 0 || *r.NumOfRunningProcesses <= 0 {
		b.fails("rlimit of the node: %+v", r)
	}
	if n.Swap == nil {
		b.fails("node: no swap")
	}
	var names []string
	for i := range n.SystemContainers {
		c := &n.SystemContainers[i]
		names = append(names, c.Name)
		b.cpu(c.Name, c.CPU, 0)
		b.memory(c.Name, c.Memory, c.Name == "pods" && c.Memory != nil && c.Memory.AvailableBytes != nil, 0)
	}
	want := []string{"kubelet", "runtime", "pods"}
	if daemon != nil {
		want = []string{"kubelet", "pods"}
	}
	if !slices.Equal(names, want) {
		b.fails("system containers %v", names)
	}
}

func (b *bounds) pod(p *stats.PodStats) {
	if len(p.Containers) != 1 || p.Containers[0].Name != "c" || p.StartTime.IsZero() ||
		p.Containers[0].StartTime.IsZero() {
		b.fails("containers of the pod: %+v", p.Containers)
		return
	}
	c := &p.Containers[0]
	b.cpu("container", c.CPU, 10000)
	b.memory("container", c.Memory, true, 100)
	b.fs("root of the container", c.Rootfs, kb, 10*mb)
	b.fs("logs of the container", c.Logs, kb, 10*mb)
	if c.UserDefinedMetrics != nil || c.Accelerators != nil {
		b.fails("container: %+v", c)
	}
	b.cpu("pod", p.CPU, 10000)
	b.memory("pod", p.Memory, true, 0)
	if n := p.Network; n == nil || n.Name != "eth0" || n.Interfaces == nil {
		b.fails("network of the pod: %+v", n)
	} else {
		b.within("received bytes", n.RxBytes, 10, 10*mb)
		b.within("sent bytes", n.TxBytes, 10, 10*mb)
		b.within("errors", n.RxErrors, 0, 1000)
	}
	volumes := map[string]*stats.VolumeStats{}
	for i := range p.VolumeStats {
		volumes[p.VolumeStats[i].Name] = &p.VolumeStats[i]
	}
	for name, claim := range map[string]string{"scratch": "", "memory": "", "config": "", "data": "data"} {
		v := volumes[name]
		if v == nil || (v.PVCRef != nil) != (claim != "") || v.PVCRef != nil && v.PVCRef.Name != claim {
			b.fails("volume %s: %+v", name, v)
			continue
		}
		b.fs("volume "+name, &v.FsStats, 0, most)
	}
	if len(volumes) != 4 {
		b.fails("%d volumes", len(volumes))
	}
	b.fs("ephemeral storage", p.EphemeralStorage, kb, 21*mb)
	if p.ProcessStats == nil {
		b.fails("pod: no processes")
	} else {
		b.within("processes", p.ProcessStats.ProcessCount, 1, 1e6)
	}
}

// TestSummary has the expectations of upstream's test of /stats/summary, on a pod that works and has volumes.
func TestSummary(t *testing.T) {
	c := startCluster(t, "--registry-config", mirrors.dir)
	c.kubectlIn(t, `
apiVersion: v1
kind: ConfigMap
metadata: {name: config}
data: {a: text}
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: data}
spec: {accessModes: [ReadWriteOnce], resources: {requests: {storage: 10Mi}}}
---
apiVersion: v1
kind: Pod
metadata: {name: busy}
spec:
  automountServiceAccountToken: false
  terminationGracePeriodSeconds: 0
  containers:
  - name: c
    image: busybox:1.36
    command: [sh, -c, "head -c 65536 /dev/zero >/outside; echo begins; while :; do nslookup a.b >/scratch/answer; done"]
    resources: {requests: {cpu: 10m, memory: 8Mi}, limits: {cpu: 100m, memory: 64Mi}}
    volumeMounts:
    - {name: scratch, mountPath: /scratch}
    - {name: memory, mountPath: /memory}
    - {name: config, mountPath: /config}
    - {name: data, mountPath: /data}
  volumes:
  - {name: scratch, emptyDir: {}}
  - {name: memory, emptyDir: {medium: Memory}}
  - {name: config, configMap: {name: config}}
  - {name: data, persistentVolumeClaim: {claimName: data}}
`, "apply", "-f", "-")
	c.wait(t, "pod/busy", "condition=Ready")
	read := func(query string) (*stats.Summary, string) {
		text := c.kubectl(t, "get", "--raw", "/api/v1/nodes/e2e-node/proxy/stats/summary"+query)
		var s stats.Summary
		strict := json.NewDecoder(strings.NewReader(text))
		strict.DisallowUnknownFields()
		if err := strict.Decode(&s); err != nil {
			t.Fatalf("%v\n%s", err, text)
		}
		return &s, text
	}
	busy := func(s *stats.Summary) *stats.PodStats {
		for i := range s.Pods {
			if s.Pods[i].PodRef.Name == "busy" && s.Pods[i].PodRef.Namespace == "default" {
				return &s.Pods[i]
			}
		}
		return nil
	}
	testwait.Until(t, "the summary is whole", func() error {
		s, text := read("")
		p := busy(s)
		if p == nil {
			return fmt.Errorf("the pod is missing in %s", text)
		}
		var b bounds
		b.node(&s.Node)
		b.pod(p)
		if len(b.wrong) > 0 {
			return fmt.Errorf("%s\n%s", strings.Join(b.wrong, "\n"), text)
		}
		return nil
	})
	s, text := read("?only_cpu_and_memory=true")
	p := busy(s)
	if p == nil || p.CPU == nil || p.Containers[0].Memory == nil || p.VolumeStats != nil || p.Network != nil ||
		p.EphemeralStorage != nil || p.Containers[0].Rootfs != nil || s.Node.Fs != nil || s.Node.CPU == nil {
		t.Errorf("only CPU and memory: %s", text)
	}
}
