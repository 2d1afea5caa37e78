package main

import (
	"context"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"carob/test/bench/processor"
)

// agent is a node agent under measurement.
type agent struct {
	title       string // before its figures; empty: carob
	node        string // its name in the cluster
	dir         string // the kubelet's directory, where CSI drivers register
	pid         int
	hostNetwork bool // of its pods
	// helpers is what other processes have run for the agent: monitors or containerd, with the commands of probes.
	helpers func() time.Duration
	get     func(ctx context.Context, path string) ([]byte, error) // of the node's own API
}

// carobAgent is the agent of the carob under measurement.
func (b *bench) carobAgent(pid int) *agent {
	return &agent{node: nodeName, dir: b.in.KubeletDir, pid: pid, helpers: b.monitors,
		get: func(ctx context.Context, path string) ([]byte, error) {
			return b.c.CoreV1().RESTClient().Get().AbsPath("/api/v1/nodes", nodeName, "proxy", path).
				SetHeader("Accept", "text/plain").DoRaw(ctx)
		}}
}

// each runs a part of the benchmark on the nodes of all agents, one after the other.
func (b *bench) each(ctx context.Context, part func(*bench, context.Context) error) error {
	defer func(a *agent) { b.agent = a }(b.agent)
	for _, b.agent = range b.agents {
		if err := part(b, ctx); err != nil {
			return err
		}
	}
	return nil
}

// add adds a figure of the agent that is measured. Goals are carob's.
func (b *bench) add(title, unit, goal string, value float64) {
	if b.agent.title != "" {
		title, goal = b.agent.title+": "+title, ""
	}
	b.figures = append(b.figures, figure{title, unit, goal, value})
}

// use is what an agent and its helpers take of a core, in percent.
type use struct{ agent, helpers float64 }

// measure counts processor time while nothing is done but what the pods want.
func (b *bench) measure(ctx context.Context, profile string) (use, error) {
	if err := pause(ctx, 5*time.Second); err != nil { // the garbage of what was before
		return use{}, err
	}
	profiled := make(chan error, 1)
	go func() { profiled <- b.profile(ctx, profile) }()
	began, own, helpers := time.Now(), processor.Total(b.agent.pid), b.agent.helpers()
	if err := pause(ctx, b.seconds); err != nil {
		return use{}, err
	}
	took := time.Since(began).Seconds()
	u := use{(processor.Total(b.agent.pid) - own).Seconds() / took * 100,
		(b.agent.helpers() - helpers).Seconds() / took * 100}
	return u, <-profiled
}

// profile writes a profile of carob, if profiles are wanted.
func (b *bench) profile(ctx context.Context, name string) error {
	if b.profiles == "" || name == "" || b.agent.title != "" {
		return nil
	}
	raw, err := b.c.CoreV1().RESTClient().Get().AbsPath("/debug/pprof/profile").
		Param("seconds", strconv.Itoa(int(b.seconds.Seconds()))).DoRaw(ctx)
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(b.profiles, name), raw, 0o644)
}

// monitors is what the monitors of this carob have run, with the processes that they started and that have ended.
func (b *bench) monitors() time.Duration {
	const tick = time.Second / 100 // USER_HZ on every Linux architecture that Go runs on
	var sum time.Duration
	stats, _ := filepath.Glob("/proc/[0-9]*/stat")
	for _, path := range stats {
		stat, _ := os.ReadFile(path)
		if !strings.Contains(string(stat), "(carob-monitor)") {
			continue
		}
		groups, _ := os.ReadFile(filepath.Join(filepath.Dir(path), "cgroup"))
		if !strings.Contains(string(groups), b.in.CgroupRoot+"/monitors") {
			continue
		}
		_, rest, _ := strings.Cut(string(stat), ") ")
		if f := strings.Fields(rest); len(f) > 14 {
			for _, n := range f[11:15] { // utime, stime, cutime, cstime
				ticks, _ := strconv.ParseInt(n, 10, 64)
				sum += time.Duration(ticks) * tick
			}
		}
	}
	return sum
}

// memory is the resident memory of an agent in megabytes.
func (a *agent) memory() float64 {
	status, _ := os.ReadFile("/proc/" + strconv.Itoa(a.pid) + "/status")
	for l := range strings.Lines(string(status)) {
		if v, ok := strings.CutPrefix(l, "RssAnon:"); ok {
			kb, _ := strconv.ParseFloat(strings.Fields(v)[0], 64)
			return kb / 1024
		}
	}
	return 0
}
