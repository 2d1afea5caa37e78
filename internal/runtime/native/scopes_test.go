package native

import (
	"bufio"
	"fmt"
	"io"
	"math"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"

	systemd "github.com/coreos/go-systemd/v22/dbus"
	"golang.org/x/sys/unix"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"carob/internal/base/testwait"
	"carob/internal/runtime/native/cgroups"
	testbus "carob/test/dbus"
)

// unitManager is a private systemd, and the directory of what it created.
type unitManager struct {
	*testbus.Units
	groups *cgroups.Hierarchies
}

// startBus starts a private D-Bus with a systemd on it.
func startBus(t *testing.T) (u *unitManager, stop func()) {
	t.Helper()
	mountinfo, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	u = &unitManager{}
	if u.groups, err = cgroups.Find(mountinfo); err != nil {
		t.Fatal(err)
	}
	u.groups = u.groups.Whole()
	u.Units, stop = testbus.StartUnits(t, t.TempDir())
	return u, stop
}

// TestScopes: with the systemd driver, a container runs in a scope that systemd created in its
// pod's slice, delegated, with its limits set in systemd. The scope is removed with the container.
func TestScopes(t *testing.T) {
	u, stopBus := startBus(t)
	dir := t.TempDir()
	id := fmt.Sprint(os.Getpid())
	w := unopened(t, dir, "/carob-scopes-"+id)
	w.cfg.SystemdCgroups = true
	w.open()
	top := "carobtest" + id
	defer func() {
		w.close()
		for _, slice := range []string{top + "-pod.slice", top + ".slice"} {
			group, _ := cgroups.SlicePath(slice)
			if err := u.groups.Remove(group); err != nil {
				t.Error(err)
			}
		}
	}()
	if c, err := w.r.RuntimeConfig(Bg, nil); err != nil || c.Linux.CgroupDriver != cri.CgroupDriver_SYSTEMD {
		t.Errorf("driver %v, %v", c, err)
	}
	sb, sbc := w.sandbox("scope", func(c *cri.PodSandboxConfig) { c.Linux.CgroupParent = top + "-pod.slice" })
	ctr := w.run(sb, sbc, "c", shell("touch /up; exec sleep 1000"), func(c *cri.ContainerConfig) {
		c.Linux.Resources = &cri.LinuxContainerResources{MemoryLimitInBytes: 64 << 20, CpuShares: 512,
			CpuPeriod: 100000, CpuQuota: 25500}
	})
	w.until(ctr, "/up")
	scope := "cri-carob-" + ctr + ".scope"
	group := "/" + top + ".slice/" + top + "-pod.slice/" + scope
	c, err := w.r.container(ctr)
	if err != nil || c.rec.Cgroup != group {
		t.Fatalf("cgroup %s, %v, want %s", c.rec.Cgroup, err, group)
	}
	// The holder process has left, and the container's process is in the scope.
	testwait.For(w.tb, "only the container in its scope",
		func() bool { return slices.Equal(u.groups.PIDs(group), []int{c.record().Pid}) })
	memory, cpu := "MemoryLimit", "CPUShares"
	if u.groups.V2 {
		memory, cpu = "MemoryMax", "CPUWeight"
	}
	for name, want := range map[string]any{"Slice": top + "-pod.slice", "Delegate": true, "DefaultDependencies": false,
		"CollectMode": "inactive-or-failed",
		"TasksMax":    uint64(math.MaxUint64), memory: uint64(64 << 20), "CPUQuotaPerSecUSec": uint64(260000),
		"CPUQuotaPeriodUSec": uint64(100000)} {
		if got := u.Property(scope, name); got != want {
			t.Errorf("%s is %v, want %v", name, got, want)
		}
	}
	if u.Property(scope, cpu) == nil {
		t.Errorf("systemd does not know of %s", cpu)
	}
	if !u.groups.V2 {
		if file := u.groups.Of("memory", group); numberIn(file+"/memory.limit_in_bytes") != 64<<20 {
			t.Error("the limit is not in force")
		}
	}
	if _, err := w.r.UpdateContainerResources(Bg,
		&cri.UpdateContainerResourcesRequest{ContainerId: ctr,
			Linux: &cri.LinuxContainerResources{MemoryLimitInBytes: 96 << 20}}); err != nil {
		t.Error(err)
	}
	if got := u.Property(scope, memory); got != uint64(96<<20) {
		t.Errorf("after an update systemd has %v", got)
	}
	if out, err := w.exec(ctr, "true"); err != nil || out.ExitCode != 0 {
		t.Errorf("exec: %v, %v", out, err)
	}
	w.stop(ctr, 0)
	if _, err := w.r.RemoveContainer(Bg, &cri.RemoveContainerRequest{ContainerId: ctr}); err != nil {
		t.Error(err)
	}
	if want := []string{"start replace", "set true", "stop"}; !slices.Equal(u.Calls(), want) || len(u.Names()) != 0 {
		t.Errorf("systemd got %q, want %q; %q are left", u.Calls(), want, u.Names())
	}
	for _, h := range u.groups.Tree {
		if exists(h.Mount + group) {
			t.Errorf("%s is left", h.Mount+group)
		}
	}

	// A scope left over from an abandoned start is created again.
	given := w.create(sb, sbc, "again", shell("exit 3"))
	u.Add("cri-carob-" + given + ".scope")
	w.start(given)
	if st := w.wait(given); st.ExitCode != 3 {
		t.Errorf("code %d, %s", st.ExitCode, st.Message)
	}

	// If systemd rejects something, the start fails with the reason.
	u.Fail(true)
	refused := w.create(sb, sbc, "refused", shell("exit 0"))
	const why = `the job of cri-carob-`
	if _, err := w.r.StartContainer(Bg, &cri.StartContainerRequest{ContainerId: refused}); err == nil ||
		!strings.Contains(err.Error(), why) || !strings.Contains(err.Error(), `"failed"`) {
		t.Errorf("a job that fails: %v", err)
	}
	u.Fail(false)
	stopBus()
	if _, err := New(Bg, w.cfg); err == nil || !strings.Contains(err.Error(), "connect to systemd for cgroups") {
		t.Errorf("without a bus: %v", err)
	}
	_, restart := startBus(t)
	defer restart()
	for _, c := range []string{given, refused} {
		if _, err := w.r.RemoveContainer(Bg, &cri.RemoveContainerRequest{ContainerId: c}); err != nil {
			t.Errorf("with a new bus: %v", err)
		}
	}
}

