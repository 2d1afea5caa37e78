package main

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"carob/test/bench/processor"
)

// idle measures what idle pods cost, and a scrape of /metrics/cadvisor while they are there.
func (b *bench) idle(ctx context.Context) error {
	before, err := b.measure(ctx, "")
	if err != nil {
		return err
	}
	memory := b.agent.memory()
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
	b.add("the agent without pods", "% of a core", "", before.agent)
	b.add(fmt.Sprint(b.pods, " idle pods: the agent"), "% of a core", "≤ 0.6", with.agent)
	b.add("– monitors, or containerd and its shims", "% of a core", "", with.helpers)
	b.add("– anonymous memory that the agent has more", "MB", "≤ 10", b.agent.memory()-memory)
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
	cpu := processor.Total(b.agent.pid)
	for range b.n {
		began := time.Now()
		body, err := b.agent.get(ctx, "metrics/cadvisor")
		if err != nil {
			return err
		}
		took, size = append(took, ms(time.Since(began))), len(body)
	}
	cpu = (processor.Total(b.agent.pid) - cpu) / time.Duration(b.n)
	b.add(fmt.Sprintf("scrape of /metrics/cadvisor with %d pods (%d KB), p50", b.pods, size/1000), "ms", "≤ 15",
		median(took))
	b.add("– processor time of the agent for one", "ms", "", ms(cpu))
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
	b.add("– the agent", "% of a core", "≤ 10", u.agent)
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
	b.add("– the agent", "% of a core", "≤ 5", u.agent)
	b.add("– monitors or containerd, and the commands", "% of a core", "", u.helpers)
	b.add("– the agent, for one", "ms", "", u.agent*10/made)
	b.add("– monitor or containerd, and command, for one", "ms", "", u.helpers*10/made)
	return b.remove(ctx)
}

// probesMade counts the results of probes since the agent was started.
func (b *bench) probesMade(ctx context.Context) (at time.Time, n float64, err error) {
	body, err := b.agent.get(ctx, "metrics/probes")
	for line := range strings.Lines(string(body)) {
		if strings.HasPrefix(line, "prober_probe_total{") {
			v, _ := strconv.ParseFloat(strings.TrimSpace(line[strings.LastIndexByte(line, ' '):]), 64)
			n += v
		}
	}
	return time.Now(), n, err
}
