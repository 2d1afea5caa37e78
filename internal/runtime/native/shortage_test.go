package native

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"carob/internal/base/testwait"
	"carob/internal/runtime/native/state"
)

// TestNoDescriptors: without free file descriptors, calls fail with the reason and leave nothing;
// with descriptors, everything works again.
func TestNoDescriptors(t *testing.T) {
	w := newWorld(t)
	sb, sbc := w.sandbox("keep")
	keep := w.run(sb, sbc, "c", shell("exec sleep 1000"))
	var was unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &was); err != nil {
		t.Fatal(err)
	}
	// More than the programs of a pod need; they inherit the limit.
	for range 128 {
		f, err := os.Open("/dev/null")
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
	}
	before := descriptors(t, "self")
	failed := 0
	for free := range 16 {
		limit := unix.Rlimit{Cur: uint64(descriptors(t, "self") - 1 + free), Max: was.Max}
		if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
			t.Fatal(err)
		}
		err := w.lifeCalls("pod", 1)
		_, xerr := w.exec(keep, "true")
		if rerr := unix.Setrlimit(unix.RLIMIT_NOFILE, &was); rerr != nil {
			t.Fatal(rerr)
		}
		for _, err := range []error{err, xerr} {
			if err != nil {
				failed++
				if !strings.Contains(err.Error(), "too many open files") {
					t.Errorf("with %d descriptors: %v", free, err)
				}
			}
		}
		pods, err := w.r.ListPodSandbox(Bg, &cri.ListPodSandboxRequest{})
		if err != nil {
			t.Fatal(err)
		}
		for _, p := range pods.Items {
			if p.Id == sb {
				continue
			}
			if _, err := w.r.RemovePodSandbox(Bg, &cri.RemovePodSandboxRequest{PodSandboxId: p.Id}); err != nil {
				t.Error(err)
			}
		}
	}
	if failed == 0 {
		t.Error("nothing failed")
	}
	t.Logf("%d calls failed", failed)
	w.inside(keep)
	testwait.For(w.tb, "what could not be removed without descriptors is removed", func() bool { return !w.leftOver() })
	testwait.For(w.tb, fmt.Sprintf("no more than the %d descriptors of before", before),
		func() bool { return descriptors(t, "self") <= before })
	w.emptied()
}

// TestStartRecordComesLater: there is no descriptor for the record of a container that has just
// started. The container runs, and its record is written as soon as possible, without another call.
func TestStartRecordComesLater(t *testing.T) {
	w, arm := brokenWorld(t)
	sb, sbc := w.sandbox("later")
	id := w.create(sb, sbc, "c", shell("exec sleep 1000"))
	var was unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &was); err != nil {
		t.Fatal(err)
	}
	arm(&breaker{at: StepStartHelper, do: func(string) error {
		return unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: 0, Max: was.Max})
	}})
	_, err := w.r.StartContainer(Bg, &cri.StartContainerRequest{ContainerId: id})
	var rec state.Container
	lost := state.Load(w.r.containerDir(id), &rec) // no descriptor to read it either
	if err := errors.Join(err, unix.Setrlimit(unix.RLIMIT_NOFILE, &was)); err != nil {
		t.Fatal(err)
	}
	if !errors.Is(lost, unix.EMFILE) {
		t.Errorf("there are descriptors: %v", lost)
	}
	testwait.For(w.tb, "the record says that the container runs", func() bool {
		return state.Load(w.r.containerDir(id), &rec) == nil && rec.StartedAt != 0
	})
	if err := w.r.Close(); err != nil {
		t.Fatal(err)
	}
	w.open()
	w.inside(id)
}

// TestFullDisk: the data directory has no space. Running containers continue, a new pod is rejected
// with the reason, an exit is reported, and everything works again when there is space.
func TestFullDisk(t *testing.T) {
	w, dir := smallWorld(t)
	w.open()
	t.Cleanup(w.close)
	sb, sbc := w.sandbox("keep")
	keep := w.run(sb, sbc, "keep", shell("while echo line; do sleep 0.01; done"))
	ends := w.run(sb, sbc, "ends", shell("cat; exit 3"),
		func(c *cri.ContainerConfig) { c.Stdin, c.StdinOnce = true, true })
	fill(t, filepath.Join(dir, "filler"))

	if _, err := w.r.RunPodSandbox(Bg, &cri.RunPodSandboxRequest{Config: w.sandboxConfig("full")}); err == nil ||
		!strings.Contains(err.Error(), "no space left on device") {
		t.Errorf("a sandbox on a full disk: %v", err)
	}
	if _, err := w.r.CreateContainer(Bg,
		&cri.CreateContainerRequest{PodSandboxId: sb, SandboxConfig: sbc,
			Config: containerConfig(sbc, "full", shell("true"))}); err == nil ||
		!strings.Contains(err.Error(), "no space left on device") {
		t.Errorf("a container on a full disk: %v", err)
	}
	w.inside(keep)
	if err := w.r.Streams().Attach(Bg, ends, strings.NewReader(""), newPipe(), nil, false, nil); err != nil {
		t.Fatal(err)
	}
	if st := w.wait(ends); st.ExitCode != 3 {
		t.Errorf("a container that ended on a full disk: %v", st)
	}
	if err := w.r.Close(); err != nil {
		t.Fatal(err)
	}
	w.open() // on the full disk
	w.inside(keep)
	if st := w.wait(ends); st.ExitCode != 3 || st.Reason != "Error" {
		t.Errorf("a container that ended on a full disk, after a restart: code %d, reason %q", st.ExitCode, st.Reason)
	}
	if err := os.Remove(filepath.Join(dir, "filler")); err != nil {
		t.Fatal(err)
	}
	if err := w.lifeCalls("pod", 1); err != nil {
		t.Errorf("with room again: %v", err)
	}
	if _, err := w.r.RemoveContainer(Bg, &cri.RemoveContainerRequest{ContainerId: ends}); err != nil {
		t.Error(err)
	}
	log := filepath.Join(sbc.LogDirectory, "keep.log")
	size := func() int64 {
		st, err := os.Stat(log)
		if err != nil {
			t.Fatal(err)
		}
		return st.Size()
	}
	at := size()
	testwait.For(w.tb, "the log goes on with room again", func() bool { return size() > at })
	w.emptied()
}

