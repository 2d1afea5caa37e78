package native

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"carob/internal/base/testwait"
	"carob/internal/runtime/native/monitor"
	"carob/internal/runtime/native/plan"
	"carob/internal/runtime/native/wire"
)

// breaker is a Checkpoint that runs a function once, at one step.
type breaker struct {
	at   Step
	do   func(id string) error
	done atomic.Bool
}

func (b *breaker) checkpoint(s Step, id string) error {
	if s != b.at || !b.done.CompareAndSwap(false, true) {
		return nil
	}
	return b.do(id)
}

// broken is a world whose runtime uses the current breaker.
func brokenWorld(t *testing.T) (w *world, arm func(*breaker)) {
	var now atomic.Pointer[breaker]
	w = unopened(t, t.TempDir(), fmt.Sprintf("/carob-native-test-%d-%d", os.Getpid(), time.Now().UnixNano()))
	w.cfg.Checkpoint = func(s Step, id string) error {
		if b := now.Load(); b != nil {
			return b.checkpoint(s, id)
		}
		return nil
	}
	w.open()
	t.Cleanup(w.close)
	return w, func(b *breaker) { now.Store(b) }
}

// lifeCalls is the life of one pod, call by call. A failed call is repeated, as an agent does;
// where the first attempt counts, with the next attempt number.
func (w *world) lifeCalls(name string, tries int) error {
	sbc := w.sandboxConfig(name)
	var sb, id string
	attempt := uint32(0)
	calls := []struct {
		name string
		do   func() error
	}{
		{"RunPodSandbox", func() error {
			r, err := w.r.RunPodSandbox(Bg, &cri.RunPodSandboxRequest{Config: sbc})
			sb = r.GetPodSandboxId()
			return err
		}},
		{"CreateContainer and StartContainer", func() error {
			attempt++
			r, err := w.r.CreateContainer(Bg,
				&cri.CreateContainerRequest{PodSandboxId: sb, SandboxConfig: sbc,
					Config: containerConfig(sbc, "c", shell("exec sleep 1000"), func(c *cri.ContainerConfig) {
						c.Metadata.Attempt = attempt
						c.Linux.Resources = &cri.LinuxContainerResources{CpuShares: 102, MemoryLimitInBytes: 64 << 20}
						c.Mounts = []*cri.Mount{{ContainerPath: "/image", Image: &cri.ImageSpec{Image: "busybox"}}}
					})})
			if err != nil {
				return err
			}
			id = r.ContainerId
			_, err = w.r.StartContainer(Bg, &cri.StartContainerRequest{ContainerId: id})
			return err
		}},
		{"ExecSync", func() error {
			x, err := w.exec(id, "echo", "alive")
			if err == nil && string(x.Stdout) != "alive\n" {
				err = fmt.Errorf("it says %q", x.Stdout)
			}
			return err
		}},
		{"StopContainer", func() error {
			_, err := w.r.StopContainer(Bg, &cri.StopContainerRequest{ContainerId: id})
			return err
		}},
		{"RemoveContainer", func() error {
			_, err := w.r.RemoveContainer(Bg, &cri.RemoveContainerRequest{ContainerId: id})
			return err
		}},
		{"StopPodSandbox", func() error {
			_, err := w.r.StopPodSandbox(Bg, &cri.StopPodSandboxRequest{PodSandboxId: sb})
			return err
		}},
		{"RemovePodSandbox", func() error {
			_, err := w.r.RemovePodSandbox(Bg, &cri.RemovePodSandboxRequest{PodSandboxId: sb})
			return err
		}},
	}
	for _, c := range calls {
		var err error
		for range tries {
			if err = c.do(); err == nil {
				break
			}
		}
		if err != nil {
			return fmt.Errorf("%s: %w", c.name, err)
		}
	}
	return w.r.groups.Remove(w.cfg.CgroupRoot + "/" + name)
}

