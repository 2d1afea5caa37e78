package main

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

const (
	image    = "docker.io/library/busybox:1.36"
	parallel = 8
)

func ms(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }

func quantile(v []float64, q float64) float64 {
	if len(v) == 0 {
		return 0
	}
	s := slices.Sorted(slices.Values(v))
	return s[min(len(s)-1, int(q*float64(len(s))))]
}

func (t *target) measure(ctx context.Context, o options) (map[string]float64, error) {
	v := map[string]float64{}
	for _, part := range []struct {
		name string
		do   func() error
	}{
		{"warm", func() error { return t.serial(ctx, "warm", 3, map[string]float64{}) }},
		{"serial", func() error { return t.serial(ctx, "serial", o.n, v) }},
		{"exec", func() error { return t.exec(ctx, o.n, v) }},
		{"parallel", func() error { return t.parallel(ctx, o.cycles, v) }},
		{"live pods", func() error { return t.live(ctx, o.live, v) }},
		{"boot", func() error { return t.boot(ctx, v) }},
	} {
		if err := part.do(); err != nil {
			return nil, fmt.Errorf("%s: %w", part.name, err)
		}
	}
	v["rss"] = field(fmt.Sprintf("/proc/%d/status", t.pid()), "VmRSS:") / 1024
	return v, nil
}

// pod is a pod of one container as far as it has come.
type pod struct {
	t                  *target
	config             *cri.PodSandboxConfig
	sandbox, id        string
	run, create, start time.Duration
	running, gone      time.Duration
}

func (t *target) pod(name string) *pod {
	return &pod{t: t, config: &cri.PodSandboxConfig{
		Metadata: &cri.PodSandboxMetadata{Name: name, Namespace: "bench", Uid: "uid-" + name}, Hostname: name,
		LogDirectory: filepath.Join(t.dir, "log", name),
		DnsConfig:    &cri.DNSConfig{Servers: []string{"192.0.2.53"}},
		Linux: &cri.LinuxPodSandboxConfig{CgroupParent: t.group + "/pods/" + name,
			SecurityContext: &cri.LinuxSandboxSecurityContext{
				NamespaceOptions: &cri.NamespaceOption{Pid: cri.NamespaceMode_CONTAINER},
				Seccomp:          &cri.SecurityProfile{ProfileType: cri.SecurityProfile_RuntimeDefault}}},
	}}
}

func (p *pod) up(ctx context.Context) error {
	begin := time.Now()
	sb, err := p.t.cri.RunPodSandbox(ctx, &cri.RunPodSandboxRequest{Config: p.config})
	if err != nil {
		return err
	}
	p.run, p.sandbox = time.Since(begin), sb.PodSandboxId
	at := time.Now()
	c, err := p.t.cri.CreateContainer(ctx,
		&cri.CreateContainerRequest{PodSandboxId: p.sandbox, SandboxConfig: p.config, Config: &cri.ContainerConfig{
			Metadata: &cri.ContainerMetadata{Name: "c"}, Image: &cri.ImageSpec{Image: image},
			Command: []string{"sleep", "100000"}, LogPath: "c.log",
			Linux: &cri.LinuxContainerConfig{
				Resources: &cri.LinuxContainerResources{CpuPeriod: 100000, CpuQuota: 50000, CpuShares: 512,
					MemoryLimitInBytes: 64 << 20},
				SecurityContext: &cri.LinuxContainerSecurityContext{
					NamespaceOptions: p.config.Linux.SecurityContext.NamespaceOptions,
					Seccomp:          &cri.SecurityProfile{ProfileType: cri.SecurityProfile_RuntimeDefault},
					MaskedPaths: []string{"/proc/asound", "/proc/acpi", "/proc/kcore", "/proc/keys",
						"/proc/latency_stats", "/proc/timer_list", "/proc/timer_stats", "/proc/sched_debug",
						"/proc/scsi", "/sys/firmware"},
					ReadonlyPaths: []string{"/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"}},
			}}})
	if err != nil {
		return err
	}
	p.create, p.id = time.Since(at), c.ContainerId
	at = time.Now()
	if _, err := p.t.cri.StartContainer(ctx, &cri.StartContainerRequest{ContainerId: p.id}); err != nil {
		return err
	}
	p.start, p.running = time.Since(at), time.Since(begin)
	return nil
}

