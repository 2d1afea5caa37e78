package main

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"carob/test/bench/processor"
)

// use is what carob and its monitors take of a core.
type use struct {
	carob, monitors float64 // percent of a core; monitors with the commands of probes
}

// measure counts processor time while nothing is done but what the pods want.
func (b *bench) measure(ctx context.Context, profile string) (use, error) {
	if err := pause(ctx, 5*time.Second); err != nil { // the garbage of what was before
		return use{}, err
	}
	profiled := make(chan error, 1)
	go func() { profiled <- b.profile(ctx, profile) }()
	began, carob, monitors := time.Now(), processor.Total(b.pid), b.monitors()
	if err := pause(ctx, b.seconds); err != nil {
		return use{}, err
	}
	took := time.Since(began).Seconds()
	u := use{(processor.Total(b.pid) - carob).Seconds() / took * 100, (b.monitors() - monitors).Seconds() / took * 100}
	return u, <-profiled
}

func (b *bench) profile(ctx context.Context, name string) error {
	if b.profiles == "" || name == "" {
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

// memory is the resident memory of carob in megabytes.
func (b *bench) memory() float64 {
	status, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", b.pid))
	for l := range strings.Lines(string(status)) {
		if v, ok := strings.CutPrefix(l, "RssAnon:"); ok {
			kb, _ := strconv.ParseFloat(strings.Fields(v)[0], 64)
			return kb / 1024
		}
	}
	return 0
}

// idle measures what idle pods cost, and a scrape of /metrics/cadvisor while they are there.
func (b *bench) idle(ctx context.Context) error {
	before, err := b.measure(ctx, "")
	if err != nil {
		return err
	}
	memory := b.memory()
	list := make([]*corev1.Pod, 0, b.pods)
	for i := range b.pods {
		list = append(list, pod(fmt.Sprint("idle-", i), nil))
	}
	if _, err := b.create(ctx, list...); err != nil {
		return err
	}
	if err := pause(ctx, 20*time.Second); err != nil { // until unused memory is returned
		return err
	}
	with, err := b.measure(ctx, "idle")
	if err != nil {
		return err
	}
	b.add("carob without pods", "% of a core", "", before.carob)
	b.add(fmt.Sprint(b.pods, " idle pods: carob"), "% of a core", "≤ 0.6", with.carob)
	b.add("– their monitors", "% of a core", "", with.monitors)
	b.add("– anonymous memory that carob has more", "MB", "≤ 10", b.memory()-memory)
	if err := b.scrape(ctx); err != nil {
		return err
	}
	return b.remove(ctx)
}

func (b *bench) scrape(ctx context.Context) error {
	var took []float64
	var size int
	profiled := make(chan error, 1)
	go func() { profiled <- b.profile(ctx, "scrape") }()
	cpu := processor.Total(b.pid)
	for range b.n {
		began := time.Now()
		body, err := b.c.CoreV1().RESTClient().Get().AbsPath("/api/v1/nodes", nodeName, "proxy/metrics/cadvisor").
			SetHeader("Accept", "text/plain").DoRaw(ctx)
		if err != nil {
			return err
		}
		took, size = append(took, ms(time.Since(began))), len(body)
	}
	cpu = (processor.Total(b.pid) - cpu) / time.Duration(b.n)
	b.add(fmt.Sprintf("scrape of /metrics/cadvisor with %d pods (%d KB), p50", b.pods, size/1000), "ms", "≤ 15",
		median(took))
	b.add("– processor time of carob for one", "ms", "", ms(cpu))
	return <-profiled
}

// probed are pods whose containers have a liveness and a readiness probe, each once a second.
func probed(prefix string, probes int, handler corev1.ProbeHandler) []*corev1.Pod {
	const perPod = 2 // containers
	var list []*corev1.Pod
	for made := 0; made < probes; {
		p := pod(fmt.Sprint(prefix, "-", len(list)), nil)
		p.Spec.Containers = nil
		for i := 0; i < perPod && made < probes; i++ {
			c := container(fmt.Sprint("c", i))
			c.LivenessProbe = &corev1.Probe{ProbeHandler: handler, PeriodSeconds: 1, TimeoutSeconds: 5}
			c.ReadinessProbe = c.LivenessProbe.DeepCopy()
			p.Spec.Containers = append(p.Spec.Containers, c)
			made += 2
		}
		list = append(list, p)
	}
	return list
}

// rate is the number of HTTP probes per second.
const rate = 1000

// httpProbes measures 1,000 HTTP probes per second. The server is this process.
func (b *bench) httpProbes(ctx context.Context) error {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	var served atomic.Int64
	s := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		served.Add(1)
		_, _ = io.WriteString(w, "ok") // the agent sees what it gets
	}), ReadHeaderTimeout: time.Minute}
	go s.Serve(l) //nolint:errcheck // it ends with Close
	defer s.Close()
	port := l.Addr().(*net.TCPAddr).Port
	if _, err := b.create(ctx, probed("http", rate, corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{
		Host: "127.0.0.1", Path: "/healthz", Port: intstr.FromInt(port)}})...); err != nil {
		return err
	}
	began, first := time.Now(), served.Load()
	u, err := b.measure(ctx, "http")
	if err != nil {
		return err
	}
	b.add("HTTP probes", "/s", fmt.Sprint(rate), float64(served.Load()-first)/time.Since(began).Seconds())
	b.add("– carob", "% of a core", "≤ 10", u.carob)
	least, err := connections(ctx, port, b.seconds)
	if err != nil {
		return err
	}
	b.add("– one thread that makes the same connections, and nothing else", "% of a core", "", least)
	return b.remove(ctx)
}

// execProbes measures 100 exec probes per second.
func (b *bench) execProbes(ctx context.Context) error {
	const commands = 100
	if _, err := b.create(ctx, probed("exec", commands, corev1.ProbeHandler{Exec: &corev1.ExecAction{
		Command: []string{"/bin/true"}}})...); err != nil {
		return err
	}
	began, first, err := b.probesMade(ctx)
	if err != nil {
		return err
	}
	u, err := b.measure(ctx, "exec")
	if err != nil {
		return err
	}
	ended, last, err := b.probesMade(ctx)
	if err != nil {
		return err
	}
	made := (last - first) / ended.Sub(began).Seconds()
	b.add("exec probes", "/s", fmt.Sprint(commands), made)
	b.add("– carob", "% of a core", "≤ 5", u.carob)
	b.add("– monitors and the commands", "% of a core", "", u.monitors)
	b.add("– carob, for one", "ms", "", u.carob*10/made)
	b.add("– monitor and command, for one", "ms", "", u.monitors*10/made)
	return b.remove(ctx)
}

// probesMade counts the results of probes since carob was started.
func (b *bench) probesMade(ctx context.Context) (at time.Time, n float64, err error) {
	body, err := b.c.CoreV1().RESTClient().Get().AbsPath("/api/v1/nodes", nodeName, "proxy/metrics/probes").
		SetHeader("Accept", "text/plain").DoRaw(ctx)
	for line := range strings.Lines(string(body)) {
		if strings.HasPrefix(line, "prober_probe_total{") {
			v, _ := strconv.ParseFloat(strings.TrimSpace(line[strings.LastIndexByte(line, ' '):]), 64)
			n += v
		}
	}
	return time.Now(), n, err
}