// TestStopSlice: stopping a slice also stops the slices, scopes, and processes in it. A missing
// slice is not an error.
func TestStopSlice(t *testing.T) {
	u, _ := startBus(t)
	id := fmt.Sprint(os.Getpid())
	w := unopened(t, t.TempDir(), "/carob-slice-"+id)
	w.cfg.SystemdCgroups = true
	w.open()
	t.Cleanup(w.close)
	top := "carobslice" + id
	conn, err := systemd.NewWithContext(Bg)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	for _, name := range []string{top + ".slice", top + "-pod.slice"} {
		if _, err := conn.StartTransientUnitContext(Bg, name, "replace", nil, nil); err != nil {
			t.Fatal(err)
		}
	}
	sb, sbc := w.sandbox("slice", func(c *cri.PodSandboxConfig) { c.Linux.CgroupParent = top + "-pod.slice" })
	ctr := w.run(sb, sbc, "c", shell("exec sleep 1000"))
	if n := u.Names(); len(n) != 3 {
		t.Fatalf("units: %q", n)
	}
	for range 2 {
		if err := cgroups.StopSlice(Bg, top+".slice"); err != nil {
			t.Fatal(err)
		}
	}
	if st := w.wait(ctr); st.ExitCode != 137 {
		t.Errorf("code %d", st.ExitCode)
	}
	if n := u.Names(); len(n) != 0 {
		t.Errorf("units are left: %q", n)
	}
	group, _ := cgroups.SlicePath(top + ".slice")
	if err := u.groups.Remove(group); err != nil { // systemd leaves those of processes that are still ending
		t.Error(err)
	}
}

// unitDir is the environment variable with the directory of a child of TestUnitIsKilled.
const unitDir = "CAROB_TEST_UNIT"