func (p *pod) down(ctx context.Context) error {
	begin := time.Now()
	if _, err := p.t.cri.StopContainer(ctx, &cri.StopContainerRequest{ContainerId: p.id}); err != nil {
		return err
	}
	if _, err := p.t.cri.StopPodSandbox(ctx, &cri.StopPodSandboxRequest{PodSandboxId: p.sandbox}); err != nil {
		return err
	}
	if _, err := p.t.cri.RemovePodSandbox(ctx, &cri.RemovePodSandboxRequest{PodSandboxId: p.sandbox}); err != nil {
		return err
	}
	p.gone = time.Since(begin)
	return nil
}

func (p *pod) cycle(ctx context.Context) error {
	if err := p.up(ctx); err != nil {
		return err
	}
	return p.down(ctx)
}

func (t *target) serial(ctx context.Context, name string, n int, v map[string]float64) error {
	var run, create, start, running, gone []float64
	cpu := t.cpu()
	for i := range n {
		p := t.pod(fmt.Sprintf("%s-%d", name, i))
		if err := p.cycle(ctx); err != nil {
			return err
		}
		run, create, start = append(run, ms(p.run)), append(create, ms(p.create)), append(start, ms(p.start))
		running, gone = append(running, ms(p.running)), append(gone, ms(p.gone))
	}
	v["cpu"] = (t.cpu() - cpu) / float64(n)
	v["run_p50"], v["create_p50"], v["start_p50"] = quantile(run, 0.5), quantile(create, 0.5), quantile(start, 0.5)
	v["running_min"] = quantile(running, 0)
	v["running_p50"], v["running_p95"], v["running_p99"] = quantile(running, 0.5), quantile(running, 0.95),
		quantile(running, 0.99)
	v["teardown_p50"] = quantile(gone, 0.5)
	return nil
}

func (t *target) exec(ctx context.Context, n int, v map[string]float64) error {
	p := t.pod("exec")
	if err := p.up(ctx); err != nil {
		return err
	}
	var took []float64
	for i := range n + 5 {
		at := time.Now()
		x, err := t.cri.ExecSync(ctx, &cri.ExecSyncRequest{ContainerId: p.id, Cmd: []string{"true"}, Timeout: 30})
		if err != nil || x.ExitCode != 0 {
			return fmt.Errorf("%v: %w", x, err)
		}
		if i >= 5 {
			took = append(took, ms(time.Since(at)))
		}
	}
	v["exec_p50"], v["exec_p99"] = quantile(took, 0.5), quantile(took, 0.99)
	return p.down(ctx)
}

// each does something with n pods, eight at a time.
func (t *target) each(ctx context.Context, pods []*pod, do func(context.Context, *pod) error) (time.Duration, error) {
	begin := time.Now()
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(parallel)
	for _, p := range pods {
		g.Go(func() error { return do(ctx, p) })
	}
	err := g.Wait()
	return time.Since(begin), err
}

func (t *target) pods(name string, n int) []*pod {
	list := make([]*pod, n)
	for i := range list {
		list[i] = t.pod(fmt.Sprintf("%s-%d", name, i))
	}
	return list
}

func (t *target) parallel(ctx context.Context, n int, v map[string]float64) error {
	list := t.pods("parallel", n/2)
	took, err := t.each(ctx, list, func(ctx context.Context, p *pod) error { return p.up(ctx) })
	if err != nil {
		return err
	}
	v["creates"] = float64(len(list)) / took.Seconds()
	if _, err := t.each(ctx, list, func(ctx context.Context, p *pod) error { return p.down(ctx) }); err != nil {
		return err
	}
	list, cpu := t.pods("cycle", n), t.cpu()
	took, err = t.each(ctx, list, func(ctx context.Context, p *pod) error { return p.cycle(ctx) })
	if err != nil {
		return err
	}
	v["cycles"], v["cpu_parallel"] = float64(len(list))/took.Seconds(), (t.cpu()-cpu)/float64(n)
	return nil
}

