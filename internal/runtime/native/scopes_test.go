package native

import (
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	systemd "github.com/coreos/go-systemd/v22/dbus"
	"github.com/godbus/dbus/v5"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	testbus "carob/test/dbus"
)

const (
	systemdPath    = "/org/freedesktop/systemd1"
	systemdManager = "org.freedesktop.systemd1.Manager"
)

// unitManager is a systemd as far as scopes go: it keeps books, makes the cgroups of
// a scope in every hierarchy and tells when a job is over.
type unitManager struct {
	conn   *dbus.Conn
	groups *cgroups

	mu      sync.Mutex
	jobs    uint32
	failing bool // jobs fail
	said    []string
	units   map[string]map[string]dbus.Variant
}

type auxUnit struct {
	Name       string
	Properties []systemd.Property
}

// job ends at once; its caller reads the answer before the signal.
func (u *unitManager) job(unit, result string) dbus.ObjectPath {
	u.jobs++
	id, job := u.jobs, dbus.ObjectPath(fmt.Sprint(systemdPath, "/job/", u.jobs))
	go func() { _ = u.conn.Emit(systemdPath, systemdManager+".JobRemoved", id, job, unit, result) }()
	return job
}

func (u *unitManager) StartTransientUnit(name, mode string, properties []systemd.Property, _ []auxUnit) (dbus.ObjectPath, *dbus.Error) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.failing {
		return u.job(name, "failed"), nil
	}
	if u.units[name] != nil {
		return "", dbus.NewError("org.freedesktop.systemd1.UnitExists", []any{"Unit " + name + " already exists."})
	}
	unit := map[string]dbus.Variant{}
	for _, p := range properties {
		unit[p.Name] = p.Value
	}
	slice, _ := unit["Slice"].Value().(string)
	parent, err := expandSlice(slice)
	pids, _ := unit["PIDs"].Value().([]uint32)
	if err != nil || len(pids) != 1 || !strings.HasSuffix(name, ".scope") {
		return "", dbus.MakeFailedError(fmt.Errorf("scope %q with pids %v: %w", name, pids, err))
	}
	group := parent + "/" + name
	if err := u.groups.make(group); err != nil {
		return "", dbus.MakeFailedError(err)
	}
	for _, file := range u.groups.procs(group) {
		if err := put(file, fmt.Sprint(pids[0])); err != nil {
			return "", dbus.MakeFailedError(err)
		}
	}
	u.units[name] = unit
	u.said = append(u.said, "start "+mode)
	return u.job(name, "done"), nil
}

func (u *unitManager) StopUnit(name, _ string) (dbus.ObjectPath, *dbus.Error) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.units[name] == nil {
		return "", dbus.NewError("org.freedesktop.systemd1.NoSuchUnit", []any{"Unit " + name + " not loaded."})
	}
	delete(u.units, name)
	u.said = append(u.said, "stop")
	return u.job(name, "done"), nil
}

func (u *unitManager) SetUnitProperties(name string, runtime bool, properties []systemd.Property) *dbus.Error {
	u.mu.Lock()
	defer u.mu.Unlock()
	for _, p := range properties {
		u.units[name][p.Name] = p.Value
	}
	u.said = append(u.said, fmt.Sprint("set ", runtime))
	return nil
}

func (u *unitManager) ResetFailedUnit(name string) *dbus.Error {
	return dbus.NewError("org.freedesktop.systemd1.NoSuchUnit", []any{"Unit " + name + " not loaded."})
}

func (u *unitManager) property(unit, name string) any {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.units[unit][name].Value()
}

// startBus starts a bus of our own with a systemd on it.
func startBus(t *testing.T) (u *unitManager, stop func()) {
	t.Helper()
	address, stop := testbus.Start(t, t.TempDir())
	mountinfo, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	u = &unitManager{units: map[string]map[string]dbus.Variant{}}
	if u.groups, err = findCgroups(mountinfo); err != nil {
		t.Fatal(err)
	}
	if u.conn, err = dbus.Connect(address); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { u.conn.Close() })
	if err := u.conn.Export(u, systemdPath, systemdManager); err != nil {
		t.Fatal(err)
	}
	if reply, err := u.conn.RequestName("org.freedesktop.systemd1", dbus.NameFlagDoNotQueue); err != nil || reply != dbus.RequestNameReplyPrimaryOwner {
		t.Fatalf("take the name of systemd: %v %v", reply, err)
	}
	return u, stop
}

