package native

import (
	"fmt"
	"os"
	"strings"
	"testing"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// hog makes the shell itself, the first process, use more and more memory.
const hog = "x=$(head -c 64m /dev/zero | tr '\\0' x); echo ${#x}"

// hogChild makes a child use more and more memory; the kernel kills it before any other process.
var hogChild = "sh -c 'echo 1000 > /proc/self/oom_score_adj; " + strings.ReplaceAll(hog, "'", `'"'"'`) + "'"

func memory16(c *cri.ContainerConfig) {
	c.Linux.Resources = &cri.LinuxContainerResources{MemoryLimitInBytes: 16 << 20, MemorySwapLimitInBytes: 16 << 20}
}

func needMemory(t *testing.T, w *world) {
	t.Helper()
	if w.r.groups.Of("memory", "/") == "" {
		t.Skip("no memory controller")
	}
}

// TestOOM: for any process that the kernel kills because of memory, and any limit, the reason in the container's status
// is OOMKilled.
func TestOOM(t *testing.T) {
	w := newWorld(t)
	needMemory(t, w)
	sb, sbc := w.sandbox("oom")
	for _, c := range []struct {
		name, script, log string
		code              int32
		reason            string
		change            func(*cri.ContainerConfig)
	}{
		{"first", hog, "", 137, "OOMKilled", memory16},
		{"child", hogChild + "; echo child $?; exit 3", "child 137", 3, "OOMKilled", memory16},
		{"none", "echo fine; exit 3", "fine", 3, "Error", memory16},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := &world{tb: t, dir: w.dir, cfg: w.cfg, r: w.r}
			st := w.wait(w.run(sb, sbc, c.name, shell(c.script), c.change))
			if log := w.log(sbc, c.name); st.ExitCode != c.code || st.Reason != c.reason ||
				!strings.Contains(log, c.log) {
				t.Errorf("code %d, reason %q, log %q; want %d, %q, %q", st.ExitCode, st.Reason, log, c.code, c.reason,
					c.log)
			}
		})
	}

	// The first process continues to run after another one was killed.
	id := w.run(sb, sbc, "lives", shell(hogChild+"; touch /survived; exec sleep 1000"), memory16)
	w.until(id, "/survived")
	if !w.running(id) {
		t.Error("the container ended with its child")
	}
	w.stop(id, 0)
	if st := w.wait(id); st.ExitCode != 137 || st.Reason != "OOMKilled" {
		t.Errorf("code %d, reason %q", st.ExitCode, st.Reason)
	}
}

// TestPodLimit: a limit of the pod's cgroup applies to containers without one.
func TestPodLimit(t *testing.T) {
	w := newWorld(t)
	needMemory(t, w)
	for _, c := range []struct {
		name   string
		bytes  int64
		starts bool
	}{{"enough", 16 << 20, true}, {"nothing", 16 << 10, false}} {
		t.Run(c.name, func(t *testing.T) {
			w := &world{tb: t, dir: w.dir, cfg: w.cfg, r: w.r}
			sb, sbc := w.sandbox(c.name)
			group := sbc.Linux.CgroupParent
			if err := w.r.groups.Make(group); err != nil {
				t.Fatal(err)
			}
			if err := w.r.groups.Apply(group,
				&cri.LinuxContainerResources{MemoryLimitInBytes: c.bytes,
					MemorySwapLimitInBytes: c.bytes}); err != nil {
				t.Fatal(err)
			}
			w.mayNotStart(t, c.starts, w.create(sb, sbc, "c", shell(hog)))
		})
	}
}

// TestLimitTooSmall: an error names a limit that is too small even for the helper.
func TestLimitTooSmall(t *testing.T) {
	w := newWorld(t)
	needMemory(t, w)
	sb, sbc := w.sandbox("small")
	for _, bytes := range []int64{1, 4096, 64 << 10} {
		t.Run(fmt.Sprint(bytes), func(t *testing.T) {
			w := &world{tb: t, dir: w.dir, cfg: w.cfg, r: w.r}
			w.mayNotStart(t, false, w.create(sb, sbc, fmt.Sprint("c", bytes), shell(hog), func(c *cri.ContainerConfig) {
				c.Linux.Resources = &cri.LinuxContainerResources{MemoryLimitInBytes: bytes,
					MemorySwapLimitInBytes: bytes}
			}))
		})
	}
}

// mayNotStart starts a container that is killed for lack of memory, before or after it became the
// user's process.
func (w *world) mayNotStart(t *testing.T, starts bool, id string) {
	t.Helper()
	_, err := w.r.StartContainer(Bg, &cri.StartContainerRequest{ContainerId: id})
	st := w.wait(id)
	if starts {
		if err != nil || st.ExitCode != 137 || st.Reason != "OOMKilled" {
			t.Errorf("%v, code %d, reason %q", err, st.ExitCode, st.Reason)
		}
		return
	}
	const why = "container init was OOM-killed (memory limit of the container or its pod too low?)"
	if err == nil || !strings.Contains(err.Error(), why) || st.ExitCode != 128 || st.Reason != "StartError" ||
		!strings.Contains(st.Message, why) {
		t.Errorf("%v; code %d, reason %q, message %q", err, st.ExitCode, st.Reason, st.Message)
	}
}

// TestEmptyParentCpuset: another process created the parent cgroup and has not set its cpuset yet, as with
// pods that start at the same time.
func TestEmptyParentCpuset(t *testing.T) {
	w := newWorld(t)
	parent := w.cfg.CgroupRoot + "/parent"
	for i := range w.r.groups.Tree {
		if err := os.Mkdir(w.r.groups.Tree[i].Mount+parent, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	sb, sbc := w.sandbox("pod", func(c *cri.PodSandboxConfig) { c.Linux.CgroupParent = parent + "/pod" })
	w.inside(w.run(sb, sbc, "c", shell("exec sleep 1000")))
	w.emptied()
}
