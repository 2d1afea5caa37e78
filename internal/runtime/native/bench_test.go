package native

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// BenchmarkPodCycle runs the life of one pod at the CRI: sandbox, one container with limits,
// running, stop, remove; one pod at a time and eight at a time. It prints how long each call took.
func BenchmarkPodCycle(b *testing.B) {
	for _, parallel := range []int{1, 8} {
		b.Run(fmt.Sprintf("parallel=%d", parallel), func(b *testing.B) {
			w := newWorld(b)
			steps := &stepTable{}
			for i := range 3 { // page cache, seccomp's tables
				if err := podCycle(w, &stepTable{}, fmt.Sprintf("warm%d", i)); err != nil {
					b.Fatal(err)
				}
			}
			var n atomic.Int64
			before := cpuTime()
			b.ResetTimer()
			begin := time.Now()
			errs := make(chan error, parallel)
			for range parallel {
				go func() {
					for {
						i := n.Add(1)
						if i > int64(b.N) {
							errs <- nil
							return
						}
						if err := podCycle(w, steps, fmt.Sprintf("p%d", i)); err != nil {
							errs <- err
							return
						}
					}
				}()
			}
			for range parallel {
				if err := <-errs; err != nil {
					b.Fatal(err)
				}
			}
			took := time.Since(begin)
			b.StopTimer()
			cpu := cpuTime() - before
			b.ReportMetric(float64(b.N)/took.Seconds(), "cycles/s")
			b.ReportMetric(float64(cpu.Microseconds())/1000/float64(b.N), "cpu-ms/cycle")
			steps.print(b)
		})
	}
}

// cpuTime returns the CPU time of this process and of those it waited for (monitors, and through
// them helpers and containers).
func cpuTime() time.Duration {
	var sum int64
	for _, who := range []int{syscall.RUSAGE_SELF, syscall.RUSAGE_CHILDREN} {
		var u syscall.Rusage
		syscall.Getrusage(who, &u)
		sum += u.Utime.Nano() + u.Stime.Nano()
	}
	return time.Duration(sum)
}

type stepTable struct {
	mu    sync.Mutex
	order []string
	steps map[string][]time.Duration
}

func podCycle(w *world, t *stepTable, name string) error {
	ctx := context.Background()
	sbc := w.sandboxConfig(name)
	var sb, id string
	begin := time.Now()
	for _, s := range []struct {
		name string
		do   func() error
	}{
		{"RunPodSandbox", func() error {
			r, err := w.r.RunPodSandbox(ctx, &cri.RunPodSandboxRequest{Config: sbc})
			sb = r.GetPodSandboxId()
			return err
		}},
		{"CreateContainer", func() error {
			r, err := w.r.CreateContainer(ctx,
				&cri.CreateContainerRequest{PodSandboxId: sb, SandboxConfig: sbc,
					Config: containerConfig(sbc, "c", shell("exec sleep 1000"), func(c *cri.ContainerConfig) {
						c.Linux.Resources = &cri.LinuxContainerResources{CpuShares: 102, CpuQuota: 50000,
							CpuPeriod:          100000,
							MemoryLimitInBytes: 64 << 20}
						c.Linux.SecurityContext.Seccomp = &cri.SecurityProfile{
							ProfileType: cri.SecurityProfile_RuntimeDefault}
					})})
			id = r.GetContainerId()
			return err
		}},
		{"StartContainer", func() error {
			_, err := w.r.StartContainer(ctx, &cri.StartContainerRequest{ContainerId: id})
			return err
		}},
		{"= running", nil},
		{"StopContainer", func() error {
			_, err := w.r.StopContainer(ctx, &cri.StopContainerRequest{ContainerId: id})
			return err
		}},
		{"StopPodSandbox", func() error {
			_, err := w.r.StopPodSandbox(ctx, &cri.StopPodSandboxRequest{PodSandboxId: sb})
			return err
		}},
		{"RemoveContainer", func() error {
			_, err := w.r.RemoveContainer(ctx, &cri.RemoveContainerRequest{ContainerId: id})
			return err
		}},
		{"RemovePodSandbox", func() error {
			_, err := w.r.RemovePodSandbox(ctx, &cri.RemovePodSandboxRequest{PodSandboxId: sb})
			return err
		}},
		{"= cycle", nil},
	} {
		at := begin
		if s.do != nil {
			at = time.Now()
			if err := s.do(); err != nil {
				return fmt.Errorf("%s: %w", s.name, err)
			}
		}
		t.add(s.name, time.Since(at))
	}
	// The agent, not the runtime, removes the pod's own cgroup.
	return w.r.groups.Remove(w.cfg.CgroupRoot + "/" + name)
}

