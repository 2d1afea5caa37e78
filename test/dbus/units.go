package dbus

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"

	systemd "github.com/coreos/go-systemd/v22/dbus"
	"github.com/godbus/dbus/v5"
)

const (
	systemdPath    = "/org/freedesktop/systemd1"
	systemdManager = "org.freedesktop.systemd1.Manager"
)

// Units is a fake systemd for cgroups: it records scopes and slices, makes and removes their cgroups in every
// hierarchy, kills the processes of a unit that is stopped, and signals the end of a job.
type Units struct {
	conn  *dbus.Conn
	trees []string // where hierarchies are mounted

	mu      sync.Mutex
	jobs    uint32
	failing bool
	calls   []string
	units   map[string]map[string]dbus.Variant
}

// StartUnits starts a bus of its own with a systemd on it, until the end of the test or stop.
func StartUnits(t *testing.T, dir string) (u *Units, stop func()) {
	t.Helper()
	address, stop := Start(t, dir)
	u = &Units{units: map[string]map[string]dbus.Variant{}}
	var err error
	if u.trees, err = trees(); err != nil {
		t.Fatal(err)
	}
	if u.conn, err = dbus.Connect(address); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { u.conn.Close() })
	if err := u.conn.Export(&manager{u}, systemdPath, systemdManager); err != nil {
		t.Fatal(err)
	}
	if err := u.conn.Export(properties{}, systemdPath, "org.freedesktop.DBus.Properties"); err != nil {
		t.Fatal(err)
	}
	if reply, err := u.conn.RequestName("org.freedesktop.systemd1", dbus.NameFlagDoNotQueue); err != nil ||
		reply != dbus.RequestNameReplyPrimaryOwner {
		t.Fatalf("take the name of systemd: %v %v", reply, err)
	}
	return u, stop
}

// trees are the mount points of whole hierarchies.
func trees() ([]string, error) {
	b, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return nil, err
	}
	var out []string
	for l := range strings.Lines(string(b)) {
		before, after, _ := strings.Cut(l, " - ")
		f := strings.Fields(before)
		if len(f) > 4 && f[3] == "/" && strings.HasPrefix(after, "cgroup") && !slices.Contains(out, f[4]) {
			out = append(out, f[4])
		}
	}
	return out, nil
}

// Fail makes jobs fail from now on, or succeed again.
func (u *Units) Fail(yes bool) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.failing = yes
}

// Add puts a unit without anything into the books.
func (u *Units) Add(name string) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.units[name] = map[string]dbus.Variant{}
}

// Names are the units there are, sorted.
func (u *Units) Names() []string {
	u.mu.Lock()
	defer u.mu.Unlock()
	return slices.Sorted(maps.Keys(u.units))
}

// Calls returns the calls so far, without names.
func (u *Units) Calls() []string {
	u.mu.Lock()
	defer u.mu.Unlock()
	return slices.Clone(u.calls)
}

// Property is a property that was set for a unit; nil if none was.
func (u *Units) Property(unit, name string) any {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.units[unit][name].Value()
}

// manager has the calls of org.freedesktop.systemd1.Manager and nothing else.
type manager struct{ u *Units }

type auxUnit struct {
	Name       string
	Properties []systemd.Property
}

// job ends at once; its caller reads the answer before the signal.
func (u *Units) job(unit, result string) dbus.ObjectPath {
	u.jobs++
	id, job := u.jobs, dbus.ObjectPath(fmt.Sprint(systemdPath, "/job/", u.jobs))
	go func() { _ = u.conn.Emit(systemdPath, systemdManager+".JobRemoved", id, job, unit, result) }()
	return job
}

func noSuchUnit(name string) *dbus.Error {
	return dbus.NewError("org.freedesktop.systemd1.NoSuchUnit", []any{"Unit " + name + " not loaded."})
}

func (m *manager) StartTransientUnit(name, mode string, props []systemd.Property, _ []auxUnit) (dbus.ObjectPath,
	*dbus.Error) {
	u := m.u
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.failing {
		return u.job(name, "failed"), nil
	}
	if u.units[name] != nil {
		return "", dbus.NewError("org.freedesktop.systemd1.UnitExists", []any{"Unit " + name + " already exists."})
	}
	unit := map[string]dbus.Variant{}
	for _, p := range props {
		unit[p.Name] = p.Value
	}
	slice, _ := unit["Slice"].Value().(string)
	pids, _ := unit["PIDs"].Value().([]uint32)
	isSlice := strings.HasSuffix(name, ".slice")
	if isSlice != (len(pids) == 0) || !isSlice &&
		(len(pids) != 1 || slice == "" || !strings.HasSuffix(name, ".scope")) {
		return "", dbus.MakeFailedError(fmt.Errorf("unit %q in %q with processes %v", name, slice, pids))
	}
	group := groupOf(name, slice)
	for _, tree := range u.trees {
		if err := makeGroup(tree, group); err != nil {
			return "", dbus.MakeFailedError(err)
		}
		for _, pid := range pids {
			if err := os.WriteFile(tree+group+"/cgroup.procs", fmt.Append(nil, pid), 0); err != nil {
				return "", dbus.MakeFailedError(err)
			}
		}
	}
	u.units[name] = unit
	u.calls = append(u.calls, "start "+mode)
	return u.job(name, "done"), nil
}