// TestFailureAtEveryStep: whichever step fails, the call returns an error, it works when repeated,
// and nothing of the failed one is left.
func TestFailureAtEveryStep(t *testing.T) {
	w, arm := brokenWorld(t)
	for _, s := range Steps {
		b := &breaker{at: s, do: func(string) error { return errors.New("no more of it") }}
		arm(b)
		if err := w.lifeCalls("pod", 3); err != nil {
			t.Errorf("%s: %v", s, err)
		}
		if !b.done.Load() {
			t.Errorf("%s was never reached", s)
		}
		arm(nil)
		w.emptied()
	}
}

// TestCleanupFails: a call fails, and so does removing what it created. The removal is repeated
// until nothing is left, without another call.
func TestCleanupFails(t *testing.T) {
	var armed atomic.Bool
	var fails sync.Map // Step → how often it still fails
	w := unopened(t, t.TempDir(), fmt.Sprintf("/carob-native-test-%d-%d", os.Getpid(), time.Now().UnixNano()))
	w.cfg.Checkpoint = func(s Step, id string) error {
		if left, ok := fails.Load(s); ok && armed.Load() && left.(*atomic.Int32).Add(-1) >= 0 {
			return errors.New("no more of it")
		}
		return nil
	}
	w.open()
	t.Cleanup(w.close)
	for made, undone := range map[Step]Step{StepSandboxRecord: StepHaltNetwork, StepCreateRecord: StepRemoveLayer} {
		for s, n := range map[Step]int32{made: 1, undone: 2} {
			left := &atomic.Int32{}
			left.Store(n)
			fails.Store(s, left)
		}
		armed.Store(true)
		if err := w.lifeCalls("pod", 1); err == nil {
			t.Errorf("%s did not fail", made)
		}
		if left, _ := fails.Load(undone); left.(*atomic.Int32).Load() > 1 {
			t.Errorf("%s was not reached", undone)
		}
		testwait.For(w.tb, string(made)+" and "+string(undone)+" failed, nothing is left of it",
			func() bool { return !w.leftOver() })
		armed.Store(false)
		w.emptied()
	}
}

// leftOver reports whether unfinished objects wait to be removed.
func (w *world) leftOver() bool { return w.r.retries.Pending() }

// TestCrashAtEveryStep: carob is killed at each step. The next one reports the actual state,
// containers that ran continue to run, and everything can be removed.
func TestCrashAtEveryStep(t *testing.T) {
	if dir := os.Getenv(crashDir); dir != "" {
		w := unopened(t, dir, os.Getenv(crashDir+"_CGROUP"))
		b := &breaker{at: Step(os.Getenv(crashDir + "_STEP")), do: func(string) error {
			if err := unix.Kill(os.Getpid(), unix.SIGKILL); err != nil {
				t.Error(err)
			}
			select {}
		}}
		w.cfg.Checkpoint = b.checkpoint
		w.open()
		if err := w.lifeCalls("crash", 1); err != nil {
			t.Fatal(err)
		}
		t.Fatalf("%s was never reached", b.at)
	}
	w := newWorld(t)
	keepSB, keepConfig := w.sandbox("keep")
	keep := w.run(keepSB, keepConfig, "c", shell("exec sleep 1000"))
	pid := w.inside(keep)
	for _, s := range Steps {
		if err := w.r.Close(); err != nil {
			t.Fatal(err)
		}
		cmd := exec.Command(os.Args[0], "-test.run=^TestCrashAtEveryStep$")
		cmd.Env = append(os.Environ(), crashDir+"="+w.dir, crashDir+"_CGROUP="+w.cfg.CgroupRoot,
			crashDir+"_STEP="+string(s))
		out, err := cmd.CombinedOutput()
		if ws, ok := cmd.ProcessState.Sys().(interface{ Signaled() bool }); err == nil || !ok || !ws.Signaled() {
			t.Fatalf("%s: the process was not killed: %v\n%s", s, err, out)
		}
		w.open()
		if again := w.inside(keep); again != pid {
			t.Errorf("%s: the first process of the pod that ran on is %d, was %d", s, again, pid)
		}
		w.truthful(string(s), keepSB)
		list, err := w.r.ListPodSandbox(Bg, &cri.ListPodSandboxRequest{})
		if err != nil {
			t.Fatal(err)
		}
		for _, x := range list.Items {
			if x.Id == keepSB {
				continue
			}
			if _, err := w.r.RemovePodSandbox(Bg, &cri.RemovePodSandboxRequest{PodSandboxId: x.Id}); err != nil {
				t.Errorf("%s: %v", s, err)
			}
		}
		w.only(string(s), keepSB, keep)
	}
	if _, err := w.r.RemovePodSandbox(Bg, &cri.RemovePodSandboxRequest{PodSandboxId: keepSB}); err != nil {
		t.Fatal(err)
	}
	w.emptied()
}