// live has many pods, measures what they cost, kills the daemon and starts it
// again: it is back when it answers that all of them run.
func (t *target) live(ctx context.Context, n int, v map[string]float64) error {
	list := t.pods("live", n)
	before := t.helpersMB()
	if _, err := t.each(ctx, list, func(ctx context.Context, p *pod) error { return p.up(ctx) }); err != nil {
		return err
	}
	v["pss_pod"] = (t.helpersMB() - before) / float64(n)
	took, err := t.restart(ctx, n)
	if err != nil {
		return err
	}
	v["restart"] = ms(took)
	_, err = t.each(ctx, list, func(ctx context.Context, p *pod) error { return p.down(ctx) })
	return err
}

func (t *target) restart(ctx context.Context, n int) (time.Duration, error) {
	_ = t.cri.Close()
	if err := t.kill(); err != nil {
		return 0, err
	}
	begin := time.Now()
	if err := t.launch(); err != nil {
		return 0, err
	}
	if err := t.connect(ctx); err != nil {
		return 0, err
	}
	for {
		pods, err := t.cri.ListPodSandbox(ctx,
			&cri.ListPodSandboxRequest{
				Filter: &cri.PodSandboxFilter{
					State: &cri.PodSandboxStateValue{State: cri.PodSandboxState_SANDBOX_READY}}})
		if err == nil && len(pods.Items) == n {
			list, err := t.cri.ListContainers(ctx,
				&cri.ListContainersRequest{
					Filter: &cri.ContainerFilter{
						State: &cri.ContainerStateValue{State: cri.ContainerState_CONTAINER_RUNNING}}})
			if err == nil && len(list.Containers) == n {
				return time.Since(begin), nil
			}
		}
		if time.Since(begin) > time.Minute {
			return 0, fmt.Errorf("after a restart there are %d pods, want %d: %w", len(pods.GetItems()), n, err)
		}
		time.Sleep(time.Millisecond)
	}
}

// boot is a restart without pods, the best of five.
func (t *target) boot(ctx context.Context, v map[string]float64) error {
	var took []float64
	for range 5 {
		d, err := t.restart(ctx, 0)
		if err != nil {
			return err
		}
		took = append(took, ms(d))
	}
	v["boot"] = quantile(took, 0.5)
	return nil
}

// steps has the runtime's process note its steps during serial cycles.
func (t *target) steps(ctx context.Context, n int) ([]step, error) {
	if err := t.serial(ctx, "steps-warm", 3, map[string]float64{}); err != nil {
		return nil, err
	}
	if _, err := t.cri.RunPodSandbox(ctx, &cri.RunPodSandboxRequest{Config: t.pod(resetName).config}); err == nil {
		return nil, errors.New("the runtime took a sign for a pod")
	}
	if err := t.serial(ctx, "steps", n, map[string]float64{}); err != nil {
		return nil, err
	}
	_ = t.cri.Close()
	end := t.end
	if err := end(); err != nil {
		return nil, err
	}
	t.cri, t.end = nil, nil
	return readSteps(filepath.Join(t.dir, "steps.json"))
}

func (t *target) removeAll(ctx context.Context) error {
	list, err := t.cri.ListPodSandbox(ctx, nil)
	if err != nil {
		return err
	}
	for _, s := range list.Items {
		_, serr := t.cri.StopPodSandbox(ctx, &cri.StopPodSandboxRequest{PodSandboxId: s.Id})
		_, rerr := t.cri.RemovePodSandbox(ctx, &cri.RemovePodSandboxRequest{PodSandboxId: s.Id})
		err = errors.Join(err, serr, rerr)
	}
	return err
}
