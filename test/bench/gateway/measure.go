package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
)

// The measurements, in the order of the table.
const (
	rate1      = "1 KB, 32 connections: requests/s"
	p50of1     = "– p50, µs"
	p99of1     = "– p99, µs"
	cpu1       = "– processor time of one, µs"
	rate100    = "100 KB, 32 connections: requests/s"
	p50of100   = "–– p50, µs"
	p99of100   = "–– p99, µs"
	cpu100     = "–– processor time of one, µs"
	newTLS     = "new TLS connections/s, with a request each"
	cpuTLS     = "– processor time of one connection, µs"
	h2         = "HTTP/2, 100 streams of one connection: requests/s"
	cpuH2      = "– processor time of one request, µs"
	alone5     = "1 KB, one connection: fastest twentieth, µs"
	alone50    = "––– p50, µs"
	memory     = "memory of an idle connection, KB"
	few99      = "10 routes, one connection: p99, µs"
	many99     = "ROUTES routes, one connection: p99, µs"
	manyCPU10  = "10 routes: processor time of one request, µs"
	manyCPU    = "ROUTES routes: processor time of one request, µs"
	applied50  = "a route is applied → served among 10 routes, p50, ms"
	applied50m = "a route is applied → served among ROUTES routes, p50, ms"
	applied99m = "– p99, ms"
)

var rows = []string{rate1, p50of1, p99of1, cpu1, rate100, p50of100, p99of100, cpu100, newTLS, cpuTLS, h2, cpuH2, alone5,
	alone50, memory, few99, manyCPU10, many99, manyCPU, applied50, applied50m, applied99m}