// TestKilledDuringStart: carob is killed at each step of a start and at times between them. The
// next one finds a container that was never started and can be started, or one whose process began:
// it continues to run, or exited with its own code. It never finds a failed start (L7.70).
func TestKilledDuringStart(t *testing.T) {
	const name = "moment"
	if dir := os.Getenv(crashDir); dir != "" {
		w := unopened(t, dir, os.Getenv(crashDir+"_CGROUP"))
		step, after, _ := strings.Cut(os.Getenv(crashDir+"_STEP"), "+")
		wait, err := time.ParseDuration(after)
		if err != nil {
			t.Fatal(err)
		}
		die := func() {
			if err := unix.Kill(os.Getpid(), unix.SIGKILL); err != nil {
				t.Error(err)
			}
			select {}
		}
		b := &breaker{at: Step(step), do: func(string) error {
			if wait == 0 {
				die()
			}
			go func() {
				for at := time.Now(); time.Since(at) < wait; {
				}
				die()
			}()
			return nil
		}}
		w.cfg.Checkpoint = b.checkpoint
		w.open()
		sb, sbc := w.sandbox(name)
		id := w.create(sb, sbc, "c", shell(os.Getenv(crashDir+"_SCRIPT")),
			securityContext(func(s *cri.LinuxContainerSecurityContext) { s.RunAsUser = &cri.Int64Value{Value: 1000} }))
		w.start(id)
		select {} // until it is time
	}
	w := newWorld(t)
	var moments []string
	for _, s := range Steps {
		if strings.HasPrefix(string(s), "start/") {
			moments = append(moments, string(s)+"+0s")
		}
	}
	for i := range 16 {
		moments = append(moments, fmt.Sprintf("%s+%v", StepStartClone, time.Duration(i+1)*300*time.Microsecond),
			fmt.Sprintf("%s+%v", StepStartLaunch, time.Duration(i+1)*100*time.Microsecond))
	}
	count := map[cri.ContainerState]int{}
	for i, moment := range moments {
		script, code := "echo began; exec sleep 1000", int32(0)
		if i%3 == 2 {
			script, code = "echo began; exit 7", 7
		}
		if err := w.r.Close(); err != nil {
			t.Fatal(err)
		}
		cmd := exec.Command(os.Args[0], "-test.run=^TestKilledDuringStart$")
		cmd.Env = append(os.Environ(), crashDir+"="+w.dir, crashDir+"_CGROUP="+w.cfg.CgroupRoot,
			crashDir+"_STEP="+moment, crashDir+"_SCRIPT="+script)
		out, err := cmd.CombinedOutput()
		if ws, ok := cmd.ProcessState.Sys().(interface{ Signaled() bool }); err == nil || !ok || !ws.Signaled() {
			t.Fatalf("%s: the process was not killed: %v\n%s", moment, err, out)
		}
		w.open()
		list, err := w.r.ListContainers(Bg, &cri.ListContainersRequest{})
		if err != nil || len(list.Containers) != 1 {
			t.Fatalf("%s: %v, %v", moment, list, err)
		}
		id, sbc := list.Containers[0].Id, w.sandboxConfig(name)
		c, err := w.r.container(id)
		if err != nil {
			t.Fatal(err)
		}
		began := func() bool {
			b, err := os.ReadFile(filepath.Join(sbc.LogDirectory, "c.log"))
			return err == nil && strings.Contains(string(b), "began")
		}
		st := c.status()
		count[st.State]++
		switch {
		case st.State == cri.ContainerState_CONTAINER_CREATED:
			if began() {
				t.Errorf("%s: its process began, and it counts as never started", moment)
			}
			w.start(id)
			if code == 0 {
				w.inside(id)
			}
		case st.State == cri.ContainerState_CONTAINER_RUNNING && code == 0:
			w.inside(id)
			if x, err := w.exec(id, "id", "-u"); err != nil || string(x.Stdout) != "1000\n" {
				t.Errorf("%s: its user is not known: %v, %v", moment, x, err)
			}
			testwait.For(w.tb, moment+": the process that runs began", began)
		}
		if code != 0 || st.State == cri.ContainerState_CONTAINER_EXITED {
			if st := w.wait(id); st.ExitCode != code || st.Reason != "Error" || st.StartedAt == 0 {
				t.Errorf("%s: it ended, %v", moment, st)
			}
			if !began() {
				t.Errorf("%s: what ended never began", moment)
			}
		}
		w.emptied()
		if err := os.RemoveAll(sbc.LogDirectory); err != nil {
			t.Fatal(err)
		}
	}
	t.Log(count)
	if count[cri.ContainerState_CONTAINER_CREATED] == 0 ||
		count[cri.ContainerState_CONTAINER_RUNNING]+count[cri.ContainerState_CONTAINER_EXITED] == 0 {
		t.Error("the moments are all on one side of the start")
	}
}

