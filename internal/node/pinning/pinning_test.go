package pinning

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/utils/cpuset"

	"carob/internal/core/pinning"
)

// sysfs writes files below a directory that stands for /sys.
func sysfs(t testing.TB, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for name, text := range files {
		path := filepath.Join(dir, "devices/system", name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// server has two sockets of one node, of two cores with two threads: core n has CPUs n and n+4. CPU 7 is offline.
func server() map[string]string {
	files := map[string]string{"cpu/online": "0-6", "node/online": "0-1", "node/node0/cpulist": "0-1,4-5",
		"node/node1/cpulist": "2-3,6"}
	for cpu := range 7 {
		dir := fmt.Sprintf("cpu/cpu%d/", cpu)
		files[dir+"topology/physical_package_id"] = fmt.Sprint(cpu % 4 / 2)
		files[dir+"topology/core_cpus_list"] = fmt.Sprintf("%d,%d", cpu%4, cpu%4+4)
		files[dir+"cache/index0/level"] = "1"
		files[dir+"cache/index0/shared_cpu_list"] = fmt.Sprint(cpu)
		files[dir+"cache/index3/level"] = "3"
		files[dir+"cache/index3/shared_cpu_list"] = []string{"0-1,4-5", "2-3,6-7"}[cpu%4/2]
	}
	for node := range 2 {
		dir := fmt.Sprintf("node/node%d/", node)
		files[dir+"meminfo"] = fmt.Sprintf("Node %d MemTotal:  1048576 kB\nNode %d MemFree: 5 kB", node, node)
		files[dir+"distance"] = []string{"10 21", "21 10"}[node]
		files[dir+"hugepages/hugepages-2048kB/nr_hugepages"] = "8"
	}
	return files
}

func TestDiscover(t *testing.T) {
	got, err := Discover(sysfs(t, server()), 0)
	if err != nil {
		t.Fatal(err)
	}
	text := ""
	for _, c := range got.CPUs {
		text += fmt.Sprintf("%d:%d/%d/%d/%d ", c.ID, c.Core, c.Cache, c.Socket, c.Node)
	}
	if want := "0:0/0/0/0 1:1/0/0/0 2:2/2/1/1 3:3/2/1/1 4:0/0/0/0 5:1/0/0/0 6:2/2/1/1 "; text != want {
		t.Errorf("CPUs: got  %s\nwant %s", text, want)
	}
	if n := got.Nodes; len(n) != 2 || n[1].ID != 1 || n[1].Memory != 1<<30 ||
		n[1].HugePages["hugepages-2Mi"] != 16<<20 || n[1].Distances[0] != 21 {
		t.Errorf("nodes: %+v", got.Nodes)
	}
	// This machine, too.
	if here, err := Discover("/sys", 1<<30); err != nil || len(here.CPUs) == 0 || len(here.Nodes) == 0 {
		t.Errorf("this machine: %+v, %v", here, err)
	}
}

// Machines with few or no files in sysfs, and contents that no kernel writes.
func TestDiscoverUnusualMachines(t *testing.T) {
	alone := map[string]string{"cpu/online": "0-1"}
	got, err := Discover(sysfs(t, alone), 7)
	if err != nil || len(got.CPUs) != 2 || got.CPUs[1].Core != 1 || len(got.Nodes) != 1 || got.Nodes[0].Memory != 7 {
		t.Errorf("a kernel without topology and nodes: %+v, %v", got, err)
	}
	for name, change := range map[string][2]string{
		"no CPU":                  {"cpu/online", ""},
		"more CPUs than can be":   {"cpu/online", "0-4294967295"},
		"a list backwards":        {"cpu/online", "3-1"},
		"a list of words":         {"cpu/online", "all"},
		"not its own sibling":     {"cpu/cpu3/topology/core_cpus_list", "1,5"},
		"a socket that is a word": {"cpu/cpu3/topology/physical_package_id", "a"},
		"a socket out of range":   {"cpu/cpu3/topology/physical_package_id", "99999999999999999999"},
		"a CPU in two nodes":      {"node/node1/cpulist", "1-3,6"},
		"a CPU without node":      {"node/node1/cpulist", "2-3"},
		"memory in words":         {"node/node0/meminfo", "Node 0 MemTotal: much kB"},
		"no memory":               {"node/node0/meminfo", "Node 0 MemFree: 1 kB"},
		"huge pages in words":     {"node/node0/hugepages/hugepages-2048kB/nr_hugepages", "few"},
		"a distance in words":     {"node/node0/distance", "near far"},
		"an endless file":         {"cpu/cpu2/topology/core_cpus_list", strings.Repeat("0,", 64<<10)},
		"a cache in words":        {"cpu/cpu2/cache/index3/level", "last"},
	} {
		files := server()
		files[change[0]] = change[1]
		if got, err := Discover(sysfs(t, files), 0); err == nil {
			t.Errorf("%s: %+v", name, got)
		}
	}
	files := server()
	files["cpu/cpu2/topology/physical_package_id"] = "-1" // as virtual machines write
	files["node/node0/hugepages/strange"] = ""
	if _, err := Discover(sysfs(t, files), 0); err != nil {
		t.Error(err)
	}
}

func FuzzParseCPUs(f *testing.F) {
	for _, s := range []string{"0-3,7", "", ",", "0-", "-1", "0-16383", "0-16384", "1,1,1"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		set, err := pinning.ParseCPUs(s)
		if err != nil {
			return
		}
		if again, err := pinning.ParseCPUs(set.String()); err != nil || !again.Equals(set) {
			t.Errorf("%q became %q: %v", s, set, err)
		}
	})
}

// runtime records the cpusets that are set.
type runtime struct {
	mu   sync.Mutex
	cpus map[string]string
	err  error
}

func (r *runtime) UpdateContainerResources(_ context.Context, req *cri.UpdateContainerResourcesRequest) (
	*cri.UpdateContainerResourcesResponse, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.err == nil {
		r.cpus[req.ContainerId] = req.Linux.CpusetCpus
	}
	return nil, r.err
}

func (r *runtime) of(id string) string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.cpus[id]
}

func pod(name, cpu string) *corev1.Pod {
	list := corev1.ResourceList{"cpu": resource.MustParse(cpu), "memory": resource.MustParse("1Mi")}
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(name)}, Spec: corev1.PodSpec{
		Containers: []corev1.Container{{Name: "c",
			Resources: corev1.ResourceRequirements{Requests: list, Limits: list}}}}}
}

