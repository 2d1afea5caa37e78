package native

import (
	"context"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"carob/internal/base/openfile"
	"carob/internal/base/testwait"
)

func descriptors(t *testing.T, pid string) int {
	t.Helper()
	list, err := os.ReadDir("/proc/" + pid + "/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(list)
}

// TestNothingLeaks: a pod whose probes run for months, and whose containers restart and fail to
// start, uses as much at the end as at the beginning.
func TestNothingLeaks(t *testing.T) {
	w := newWorld(t)
	sb, sbc := w.sandbox("leak")
	s, _ := w.r.sandbox(sb)
	mon := fmt.Sprint(s.rec.Monitor)
	main := w.run(sb, sbc, "main", shell("sleep 1000"))
	round := func(n int) {
		for range 5 {
			if x, err := w.exec(main, "sh", "-c", "echo x; echo y >&2"); err != nil || x.ExitCode != 0 {
				t.Fatal(x, err)
			}
			w.exec(main, "nosuch")
			w.r.Streams().Exec(Bg, main, []string{"sh", "-c", "exit 1"}, strings.NewReader("x"), newPipe(), nil, true,
				nil)
		}
		id := w.run(sb, sbc, fmt.Sprintf("short%d", n), shell("echo hi"),
			func(c *cri.ContainerConfig) { c.Stdin = true })
		w.wait(id)
		bad := w.create(sb, sbc, fmt.Sprintf("bad%d", n),
			func(c *cri.ContainerConfig) { c.Command = []string{"nosuch"} })
		w.r.StartContainer(Bg, &cri.StartContainerRequest{ContainerId: bad})
		w.wait(bad)
		for _, id := range []string{id, bad} {
			if _, err := w.r.RemoveContainer(Bg, &cri.RemoveContainerRequest{ContainerId: id}); err != nil {
				t.Fatal(err)
			}
		}
	}
	round(0)
	count := func() [3]int {
		// A monitor closes the files of a request before it reads the next one.
		if _, err := s.line().List(); err != nil {
			t.Fatal(err)
		}
		return [3]int{descriptors(t, mon), descriptors(t, "self"), runtime.NumGoroutine()}
	}
	before := count()
	for i := range 8 {
		round(i + 1)
	}
	var after [3]int
	testwait.Until(t, "what a round leaves", func() error { // goroutines that copy end a moment after their exec
		if after = count(); after[0] <= before[0] && after[1] <= before[1] && after[2] <= before[2]+2 {
			return nil
		}
		return fmt.Errorf("descriptors of the monitor, of carob, goroutines: %v before, %v after", before, after)
	})
}

// TestCancelledCallsLeaveNothing: contexts end at any time during a start; everything is removed or
// can be removed.
func TestCancelledCallsLeaveNothing(t *testing.T) {
	w := newWorld(t)
	rnd := rand.New(rand.NewPCG(1, 2))
	ended := 0
	for i := range 60 {
		name := fmt.Sprintf("c%d", i)
		sbc := w.sandboxConfig(name)
		ctx, cancel := context.WithCancel(Bg)
		func() {
			timer := time.AfterFunc(time.Duration(rnd.IntN(15000))*time.Microsecond, cancel)
			defer timer.Stop()
			defer cancel()
			resp, err := w.r.RunPodSandbox(ctx, &cri.RunPodSandboxRequest{Config: sbc})
			if err != nil {
				ended++
				return
			}
			c, err := w.r.CreateContainer(ctx,
				&cri.CreateContainerRequest{PodSandboxId: resp.PodSandboxId, SandboxConfig: sbc,
					Config: containerConfig(sbc, "c", shell("sleep 1000"))})
			if err != nil {
				ended++
				return
			}
			if _, err = w.r.StartContainer(ctx, &cri.StartContainerRequest{ContainerId: c.ContainerId}); err != nil {
				ended++
				st, serr := w.r.ContainerStatus(Bg, &cri.ContainerStatusRequest{ContainerId: c.ContainerId})
				if serr != nil {
					t.Fatal(serr)
				}
				switch s := st.Status; {
				case s.State == cri.ContainerState_CONTAINER_CREATED:
					w.start(c.ContainerId) // nothing had begun: a second call gets it
				case s.State != cri.ContainerState_CONTAINER_EXITED || s.ExitCode != 137 || s.Reason != "Error" ||
					s.StartedAt == 0:
					t.Errorf("container whose start was given up: %v", s)
				}
			}
		}()
	}
	t.Logf("%d of 60 were cancelled in time", ended)
	w.emptied()
}

// emptied removes every sandbox and checks that nothing is left of them.
func (w *world) emptied() {
	t := w.tb
	t.Helper()
	if err := w.r.RemoveAll(Bg); err != nil {
		t.Fatal(err)
	}
	for _, dir := range []string{w.cfg.RootDir + "/sandboxes", w.cfg.RootDir + "/containers",
		w.cfg.StateDir + "/sandboxes", filepath.Join(w.dir, "layers"), filepath.Join(w.dir, "netns")} {
		if names, _ := os.ReadDir(dir); len(names) > 0 {
			t.Errorf("%s still holds %d things", dir, len(names))
		}
	}
	mounts, _ := os.ReadFile("/proc/self/mounts")
	if strings.Contains(string(mounts), w.dir) {
		t.Error("mounts stay")
	}
	if len(w.r.names) > 0 {
		t.Errorf("names stay reserved: %v", w.r.names)
	}
	for _, h := range w.r.groups.Tree {
		_ = filepath.WalkDir(h.Mount+w.cfg.CgroupRoot, func(path string, d fs.DirEntry, err error) error {
			if err == nil && d.IsDir() && len(d.Name()) == 64 {
				t.Errorf("cgroup %s stays", path)
			}
			return nil
		})
	}
	defer w.withoutPool()()
	var pids []int
	testwait.Until(w.tb, "all processes end", func() error { // the last one got its signal a moment ago
		if pids = w.r.groups.PIDs(w.cfg.CgroupRoot); len(pids) == 0 {
			return nil
		}
		return fmt.Errorf("processes %v stay", pids)
	})
}

// withoutPool ends what waits for a pod, until the function that it returns is called.
func (w *world) withoutPool() (again func()) {
	w.r.pool.Close()
	return func() { w.r.pool = w.r.newPool() }
}

const crashDir = "CAROB_TEST_CRASH_DIR"

// TestCrashes kills a carob that starts and ends pods, at any time. The next one takes over what is
// complete, removes the rest, and can remove everything.
func TestCrashes(t *testing.T) {
	if dir := os.Getenv(crashDir); dir != "" {
		w := worldAt(t, dir, os.Getenv(crashDir+"_CGROUP"))
		for i := 0; ; i++ {
			go podCycle(w, &stepTable{}, fmt.Sprintf("a%d-%d", os.Getpid(), i))
			sbc := w.sandboxConfig(fmt.Sprintf("b%d-%d", os.Getpid(), i))
			if resp, err := w.r.RunPodSandbox(Bg, &cri.RunPodSandboxRequest{Config: sbc}); err == nil {
				if c, err := w.r.CreateContainer(Bg,
					&cri.CreateContainerRequest{PodSandboxId: resp.PodSandboxId, SandboxConfig: sbc,
						Config: containerConfig(sbc, "c", shell("sleep 1000"), func(c *cri.ContainerConfig) {
							c.Mounts = []*cri.Mount{{ContainerPath: "/image", Image: &cri.ImageSpec{Image: "busybox"}}}
						})}); err == nil {
					w.r.StartContainer(Bg, &cri.StartContainerRequest{ContainerId: c.ContainerId})
				}
			}
		}
	}
	w := newWorld(t)
	rnd := rand.New(rand.NewPCG(3, 4))
	for range 6 {
		if err := w.r.Close(); err != nil {
			t.Fatal(err)
		}
		cmd := exec.Command(os.Args[0], "-test.run=^TestCrashes$")
		cmd.Env = append(os.Environ(), crashDir+"="+w.dir, crashDir+"_CGROUP="+w.cfg.CgroupRoot)
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Duration(100+rnd.IntN(200)) * time.Millisecond)
		cmd.Process.Kill()
		cmd.Wait()
		w.open()
		list, _ := w.r.ListContainers(Bg, &cri.ListContainersRequest{})
		for _, c := range list.Containers {
			if c.State != cri.ContainerState_CONTAINER_RUNNING {
				continue
			}
			x, err := w.exec(c.Id, "echo", "alive")
			if err != nil { // it was about to die: the crash was during a stop
				if st := w.wait(c.Id); st.ExitCode != 137 {
					t.Errorf("container that is said to run: %v, %v", st, err)
				}
			} else if string(x.Stdout) != "alive\n" {
				t.Errorf("container that is said to run answers %q", x.Stdout)
			}
		}
		t.Logf("%d containers taken over", len(list.Containers))
	}
	w.emptied()
}

// TestRemoveWhileTheMonitorWrites: the monitor writes an exit file, like record_exit in process.c,
// while the directory is removed.
func TestRemoveWhileTheMonitorWrites(t *testing.T) {
	for range 500 {
		dir := filepath.Join(t.TempDir(), "container")
		if err := os.Mkdir(dir, 0o700); err != nil {
			t.Fatal(err)
		}
		d, err := os.Open(dir)
		if err != nil {
			t.Fatal(err)
		}
		begin, done := make(chan struct{}), make(chan struct{})
		go func() {
			defer close(done)
			close(begin)
			f, err := unix.Openat(openfile.FD(d), "exit.tmp", unix.O_WRONLY|unix.O_CREAT|unix.O_CLOEXEC, 0o600)
			if err != nil {
				return // the directory is gone
			}
			_ = unix.Renameat(openfile.FD(d), "exit.tmp", openfile.FD(d), "exit") // it may have been removed
			_ = unix.Close(f)
		}()
		<-begin
		err = removeDir(dir)
		<-done
		d.Close()
		if err != nil || exists(dir) {
			t.Fatalf("after %v the directory is there: %v", err, exists(dir))
		}
	}
}
