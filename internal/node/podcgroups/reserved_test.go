package podcgroups

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/opencontainers/cgroups"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"carob/internal/core/resources"
)

func reservation(cgroup string) Reservation {
	return Reservation{For: "system", Cgroup: cgroup, Limits: corev1.ResourceList{
		corev1.ResourceCPU: resource.MustParse("500m"), corev1.ResourceMemory: resource.MustParse("64Mi"),
		"pid": resource.MustParse("123"), corev1.ResourceEphemeralStorage: resource.MustParse("1Gi"),
		"hugepages-2Mi": resource.MustParse("2Mi")}}
}

// A cgroup of the host is limited to what is reserved for it, or gets only its CPU weight (S11.124).
func TestReservedGroup(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root")
	}
	m := New(Config{Root: fmt.Sprintf("/carob-test-%d", os.Getpid())})
	if err := m.Init(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := m.DropRoot(); err != nil {
			t.Error(err)
		}
	})
	name := fmt.Sprintf("/carob-test-%d-reserved", os.Getpid())
	missing := m.EnforceReserved([]Reservation{reservation(name)})
	if missing == nil || !strings.HasPrefix(missing.Error(), fmt.Sprintf(
		"Failed to enforce System Reserved Cgroup Limits on %q: cgroup %q does not exist", name, name)) {
		t.Fatalf("a missing group: %v", missing)
	}
	group, err := m.driver(resources.CgroupPath{strings.Trim(name, "/")}, nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := group.Apply(-1); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := group.Destroy(); err != nil {
			t.Error(err)
		}
	})
	values := func() string {
		var all []string
		for _, f := range [...][3]string{{"cpu", "cpu.shares", "cpu.weight"},
			{"memory", "memory.limit_in_bytes", "memory.max"}, {"pids", "pids.max", "pids.max"}} {
			controller, file := f[0], f[1]
			if m.v2 {
				controller, file = "", f[2]
			}
			text, err := os.ReadFile(filepath.Join(group.GetPaths()[controller], file))
			if err != nil {
				t.Fatal(err)
			}
			all = append(all, strings.TrimSpace(string(text)))
		}
		return strings.Join(all, " ")
	}
	shares := map[bool]string{false: "512", true: fmt.Sprint(resources.CPUWeight(512))}[m.v2]
	before := strings.Fields(values())
	r := reservation(name)
	r.CPUOnly = true
	if err := m.EnforceReserved([]Reservation{r}); err != nil {
		t.Fatal(err)
	}
	if got, want := values(), strings.Join(append([]string{shares}, before[1:]...), " "); got != want {
		t.Errorf("only the weight: %s, want %s", got, want)
	}
	for range 2 { // the second time at the next start of the agent
		if err := m.EnforceReserved([]Reservation{reservation(name)}); err != nil {
			t.Fatal(err)
		}
	}
	if got, want := values(), shares+" 67108864 123"; got != want {
		t.Errorf("all: %s, want %s", got, want)
	}
}

// With cgroup v2, the memory is kept for the group, too.
func TestReservedGroupOfVersion2(t *testing.T) {
	m, root := onFiles(t, resources.MemoryQoS{})
	dir := filepath.Join(filepath.Dir(root), "system.slice", "daemons")
	files(t, dir)
	if err := m.EnforceReserved([]Reservation{reservation("/system.slice/daemons")}); err != nil {
		t.Fatal(err)
	}
	read := func(name string) string {
		text, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	if got := values(t, dir) + " " + read("memory.max") + " " + read("pids.max") + " " + read("cpu.weight"); got !=
		fmt.Sprintf("67108864 7 max 67108864 123 %d", resources.CPUWeight(512)) {
		t.Error(got)
	}
	if err := m.EnforceReserved([]Reservation{reservation("system.slice/none")}); err == nil {
		t.Error("a missing group is no error")
	}
}

// Names of slices with the systemd driver.
func TestReservedSlices(t *testing.T) {
	stop := errors.New("stop")
	for name, want := range map[string]string{"/system.slice": "-.slice system.slice", "runtime": "-.slice runtime.slice",
		"/system.slice/system-app_x.slice": "system.slice system-app_x.slice"} {
		m := New(Config{Root: "/carob", Systemd: true})
		var got string
		m.open = func(cg *cgroups.Cgroup, _ map[string]string) (cgroups.Manager, error) {
			got = cg.Parent + " " + cg.Name
			return nil, stop
		}
		err := m.EnforceReserved([]Reservation{{For: "kube", Cgroup: name, CPUOnly: true}})
		if !errors.Is(err, stop) || !strings.HasPrefix(err.Error(), "Failed to enforce Kube Reserved Compressible Cgroup "+
			"Limits on ") {
			t.Error(err)
		}
		if got != want {
			t.Errorf("%s: %s, want %s", name, got, want)
		}
	}
}
