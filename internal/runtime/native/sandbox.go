package native

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/klog/v2"

	"carob/internal/network"
	"carob/internal/runtime/native/monitor"
	"carob/internal/runtime/native/state"
	"carob/internal/runtime/native/wire"
)

// sandbox is a pod sandbox: its namespaces, held by its monitor, and its files.
//
//	        RunPodSandbox             StopPodSandbox, or the monitor dies
//	(none) ───────────────> ready ───────────────────────────────> not ready ──Remove──> (gone)
type sandbox struct {
	config *cri.PodSandboxConfig
	name   string

	stopping sync.Mutex   // one Stop or Remove at a time
	attached atomic.Int32 // clients

	mu  sync.Mutex
	rec state.Sandbox
	mon *monitor.Monitor // nil when not ready
}

func (s *sandbox) options() *cri.NamespaceOption {
	return s.config.GetLinux().GetSecurityContext().GetNamespaceOptions()
}

func (s *sandbox) hostNetwork() bool { return s.options().GetNetwork() == cri.NamespaceMode_NODE }

func (s *sandbox) line() *monitor.Monitor {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.mon
}

func sandboxName(m *cri.PodSandboxMetadata) string {
	return fmt.Sprintf("sandbox %s_%s_%s_%d", m.GetName(), m.GetNamespace(), m.GetUid(), m.GetAttempt())
}

// RunPodSandbox creates a sandbox. Its network, files, and monitor are created in parallel.
func (r *Runtime) RunPodSandbox(ctx context.Context, req *cri.RunPodSandboxRequest) (*cri.RunPodSandboxResponse,
	error) {
	cfg := req.GetConfig()
	if cfg.GetMetadata().GetName() == "" {
		return nil, status.Error(codes.InvalidArgument, "sandbox config must include metadata with a name")
	}
	if err := wire.RefuseNUL(cfg); err != nil {
		return nil, err
	}
	if h := req.GetRuntimeHandler(); h != "" && h != handlerName {
		return nil, status.Errorf(codes.InvalidArgument,
			"no runtime for %q is configured; there are the default and %q", h, handlerName)
	}
	id := newID()
	s := &sandbox{config: cfg, name: sandboxName(cfg.Metadata)}
	s.rec = state.Sandbox{ID: id, Config: state.Encode(cfg), Handler: req.GetRuntimeHandler(),
		CreatedAt: time.Now().UnixNano()}
	if err := r.reserve(s.name, id); err != nil {
		return nil, err
	}
	if err := r.makeSandbox(ctx, s); err != nil {
		err = fmt.Errorf("failed to create pod sandbox: %w", err)
		r.discardSandbox(context.WithoutCancel(ctx), s)
		r.release(s.name)
		return nil, coded(err)
	}
	r.mu.Lock()
	r.sandboxes[id] = s
	r.mu.Unlock()
	s.mon.Listen(r.listener(s))
	go r.watch(s, s.mon)
	r.publish(s, id, cri.ContainerEventType_CONTAINER_CREATED_EVENT)
	r.publish(s, id, cri.ContainerEventType_CONTAINER_STARTED_EVENT)
	return &cri.RunPodSandboxResponse{PodSandboxId: id}, nil
}

func (r *Runtime) makeSandbox(ctx context.Context, s *sandbox) error {
	if err := os.Mkdir(r.sandboxDir(s.rec.ID), 0o700); err != nil {
		return fmt.Errorf("making the sandbox's directory: %w", err)
	}
	if err := os.Mkdir(r.runDir(s.rec.ID), 0o700); err != nil {
		return fmt.Errorf("making the sandbox's directory: %w", err)
	}
	if err := r.reached(StepSandboxDirs, s.rec.ID); err != nil {
		return err
	}
	owner, err := r.makeUserNS(s)
	if err != nil {
		return err
	}
	defer owner.close()
	if err := r.reached(StepSandboxUserNS, s.rec.ID); err != nil {
		return err
	}
	var side sync.WaitGroup
	var merr, nerr error
	var listener *os.File
	side.Go(func() {
		if s.mon, merr = r.pool.Get(); merr == nil {
			listener, merr = monitor.Listen(r.runDir(s.rec.ID))
		}
	})
	side.Go(func() {
		nerr = errors.Join(r.attach(ctx, s, owner.netNS()), r.reached(StepSandboxNetwork, s.rec.ID))
	})
	ferr := errors.Join(r.writePodFiles(s), r.reached(StepSandboxFiles, s.rec.ID))
	side.Wait()
	defer listener.Close() // nil after a failure; Close accepts that
	if err := errors.Join(nerr, ferr, merr); err != nil {
		return err
	}
	if err := r.reached(StepSandboxMonitor, s.rec.ID); err != nil {
		return err
	}
	if err := r.setupMonitor(s, owner, listener); err != nil {
		return err
	}
	if err := r.reached(StepSandboxSetup, s.rec.ID); err != nil {
		return err
	}
	s.rec.Monitor = s.mon.PID()
	s.rec.Protocol = s.mon.Protocol()
	if err := ctx.Err(); err != nil {
		return err
	}
	if err := state.Create(r.sandboxDir(s.rec.ID), &s.rec); err != nil {
		return err
	}
	return r.reached(StepSandboxRecord, s.rec.ID)
}