// TestScopes: with the systemd driver a container runs in a scope that systemd made
// in its pod's slice, delegated, with limits that systemd knows; the scope goes with
// the container.
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
			group, _ := expandSlice(slice)
			if err := u.groups.remove(group); err != nil {
				t.Error(err)
			}
		}
	}()
	if c, err := w.r.RuntimeConfig(bg, nil); err != nil || c.Linux.CgroupDriver != cri.CgroupDriver_SYSTEMD {
		t.Errorf("driver %v, %v", c, err)
	}
	sb, sbc := w.sandbox("scope", func(c *cri.PodSandboxConfig) { c.Linux.CgroupParent = top + "-pod.slice" })
	ctr := w.run(sb, sbc, "c", shell("touch /up; exec sleep 1000"), func(c *cri.ContainerConfig) {
		c.Linux.Resources = &cri.LinuxContainerResources{MemoryLimitInBytes: 64 << 20, CpuShares: 512, CpuPeriod: 100000, CpuQuota: 25500}
	})
	w.until(ctr, "/up")
	scope := "cri-carob-" + ctr + ".scope"
	group := "/" + top + ".slice/" + top + "-pod.slice/" + scope
	c, err := w.r.container(ctr)
	if err != nil || c.rec.Cgroup != group {
		t.Fatalf("cgroup %s, %v, want %s", c.rec.Cgroup, err, group)
	}
	// The holder has left, the container is in.
	w.eventually("only the container in its scope", func() bool { return slices.Equal(u.groups.pids(group), []int{c.record().Pid}) })
	memory, cpu := "MemoryLimit", "CPUShares"
	if u.groups.v2 {
		memory, cpu = "MemoryMax", "CPUWeight"
	}
	for name, want := range map[string]any{"Slice": top + "-pod.slice", "Delegate": true, "DefaultDependencies": false, "CollectMode": "inactive-or-failed",
		"TasksMax": uint64(math.MaxUint64), memory: uint64(64 << 20), "CPUQuotaPerSecUSec": uint64(260000), "CPUQuotaPeriodUSec": uint64(100000)} {
		if got := u.property(scope, name); got != want {
			t.Errorf("%s is %v, want %v", name, got, want)
		}
	}
	if u.property(scope, cpu) == nil {
		t.Errorf("systemd does not know of %s", cpu)
	}
	if !u.groups.v2 {
		if file := u.groups.of("memory", group); number(file+"/memory.limit_in_bytes") != 64<<20 {
			t.Error("the limit is not in force")
		}
	}
	if _, err := w.r.UpdateContainerResources(bg, &cri.UpdateContainerResourcesRequest{ContainerId: ctr, Linux: &cri.LinuxContainerResources{MemoryLimitInBytes: 96 << 20}}); err != nil {
		t.Error(err)
	}
	if got := u.property(scope, memory); got != uint64(96<<20) {
		t.Errorf("after an update systemd has %v", got)
	}
	if out, err := w.exec(ctr, "true"); err != nil || out.ExitCode != 0 {
		t.Errorf("exec: %v, %v", out, err)
	}
	w.stop(ctr, 0)
	if _, err := w.r.RemoveContainer(bg, &cri.RemoveContainerRequest{ContainerId: ctr}); err != nil {
		t.Error(err)
	}
	if want := []string{"start replace", "set true", "stop"}; !slices.Equal(u.said, want) || len(u.units) != 0 {
		t.Errorf("systemd heard %q, want %q; %d units are left", u.said, want, len(u.units))
	}
	for _, file := range u.groups.procs(group) {
		if exists(filepath.Dir(file)) {
			t.Errorf("%s is left", filepath.Dir(file))
		}
	}

	// A scope that is left over from a start that was given up is made anew.
	given := w.create(sb, sbc, "again", shell("exit 3"))
	u.mu.Lock()
	u.units["cri-carob-"+given+".scope"] = map[string]dbus.Variant{}
	u.mu.Unlock()
	w.start(given)
	if st := w.wait(given); st.ExitCode != 3 {
		t.Errorf("code %d, %s", st.ExitCode, st.Message)
	}

	// What systemd refuses is a start that fails, with the reason.
	u.mu.Lock()
	u.failing = true
	u.mu.Unlock()
	refused := w.create(sb, sbc, "refused", shell("exit 0"))
	const why = `the job of cri-carob-`
	if _, err := w.r.StartContainer(bg, &cri.StartContainerRequest{ContainerId: refused}); err == nil || !strings.Contains(err.Error(), why) || !strings.Contains(err.Error(), `"failed"`) {
		t.Errorf("a job that fails: %v", err)
	}
	u.mu.Lock()
	u.failing = false
	u.mu.Unlock()
	stopBus()
	if _, err := New(bg, w.cfg); err == nil || !strings.Contains(err.Error(), "asking systemd for cgroups") {
		t.Errorf("without a bus: %v", err)
	}
	_, restart := startBus(t)
	defer restart()
	for _, c := range []string{given, refused} {
		if _, err := w.r.RemoveContainer(bg, &cri.RemoveContainerRequest{ContainerId: c}); err != nil {
			t.Errorf("with a new bus: %v", err)
		}
	}
}

func TestScopeLimits(t *testing.T) {
	r := &cri.LinuxContainerResources{MemoryLimitInBytes: 1 << 20, MemorySwapLimitInBytes: 3 << 20, CpuShares: 1024, CpuQuota: -1, CpusetCpus: "0,2-3", CpusetMems: "0", Unified: map[string]string{"pids.max": "12"}}
	text := func(v2 bool) string {
		list, err := scopeLimits(r, v2)
		if err != nil {
			t.Fatal(err)
		}
		var out []string
		for _, p := range list {
			out = append(out, fmt.Sprint(p.Name, "=", p.Value.Value()))
		}
		slices.Sort(out)
		return strings.Join(out, " ")
	}
	if got, want := text(true), "AllowedCPUs=[13] AllowedMemoryNodes=[1] CPUQuotaPerSecUSec=18446744073709551615 CPUQuotaPeriodUSec=100000 CPUWeight=39 MemoryMax=1048576 MemorySwapMax=2097152 TasksMax=12"; got != want {
		t.Errorf("v2: %s\nwant %s", got, want)
	}
	if got, want := text(false), "CPUQuotaPerSecUSec=18446744073709551615 CPUQuotaPeriodUSec=100000 CPUShares=1024 MemoryLimit=1048576"; got != want {
		t.Errorf("v1: %s\nwant %s", got, want)
	}
	for _, bad := range []*cri.LinuxContainerResources{{CpusetCpus: "x"}, {Unified: map[string]string{"pids.max": "x"}}} {
		if _, err := scopeLimits(bad, true); err == nil {
			t.Errorf("%v is accepted", bad)
		}
	}
}
