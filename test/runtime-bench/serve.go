package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/signal"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"carob/internal/network/bridge"
	"carob/internal/runtime"
	"carob/internal/runtime/native"
	"carob/internal/runtime/native/criserver"
	"carob/internal/runtime/native/images"
	"carob/internal/runtime/native/streaming"
)

// serveDir is the environment variable that makes this program the runtime's process.
const serveDir = "RUNTIME_BENCH_SERVE"

// settings are what the measuring process sends to the serving one.
type settings struct {
	Cgroup, Bridge, Subnet string
	Archive                string // imported when the store is empty
}

func (s *settings) network(dir string) (bridge.Config, error) {
	pods, err := netip.ParsePrefix(s.Subnet)
	return bridge.Config{Bridge: s.Bridge, Table: s.Bridge, Pods: pods,
		StateDir: filepath.Join(dir, "network"), RunDir: filepath.Join(dir, "run")}, err
}

// serve is carob's runtime as the product composes it, without the rest of carob.
func serve(dir string) (err error) {
	b, err := os.ReadFile(filepath.Join(dir, "settings.json"))
	if err != nil {
		return err
	}
	var set settings
	if err := json.Unmarshal(b, &set); err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	store, err := images.Open(ctx, images.Config{Root: filepath.Join(dir, "images")})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, store.Close()) }()
	if list, err := store.ListImages(ctx, nil); err != nil {
		return err
	} else if len(list.Images) == 0 {
		f, err := os.Open(set.Archive)
		if err != nil {
			return err
		}
		defer f.Close()
		if _, err := store.Import(ctx, f, nil); err != nil {
			return err
		}
	}
	cfg, err := set.network(dir)
	if err != nil {
		return err
	}
	net, err := bridge.Open(ctx, cfg)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, net.Close()) }()
	watch := &stopwatch{times: map[string][]time.Duration{}}
	rt, err := native.New(ctx, native.Config{RootDir: filepath.Join(dir, "root"),
		StateDir: filepath.Join(dir, "run", "rt"), CgroupRoot: set.Cgroup,
		Images: store, Network: net, SandboxPool: 4, Checkpoint: watch.lap})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, rt.Close()) }()
	streams, err := streaming.New(rt.Streams())
	if err != nil {
		return err
	}
	rt.UseStreaming(streams)
	go func() { _ = streams.Run(ctx) }()
	// A socket of an earlier process that was killed is replaced.
	l, err := criserver.Listen(filepath.Join(dir, "c.sock"), 0o600)
	if err != nil {
		return err
	}
	if err := criserver.New(&timed{Runtime: rt, watch: watch}).Run(ctx, l); err != nil {
		return err
	}
	return watch.write(filepath.Join(dir, "steps.json"))
}

// stopwatch adds up how long steps took while one call at a time is made; what
// several calls at once leave in it means nothing.
type stopwatch struct {
	mu    sync.Mutex
	last  time.Time
	order []string
	times map[string][]time.Duration
}

func (s *stopwatch) begin() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.last = time.Now()
}

func (s *stopwatch) lap(step native.Step, _ string) error {
	s.note(string(step))
	return nil
}

func (s *stopwatch) note(step string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	if _, ok := s.times[step]; !ok {
		s.order = append(s.order, step)
	}
	s.times[step] = append(s.times[step], now.Sub(s.last))
	s.last = now
}

func (s *stopwatch) reset() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.order, s.times = nil, map[string][]time.Duration{}
}

// step is one line of the table of steps.
type step struct {
	name     string
	p50, p95 float64 // µs
}

func (s *stopwatch) write(file string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	type line struct {
		Name  string
		Times []time.Duration
	}
	var lines []line
	for _, n := range s.order {
		lines = append(lines, line{n, s.times[n]})
	}
	b, err := json.Marshal(lines)
	if err != nil {
		return err
	}
	return os.WriteFile(file, b, 0o600)
}

func readSteps(file string) ([]step, error) {
	b, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	var lines []struct {
		Name  string
		Times []time.Duration
	}
	if err := json.Unmarshal(b, &lines); err != nil {
		return nil, err
	}
	var steps []step
	for _, l := range lines {
		us := make([]float64, len(l.Times))
		for i, t := range l.Times {
			us[i] = float64(t.Nanoseconds()) / 1000
		}
		steps = append(steps, step{l.Name, quantile(us, 0.5), quantile(us, 0.95)})
	}
	return steps, nil
}

// timed starts the watch at the beginning of each call and notes what is left at its end.
type timed struct {
	runtime.Runtime
	watch *stopwatch
}

func (t *timed) RunPodSandbox(ctx context.Context, r *cri.RunPodSandboxRequest) (*cri.RunPodSandboxResponse, error) {
	if r.GetConfig().GetMetadata().GetName() == resetName {
		t.watch.reset()
		return nil, fmt.Errorf("only a sign")
	}
	t.watch.begin()
	defer t.watch.note("run/rest")
	return t.Runtime.RunPodSandbox(ctx, r)
}

func (t *timed) CreateContainer(ctx context.Context, r *cri.CreateContainerRequest) (*cri.CreateContainerResponse,
	error) {
	t.watch.begin()
	defer t.watch.note("create/rest")
	return t.Runtime.CreateContainer(ctx, r)
}

func (t *timed) StartContainer(ctx context.Context, r *cri.StartContainerRequest) (*cri.StartContainerResponse, error) {
	t.watch.begin()
	defer t.watch.note("start/rest")
	return t.Runtime.StartContainer(ctx, r)
}

func (t *timed) StopContainer(ctx context.Context, r *cri.StopContainerRequest) (*cri.StopContainerResponse, error) {
	t.watch.begin()
	defer t.watch.note("stop/rest")
	return t.Runtime.StopContainer(ctx, r)
}

func (t *timed) StopPodSandbox(ctx context.Context, r *cri.StopPodSandboxRequest) (*cri.StopPodSandboxResponse, error) {
	t.watch.begin()
	defer t.watch.note("halt/rest")
	return t.Runtime.StopPodSandbox(ctx, r)
}

func (t *timed) RemovePodSandbox(ctx context.Context, r *cri.RemovePodSandboxRequest) (*cri.RemovePodSandboxResponse,
	error) {
	t.watch.begin()
	defer t.watch.note("remove/rest")
	return t.Runtime.RemovePodSandbox(ctx, r)
}

// resetName is the name of a sandbox that is none: steps before it don't count.
const resetName = "runtime-bench reset"