func (r *Runtime) attach(ctx context.Context, s *sandbox, netNS string) error {
	if s.hostNetwork() {
		return nil
	}
	m := s.config.Metadata
	pod := network.Pod{UID: m.Uid, Namespace: m.Namespace, Name: m.Name, SandboxID: s.rec.ID, NetNS: netNS,
		Labels: s.config.Labels}
	var err error
	if pod.Bandwidth, err = network.BandwidthOf(s.config.Annotations); err != nil {
		return status.Errorf(codes.InvalidArgument, "failed to setup network for sandbox %q: %v", s.rec.ID, err)
	}
	for _, p := range s.config.PortMappings {
		if p.HostPort == 0 {
			continue
		}
		if p.HostPort < 0 || p.HostPort > math.MaxUint16 || p.ContainerPort < 0 || p.ContainerPort > math.MaxUint16 {
			return status.Errorf(codes.InvalidArgument, "port mapping %d→%d: a port is at most %d", p.HostPort,
				p.ContainerPort, math.MaxUint16)
		}
		pm := network.PortMapping{Protocol: strings.ToLower(p.Protocol.String()),
			ContainerPort: uint16(p.ContainerPort), HostPort: uint16(p.HostPort)}
		if p.HostIp != "" {
			ip, err := netip.ParseAddr(p.HostIp)
			if err != nil {
				return status.Errorf(codes.InvalidArgument, "host IP of port %d: %v", p.HostPort, err)
			}
			pm.HostIP = ip
		}
		pod.Ports = append(pod.Ports, pm)
	}
	a, err := r.cfg.Network.Attach(ctx, pod)
	if err != nil {
		return fmt.Errorf("failed to setup network for sandbox %q: %w", s.rec.ID, err)
	}
	s.rec.NetNS = a.NetNS
	for _, ip := range a.IPs {
		s.rec.IPs = append(s.rec.IPs, ip.String())
	}
	return nil
}

func (s *sandbox) hostname() string {
	if h := s.config.Hostname; h != "" {
		return h
	}
	h, _ := os.Hostname() // a pod in the host's network has the host's name
	return h
}

func (r *Runtime) setupMonitor(s *sandbox, owner *holder, listener *os.File) error {
	sysctls, err := sysctlsOf(s)
	if err != nil {
		return err
	}
	set := monitor.PodSetup{Listener: listener, Sysctls: sysctls,
		SharePID: s.options().GetPid() == cri.NamespaceMode_POD}
	if owner != nil {
		set.Owner, set.Join = owner.pidfd, ownedKinds(s)
	} else {
		set.Unshare = ownedKinds(s)
	}
	if !s.hostNetwork() {
		set.Hostname = s.hostname()
		if set.NetNS, err = os.Open(s.rec.NetNS); err != nil {
			return fmt.Errorf("opening the pod's network namespace: %w", err)
		}
		defer set.NetNS.Close()
	}
	return s.mon.Setup(set)
}

// discardSandbox removes whatever makeSandbox created, finished or not, now or as soon as possible.
func (r *Runtime) discardSandbox(ctx context.Context, s *sandbox) {
	remove := func(ctx context.Context) error {
		if err := r.haltSandbox(ctx, s); err != nil {
			return err
		}
		return r.removeSandboxDirs(s.rec.ID)
	}
	if err := remove(ctx); err != nil {
		r.retries.Add("removing a half-made sandbox", s.rec.ID, err, remove)
	}
}

