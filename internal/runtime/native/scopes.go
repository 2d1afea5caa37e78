package native

import (
	"context"
	"errors"
	"fmt"
	"math"
	"path"
	"strconv"
	"sync"
	"time"

	systemd "github.com/coreos/go-systemd/v22/dbus"
	"github.com/godbus/dbus/v5"
	slices "github.com/opencontainers/cgroups/systemd"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// scopes has systemd make the cgroups of containers: one transient scope for each,
// delegated, in the slice that is the pod's. systemd has to know of the limits as
// well, or it would write its own over them when it reloads.
type scopes struct {
	mu   sync.Mutex
	conn *systemd.Conn
}

// scopePatience bounds the wait for a job of systemd.
const scopePatience = 30 * time.Second

// bus is the connection, a new one when systemd or the bus was started again.
func (s *scopes) bus(ctx context.Context) (*systemd.Conn, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.conn != nil && s.conn.Connected() {
		return s.conn, nil
	}
	s.close()
	conn, err := systemd.NewWithContext(context.WithoutCancel(ctx)) // it outlives this call
	if err != nil {
		return nil, fmt.Errorf("asking systemd for cgroups: %w", err)
	}
	s.conn = conn
	return conn, nil
}

// close ends the connection; s.mu is held, or nobody uses s any more.
func (s *scopes) close() {
	if s.conn != nil {
		s.conn.Close()
		s.conn = nil
	}
}

// start makes the scope of a container's cgroup with one process in it, without
// which systemd makes none.
func (s *scopes) start(ctx context.Context, group string, pid int, limits []systemd.Property) error {
	conn, err := s.bus(ctx)
	if err != nil {
		return err
	}
	name, slice := path.Base(group), path.Base(path.Dir(group))
	if slice == "/" {
		slice = "-.slice"
	}
	properties := append([]systemd.Property{
		systemd.PropDescription("container " + name),
		systemd.PropSlice(slice),
		systemd.PropPids(uint32(pid)),
		property("Delegate", true),
		property("DefaultDependencies", false),
		property("CollectMode", "inactive-or-failed"), // forgotten with its last process
		property("CPUAccounting", true), property("MemoryAccounting", true), property("IOAccounting", true), property("TasksAccounting", true),
		property("TasksMax", uint64(math.MaxUint64)), // the pod's limit is the slice's
	}, limits...)
	begin := func() error {
		return wait(ctx, name, func(done chan<- string) (int, error) {
			return conn.StartTransientUnitContext(ctx, name, "replace", properties, done)
		})
	}
	err = begin()
	if dbusError(err, "org.freedesktop.systemd1.UnitExists") { // of a start that was given up
		if err = s.stop(ctx, group); err == nil {
			err = begin()
		}
	}
	if err != nil {
		return fmt.Errorf("having systemd make scope %s in %s: %w", name, slice, err)
	}
	return nil
}

// set changes limits of a scope.
func (s *scopes) set(ctx context.Context, group string, limits []systemd.Property) error {
	conn, err := s.bus(ctx)
	if err != nil || len(limits) == 0 {
		return err
	}
	if err := conn.SetUnitPropertiesContext(ctx, path.Base(group), true, limits...); err != nil {
		return fmt.Errorf("having systemd set limits of scope %s: %w", path.Base(group), err)
	}
	return nil
}

// stop ends a unit and forgets it; one that is gone is no error.
func (s *scopes) stop(ctx context.Context, group string) error {
	conn, err := s.bus(ctx)
	if err != nil {
		return err
	}
	name := path.Base(group)
	err = wait(ctx, name, func(done chan<- string) (int, error) { return conn.StopUnitContext(ctx, name, "replace", done) })
	if err != nil && !dbusError(err, "org.freedesktop.systemd1.NoSuchUnit") {
		return fmt.Errorf("having systemd stop %s: %w", name, err)
	}
	if err := conn.ResetFailedUnitContext(ctx, name); err != nil && !dbusError(err, "org.freedesktop.systemd1.NoSuchUnit") {
		return fmt.Errorf("having systemd forget %s: %w", name, err)
	}
	return nil
}

// StopSlice has systemd stop a slice with all below it; one that is gone is no error.
func StopSlice(ctx context.Context, slice string) error {
	s := &scopes{}
	defer s.close()
	return s.stop(ctx, slice)
}

// wait runs a job of systemd to its end.
func wait(ctx context.Context, name string, begin func(chan<- string) (int, error)) error {
	ctx, cancel := context.WithTimeout(ctx, scopePatience)
	defer cancel()
	done := make(chan string, 1)
	if _, err := begin(done); err != nil {
		return err
	}
	select {
	case result := <-done:
		if result != "done" {
			return fmt.Errorf("the job of %s ended with %q", name, result)
		}
		return nil
	case <-ctx.Done():
		return fmt.Errorf("waiting for the job of %s: %w", name, ctx.Err())
	}
}

// dbusError reports whether err is the named error of a bus.
func dbusError(err error, name string) bool {
	var e dbus.Error
	return errors.As(err, &e) && e.Name == name
}

func property(name string, value any) systemd.Property {
	return systemd.Property{Name: name, Value: dbus.MakeVariant(value)}
}

// scopeLimits are the limits of a container as properties of its scope; zero values
// are left alone. What systemd has no property for is in the cgroup's files only.
func scopeLimits(r *cri.LinuxContainerResources, v2 bool) ([]systemd.Property, error) {
	var out []systemd.Property
	add := func(name string, value any) { out = append(out, property(name, value)) }
	amount := func(v int64) uint64 {
		if v < 0 {
			return math.MaxUint64
		}
		return uint64(v)
	}
	if v := r.GetMemoryLimitInBytes(); v != 0 {
		add(map[bool]string{true: "MemoryMax", false: "MemoryLimit"}[v2], amount(v))
		if swap := r.GetMemorySwapLimitInBytes(); swap != 0 && v > 0 && v2 {
			if swap > 0 {
				swap = max(0, swap-v) // v2 counts swap alone
			}
			add("MemorySwapMax", amount(swap))
		}
	}
	if v := r.GetCpuShares(); v != 0 {
		if v2 {
			add("CPUWeight", uint64(weightOf(v)))
		} else {
			add("CPUShares", uint64(v))
		}
	}
	if quota, period := r.GetCpuQuota(), r.GetCpuPeriod(); quota != 0 || period != 0 {
		if period == 0 {
			period = 100000
		}
		add("CPUQuotaPeriodUSec", uint64(period))
		perSecond := uint64(math.MaxUint64)
		if quota > 0 { // whole percents, rounded up; the file then gets the exact figure
			perSecond = (uint64(quota)*1000000/uint64(period) + 9999) / 10000 * 10000
		}
		add("CPUQuotaPerSecUSec", perSecond)
	}
	if v2 { // systemd does nothing with these on v1
		for name, list := range map[string]string{"AllowedCPUs": r.GetCpusetCpus(), "AllowedMemoryNodes": r.GetCpusetMems()} {
			if list == "" {
				continue
			}
			bits, err := slices.RangeToBits(list)
			if err != nil {
				return nil, fmt.Errorf("%s %q: %w", name, list, err)
			}
			add(name, bits)
		}
		if v := r.GetUnified()["pids.max"]; v != "" {
			most := uint64(math.MaxUint64)
			if v != "max" {
				var err error
				if most, err = strconv.ParseUint(v, 10, 64); err != nil {
					return nil, fmt.Errorf("pids.max %q: %w", v, err)
				}
			}
			add("TasksMax", most)
		}
	}
	return out, nil
}

// scope is the name of a container's unit.
func (r *Runtime) scope(id string) string { return "cri-" + r.cfg.Name + "-" + id + ".scope" }

// makeCgroup makes the cgroup of a container. Until release is called there may be a
// process in it that is ours, so that systemd keeps it.
func (r *Runtime) makeCgroup(ctx context.Context, c *container) (release func(), err error) {
	release = func() {}
	if r.scopes == nil {
		return release, r.groups.make(c.rec.Cgroup)
	}
	properties, err := scopeLimits(c.resources(), r.groups.v2)
	if err != nil {
		return release, err
	}
	// A monitor that is set up for no pod waits, and ends with its line.
	holder, err := r.programs.startMonitor(entry{})
	if err != nil {
		return release, err
	}
	release = func() { holder.conn.Close() }
	if err := r.scopes.start(ctx, c.rec.Cgroup, holder.cmd.Process.Pid, properties); err != nil {
		return release, err
	}
	return release, r.groups.make(c.rec.Cgroup) // hierarchies of v1 that systemd leaves alone
}

// limit changes the limits of a running container.
func (r *Runtime) limit(ctx context.Context, group string, limits *cri.LinuxContainerResources) error {
	if r.scopes != nil {
		properties, err := scopeLimits(limits, r.groups.v2)
		if err != nil {
			return err
		}
		if err := r.scopes.set(ctx, group, properties); err != nil {
			return err
		}
	}
	return r.groups.apply(group, limits)
}

// endScope has systemd forget the scope of a container that is removed.
func (r *Runtime) endScope(ctx context.Context, group string) error {
	if r.scopes == nil {
		return nil
	}
	return r.scopes.stop(context.WithoutCancel(ctx), group)
}