// TestUnitIsKilled: carob is a unit of systemd, and systemd kills all processes in the unit's
// cgroup, in whatever hierarchy (KillMode=control-group, the default). Pods are in other cgroups.
func TestUnitIsKilled(t *testing.T) {
	if dir := os.Getenv(unitDir); dir != "" {
		unit(t, dir)
	}
	for _, driver := range []string{"cgroupfs", "systemd"} {
		t.Run(driver, func(t *testing.T) {
			id := fmt.Sprint(os.Getpid())
			w := unopened(t, t.TempDir(), "/carob-unit-test-"+id)
			mountinfo, err := os.ReadFile("/proc/self/mountinfo")
			if err != nil {
				t.Fatal(err)
			}
			groups, err := cgroups.Find(mountinfo)
			if err != nil {
				t.Fatal(err)
			}
			groups = groups.Whole()
			slice := ""
			if w.cfg.SystemdCgroups = driver == "systemd"; w.cfg.SystemdCgroups {
				startBus(t)
				slice = "carobunit" + id + ".slice"
				defer func() {
					if err := groups.Remove("/" + slice); err != nil {
						t.Error(err)
					}
				}()
			}
			service := "/carob-unit-test-" + id + ".service"
			if err := groups.Make(service); err != nil {
				t.Fatal(err)
			}
			procs := make([]string, len(groups.Tree))
			for i, h := range groups.Tree {
				procs[i] = h.Mount + service + "/cgroup.procs"
			}
			cmd := exec.Command(os.Args[0], "-test.run=^TestUnitIsKilled$")
			cmd.Env = append(os.Environ(), unitDir+"="+w.dir, unitDir+"_ROOT="+w.cfg.CgroupRoot,
				unitDir+"_SLICE="+slice, unitDir+"_PROCS="+strings.Join(procs, ":"))
			var output strings.Builder
			out, err := cmd.StdoutPipe()
			if err != nil {
				t.Fatal(err)
			}
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			for lines := bufio.NewScanner(io.TeeReader(out, &output)); lines.Scan() && lines.Text() != "up"; {
			}
			for i := range groups.Tree {
				for _, pid := range cgroups.PIDsBelow(groups.Tree[i].Mount + service) {
					_ = unix.Kill(pid, unix.SIGKILL) // may have ended
				}
			}
			if err := cmd.Wait(); err == nil || !strings.HasSuffix(output.String(), "up\n") {
				t.Fatalf("carob was not killed when it was up: %v\n%s", err, output.String())
			}
			w.open()
			defer func() {
				w.close()
				if err := groups.Remove(service); err != nil {
					t.Error(err)
				}
			}()
			list, err := w.r.ListContainers(Bg, &cri.ListContainersRequest{})
			if err != nil || len(list.Containers) != 2 {
				t.Fatalf("%d containers, %v", len(list.GetContainers()), err)
			}
			for _, c := range list.Containers {
				w.inside(c.Id)
			}
		})
	}
}

// unit is carob in a service's cgroup with two pods, until it is killed.
func unit(t *testing.T, dir string) {
	for file := range strings.SplitSeq(os.Getenv(unitDir+"_PROCS"), ":") {
		if err := os.WriteFile(file, []byte("0"), 0); err != nil {
			t.Fatal(err)
		}
	}
	w := unopened(t, dir, os.Getenv(unitDir+"_ROOT"))
	slice := os.Getenv(unitDir + "_SLICE")
	w.cfg.SystemdCgroups, w.cfg.SandboxPool = slice != "", 2
	w.open()
	for name, pid := range map[string]cri.NamespaceMode{"own": cri.NamespaceMode_CONTAINER,
		"shared": cri.NamespaceMode_POD} {
		sb, sbc := w.sandbox(name, func(c *cri.PodSandboxConfig) {
			if c.Linux.SecurityContext.NamespaceOptions.Pid = pid; slice != "" {
				c.Linux.CgroupParent = slice
			}
		})
		w.run(sb, sbc, name, shell("exec sleep 1000"))
	}
	fmt.Println("up")
	select {}
}
