package eviction

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/opencontainers/cgroups"
	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/api/resource"

	"carob/internal/base/testwait"
	"carob/internal/core/eviction"
)

// startNotifier returns a Notifier for memory.available<100 on a machine with so much available, and what they cause.
func startNotifier(available func() int64) (*Notifier, chan struct{}) {
	looks := make(chan struct{}, 1000)
	rules := eviction.Config{Thresholds: []eviction.Threshold{{Signal: eviction.MemoryAvailable,
		Min: eviction.Amount{Quantity: new(resource.MustParse("100"))}}}}
	n := NewNotifier(rules, func() { looks <- struct{}{} })
	n.memory = func() (eviction.Observation, error) {
		return eviction.Observation{Signal: eviction.MemoryAvailable, Available: available(), Capacity: 1 << 40}, nil
	}
	return n, looks
}

// group makes a cgroup in the hierarchy that is mounted at this directory; the test is skipped if it cannot. remove
// ends what is in it; it needs the test's context, as a cleanup does not.
func group(t *testing.T, at string) (dir string, remove func()) {
	t.Helper()
	dir = filepath.Join(at, "carob-test-notifier-"+strconv.Itoa(os.Getpid()))
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Skipf("this test makes cgroups: %v", err)
	}
	return dir, func() {
		testwait.Until(t, "the cgroup is removed", func() error {
			procs, err := os.ReadFile(filepath.Join(dir, "cgroup.procs"))
			for pid := range strings.FieldsSeq(string(procs)) {
				if n, err := strconv.Atoi(pid); err == nil {
					_ = unix.Kill(n, unix.SIGKILL)
				}
			}
			return errors.Join(err, os.Remove(dir))
		})
	}
}

// within starts a shell command in cgroups, whose removal ends it.
func within(t *testing.T, command string, groups ...string) {
	t.Helper()
	script := ""
	for _, g := range groups {
		script += "echo $$ > " + g + "/cgroup.procs && "
	}
	cmd := exec.CommandContext(t.Context(), "sh", "-c", script+command)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Wait() })
}

func memoryHierarchy(t *testing.T) string {
	t.Helper()
	at, err := cgroups.FindCgroupMountpoint("", "memory")
	if err != nil || cgroups.IsCgroup2UnifiedMode() {
		t.Skipf("there is no memory hierarchy of cgroup v1: %v", err)
	}
	return at
}

// run runs f until the test ends.
func run(t *testing.T, f func(context.Context) error) {
	t.Helper()
	ended := make(chan error, 1)
	ctx, cancel := context.WithCancel(t.Context())
	go func() { ended <- f(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}

// When a cgroup's usage passes the threshold, the kernel notifies: long before the next time that it is set.
func TestUsageNotifies(t *testing.T) {
	n, looks := startNotifier(func() int64 { return 100 + 30<<20 })
	dir, remove := group(t, memoryHierarchy(t))
	defer remove()
	n.group, n.every = dir, time.Hour
	run(t, n.followUsage)
	// 60 MB in a shell's variable.
	within(t, `x=$(head -c 60000000 /dev/zero | tr "\0" a); sleep 3600`, n.group)
	<-looks
}

// What passes the threshold while the kernel is being set up causes a notification, too; if nothing happens, it is set
// again.
func TestUsagePassedBefore(t *testing.T) {
	calls := 0
	n, looks := startNotifier(func() int64 {
		if calls++; calls < 6 {
			return 1 << 30
		}
		return 99 // the second reading of the third time
	})
	dir, remove := group(t, memoryHierarchy(t))
	defer remove()
	n.group, n.every, n.gap = dir, time.Millisecond, time.Millisecond
	run(t, n.followUsage)
	<-looks
}

// Without a threshold ahead, it waits, and neither looks nor sets the kernel up; it ends with its context.
func TestNoThresholdAhead(t *testing.T) {
	readings := make(chan struct{}, 1000)
	n, looks := startNotifier(func() int64 { readings <- struct{}{}; return 0 })
	dir, remove := group(t, memoryHierarchy(t))
	defer remove()
	n.group, n.every = dir, time.Hour
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- n.followUsage(ctx) }()
	<-readings
	cancel()
	if err := <-ended; err != nil || len(looks) > 0 || len(readings) > 0 {
		t.Errorf("%v, %d looks, %d more readings", err, len(looks), len(readings))
	}
}

// Processes that wait for memory cause a notification: they read a file that is larger than the memory of their cgroup.
// When that is gone, the watch ends.
func TestPressureNotifies(t *testing.T) {
	memory, remove := group(t, memoryHierarchy(t))
	remove = sync.OnceFunc(remove)
	defer remove()
	unified, removeUnified := group(t, filepath.Join(filepath.Dir(memoryHierarchy(t)), "unified"))
	removeUnified = sync.OnceFunc(removeUnified)
	defer removeUnified()
	if err := os.WriteFile(filepath.Join(memory, "memory.limit_in_bytes"), []byte("8M"), 0); err != nil {
		t.Skip(err)
	}
	n, looks := startNotifier(func() int64 { return 0 })
	n.pressure, n.stalls = filepath.Join(unified, "memory.pressure"), []string{"some 10000 1000000", "some 10000 2000000"}
	if _, err := os.Stat(n.pressure); err != nil {
		t.Skip(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- n.followPressure(t.Context()) }()
	// A page belongs to the cgroup that read or wrote it first.
	within(t, "F="+filepath.Join(t.TempDir(), "large")+
		"; head -c 64000000 /dev/zero > $F; while :; do cat $F > /dev/null; done", memory, unified)
	for range 2 { // each time again
		<-looks
	}
	remove()
	removeUnified()
	if err := <-ended; err == nil || !strings.Contains(err.Error(), "memory.pressure is gone") {
		t.Errorf("without its cgroup: %v", err)
	}
}

// A watch of the machine's pressure ends with its context.
func TestPressureEnds(t *testing.T) {
	n, _ := startNotifier(func() int64 { return 0 })
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- n.followPressure(ctx) }()
	cancel()
	if err := <-ended; err != nil {
		t.Skipf("this kernel does not notify of pressure: %v", err)
	}
}

// A kernel without pressure stall information, or one that refuses the trigger: an error, and nothing else.
func TestNoPressure(t *testing.T) {
	n, looks := startNotifier(func() int64 { return 0 })
	for _, at := range []string{filepath.Join(t.TempDir(), "missing"), "/proc/pressure/memory"} {
		n.pressure, n.stalls = at, []string{"nonsense"}
		if err := n.followPressure(t.Context()); err == nil || len(looks) > 0 {
			t.Errorf("%s: %v, %d looks", at, err, len(looks))
		}
	}
	n.group = t.TempDir()
	if err := n.followUsage(t.Context()); err == nil {
		t.Error("a cgroup without files has no error")
	}
}
