// Package node is the node agent: it runs the pods that are bound to this machine, through a container runtime, and
// reports their status.
//
// app builds an Agent and runs it. core/podlife decides what must happen to a pod; this package and its parts only
// drive: pods/ owns each pod, observe/ reads the runtime's state, execute/ carries out actions, status/ writes to the
// API. It must never decide about a pod by itself, and uses a runtime only through CRI.
//
// Contract: docs/spec/pod-lifecycle.md.
package node

import (
	"context"
	"fmt"
	"os"
	"sync/atomic"

	"golang.org/x/sync/errgroup"
	"k8s.io/klog/v2"

	"carob/internal/node/eviction"
)

// Agent is one node agent.
//
//	New ──Run──▶ starting ──Node object stored──▶ taking pods ──first look at the runtime──▶ Ready
//	                                                  └──ctx ends──▶ stopped
//
// Containers outlive it: a later Agent on the same RootDir takes them over.
type Agent struct {
	cfg   Config
	ready chan struct{}
	parts atomic.Pointer[parts] // nil before Run has built them
	moved chan struct{}         // capacity 1: the machine has other addresses
}

// New checks cfg and builds an agent; nothing is started or changed before Run.
func New(cfg Config) (*Agent, error) {
	cfg.setDefaults()
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	return &Agent{cfg: cfg, ready: make(chan struct{}), moved: make(chan struct{}, 1)}, nil
}

// Run runs the node agent until ctx ends and everything that it started has stopped. Then it returns nil; it returns an
// error if the agent could not continue. Run may be called once.
func (a *Agent) Run(ctx context.Context) error {
	ctx = klog.NewContext(ctx, klog.FromContext(ctx).WithName("node"))
	if err := a.makeDirs(); err != nil {
		return err
	}
	p, err := build(ctx, &a.cfg)
	if err != nil {
		return err
	}
	a.parts.Store(p)

	g, ctx := errgroup.WithContext(ctx)
	drive := func(run func(context.Context)) {
		g.Go(func() error { run(ctx); return nil })
	}
	part := func(name string, run func(context.Context) error) {
		g.Go(func() error {
			if err := run(ctx); err != nil && ctx.Err() == nil {
				return fmt.Errorf("%s: %w", name, err)
			}
			return nil
		})
	}
	if !p.cfg.Standalone {
		drive(p.events.Run)
	}
	drive(p.status.Run)
	drive(func(ctx context.Context) { p.reporter.Run(ctx, p.sourcesOfNode()) })
	drive(p.pods.Run)
	part("referenced objects", p.refs.Run)
	part("volumes", p.volumes.Run)
	if p.devices != nil {
		part("devices", func(ctx context.Context) error { return p.devices.Run(ctx, p.deviceHooks()) })
	}
	if p.csi != nil {
		g.Go(func() error {
			select {
			case <-p.reporter.Registered():
				return p.csi.Run(ctx)
			case <-ctx.Done():
				return nil
			}
		})
	}
	if p.pinning != nil {
		drive(func(ctx context.Context) { p.pinning.Run(ctx, p.runningContainers) })
	}
	part("static pods", p.manifests)
	drive(func(ctx context.Context) { p.statics.Run(ctx, staticRunner{p.pods}) })
	drive(p.eviction.Run)
	if p.cfg.MemoryNotifications {
		drive(eviction.NewNotifier(*p.cfg.Eviction, p.reporter.Wake).Run)
	}
	drive(p.watchOOM)
	drive(p.enforceLimits)
	drive(p.watchHandlers)
	if p.shutdown != nil {
		drive(func(ctx context.Context) { p.shutdown.Run(ctx, p.pods) })
	}
	part("log rotation", p.rotator.Run)
	if p.server != nil {
		part("server", p.server.Run)
	}
	drive(func(ctx context.Context) { p.follow(ctx, a.moved) })
	for _, t := range p.cfg.Traffic {
		drive(func(ctx context.Context) { t.Follow(ctx, p.pods.Released) })
	}
	if p.cfg.Queues != nil {
		drive(func(ctx context.Context) { p.cfg.Queues.Follow(ctx, p.pods.Released) })
	}
	// Pods can be admitted only to a node whose object is known (L3.27).
	g.Go(func() error {
		select {
		case <-p.reporter.Registered():
			p.sources(ctx)
		case <-ctx.Done():
		}
		return nil
	})
	// Pods that only the runtime or the disk have, and no source, are orphans.
	g.Go(func() error {
		if all(ctx, p.listed, p.statics.Settled()) {
			p.adopt(ctx)
			p.watcher.Run(ctx)
		}
		return nil
	})
	g.Go(func() error {
		if all(ctx, p.listed, p.statics.Settled(), p.reporter.Ready()) {
			close(a.ready)
		}
		return nil
	})
	return g.Wait()
}

// all waits until all are closed; false: ctx ended first.
func all(ctx context.Context, closed ...<-chan struct{}) bool {
	for _, c := range closed {
		select {
		case <-c:
		case <-ctx.Done():
			return false
		}
	}
	return true
}

// ImagesChanged announces that images were added or removed, not by the agent: pods that wait
// for one check again at once. Otherwise they check every ten seconds.
func (a *Agent) ImagesChanged() {
	if p := a.parts.Load(); p != nil {
		notify(p.podLoop.images)
	}
}

// Ready is closed when the Node object is stored as Ready (or would be, without an API server) and pods are taken.
func (a *Agent) Ready() <-chan struct{} { return a.ready }

// HostChanged announces a change of the Config's HostIPs.
func (a *Agent) HostChanged() { notify(a.moved) }

func (a *Agent) makeDirs() error {
	for _, d := range []struct {
		path string
		mode os.FileMode
	}{
		{a.cfg.RootDir, 0o750}, {a.cfg.PodLogDir, 0o755}, {a.cfg.ContainerLogDir, 0o755},
	} {
		if d.path == "" {
			continue
		}
		if err := os.MkdirAll(d.path, d.mode); err != nil {
			return fmt.Errorf("create its directory: %w", err)
		}
	}
	return nil
}
