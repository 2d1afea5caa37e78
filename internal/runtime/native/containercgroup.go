package native

import (
	"context"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"carob/internal/runtime/native/cgroups"
)

// scope returns the name of a container's systemd unit.
func (r *Runtime) scope(id string) string { return "cri-" + r.cfg.Name + "-" + id + ".scope" }

// makeCgroup creates the cgroup of a container. Until release is called, it may contain a process
// of carob, so that systemd keeps it.
func (r *Runtime) makeCgroup(ctx context.Context, c *container) (release func(), err error) {
	release = func() {}
	if r.systemd == nil {
		return release, r.groups.Make(c.rec.Cgroup)
	}
	// A monitor that is not set up for a pod waits, and ends when its connection is closed.
	holder, err := r.programs.StartMonitor(cgroups.Entry{})
	if err != nil {
		return release, err
	}
	release = func() { holder.Close() }
	if err := r.systemd.Start(ctx, c.rec.Cgroup, holder.PID(), c.resources()); err != nil {
		return release, err
	}
	return release, r.groups.Make(c.rec.Cgroup) // hierarchies of v1 that systemd leaves alone
}

// limit changes the limits of a running container.
func (r *Runtime) limit(ctx context.Context, group string, limits *cri.LinuxContainerResources) error {
	if r.systemd != nil {
		if err := r.systemd.Set(ctx, group, limits); err != nil {
			return err
		}
	}
	return r.groups.Apply(group, limits)
}

// endScope stops the systemd scope of a container that is removed.
func (r *Runtime) endScope(ctx context.Context, group string) error {
	if r.systemd == nil {
		return nil
	}
	return r.systemd.Stop(context.WithoutCancel(ctx), group)
}
