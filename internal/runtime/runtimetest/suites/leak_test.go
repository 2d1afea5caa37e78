package suites

import (
	"context"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	goruntime "runtime"
	"strings"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// cycle is the life of one pod with a container, an exec, and a host port.
func (o *carob) cycle(ctx context.Context, name string, port int32) error {
	logs := filepath.Join(o.dir, "log", name)
	sb := &cri.PodSandboxConfig{
		Metadata: &cri.PodSandboxMetadata{Name: name, Namespace: "leak", Uid: "uid-" + name}, Hostname: name,
		LogDirectory: logs,
		PortMappings: []*cri.PortMapping{{Protocol: cri.Protocol_TCP, ContainerPort: 80, HostPort: port}},
		Linux: &cri.LinuxPodSandboxConfig{CgroupParent: o.cfg.CgroupRoot + "/pods/" + name,
			SecurityContext: &cri.LinuxSandboxSecurityContext{
				NamespaceOptions: &cri.NamespaceOption{Pid: cri.NamespaceMode_CONTAINER}}},
	}
	run, err := o.rt.RunPodSandbox(ctx, &cri.RunPodSandboxRequest{Config: sb})
	if err != nil {
		return err
	}
	c, err := o.rt.CreateContainer(ctx,
		&cri.CreateContainerRequest{PodSandboxId: run.PodSandboxId, SandboxConfig: sb, Config: &cri.ContainerConfig{
			Metadata: &cri.ContainerMetadata{Name: "c"}, Image: &cri.ImageSpec{Image: busybox},
			Command: []string{"sleep", "1000"}, LogPath: "c.log",
			Linux: &cri.LinuxContainerConfig{Resources: &cri.LinuxContainerResources{MemoryLimitInBytes: 64 << 20},
				SecurityContext: &cri.LinuxContainerSecurityContext{
					NamespaceOptions: sb.Linux.SecurityContext.NamespaceOptions,
					Seccomp:          &cri.SecurityProfile{ProfileType: cri.SecurityProfile_RuntimeDefault}}},
		}})
	if err != nil {
		return err
	}
	if _, err := o.rt.StartContainer(ctx, &cri.StartContainerRequest{ContainerId: c.ContainerId}); err != nil {
		return err
	}
	if x, err := o.rt.ExecSync(ctx,
		&cri.ExecSyncRequest{ContainerId: c.ContainerId, Cmd: []string{"true"}, Timeout: 60}); err != nil ||
		x.ExitCode != 0 {
		return fmt.Errorf("exec: %v, %w", x, err)
	}
	if _, err := o.rt.StopPodSandbox(ctx, &cri.StopPodSandboxRequest{PodSandboxId: run.PodSandboxId}); err != nil {
		return err
	}
	if _, err := o.rt.RemovePodSandbox(ctx, &cri.RemovePodSandboxRequest{PodSandboxId: run.PodSandboxId}); err != nil {
		return err
	}
	// The agent, not the runtime, removes the pod's own cgroup and its logs.
	removeGroups(sb.Linux.CgroupParent)
	return os.RemoveAll(logs)
}

// holdings counts what the runtime holds on the host and in this process.
func (o *carob) holdings(t *testing.T) map[string]int {
	t.Helper()
	h := map[string]int{}
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	h["mounts"] = strings.Count(string(mounts), o.dir)
	tops, _ := filepath.Glob("/sys/fs/cgroup/*" + o.cfg.CgroupRoot)
	for _, top := range append(tops, "/sys/fs/cgroup"+o.cfg.CgroupRoot) {
		_ = filepath.WalkDir(top, func(p string, d fs.DirEntry, err error) error {
			if err == nil && d.IsDir() {
				h["cgroups"]++
				procs, _ := os.ReadFile(filepath.Join(p, "cgroup.procs"))
				h["processes in cgroups"] += strings.Count(string(procs), "\n")
			}
			return nil
		})
	}
	if err := filepath.WalkDir(o.dir, func(_ string, d fs.DirEntry, err error) error {
		if err == nil {
			h["files"]++
			if st, err := d.Info(); err == nil && !strings.HasSuffix(d.Name(), ".db") {
				h["KiB of files"] += int(st.Size() >> 10)
			}
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	for what, dir := range map[string]string{"links": "/sys/class/net/" + o.bridge.Bridge + "/brif",
		"descriptors": "/proc/self/fd"} {
		list, err := os.ReadDir(dir)
		if err != nil {
			t.Fatal(err)
		}
		h[what] = len(list)
	}
	for _, family := range []string{"ip", "inet"} {
		if out, err := exec.Command("nft", "list", "table", family, o.bridge.Table).Output(); err == nil {
			h["lines of nft"] += strings.Count(string(out), "\n")
		}
	}
	h["goroutines"] = goruntime.NumGoroutine()
	return h
}

// TestThousandPods: after a thousand pods, eight at a time, the runtime holds what it held before,
// and its memory is the same.
func TestThousandPods(t *testing.T) {
	o := startCarob(t)
	pods := 1000
	if testing.Short() {
		pods = 100
	}
	const parallel = 8
	ports := make(chan int32, parallel)
	for i := range int32(parallel) {
		ports <- int32(20000+os.Getpid()%1000*parallel) + i
	}
	several := func(what string, n int) {
		t.Helper()
		g, ctx := errgroup.WithContext(t.Context())
		g.SetLimit(parallel)
		for i := range n {
			g.Go(func() error {
				port := <-ports // a port is free again when its last pod is gone
				defer func() { ports <- port }()
				return o.cycle(ctx, fmt.Sprintf("%s-%d", what, i), port)
			})
		}
		if err := g.Wait(); err != nil {
			if rerr := o.rt.RemoveAll(context.Background()); rerr != nil {
				t.Error(rerr)
			}
			t.Fatal(err)
		}
	}
	heap := func() int64 {
		var m goruntime.MemStats
		goruntime.GC()
		goruntime.GC()
		goruntime.ReadMemStats(&m)
		return int64(m.HeapAlloc)
	}
	several("warm", 48)
	before := o.settled(t, nil)
	was := heap()
	begin := time.Now()
	several("pod", pods)
	t.Logf("%d pods in %v", pods, time.Since(begin).Round(time.Millisecond))
	after := o.settled(t, before)
	for what, n := range after {
		if what == "KiB of files" {
			n -= 1024 // the network's journal is rewritten from time to time
		}
		if n > before[what] {
			t.Errorf("%s: %d before, %d after", what, before[what], n)
		}
	}
	const tolerance = 1 << 20 // a kilobyte per pod would be a leak
	if now := heap(); now-was > tolerance*int64(pods)/1000 {
		t.Errorf("the heap grew from %d to %d KiB", was>>10, now>>10)
	} else {
		t.Logf("heap %d KiB before, %d after; %v", was>>10, now>>10, after)
	}
}

// settled polls until nothing is above a limit, or without a limit until two results are equal:
// pools are refilled and processes end a moment later.
func (o *carob) settled(t *testing.T, limit map[string]int) map[string]int {
	t.Helper()
	var last map[string]int
	for range 100 {
		now := o.holdings(t)
		same := last != nil
		for what, n := range now {
			if limit != nil {
				same = same && (n <= limit[what] || what == "KiB of files")
			} else {
				same = same && n == last[what]
			}
		}
		last = now
		if same {
			break
		}
		time.Sleep(100 * time.Millisecond)
	}
	return last
}