// memory is a directory in memory: state files are synced, which takes its time on a disk.
func memory(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("/dev/shm", "pinning-")
	if err != nil {
		return t.TempDir()
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}

func config(t testing.TB, dir string) Config {
	t.Helper()
	return Config{Dir: dir, Sys: sysfs(t, server()), Runtime: &runtime{cpus: map[string]string{}},
		Policies: pinning.Config{CPUPolicy: "static", ReservedCPUs: cpuset.New(0), MemoryPolicy: "Static",
			Reserved: corev1.ResourceList{"cpu": resource.MustParse("1"), "memory": resource.MustParse("64Mi")},
			ReservedMemory: []pinning.Reservation{{Node: 0,
				Limits: corev1.ResourceList{"memory": resource.MustParse("64Mi")}}}}}
}

func open(t testing.TB, cfg Config) *Manager {
	t.Helper()
	m, err := Open(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// A restarted agent gives each pod what it had: what was killed between any two calls has lost nothing that a container
// was started with (S10.11, S10.12, S10.24).
func TestStateSurvivesARestart(t *testing.T) {
	dir := memory(t)
	cfg := config(t, dir)
	m := open(t, cfg)
	if r := m.Admit(pod("a", "2")); r != nil {
		t.Fatal(r)
	}
	var before cri.LinuxContainerResources
	m.Starting(pod("a", "2"), "c", &before)
	if before.CpusetCpus == "" || before.CpuQuota != -1 || before.CpusetMems != "0" {
		t.Errorf("the container gets %+v", &before)
	}
	m = open(t, cfg) // killed here
	if r := m.Admit(pod("a", "2")); r != nil {
		t.Fatal(r)
	}
	var after cri.LinuxContainerResources
	m.Starting(pod("a", "2"), "c", &after)
	if before.CpusetCpus != after.CpusetCpus || before.CpusetMems != after.CpusetMems {
		t.Errorf("it had %+v, and has %+v", &before, &after)
	}
	m.Release("a")
	m = open(t, cfg) // killed here
	if m.Held("a") || len(m.Pods()) > 0 {
		t.Error("a pod that is gone has CPUs after a restart")
	}
	for _, name := range []string{cpuFile, memoryFile} {
		text, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		var f map[string]any
		if err := json.Unmarshal(text, &f); err != nil {
			t.Fatal(err)
		}
		for _, field := range []string{"policyName", "checksum", "data", "dataChecksum"} {
			if f[field] == nil {
				t.Errorf("%s has no %s: %s", name, field, text)
			}
		}
	}
}

// Files of another policy or machine, and damaged ones, end the agent, with what to do about it.
func TestInvalidStateFiles(t *testing.T) {
	fresh := func() (Config, string) {
		dir := memory(t)
		cfg := config(t, dir)
		m := open(t, cfg)
		if r := m.Admit(pod("a", "2")); r != nil {
			t.Fatal(r)
		}
		return cfg, dir
	}
	for want, change := range map[string]func(cfg *Config, dir string){
		`configured policy "none" differs from state checkpoint policy "static", please drain this node and delete the CPU ` +
			`manager checkpoint file`: func(cfg *Config, _ string) { cfg.Policies = pinning.Config{} },
		`[memorymanager] configured policy "None" differs from state checkpoint policy "Static"`: func(cfg *Config, _ string) {
			cfg.Policies.MemoryPolicy = "None"
		},
		`not all reserved cpus: "1-6" are present in defaultCpuSet`: func(cfg *Config, _ string) {
			cfg.Policies.ReservedCPUs, _ = pinning.ParseCPUs("1-6")
		},
		`doesn't match with CPUs in state "0-6"`: func(cfg *Config, _ string) {
			files := server()
			files["cpu/online"], files["node/node1/cpulist"] = "0-5", "2-3"
			cfg.Sys = sysfs(t, files)
		},
		"[memorymanager] the expected machine state is different from the real one": func(cfg *Config, _ string) {
			files := server()
			files["node/node0/meminfo"] = "Node 0 MemTotal: 2097152 kB"
			cfg.Sys = sysfs(t, files)
		},
		"checkpoint is corrupted": func(_ *Config, dir string) {
			path := filepath.Join(dir, cpuFile)
			text, _ := os.ReadFile(path)
			_ = os.WriteFile(path, []byte(strings.ReplaceAll(string(text), "static", "stetic")), 0o600)
		},
		"checkpoint is corrupted, please drain": func(_ *Config, dir string) {
			_ = os.WriteFile(filepath.Join(dir, memoryFile), []byte("{"), 0o600)
		},
		"could not parse default CPU set": func(_ *Config, dir string) {
			_ = write(filepath.Join(dir, cpuFile), cpuState{PolicyName: "static", Shared: "0-4294967295"})
		},
		"could not parse cpuset": func(_ *Config, dir string) {
			_ = write(filepath.Join(dir, cpuFile), cpuState{PolicyName: "static", Shared: "0-6",
				Entries: map[string]map[string]string{"a": {"c": "x\n"}}})
		},
		"the memory assignment uses the NUMA that does not exist": func(_ *Config, dir string) {
			m, _ := Open(config(t, t.TempDir()))
			nine := pinning.Block{Nodes: []int{9}, Type: "memory", Size: 1}
			entries := map[types.UID]map[string][]pinning.Block{"a": {"c": {nine}}}
			_ = write(filepath.Join(dir, memoryFile), memoryState{PolicyName: "Static", Nodes: m.core.State().Nodes,
				Entries: entries})
		},
	} {
		cfg, dir := fresh()
		change(&cfg, dir)
		if _, err := Open(cfg); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %s", err, want)
		}
	}
	if m, err := Open(Config{Dir: t.TempDir()}); m != nil || err != nil {
		t.Errorf("without static policies: %v, %v", m, err)
	}
}

// CPUs that the machine does not have cannot be reserved, whatever the policies (S11.68).
func TestReservedCPUsAreOnline(t *testing.T) {
	sys := sysfs(t, server())
	for list, want := range map[string]string{"": "", "0-6": "", "7": "reserved-cpus: 7 is not a subset of online-cpus: 0-6",
		"3-4096": "reserved-cpus: 3-4096 is not a subset of online-cpus: 0-6"} {
		cpus, err := pinning.ParseCPUs(list)
		if err != nil {
			t.Fatal(err)
		}
		if _, err = Open(Config{Dir: t.TempDir(), Sys: sys, Policies: pinning.Config{ReservedCPUs: cpus}}); err == nil {
			err = errors.New("")
		}
		if err.Error() != want {
			t.Errorf("reserved %q: %v, want %s", list, err, want)
		}
	}
}

// Containers that share CPUs leave those that become exclusive, and return later; failures are retried; a container
// that starts meanwhile is included (S10.8).
func TestReconcile(t *testing.T) {
	cfg := config(t, memory(t))
	r := cfg.Runtime.(*runtime)
	m := open(t, cfg)
	synctest.Test(t, func(t *testing.T) {
		ctx, stop := context.WithCancel(t.Context())
		done := make(chan struct{})
		var mu sync.Mutex
		all := []Running{{Pod: "b", Container: "c", ID: "shared"}}
		m.wake = make(chan struct{}, 1)
		go func() {
			m.Run(ctx, func() []Running { mu.Lock(); defer mu.Unlock(); return all })
			close(done)
		}()
		synctest.Wait()
		if got := r.of("shared"); got != "0-6" {
			t.Errorf("at the start: %s", got)
		}
		if refused := m.Admit(pod("a", "2")); refused != nil {
			t.Error(refused)
		}
		synctest.Wait()
		var own cri.LinuxContainerResources
		m.Starting(pod("a", "2"), "c", &own)
		if got := r.of("shared"); got == "0-6" || own.CpusetCpus == "" {
			t.Errorf("when a pod got %s: %s", own.CpusetCpus, got)
		}
		// A container was made with the CPUs of before, and starts now.
		mu.Lock()
		all = append(all, Running{Pod: "d", Container: "c", ID: "late"})
		mu.Unlock()
		m.Started("d", "c", "late", "0-6")
		synctest.Wait()
		if r.of("late") != r.of("shared") {
			t.Errorf("one that started late has %s, others %s", r.of("late"), r.of("shared"))
		}
		r.mu.Lock()
		r.err = errors.New("busy")
		r.mu.Unlock()
		m.Release("a")
		m.Release("a")
		synctest.Wait()
		if r.of("shared") == "0-6" {
			t.Error("the runtime failed, and the CPUs changed")
		}
		r.mu.Lock()
		r.err = nil
		r.mu.Unlock()
		time.Sleep(DefaultReconcile)
		synctest.Wait()
		if r.of("shared") != "0-6" {
			t.Errorf("after the next look: %s", r.of("shared"))
		}
		stop()
		<-done
	})
}
