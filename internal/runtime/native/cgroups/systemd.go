package cgroups

import (
	"context"
	"errors"
	"fmt"
	"math"
	"path"
	"strconv"
	"strings"
	"sync"
	"time"

	systemd "github.com/coreos/go-systemd/v22/dbus"
	"github.com/godbus/dbus/v5"
	slices "github.com/opencontainers/cgroups/systemd"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// SlicePath is the path of a systemd slice: a-b.slice is in a.slice.
func SlicePath(slice string) (string, error) {
	name, ok := strings.CutSuffix(slice, ".slice")
	if !ok || strings.Contains(slice, "/") || strings.HasPrefix(name, "-") && name != "-" ||
		strings.HasSuffix(name, "-") && name != "-" || strings.Contains(name, "--") {
		return "", fmt.Errorf("invalid slice name %q", slice)
	}
	if name == "-" {
		return "", nil
	}
	var path, prefix string
	for part := range strings.SplitSeq(name, "-") {
		prefix += part
		path += "/" + prefix + ".slice"
		prefix += "-"
	}
	return path, nil
}

// Systemd makes systemd create the cgroups of containers: one transient, delegated scope for each,
// in the slice of the pod. systemd must have the limits, or it would overwrite them with its own when it reloads. It is
// safe for concurrent use.
type Systemd struct {
	v2 bool

	mu   sync.Mutex
	conn *systemd.Conn
}

// jobTimeout is the time limit of a systemd job.
const jobTimeout = 30 * time.Second

// NewSystemd connects to systemd over D-Bus, on a host with cgroup version 2 or 1.
func NewSystemd(ctx context.Context, v2 bool) (*Systemd, error) {
	s := &Systemd{v2: v2}
	_, err := s.connect(ctx)
	return s, err
}

// connect returns the connection, a new one if systemd or the bus was restarted.
func (s *Systemd) connect(ctx context.Context) (*systemd.Conn, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.conn != nil && s.conn.Connected() {
		return s.conn, nil
	}
	s.disconnect()
	conn, err := systemd.NewWithContext(context.WithoutCancel(ctx)) // the connection outlives this call
	if err != nil {
		return nil, fmt.Errorf("connect to systemd for cgroups: %w", err)
	}
	s.conn = conn
	return conn, nil
}

// Close ends the connection.
func (s *Systemd) Close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.disconnect()
}

func (s *Systemd) disconnect() {
	if s.conn != nil {
		s.conn.Close()
		s.conn = nil
	}
}

// Start creates the scope of a container's cgroup with one process in it; systemd creates no empty
// scopes.
func (s *Systemd) Start(ctx context.Context, group string, pid int, limits *cri.LinuxContainerResources) error {
	set, err := scopeProperties(limits, s.v2)
	if err != nil {
		return err
	}
	conn, err := s.connect(ctx)
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
		property("CollectMode", "inactive-or-failed"), // removed with its last process
		property("CPUAccounting", true), property("MemoryAccounting", true), property("IOAccounting", true),
		property("TasksAccounting", true),
		property("TasksMax", uint64(math.MaxUint64)), // the pod's limit is set on the slice
	}, set...)
	begin := func() error {
		return wait(ctx, name, func(done chan<- string) (int, error) {
			return conn.StartTransientUnitContext(ctx, name, "replace", properties, done)
		})
	}
	err = begin()
	if dbusError(err, "org.freedesktop.systemd1.UnitExists") { // left over from an abandoned start
		if err = s.Stop(ctx, group); err == nil {
			err = begin()
		}
	}
	if err != nil {
		return fmt.Errorf("create systemd scope %s in %s: %w", name, slice, err)
	}
	return nil
}

// Set changes the limits of a scope.
func (s *Systemd) Set(ctx context.Context, group string, limits *cri.LinuxContainerResources) error {
	set, err := scopeProperties(limits, s.v2)
	if err != nil {
		return err
	}
	conn, err := s.connect(ctx)
	if err != nil || len(set) == 0 {
		return err
	}
	if err := conn.SetUnitPropertiesContext(ctx, path.Base(group), true, set...); err != nil {
		return fmt.Errorf("set the limits of systemd scope %s: %w", path.Base(group), err)
	}
	return nil
}

// Stop stops a unit; a missing unit is not an error.
func (s *Systemd) Stop(ctx context.Context, group string) error {
	conn, err := s.connect(ctx)
	if err != nil {
		return err
	}
	name := path.Base(group)
	err = wait(ctx, name, func(done chan<- string) (int,
		error) {
		return conn.StopUnitContext(ctx, name, "replace", done)
	})
	if err != nil && !dbusError(err, "org.freedesktop.systemd1.NoSuchUnit") {
		return fmt.Errorf("stop systemd unit %s: %w", name, err)
	}
	if err := conn.ResetFailedUnitContext(ctx, name); err != nil &&
		!dbusError(err, "org.freedesktop.systemd1.NoSuchUnit") {
		return fmt.Errorf("reset systemd unit %s: %w", name, err)
	}
	return nil
}

// StopSlice stops a slice with everything below it; a missing slice is not an error.
func StopSlice(ctx context.Context, slice string) error {
	s := &Systemd{}
	defer s.Close()
	return s.Stop(ctx, slice)
}

// wait starts a systemd job and waits for its end.
func wait(ctx context.Context, name string, begin func(chan<- string) (int, error)) error {
	ctx, cancel := context.WithTimeout(ctx, jobTimeout)
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

// scopeProperties returns the limits of a container as properties of its scope; zero values leave a
// limit unchanged. Limits for which systemd has no property are only in the cgroup's files.
func scopeProperties(r *cri.LinuxContainerResources, v2 bool) ([]systemd.Property, error) {
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
		if quota > 0 { // whole percents, rounded up; the file then gets the exact value
			perSecond = (uint64(quota)*1000000/uint64(period) + 9999) / 10000 * 10000
		}
		add("CPUQuotaPerSecUSec", perSecond)
	}
	if v2 { // systemd ignores these on v1
		for name, list := range map[string]string{"AllowedCPUs": r.GetCpusetCpus(),
			"AllowedMemoryNodes": r.GetCpusetMems()} {
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
