package native

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/klog/v2"

	"carob/internal/base/netns"
	"carob/internal/runtime/native/monitor"
	"carob/internal/runtime/native/state"
)

// adopt takes over everything that an earlier carob left: pods whose monitor answers continue,
// containers that ended meanwhile get their exit codes, unfinished objects are removed.
func (r *Runtime) adopt(ctx context.Context) error {
	if err := r.readSandboxes(ctx); err != nil {
		return err
	}
	if err := r.readContainers(ctx); err != nil {
		return err
	}
	if err := r.forgetSecrets(); err != nil {
		return err
	}
	for _, s := range r.sandboxes {
		if err := r.adoptSandbox(ctx, s); err != nil {
			return err
		}
	}
	return r.adoptNetwork(ctx)
}

// readSandboxes reads the records of all sandboxes, and removes sandboxes that were never finished.
func (r *Runtime) readSandboxes(ctx context.Context) error {
	names, err := dirNames(r.sandboxDir(""))
	if err != nil {
		return err
	}
	for _, id := range names {
		s := &sandbox{}
		err := state.Load(r.sandboxDir(id), &s.rec)
		if state.Unreadable(err) {
			return err
		}
		if err == nil {
			s.config, err = s.rec.Decoded()
		}
		if err != nil || s.rec.ID != id {
			klog.FromContext(ctx).Info("Removing a sandbox whose creation was interrupted", "sandbox", id)
			half := &sandbox{rec: state.Sandbox{ID: id}}
			half.mon, _ = monitor.Dial(r.runDir(id))
			r.discardSandbox(ctx, half)
			continue
		}
		s.name = sandboxName(s.config.GetMetadata())
		r.sandboxes[id], r.names[s.name] = s, id
	}
	return nil
}

// readContainers reads the records of all containers, and removes containers that were never finished.
func (r *Runtime) readContainers(ctx context.Context) error {
	names, err := dirNames(r.containerDir(""))
	if err != nil {
		return err
	}
	for _, id := range names {
		c := &container{started: make(chan struct{}), done: make(chan struct{})}
		err := state.Load(r.containerDir(id), &c.rec)
		if state.Unreadable(err) {
			return err
		}
		if err == nil {
			if c.config, err = r.configOf(&c.rec); state.Unreadable(err) {
				return err
			}
		}
		if c.sandbox = r.sandboxes[c.rec.SandboxID]; err == nil && c.sandbox == nil {
			err = errors.New("its sandbox is gone")
		}
		if err != nil || c.rec.ID != id {
			klog.FromContext(ctx).Info("Removing a container whose creation was interrupted", "container", id)
			c.rec.ID = id
			if c.rec.Cgroup == "" {
				c.rec.Cgroup = r.cfg.CgroupRoot + "/" + id
			}
			r.groups.KillAll(c.rec.Cgroup)
			r.discardContainer(ctx, c)
			continue
		}
		c.name = containerName(c.sandbox, c.config.GetMetadata())
		r.containers[id], r.names[c.name] = c, id
		if err := r.hideSecrets(c); err != nil {
			return err
		}
	}
	return nil
}

// adoptNetwork frees the places in the network that no sandbox uses, and stops pods that have lost theirs.
func (r *Runtime) adoptNetwork(ctx context.Context) error {
	live := map[string]bool{}
	for id, s := range r.sandboxes {
		if s.mon != nil {
			live[id] = true
		}
	}
	if err := r.cfg.Network.Sweep(ctx, live); err != nil {
		if ctx.Err() != nil {
			return err
		}
		// CNI plugins may need this cluster's API server, which does not run yet, or may have been removed. The agent
		// frees the places of stopped sandboxes again, and the next start those of sandboxes without a record.
		klog.FromContext(ctx).Error(err, "The network of ended sandboxes is not fully freed")
	}
	// A pod whose network is gone, because its address range changed or another program removed it, would
	// run in a namespace without a connection: it is stopped, and its sandbox is created again.
	for id := range live {
		if path := r.sandboxes[id].rec.NetNS; path == "" || netns.Pinned(path) {
			continue
		}
		log := klog.FromContext(ctx)
		log.Info("Sandbox lost its network", "sandbox", id)
		if _, err := r.StopPodSandbox(ctx, &cri.StopPodSandboxRequest{PodSandboxId: id}); err != nil {
			log.Error(err, "Sandbox without a network is not fully stopped", "sandbox", id)
		}
	}
	return nil
}