func (t *stepTable) add(name string, d time.Duration) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.steps == nil {
		t.steps = map[string][]time.Duration{}
	}
	if _, ok := t.steps[name]; !ok {
		t.order = append(t.order, name)
	}
	t.steps[name] = append(t.steps[name], d)
}

func (t *stepTable) print(b *testing.B) {
	if b.N == 1 {
		return // the run that calibrates the benchmark
	}
	text := ""
	for _, name := range t.order {
		d := t.steps[name]
		slices.Sort(d)
		text += fmt.Sprintf("\n%-18s n=%-4d p50 %8.2f ms   p95 %8.2f ms", name, len(d),
			float64(d[len(d)/2].Microseconds())/1000, float64(d[len(d)*95/100].Microseconds())/1000)
	}
	b.Log(text)
}

// BenchmarkRootAhead starts containers in turns whose root was mounted ahead, and was not. It prints how long
// StartContainer took.
func BenchmarkRootAhead(b *testing.B) {
	w := newWorld(b)
	volume := b.TempDir()
	steps := &stepTable{}
	for i := 0; b.Loop(); i++ {
		w.images.mountAhead(i%2 == 0)
		w.ready()
		sb, sbc := w.sandbox(fmt.Sprint("p", i))
		id := w.create(sb, sbc, "c", shell("exec sleep 1000"), func(c *cri.ContainerConfig) {
			c.Mounts = []*cri.Mount{{HostPath: volume, ContainerPath: "/var/run/secrets/kubernetes.io/serviceaccount"}}
		})
		begin := time.Now()
		w.start(id)
		steps.add(fmt.Sprint("ahead: ", i%2 == 0), time.Since(begin))
		if _, err := w.r.RemovePodSandbox(b.Context(), &cri.RemovePodSandboxRequest{PodSandboxId: sb}); err != nil {
			b.Fatal(err)
		}
	}
	steps.print(b)
}

// BenchmarkExec runs a small program with ExecSync, as the first time, when its helper asks for the passwd file, and as
// all times after that. It prints the processor time of this process, and that of its monitors with the commands.
func BenchmarkExec(b *testing.B) {
	w := newWorld(b)
	sb, sbc := w.sandbox("exec")
	id := w.run(sb, sbc, "c", shell("exec sleep 1000"))
	c, err := w.r.container(id)
	if err != nil {
		b.Fatal(err)
	}
	for _, name := range []string{"asked", "planned"} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			var before, after syscall.Rusage
			_ = syscall.Getrusage(syscall.RUSAGE_SELF, &before)
			others, faults := ofMonitors(b)
			for b.Loop() {
				if name == "asked" {
					c.execs.Keep(nil)
				}
				if x, err := w.exec(id, "true"); err != nil || x.ExitCode != 0 {
					b.Fatal(x, err)
				}
			}
			_ = syscall.Getrusage(syscall.RUSAGE_SELF, &after)
			used := after.Utime.Nano() + after.Stime.Nano() - before.Utime.Nano() - before.Stime.Nano()
			b.ReportMetric(float64(used)/1000/float64(b.N), "cpu-µs/op")
			others2, faults2 := ofMonitors(b)
			b.ReportMetric(float64(others2-others)*10_000/float64(b.N), "others-µs/op")
			b.ReportMetric(float64(faults2-faults)/float64(b.N), "others-faults/op")
		})
	}
}

// ofMonitors is what this process's monitors and the processes that they started have used: processor time in
// hundredths of a second, and page faults.
func ofMonitors(b *testing.B) (ticks, faults int) {
	b.Helper()
	stats, _ := filepath.Glob("/proc/[0-9]*/stat")
	for _, path := range stats {
		text, _ := os.ReadFile(path)
		_, rest, ours := strings.Cut(string(text), " (carob-monitor) ")
		f := strings.Fields(rest)
		if !ours || len(f) < 16 || f[1] != strconv.Itoa(os.Getpid()) {
			continue
		}
		for i, v := range f[:15] {
			n, _ := strconv.Atoi(v)
			switch i {
			case 7, 8: // minflt, cminflt
				faults += n
			case 11, 12, 13, 14: // utime, stime, cutime, cstime
				ticks += n
			}
		}
	}
	return ticks, faults
}
