package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"carob/internal/base/instance"
)

// idleUse measures an idle carob.
func (b *bench) idleUse(ctx context.Context) error {
	pid, err := b.pid()
	if err != nil {
		return err
	}
	// The garbage of the start is collected before the look begins.
	if err := pause(ctx, 5*time.Second); err != nil {
		return err
	}
	cpu, switches, start := cpuTicks(pid), contextSwitches(pid), time.Now()
	if err := pause(ctx, b.idle); err != nil {
		return err
	}
	took := time.Since(start).Seconds()
	const ticksPerSecond = 100 // USER_HZ on every Linux architecture that Go runs on
	b.values["cpu_idle"] = (cpuTicks(pid) - cpu) / ticksPerSecond / took * 100
	b.values["switches_idle"] = (contextSwitches(pid) - switches) / took
	b.values["rss_idle"] = memoryMB(pid, "VmRSS")
	return nil
}

// perPod compares the memory of everything but the applications with and without pods.
func (b *bench) perPod(ctx context.Context) error {
	const n = 20
	before := helpersMB()
	if _, err := b.createMany(ctx, "mem", n); err != nil {
		return err
	}
	b.values["pss_pod"] = (helpersMB() - before) / n
	_, err := b.deleteAll(ctx, n)
	return err
}

func (b *bench) pid() (int, error) {
	o, ok, err := instance.Running(b.in.LockFile)
	if err != nil || !ok {
		return 0, fmt.Errorf("carob does not run: %w", err)
	}
	return o.PID, nil
}

func pause(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return nil
	}
}

// helpersMB sums the proportional memory of the processes that stand beside
// each pod's own: carob's monitors, containerd's shims and pause.
func helpersMB() float64 {
	sum := 0.0
	dirs, _ := filepath.Glob("/proc/[0-9]*")
	for _, d := range dirs {
		comm, _ := os.ReadFile(filepath.Join(d, "comm"))
		switch strings.TrimSpace(string(comm)) {
		case "carob-monitor", "monitor", "containerd-shim", "pause":
			sum += field(filepath.Join(d, "smaps_rollup"), "Pss:") / 1024
		}
	}
	return sum
}

func memoryMB(pid int, key string) float64 {
	return field(fmt.Sprintf("/proc/%d/status", pid), key+":") / 1024
}

// field is the first number after a key at the beginning of a line.
func field(path, key string) float64 {
	b, _ := os.ReadFile(path)
	for l := range strings.Lines(string(b)) {
		if v, ok := strings.CutPrefix(l, key); ok {
			n, _ := strconv.ParseFloat(strings.Fields(v)[0], 64)
			return n
		}
	}
	return 0
}

// cpuTicks is user and system time of a process in clock ticks.
func cpuTicks(pid int) float64 {
	b, _ := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	_, rest, ok := strings.Cut(string(b), ") ")
	f := strings.Fields(rest)
	if !ok || len(f) < 13 {
		return 0
	}
	user, _ := strconv.ParseFloat(f[11], 64)
	sys, _ := strconv.ParseFloat(f[12], 64)
	return user + sys
}

func contextSwitches(pid int) float64 {
	sum := 0.0
	tasks, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/status", pid))
	for _, t := range tasks {
		sum += field(t, "voluntary_ctxt_switches:") + field(t, "nonvoluntary_ctxt_switches:")
	}
	return sum
}