// removeSandboxDirs removes the record's directory last: with it, the next start finds the rest.
func (r *Runtime) removeSandboxDirs(id string) error {
	if err := removeDir(r.runDir(id)); err != nil {
		return err
	}
	return removeDir(r.sandboxDir(id))
}

// haltSandbox frees everything that a sandbox that is not ready must not hold.
func (r *Runtime) haltSandbox(ctx context.Context, s *sandbox) error {
	s.mu.Lock()
	m := s.mon
	s.mon = nil
	s.mu.Unlock()
	r.scraped.Forget(s.rec.ID) // an open file would keep the network namespace alive
	if m != nil {
		m.Quit()
	}
	var errs []error
	errs = append(errs, r.reached(StepHaltMonitor, s.rec.ID))
	if !s.hostNetwork() {
		if err := r.cfg.Network.Detach(ctx, s.rec.ID); err != nil {
			errs = append(errs, fmt.Errorf("failed to destroy network for sandbox %q: %w", s.rec.ID, err))
		}
	}
	errs = append(errs, r.reached(StepHaltNetwork, s.rec.ID))
	for _, pin := range []string{"shm", "userns"} {
		path := filepath.Join(r.runDir(s.rec.ID), pin)
		if err := unix.Unmount(path, unix.MNT_DETACH); err != nil && !errors.Is(err, unix.EINVAL) &&
			!errors.Is(err, unix.ENOENT) {
			errs = append(errs, fmt.Errorf("unmounting %s: %w", path, err))
		}
	}
	errs = append(errs, r.reached(StepHaltMounts, s.rec.ID))
	return errors.Join(errs...)
}

// removeDir removes a directory of the runtime, never through a mount. A monitor may still write
// there how a helper ended whose start has already failed.
func removeDir(dir string) error {
	for tries := 0; ; tries++ {
		err := emptyDir(dir)
		if err == nil {
			err = unix.Rmdir(dir)
		}
		switch {
		case err == nil || errors.Is(err, unix.ENOENT):
			return nil
		case !errors.Is(err, unix.ENOTEMPTY) || tries == 3: // it writes two files
			return fmt.Errorf("removing %s: %w", dir, err)
		}
	}
}

func emptyDir(dir string) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if e.IsDir() {
			err = unix.Rmdir(filepath.Join(dir, e.Name())) // they are mount points, empty once unmounted
		} else {
			err = unix.Unlink(filepath.Join(dir, e.Name()))
		}
		if err != nil && !errors.Is(err, unix.ENOENT) {
			return fmt.Errorf("%s: %w", e.Name(), err)
		}
	}
	return nil
}

// listener passes a monitor's events to their containers.
func (r *Runtime) listener(s *sandbox) func(monitor.Event) {
	return func(e monitor.Event) {
		if e.Container == "" {
			go r.sandboxDied(s)
			return
		}
		r.mu.RLock()
		c := r.containers[e.Container]
		r.mu.RUnlock()
		if c != nil {
			go r.exited(c, state.Exit{Code: e.Code, At: e.At, OOM: e.OOM})
		}
	}
}

// watch handles a lost connection to a monitor. A monitor that still answers (it closed a
// connection that was too slow) is called again and reports what was missed; otherwise the sandbox
// has died.
func (r *Runtime) watch(s *sandbox, m *monitor.Monitor) {
	<-m.Gone()
	if s.line() != m || r.events.isClosed() {
		return
	}
	if again, err := monitor.Dial(r.runDir(s.rec.ID)); err == nil {
		if alive, err := again.List(); err == nil && s.replaceLine(m, again) {
			again.Listen(r.listener(s))
			go r.watch(s, again)
			for _, c := range r.containersOf(s.rec.ID) {
				if c.running() && !alive[c.rec.ID] {
					if e, ok, err := state.LoadExit(r.containerDir(c.rec.ID)); ok && err == nil {
						r.exited(c, e)
					}
				}
			}
			return
		}
		again.Close()
	}
	r.sandboxDied(s)
}

func (s *sandbox) replaceLine(old, again *monitor.Monitor) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.mon != old {
		return false
	}
	s.mon = again
	return true
}

// sandboxDied ends a sandbox whose monitor or first process is gone: nothing can be started in it,
// and no process records exit codes.
func (r *Runtime) sandboxDied(s *sandbox) {
	ctx := context.Background()
	r.endContainers(s) // a stop that holds the lock waits for these ends
	s.stopping.Lock()
	defer s.stopping.Unlock()
	if s.line() == nil {
		return
	}
	r.endContainers(s) // those whose start was about to end
	if err := r.stopLocked(ctx, s); err != nil {
		klog.Background().Error(err, "Sandbox that died was not fully stopped", "sandbox", s.rec.ID)
	}
}