// TestManyContainers: a pod has more containers than fit in one answer of its monitor; the next
// carob finds all of them.
func TestManyContainers(t *testing.T) {
	w := newWorld(t)
	sb, sbc := w.sandbox("many")
	var ids []string
	for i := range monitor.MaxListed + 5 {
		ids = append(ids, w.run(sb, sbc, fmt.Sprint("c", i), shell("exec sleep 1000")))
	}
	if err := w.r.Close(); err != nil {
		t.Fatal(err)
	}
	w.open()
	for i, id := range ids {
		if !w.running(id) {
			t.Errorf("container %d of %d is lost", i, len(ids))
		}
	}
}

// inside returns the host's PID of a container's first process, which must answer.
func (w *world) inside(id string) int {
	w.tb.Helper()
	c, err := w.r.container(id)
	if err != nil {
		w.tb.Fatal(err)
	}
	if x, err := w.exec(id, "echo", "alive"); err != nil || string(x.Stdout) != "alive\n" {
		w.tb.Fatalf("a container that must run: %v, %v", x, err)
	}
	return c.record().Pid
}

// truthful compares what is reported about every pod except keep with the host.
func (w *world) truthful(when, keep string) {
	t := w.tb
	t.Helper()
	list, err := w.r.ListContainers(Bg, &cri.ListContainersRequest{})
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range list.Containers {
		if c.PodSandboxId == keep {
			continue
		}
		x, err := w.r.container(c.Id)
		if err != nil {
			t.Fatal(err)
		}
		st := x.status()
		live := w.r.groups.PIDs(x.rec.Cgroup)
		ready := x.sandbox.line() != nil
		switch st.State {
		case cri.ContainerState_CONTAINER_CREATED:
			if len(live) > 0 {
				t.Errorf("%s: a container that was never started has processes %v", when, live)
			}
			if ready {
				w.start(c.Id)
			}
		case cri.ContainerState_CONTAINER_RUNNING:
			if out, err := w.exec(c.Id, "echo", "alive"); err != nil {
				if st := w.wait(c.Id); st.ExitCode != 137 { // the crash was in the middle of a stop
					t.Errorf("%s: container that is said to run: %v, %v", when, st, err)
				}
			} else if string(out.Stdout) != "alive\n" {
				t.Errorf("%s: container that is said to run answers %q", when, out.Stdout)
			}
		case cri.ContainerState_CONTAINER_EXITED:
			if st.FinishedAt == 0 || st.Reason == "" || len(live) > 0 {
				t.Errorf("%s: container that ended has processes %v: %v", when, live, st)
			}
		}
	}
	pods, err := w.r.ListPodSandbox(Bg, &cri.ListPodSandboxRequest{})
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range pods.Items {
		if p.Id == keep {
			continue
		}
		s, err := w.r.sandbox(p.Id)
		if err != nil {
			t.Fatal(err)
		}
		switch p.State {
		case cri.PodSandboxState_SANDBOX_READY:
			if id := w.create(p.Id, s.config, "probe", shell("exit 7")); id != "" {
				w.start(id)
				if st := w.wait(id); st.ExitCode != 7 {
					t.Errorf("%s: a container in a sandbox that is said to be ready: %v", when, st)
				}
			}
		case cri.PodSandboxState_SANDBOX_NOTREADY:
			if s.rec.NetNS != "" && exists(s.rec.NetNS) {
				t.Errorf("%s: a sandbox that is not ready holds its network namespace", when)
			}
		}
	}
}