// smallWorld is a world on its own small disk.
func smallWorld(t *testing.T) (w *world, dir string) {
	t.Helper()
	dir = t.TempDir()
	if os.Geteuid() != 0 {
		t.Skip("mounts need root")
	}
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=24m"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, 0); err != nil {
			t.Error(err)
		}
	})
	// Below the mount: remaining mounts are found by the world's directory.
	return unopened(t, filepath.Join(dir, "w"),
		fmt.Sprintf("/carob-native-test-%d-%d", os.Getpid(), time.Now().UnixNano())), dir
}

// TestDiskFillsAtEveryStep: the disk is full from one step on. A call either fails, or its result
// is what the next carob reports, also on the full disk; everything can be removed.
func TestDiskFillsAtEveryStep(t *testing.T) {
	w, dir := smallWorld(t)
	var now atomic.Pointer[breaker]
	w.cfg.Checkpoint = func(s Step, id string) error {
		if b := now.Load(); b != nil {
			return b.checkpoint(s, id)
		}
		return nil
	}
	w.open()
	t.Cleanup(w.close)
	filler := filepath.Join(dir, "filler")
	for _, s := range Steps {
		now.Store(&breaker{at: s, do: func(string) error { fill(t, filler); return nil }})
		sbc := w.sandboxConfig("pod")
		sb, err := w.r.RunPodSandbox(Bg, &cri.RunPodSandboxRequest{Config: sbc})
		reported, id := cri.ContainerState_CONTAINER_UNKNOWN, ""
		stopped := false
		if err == nil {
			var c *cri.CreateContainerResponse
			if c, err = w.r.CreateContainer(Bg,
				&cri.CreateContainerRequest{PodSandboxId: sb.PodSandboxId, SandboxConfig: sbc,
					Config: containerConfig(sbc, "c", shell("exec sleep 1000"))}); err == nil {
				id, reported = c.ContainerId, cri.ContainerState_CONTAINER_RUNNING
				if _, err = w.r.StartContainer(Bg, &cri.StartContainerRequest{ContainerId: id}); err != nil {
					reported = cri.ContainerState_CONTAINER_EXITED
				}
			}
		}
		halting := strings.HasPrefix(string(s), "stop/") || strings.HasPrefix(string(s), "end/") ||
			strings.HasPrefix(string(s), "halt/") || strings.HasPrefix(string(s), "remove/")
		if halting {
			if err != nil {
				t.Fatalf("%s: %v", s, err)
			}
			reported, stopped = cri.ContainerState_CONTAINER_EXITED, true
			if _, err = w.r.StopPodSandbox(Bg, &cri.StopPodSandboxRequest{PodSandboxId: sb.PodSandboxId}); err != nil {
				t.Errorf("%s: a pod is stopped on a full disk: %v", s, err)
			}
		} else if err != nil && !strings.Contains(err.Error(), "no space left on device") {
			t.Errorf("%s: %v", s, err)
		}
		if err := w.r.Close(); err != nil {
			t.Fatal(err)
		}
		w.open()
		if id != "" {
			c, err := w.r.container(id)
			if err != nil {
				t.Fatalf("%s: %v", s, err)
			}
			if st := c.status(); st.State != reported {
				t.Errorf("%s: it was %s, after a restart on the full disk: %v", s, reported, st)
			} else if reported == cri.ContainerState_CONTAINER_RUNNING {
				w.inside(id)
			}
		}
		if err == nil {
			x, serr := w.r.sandbox(sb.PodSandboxId)
			if serr != nil {
				t.Fatalf("%s: %v", s, serr)
			}
			if ready := x.status().State == cri.PodSandboxState_SANDBOX_READY; ready == stopped {
				t.Errorf("%s: after a restart on the full disk the sandbox is ready: %v", s, ready)
			}
		}
		w.emptied()
		if b := now.Load(); !b.done.Load() {
			t.Errorf("%s was never reached", s)
		}
		if err := os.Remove(filler); err != nil {
			t.Fatal(err)
		}
	}
}

// fill writes until the disk is full.
func fill(t *testing.T, name string) {
	t.Helper()
	f, err := os.Create(name)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for b := make([]byte, 1<<20); len(b) > 0; {
		if _, err := f.Write(b); err != nil {
			b = b[:len(b)/2]
		}
	}
}