// endContainers ends the containers of a sandbox that has died.
func (r *Runtime) endContainers(s *sandbox) {
	m := s.line()
	if m == nil {
		return
	}
	for _, c := range r.containersOf(s.rec.ID) {
		if !c.running() {
			continue
		}
		select {
		case <-m.Gone():
			r.endLost(c)
		default: // the monitor is alive and will report it
			r.groups.KillAll(c.rec.Cgroup)
		}
	}
}

// StopPodSandbox kills everything in the sandbox and releases its network. It can be called any
// number of times. An unknown sandbox is not an error.
func (r *Runtime) StopPodSandbox(ctx context.Context, req *cri.StopPodSandboxRequest) (*cri.StopPodSandboxResponse,
	error) {
	s, err := r.sandbox(req.GetPodSandboxId())
	if status.Code(err) == codes.NotFound {
		return &cri.StopPodSandboxResponse{}, nil
	}
	if err != nil {
		return nil, err
	}
	s.stopping.Lock()
	defer s.stopping.Unlock()
	if err := r.stopLocked(ctx, s); err != nil {
		return nil, coded(fmt.Errorf("failed to stop sandbox %q: %w", s.rec.ID, err))
	}
	return &cri.StopPodSandboxResponse{}, nil
}

func (r *Runtime) stopLocked(ctx context.Context, s *sandbox) error {
	s.mu.Lock()
	done := s.rec.StoppedAt != 0
	s.mu.Unlock()
	if done {
		return nil
	}
	var wg sync.WaitGroup
	list := r.containersOf(s.rec.ID)
	errs := make([]error, len(list))
	for i, c := range list {
		wg.Go(func() {
			errs[i] = r.stop(ctx, c, 0)
		})
	}
	wg.Wait()
	if err := errors.Join(errs...); err != nil {
		return err
	}
	if err := r.haltSandbox(ctx, s); err != nil {
		return err
	}
	s.mu.Lock()
	s.rec.StoppedAt = time.Now().UnixNano()
	rec := s.rec
	s.mu.Unlock()
	if err := state.Save(r.sandboxDir(rec.ID), &rec); err != nil { // the next start sees that it has no monitor
		klog.FromContext(ctx).Error(err, "Cannot write the end of a sandbox", "sandbox", rec.ID)
	}
	if err := r.reached(StepHaltRecord, rec.ID); err != nil {
		return err
	}
	r.publish(s, rec.ID, cri.ContainerEventType_CONTAINER_STOPPED_EVENT)
	return nil
}

// RemovePodSandbox removes the sandbox and its containers, running or not. An unknown sandbox is
// not an error.
func (r *Runtime) RemovePodSandbox(ctx context.Context,
	req *cri.RemovePodSandboxRequest) (*cri.RemovePodSandboxResponse, error) {
	s, err := r.sandbox(req.GetPodSandboxId())
	if status.Code(err) == codes.NotFound {
		return &cri.RemovePodSandboxResponse{}, nil
	}
	if err != nil {
		return nil, err
	}
	s.stopping.Lock()
	defer s.stopping.Unlock()
	if err := r.removeSandbox(ctx, s); err != nil {
		return nil, coded(fmt.Errorf("failed to remove sandbox %q: %w", s.rec.ID, err))
	}
	return &cri.RemovePodSandboxResponse{}, nil
}

func (r *Runtime) removeSandbox(ctx context.Context, s *sandbox) error {
	if err := r.stopLocked(ctx, s); err != nil {
		return err
	}
	for _, c := range r.containersOf(s.rec.ID) {
		if err := r.remove(ctx, c); err != nil {
			return err
		}
	}
	if err := errors.Join(r.removeSandboxDirs(s.rec.ID), r.reached(StepRemovePod, s.rec.ID)); err != nil {
		return err
	}
	r.mu.Lock()
	_, known := r.sandboxes[s.rec.ID]
	delete(r.sandboxes, s.rec.ID)
	delete(r.names, s.name)
	r.mu.Unlock()
	if known {
		r.publish(s, s.rec.ID, cri.ContainerEventType_CONTAINER_DELETED_EVENT)
	}
	return nil
}
