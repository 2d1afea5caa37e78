package cgroups

import (
	"errors"
	"os"
	"reflect"
	"strings"
	"testing"
	"time"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"carob/internal/runtime/native/openfiles"
)

func TestFindCgroups(t *testing.T) {
	const v1 = `30 20 0:26 / /sys/fs/cgroup ro shared:9 - tmpfs tmpfs ro,mode=755
31 30 0:27 / /sys/fs/cgroup/unified rw,nosuid shared:10 - cgroup2 cgroup2 rw,nsdelegate
32 30 0:28 / /sys/fs/cgroup/systemd rw shared:11 - cgroup cgroup rw,xattr,name=systemd
35 30 0:31 / /sys/fs/cgroup/cpu,cpuacct rw shared:15 - cgroup cgroup rw,cpu,cpuacct
36 30 0:32 / /sys/fs/cgroup/memory rw shared:16 - cgroup cgroup rw,memory
99 30 0:32 /docker/x /mnt/memory rw - cgroup cgroup rw,memory
98 30 0:32 / /run/memory rw - cgroup cgroup rw,memory`
	c, err := Find([]byte(v1))
	if err != nil {
		t.Fatal(err)
	}
	if c.V2 || len(c.Tree) != 3 || c.Of("cpuacct", "/x") != "/sys/fs/cgroup/cpu,cpuacct/x" ||
		c.Of("hugetlb", "/x") != "" || c.Of("name=systemd", "") != "/sys/fs/cgroup/systemd" {
		t.Errorf("%+v", c)
	}
	// Not cgroup.procs: a write to it may wait for 20 ms and holds the lock of all cgroups.
	want := Entry{Tasks: []string{"/sys/fs/cgroup/systemd/x/tasks", "/sys/fs/cgroup/cpu,cpuacct/x/tasks",
		"/sys/fs/cgroup/memory/x/tasks"}, CPU: 1, Memory: 2}
	if e := c.Entry("/x"); !reflect.DeepEqual(e, want) {
		t.Errorf("a process enters by %+v, want %+v", e, want)
	}
	want.unified = "/sys/fs/cgroup/unified/x"
	if e := c.Whole().Entry("/x"); !reflect.DeepEqual(e, want) {
		t.Errorf("with the unified tree a process enters by %+v, want %+v", e, want)
	}
	c, err = Find([]byte("29 23 0:25 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate"))
	if err != nil || !c.V2 || c.Of("memory", "/x") != "/sys/fs/cgroup/x" {
		t.Errorf("%+v, %v", c, err)
	}
	layers := strings.Repeat(",lowerdir+=/var/lib/layers/0123456789abcdef", 2000) // a line over 64 KiB
	c, err = Find([]byte("40 23 0:40 / /merged rw - overlay overlay rw" + layers + "\n" +
		"41 23 0:25 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n"))
	if err != nil || !c.V2 || c.Of("memory", "/x") != "/sys/fs/cgroup/x" {
		t.Errorf("behind an overlay of many layers: %+v, %v", c, err)
	}
	if _, err := Find(nil); err == nil {
		t.Error("a host without cgroups is fine?")
	}
}

// TestSettings: the resources that the agent requests, in the files of both versions (L3.117b).
func TestSettings(t *testing.T) {
	r := &cri.LinuxContainerResources{
		CpuShares: 1024, CpuQuota: 50000, CpuPeriod: 100000, MemoryLimitInBytes: 1 << 20,
		MemorySwapLimitInBytes: 3 << 20, CpusetCpus: "0-1",
		HugepageLimits: []*cri.HugepageLimit{{PageSize: "2MB", Limit: 5}},
		Unified:        map[string]string{"memory.oom.group": "1"},
	}
	text := func(v2 bool, r *cri.LinuxContainerResources) string {
		var b strings.Builder
		for _, s := range settingsOf(r, v2) {
			b.WriteString(s.file + "=" + s.value + "\n")
		}
		return b.String()
	}
	if got, want := text(true, r),
		"cpu.weight=39\ncpu.max=50000 100000\nmemory.swap.max=2097152\nmemory.max=1048576\ncpuset.cpus=0-1\nhugetlb.2MB.max=5\nmemory.oom.group=1\n"; got != want {
		t.Errorf("v2: %s", got)
	}
	if got, want := text(false, r),
		"cpu.shares=1024\ncpu.cfs_period_us=100000\ncpu.cfs_quota_us=50000\nmemory.limit_in_bytes=1048576\nmemory.memsw.limit_in_bytes=3145728\ncpuset.cpus=0-1\nhugetlb.2MB.limit_in_bytes=5\n"; got != want {
		t.Errorf("v1: %s", got)
	}
	if got, want := text(true, &cri.LinuxContainerResources{CpuQuota: -1, MemoryLimitInBytes: -1}),
		"cpu.max=max 100000\nmemory.max=max\n"; got != want {
		t.Errorf("none: %s", got)
	}
	for shares, want := range map[int64]int64{2: 1, 1024: 39, 262144: 10000, 1: 1, 1 << 30: 10000} {
		if got := weightOf(shares); got != want {
			t.Errorf("%d shares: weight %d, want %d", shares, got, want)
		}
	}
}