func (r *Runtime) adoptSandbox(ctx context.Context, s *sandbox) error {
	var alive map[string]bool
	if s.rec.StoppedAt == 0 {
		m, err := monitor.Dial(r.runDir(s.rec.ID))
		if err == nil {
			if alive, err = m.List(); err != nil {
				m.Close()
			} else {
				s.mon = m
			}
		}
		if err != nil {
			klog.FromContext(ctx).Info("Sandbox lost its monitor", "sandbox", s.rec.ID, "reason", err.Error())
		}
	}
	for _, c := range r.containersOf(s.rec.ID) {
		if err := r.adoptContainer(ctx, c, s.mon, alive[c.rec.ID]); err != nil {
			return err
		}
	}
	switch {
	case s.mon != nil:
		s.mon.Listen(r.listener(s))
		go r.watch(s, s.mon)
	case s.rec.StoppedAt == 0:
		if err := r.haltSandbox(ctx, s); err != nil {
			klog.FromContext(ctx).Error(err, "Sandbox without a monitor is not fully stopped", "sandbox", s.rec.ID)
			return nil // StopPodSandbox finishes it
		}
		s.rec.StoppedAt = time.Now().UnixNano()
		if err := state.Save(r.sandboxDir(s.rec.ID), &s.rec); err != nil {
			klog.FromContext(ctx).Error(err, "Cannot write the end of a sandbox", "sandbox", s.rec.ID)
		}
	}
	return nil
}

func (r *Runtime) adoptContainer(ctx context.Context, c *container, m *monitor.Monitor, alive bool) error {
	if c.rec.StartedAt == 0 && c.rec.FinishedAt == 0 && c.sandbox.rec.Protocol >= 2 &&
		r.adoptStarting(ctx, c, m, alive) {
		return nil
	}
	e, ended, err := state.LoadExit(r.containerDir(c.rec.ID))
	if err != nil {
		klog.Background().Error(err, "The exit code of a container cannot be read", "container", c.rec.ID)
		e, ended = state.Exit{Code: unknownExit, At: time.Now().UnixNano()}, !alive
	}
	switch {
	case c.rec.FinishedAt != 0:
		c.finished.Do(func() { close(c.done) })
		close(c.started)
	case c.rec.StartedAt == 0 && !alive && !ended:
		r.adoptCreated(c)
	case c.rec.StartedAt == 0:
		// carob ended between the start and its record, and the monitor does not report whether the process began,
		// because it is of an earlier release or does not respond: the start counts as failed.
		close(c.started)
		r.groups.KillAll(c.rec.Cgroup)
		r.finish(c, func(rec *state.Container) {
			rec.FinishedAt, rec.ExitCode, rec.Reason = time.Now().UnixNano(), startErrorExit, "StartError"
			rec.Message = "the runtime was restarted while the container started"
		})
	case alive:
		close(c.started)
	default:
		close(c.started)
		if !ended {
			r.groups.KillAll(c.rec.Cgroup)
			r.finish(c, func(rec *state.Container) {
				rec.FinishedAt, rec.ExitCode, rec.Reason = time.Now().UnixNano(), unknownExit, "Unknown"
			})
			return nil
		}
		r.exited(c, e)
	}
	return nil
}

// adoptCreated adopts a container that can still be started: it was only created, its start never
// reached the monitor, or its helper ended before the process began.
func (r *Runtime) adoptCreated(c *container) {
	c.rec.LaunchedAt, c.rec.User = 0, nil
	if err := r.groups.End(c.rec.Cgroup); err != nil {
		klog.Background().Error(err, "Cannot remove the cgroup of a created container; trying again at its removal",
			"container", c.rec.ID)
	}
}

// adoptStarting adopts a container whose start was not recorded, if its monitor can report whether its process began
// (L7.70); otherwise it returns false. A helper that has not finished either ends, because the carob to which it sent
// its question is gone, or becomes the process: adoptStarting waits for that.
func (r *Runtime) adoptStarting(ctx context.Context, c *container, m *monitor.Monitor, alive bool) bool {
	began, pid := false, 0
	if alive {
		var err error
		if began, pid, err = m.Begun(c.rec.ID); err != nil && !errors.Is(err, unix.ESRCH) {
			klog.FromContext(ctx).Error(err, "The result of the start of a container is not known",
				"container", c.rec.ID)
			return false
		}
	}
	// The exit that its monitor recorded is that of the user's process.
	e, ended, err := state.LoadExit(r.containerDir(c.rec.ID))
	if err != nil {
		return false
	}
	if !began && !ended {
		r.adoptCreated(c)
		return true
	}
	c.rec.StartedAt, c.rec.Pid = c.rec.LaunchedAt, pid
	if c.rec.StartedAt == 0 {
		c.rec.StartedAt = time.Now().UnixNano()
	}
	if err := r.saveContainer(c); err != nil {
		klog.FromContext(ctx).Error(err, "Cannot write the start of a container", "container", c.rec.ID)
	}
	close(c.started)
	if ended {
		r.exited(c, e)
	}
	return true
}

func dirNames(dir string) ([]string, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, fmt.Errorf("adopting %s: %w", dir, err)
	}
	var names []string
	for _, e := range entries {
		if e.IsDir() {
			names = append(names, e.Name())
		}
	}
	return names, nil
}