// groupOf is the cgroup of a unit: a-b.slice is in a.slice.
func groupOf(name, slice string) string {
	if s, ok := strings.CutSuffix(name, ".slice"); ok {
		var path strings.Builder
		for i, c := range s + "-" {
			if c == '-' && i > 0 {
				path.WriteString("/" + s[:i] + ".slice")
			}
		}
		return path.String()
	}
	if slice == "-.slice" {
		return "/" + name
	}
	return groupOf(slice, "") + "/" + name
}

func makeGroup(tree, group string) error {
	if group == "" || group == "/" {
		return nil
	}
	if err := makeGroup(tree, filepath.Dir(group)); err != nil {
		return err
	}
	dir := tree + group
	if err := os.Mkdir(dir, 0o755); errors.Is(err, os.ErrExist) {
		return nil
	} else if err != nil {
		return err
	}
	for _, file := range []string{"cpuset.cpus", "cpuset.mems"} { // of version 1: empty ones take no process
		above, err := os.ReadFile(filepath.Join(filepath.Dir(dir), file))
		if err != nil || exists(tree+"/cgroup.controllers") {
			continue
		}
		if err := os.WriteFile(filepath.Join(dir, file), bytes.TrimSpace(above), 0); err != nil {
			return err
		}
	}
	return nil
}

func exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}

// StopUnit ends what is below the unit, too, as far as this systemd made it.
func (m *manager) StopUnit(name, _ string) (dbus.ObjectPath, *dbus.Error) {
	u := m.u
	u.mu.Lock()
	defer u.mu.Unlock()
	top := u.group(name)
	known := false // slices are there, too, when something is in them
	for other := range maps.Clone(u.units) {
		if g := u.group(other); g == top || strings.HasPrefix(g, top+"/") {
			known = true
			delete(u.units, other)
		}
	}
	if !known {
		return "", noSuchUnit(name)
	}
	for _, tree := range u.trees {
		if strings.HasSuffix(name, ".slice") {
			endGroup(tree + top)
		}
		removeGroup(tree + top)
	}
	u.calls = append(u.calls, "stop")
	return u.job(name, "done"), nil
}

// group is the cgroup of a unit in the books; u.mu is held.
func (u *Units) group(name string) string {
	slice, _ := u.units[name]["Slice"].Value().(string)
	if slice == "" {
		slice = "-.slice"
	}
	return groupOf(name, slice)
}

// endGroup kills what runs in a cgroup and below.
func endGroup(dir string) {
	_ = filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
		if err != nil || d.Name() != "cgroup.procs" {
			return nil
		}
		f, err := os.Open(path)
		if err != nil {
			return nil
		}
		defer f.Close()
		for lines := bufio.NewScanner(f); lines.Scan(); {
			pid := 0
			if _, err := fmt.Sscan(lines.Text(), &pid); err == nil && pid > 1 {
				_ = syscall.Kill(pid, syscall.SIGKILL)
			}
		}
		return nil
	})
}

// removeGroup removes a cgroup and those below, once they are empty; systemd leaves the others, too.
func removeGroup(dir string) {
	entries, _ := os.ReadDir(dir)
	for _, e := range entries {
		if e.IsDir() {
			removeGroup(filepath.Join(dir, e.Name()))
		}
	}
	_ = syscall.Rmdir(dir)
}

func (m *manager) SetUnitProperties(name string, runtime bool, props []systemd.Property) *dbus.Error {
	m.u.mu.Lock()
	defer m.u.mu.Unlock()
	if m.u.units[name] == nil {
		return noSuchUnit(name)
	}
	for _, p := range props {
		m.u.units[name][p.Name] = p.Value
	}
	m.u.calls = append(m.u.calls, fmt.Sprint("set ", runtime))
	return nil
}

func (m *manager) ResetFailedUnit(name string) *dbus.Error { return noSuchUnit(name) }

// properties serves the version that libraries request.
type properties struct{}

func (properties) Get(_, name string) (dbus.Variant, *dbus.Error) {
	if name != "Version" {
		return dbus.Variant{}, dbus.NewError("org.freedesktop.DBus.Error.UnknownProperty", []any{name})
	}
	return dbus.MakeVariant("252"), nil
}