// only checks that nothing is left except one pod with one container.
func (w *world) only(when, sb, id string) {
	t := w.tb
	t.Helper()
	for dir, want := range map[string]string{
		w.cfg.RootDir + "/sandboxes": sb, w.cfg.RootDir + "/containers": id, w.cfg.StateDir + "/sandboxes": sb,
		filepath.Join(w.dir, "layers"): id, filepath.Join(w.dir, "netns"): sb,
	} {
		entries, _ := os.ReadDir(dir)
		for _, e := range entries {
			if e.Name() != want {
				t.Errorf("%s: %s is left in %s", when, e.Name(), dir)
			}
		}
	}
	defer w.withoutPool()()
	testwait.For(w.tb, when+": one monitor is left", func() bool { return len(w.r.groups.PIDs(w.r.monitors)) == 1 })
}

// TestMonitorKilledAtEveryStep: the pod's monitor is killed at each step. The pod is reported as
// not ready and its container as exited, no process of it is left, and the pod can be created
// again.
func TestMonitorKilledAtEveryStep(t *testing.T) {
	w, arm := brokenWorld(t)
	for _, s := range Steps {
		b := &breaker{at: s, do: func(string) error {
			for _, pid := range w.r.groups.PIDs(w.r.monitors) {
				_ = unix.Kill(pid, unix.SIGKILL) // it may have ended
			}
			return nil
		}}
		arm(b)
		err := w.lifeCalls("pod", 1)
		if !b.done.Load() {
			t.Errorf("%s was never reached: %v", s, err)
		}
		arm(nil)
		// Where there was no monitor to kill, or nothing needed it any more, everything succeeded.
		pods, lerr := w.r.ListPodSandbox(Bg, &cri.ListPodSandboxRequest{})
		if lerr != nil {
			t.Fatal(lerr)
		}
		for _, p := range pods.Items {
			x, serr := w.r.sandbox(p.Id)
			if serr != nil {
				continue
			}
			testwait.For(w.tb, fmt.Sprintf("%s: the sandbox is not ready (after %v)", s, err),
				func() bool { return x.status().State == cri.PodSandboxState_SANDBOX_NOTREADY })
			for _, c := range w.r.containersOf(p.Id) {
				testwait.For(w.tb, fmt.Sprintf("%s: no container runs in a sandbox that is not ready", s), func() bool {
					return c.status().State != cri.ContainerState_CONTAINER_RUNNING &&
						len(w.r.groups.PIDs(c.rec.Cgroup)) == 0
				})
			}
		}
		w.emptied()
		if err := w.lifeCalls("pod", 1); err != nil {
			t.Errorf("after %s: %v", s, err)
		}
	}
}