// turn measures one server, first with 10 further routes, then with many.
func (l *lab) turn(ctx context.Context, name string) (map[string]float64, error) {
	out := map[string]float64{}
	if name == "direct" {
		r, err := l.plain(ctx, upstreamAt, l.upstream.Process.Pid, out)
		if err == nil {
			out[alone5], out[alone50] = r.at(.05), r.at(.5)
		}
		return out, err
	}
	for _, routes := range []int{10, l.routes} {
		if err := l.with(ctx, name, routes, out); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// with measures a server with a number of routes.
func (l *lab) with(ctx context.Context, name string, routes int, out map[string]float64) error {
	cmd, in, err := l.start(ctx, name, routes)
	if err != nil {
		return err
	}
	defer stop(cmd)
	pid := cmd.Process.Pid
	if err := settled(ctx, pid); err != nil {
		return err
	}
	few := routes == 10
	if few {
		if err := l.idleMemory(pid, out); err != nil {
			return err
		}
	}
	if _, _, err := l.http1(ctx, plainAt, pid, 32, benchHost, "/1k"); err != nil { // warm
		return err
	}
	if few {
		r, err := l.plain(ctx, plainAt, pid, out)
		if err != nil {
			return err
		}
		out[alone5], out[alone50] = r.at(.05), r.at(.5)
		if err := l.encrypted(ctx, pid, out); err != nil {
			return err
		}
	}
	r, each, err := l.http1(ctx, plainAt, pid, 1, routeHost(5), "/1k")
	if err != nil {
		return err
	}
	if few {
		out[few99], out[manyCPU10] = r.at(.99), each
	} else {
		out[many99], out[manyCPU] = r.at(.99), each
	}
	if name != "carob" {
		return nil // another way to change routes
	}
	if r, err = applied(ctx, in); err != nil {
		return err
	}
	if few {
		out[applied50] = r.at(.5) / 1e3
	} else {
		out[applied50m], out[applied99m] = r.at(.5)/1e3, r.at(.99)/1e3
	}
	return nil
}

// http1 is a measurement with kept connections, and the processor time of the server for one request in microseconds.
func (l *lab) http1(ctx context.Context, at string, pid, n int, host, path string) (*result, float64, error) {
	before, _ := usage(pid)
	r, err := clients(ctx, n, l.time, func() (func() error, func(), error) { return kept(at, host, path) })
	if err != nil {
		return nil, 0, err
	}
	after, _ := usage(pid)
	return r, (after - before) / float64(len(r.all)), nil
}

// plain measures kept connections. It returns the result of one alone.
func (l *lab) plain(ctx context.Context, at string, pid int, out map[string]float64) (*result, error) {
	r, each, err := l.http1(ctx, at, pid, 32, benchHost, "/1k")
	if err != nil {
		return nil, err
	}
	out[rate1], out[p50of1], out[p99of1], out[cpu1] = r.rate(), r.at(.5), r.at(.99), each
	if r, each, err = l.http1(ctx, at, pid, 32, benchHost, "/100k"); err != nil {
		return nil, err
	}
	out[rate100], out[p50of100], out[p99of100], out[cpu100] = r.rate(), r.at(.5), r.at(.99), each
	r, _, err = l.http1(ctx, at, pid, 1, benchHost, "/1k")
	return r, err
}

// encrypted measures new TLS connections, and streams of one.
func (l *lab) encrypted(ctx context.Context, pid int, out map[string]float64) error {
	before, _ := usage(pid)
	r, err := clients(ctx, 8, l.time, secureOnce)
	after, _ := usage(pid)
	if err != nil {
		return err
	}
	out[newTLS], out[cpuTLS] = r.rate(), (after-before)/float64(len(r.all))
	one, end := streams()
	defer end()
	before, _ = usage(pid)
	if r, err = clients(ctx, 100, l.time, one); err != nil {
		return err
	}
	after, _ = usage(pid)
	out[h2], out[cpuH2] = r.rate(), (after-before)/float64(len(r.all))
	return nil
}

// settled waits until a server has done what a start brings.
func settled(ctx context.Context, pid int) error {
	before, _ := usage(pid)
	for limit := time.Now().Add(2 * time.Minute); time.Now().Before(limit); {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(500 * time.Millisecond):
		}
		after, _ := usage(pid)
		if after-before <= 2e4 { // 20 of 500 ms
			return nil
		}
		before = after
	}
	return errors.New("the server does not rest")
}

// idleMemory opens connections with a request each.
func (l *lab) idleMemory(pid int, out map[string]float64) error {
	_, before := usage(pid)
	var ends []func()
	defer func() {
		for _, end := range ends {
			end()
		}
	}()
	for range l.idle {
		do, end, err := kept(plainAt, benchHost, "/1k")
		if err != nil {
			return err
		}
		ends = append(ends, end)
		if err := do(); err != nil {
			return err
		}
	}
	_, after := usage(pid)
	out[memory] = (after - before) / 1024 / float64(l.idle)
	return nil
}

// applied measures from an Ingress to its first answer.
func applied(ctx context.Context, in io.Writer) (*result, error) {
	out := &result{}
	do := func(host string) error {
		began := time.Now()
		if _, err := fmt.Fprintln(in, host); err != nil {
			return err
		}
		for {
			status, err := statusOf(ctx, plainAt, host)
			if err != nil {
				return err
			}
			if status == http.StatusOK {
				out.all = append(out.all, time.Since(began))
				return nil
			}
			if time.Since(began) > time.Minute {
				return errors.New("a route is not served")
			}
		}
	}
	for i := range 100 {
		if err := do(fmt.Sprintf("new%d.%s", i, benchHost)); err != nil {
			return nil, err
		}
	}
	slices.Sort(out.all)
	return out, nil
}

// usage is what a process and its children have used: processor time in microseconds, and private memory in bytes.
func usage(pid int) (cpu, mem float64) {
	all, err := filepath.Glob("/proc/[0-9]*/stat")
	if err != nil {
		return 0, 0
	}
	for _, path := range all {
		text, err := os.ReadFile(path)
		if err != nil {
			continue
		}
		_, rest, _ := strings.Cut(string(text), ") ")
		f := strings.Fields(rest)
		of, _ := strconv.Atoi(filepath.Base(filepath.Dir(path)))
		if len(f) < 13 || of != pid && f[1] != strconv.Itoa(pid) {
			continue
		}
		for _, ticks := range f[11:13] {
			n, _ := strconv.ParseFloat(ticks, 64)
			cpu += n * 1e4 // a hundredth of a second
		}
		rollup, err := os.ReadFile(filepath.Join(filepath.Dir(path), "smaps_rollup"))
		if err != nil {
			continue
		}
		for line := range strings.Lines(string(rollup)) {
			if f := strings.Fields(line); len(f) > 1 && strings.HasPrefix(f[0], "Private_") {
				n, _ := strconv.ParseFloat(f[1], 64)
				mem += n * 1024
			}
		}
	}
	return cpu, mem
}