// TestDelegateFromAbove: a cgroup that another process has just created has no controllers yet; its parent enables
// them.
func TestDelegateFromAbove(t *testing.T) {
	h := Hierarchy{Mount: t.TempDir()}
	for group, has := range map[string]string{"": "cpu memory misc", "/a": "", "/a/b": ""} {
		dir := h.Mount + group
		if err := errors.Join(os.MkdirAll(dir, 0o755), os.WriteFile(dir+"/cgroup.controllers", []byte(has+"\n"), 0o644),
			os.WriteFile(dir+"/cgroup.subtree_control", nil, 0o644)); err != nil {
			t.Fatal(err)
		}
	}
	if err := h.make("/a/b/c", true); err != nil {
		t.Fatal(err)
	}
	if b, err := os.ReadFile(h.Mount + "/cgroup.subtree_control"); err != nil || string(b) != "+cpu +memory +misc" {
		t.Errorf("the root gives %q, %v", b, err)
	}
}

// TestUnifiedFiles: what is read from and written to the files of a host with only cgroup v2, on a
// tree of ordinary files.
func TestUnifiedFiles(t *testing.T) {
	root := t.TempDir()
	c := &Hierarchies{V2: true, Tree: []Hierarchy{{Mount: root, unified: true}}}
	files := func(dir string, names ...string) {
		t.Helper()
		if err := os.MkdirAll(root+dir, 0o755); err != nil {
			t.Fatal(err)
		}
		for i := 0; i < len(names); i += 2 {
			if err := os.WriteFile(root+dir+"/"+names[i], []byte(names[i+1]), 0o644); err != nil {
				t.Fatal(err)
			}
		}
	}
	holds := func(file, want string) {
		t.Helper()
		if b, err := os.ReadFile(root + file); err != nil || string(b) != want {
			t.Errorf("%s holds %q, %v; want %q", file, b, err, want)
		}
	}
	files("/pod", "cgroup.controllers", "cpuset cpu io memory hugetlb pids rdma misc\n", "cgroup.subtree_control", "")
	files("/pod/c", "cpu.weight", "", "cpu.max", "", "memory.max", "", "memory.swap.max", "", "cpuset.cpus", "",
		"memory.oom.group", "", "cgroup.kill", "", "cgroup.procs", "12\n34\n",
		"memory.events", "low 0\noom 1\noom_kill 0\noom_group_kill 0\n")
	if err := c.Make("/pod/c"); err != nil {
		t.Fatal(err)
	}
	holds("/pod/cgroup.subtree_control", "+cpu +cpuset +io +memory +pids +hugetlb +misc")
	if err := c.Apply("/pod/c",
		&cri.LinuxContainerResources{CpuShares: 1024, CpuQuota: 20000, CpuPeriod: 100000, MemoryLimitInBytes: 1 << 20,
			MemorySwapLimitInBytes: 1 << 20,
			CpusetCpus:             "0", HugepageLimits: []*cri.HugepageLimit{{PageSize: "2MB", Limit: 5}},
			Unified: map[string]string{"memory.oom.group": "1"}}); err != nil {
		t.Error(err) // hugetlb.2MB.max is missing, which is not an error
	}
	for file, want := range map[string]string{"cpu.weight": "39", "cpu.max": "20000 100000", "memory.max": "1048576",
		"memory.swap.max": "0", "cpuset.cpus": "0", "memory.oom.group": "1"} {
		holds("/pod/c/"+file, want)
	}
	if err := c.Apply("/pod/c",
		&cri.LinuxContainerResources{Unified: map[string]string{"memory.nonsense": "1"}}); err == nil {
		t.Error("a file that is not there is no error")
	}
	if e := c.Entry("/pod/c"); len(e.Tasks) != 0 || e.CPU != -1 || e.unified != root+"/pod/c" {
		t.Errorf("a process enters by %+v", e)
	}
	if pids := c.PIDs("/pod/c"); len(pids) != 2 || pids[1] != 34 {
		t.Errorf("processes %v", pids)
	}
	c.KillAll("/pod/c")
	holds("/pod/c/cgroup.kill", "1")

	oom := func(want bool) {
		t.Helper()
		f := c.OOMFile("/pod/c")
		defer f.Close()
		if got := OOMKilled(f); got != want {
			t.Errorf("killed for want of memory: %v", got)
		}
	}
	oom(false)
	files("/pod/c", "memory.events", "low 0\noom 1\noom_kill 12\noom_group_kill 1\n")
	oom(true)
	if OOMKilled(nil) {
		t.Error("killed without a memory controller")
	}

	files("/pod/c", "cpu.stat", "usage_usec 1500\nuser_usec 1000\n", "memory.current", "4096000\n", "memory.max",
		"max\n", "memory.swap.current", "8192\n", "memory.swap.max", "16384\n",
		"memory.stat", "anon 1000\ninactive_file 96000\npgfault 7\npgmajfault 3\n", "pids.current", "2\n",
		"cpu.pressure",
		"some avg10=1.50 avg60=0.25 avg300=0.00 total=77\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=5\n")
	u := c.Measure("/pod/c")
	if u.CPU != 1500000 || u.Memory != 4096000 || u.Limit != 0 || u.WorkingSet() != 4000000 || u.RSS != 1000 ||
		u.Swap != 8192 || u.swapLimit != 16384 || u.Faults != 7 || u.MajorFaults != 3 || u.PIDs != 2 {
		t.Errorf("measured %+v", u)
	}
	if p := u.cpuPressure; p == nil || p.Some.Avg10 != 1.5 || p.Some.Avg60 != 0.25 || p.Some.Total != 77 ||
		p.Full.Total != 5 || u.memPressure != nil {
		t.Errorf("pressure %v, %v", p, u.memPressure)
	}
	files("/pod/c", "memory.max", "8192000\n")
	if u := c.Measure("/pod/c"); u.Limit != 8192000 || u.MemoryStats().AvailableBytes.GetValue() != 4192000 {
		t.Errorf("with a limit: %+v", u)
	}
	files("/pod/c", "cpu.stat", "usage_usec 1500\nnr_periods 9\nnr_throttled 4\nthrottled_usec 2500\n",
		"memory.stat",
		"file 5000\nfile_mapped 600\nanon 1000\ninactive_file 96000\npgfault 7\npgmajfault 3\n",
		"io.stat", "999:77 rbytes=1 wbytes=2 rios=3 wios=4 dbytes=5 dios=6\n")
	used, got := c.Scrape("/pod/c", openfiles.ReadOnce)
	if want := (Counters{Periods: 9, ThrottledPeriods: 4,
		Throttled: 2500 * time.Microsecond, Cache: 5000, Mapped: 600, Devices: []DeviceCounters{
			{Name: "999:77", BytesRead: 1, BytesWritten: 2, Reads: 3, Writes: 4}}}); !reflect.DeepEqual(got, want) {
		t.Errorf("counted %+v, want %+v", got, want)
	}
	if want := (Usage{at: used.at, CPU: 1500000, Memory: 4096000, Swap: 8192, RSS: 1000, inactive: 96000, Faults: 7,
		MajorFaults: 3}); used != want {
		t.Errorf("scraped %+v, want %+v", used, want)
	}
	files("/blkio", "ops", "999:77 Read 3\n999:77 Write 4\n999:77 Sync 9\nTotal 7\n",
		"bytes", "999:77 Read 1\n999:77 Write 2\nTotal 3\n")
	bytes := func() stat { return readStat(root + "/blkio/bytes") }
	if got := devicesV1(readStat(root+"/blkio/ops"), bytes); len(got) != 1 ||
		got[0] != (DeviceCounters{Name: "999:77", BytesRead: 1, BytesWritten: 2, Reads: 3, Writes: 4}) {
		t.Errorf("counted %+v", got)
	}
}