// killSelf are operations after which the helper dies at its next system call, wherever they are in
// its program.
func killSelf() []wire.Message {
	filter := binary.LittleEndian.AppendUint16(nil, 6) // BPF_RET | BPF_K
	filter = append(filter, 0, 0)
	filter = binary.LittleEndian.AppendUint32(filter, unix.SECCOMP_RET_KILL_PROCESS)
	return []wire.Message{{Code: plan.OpNoNewPrivs}, {Code: plan.OpSeccomp, S: [4]string{string(filter)}}}
}

// TestHelperEndsAtEveryOperation: the helper is killed, or fails, before each of its operations.
// The start fails with the reason and leaves nothing; a failed exec does not affect its container.
func TestHelperEndsAtEveryOperation(t *testing.T) {
	w := newWorld(t)
	sb, sbc := w.sandbox("helper")
	main := w.run(sb, sbc, "main", shell("exec sleep 1000"))
	mounts := func() int {
		b, err := os.ReadFile("/proc/self/mountinfo")
		if err != nil {
			t.Fatal(err)
		}
		return strings.Count(string(b), w.dir)
	}
	before := mounts()
	for how, ops := range map[string][]wire.Message{"killed": killSelf(), "failed": {{Code: 99}}} {
		length, at := 0, 0
		w.r.alter = func(p *plan.Program) {
			length = len(p.Ops)
			p.Ops = slices.Insert(slices.Clone(p.Ops), at, ops...)
		}
		for at = 0; at == 0 || at < length; at++ {
			id := w.create(sb, sbc, fmt.Sprintf("%s%d", how, at), shell("echo it runs"))
			if _, err := w.r.StartContainer(Bg, &cri.StartContainerRequest{ContainerId: id}); err == nil {
				t.Errorf("helper %s at operation %d: the start succeeded", how, at)
			}
			if st := w.wait(id); st.State != cri.ContainerState_CONTAINER_EXITED || st.ExitCode != startErrorExit ||
				st.Reason != "StartError" {
				t.Errorf("helper %s at operation %d: %v", how, at, st)
			}
			c, err := w.r.container(id)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := w.r.RemoveContainer(Bg, &cri.RemoveContainerRequest{ContainerId: id}); err != nil {
				t.Errorf("helper %s at operation %d: %v", how, at, err)
			}
			if exists(w.r.groups.Tree[0].Mount + c.rec.Cgroup) {
				t.Errorf("helper %s at operation %d: its cgroup stays", how, at)
			}
		}
		t.Logf("%s at each of %d operations of a start", how, length)
		for at = 0; at == 0 || at < length; at++ {
			if x, err := w.exec(main, "echo", "it runs"); err == nil {
				t.Errorf("helper %s at operation %d of an exec: %v", how, at, x)
			}
		}
		t.Logf("%s at each of %d operations of an exec", how, length)
	}
	w.r.alter = nil
	w.inside(main)
	if after := mounts(); after != before {
		t.Errorf("%d mounts before, %d after", before, after)
	}
}

// TestMissingLayers: an image whose files are gone fails the start with the path.
func TestMissingLayers(t *testing.T) {
	w := newWorld(t)
	w.images.mountAhead(false) // a mount keeps what was removed
	sb, sbc := w.sandbox("layers")
	id := w.create(sb, sbc, "c", shell("true"))
	im := w.cfg.Images.(*dirImages)
	if err := os.Rename(im.root, im.root+".gone"); err != nil {
		t.Fatal(err)
	}
	_, err := w.r.StartContainer(Bg, &cri.StartContainerRequest{ContainerId: id})
	if err == nil || !strings.Contains(err.Error(), "rootfs") ||
		!strings.Contains(err.Error(), "no such file or directory") {
		t.Errorf("start without layers: %v", err)
	}
	if st := w.wait(id); st.Reason != "StartError" || st.ExitCode != startErrorExit {
		t.Errorf("start without layers: %v", st)
	}
	if err := os.Rename(im.root+".gone", im.root); err != nil {
		t.Fatal(err)
	}
	again := w.run(sb, sbc, "again", shell("exit 4"))
	if st := w.wait(again); st.ExitCode != 4 {
		t.Errorf("with its layers: %v", st)
	}
	w.emptied()
}
