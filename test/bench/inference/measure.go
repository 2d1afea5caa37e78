package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/netip"
	"os"
	"runtime"
	"runtime/debug"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/types"

	"carob/internal/core/routing"
	"carob/test/bench/processor"
)

// processorTime is what the calling thread has used of a processor: what else the machine does is not in it.
func processorTime() time.Duration {
	var t unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &t)
	return time.Duration(t.Nano())
}

// collectAfter lets the heap of this process grow as much between collections as carob lets its own under load, which
// is 32 MB or more (base/gctuning). This heap has some 5 MB: collections, most of them for the prompts that are made
// here, would be a part of each fiftieth choice.
const collectAfter = 600

// picks times the choice among 1,000 servers, in this process.
func picks(_ context.Context, _ *lab) ([]line, error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	defer debug.SetGCPercent(debug.SetGCPercent(collectAfter))
	p := routing.NewPool(routing.DefaultConfig())
	var all []routing.Endpoint
	for i := range 1000 {
		all = append(all, routing.Endpoint{Pod: types.UID(fmt.Sprint(i)), Ready: true,
			Address: netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, byte(i >> 8), byte(i)}), 8000)})
	}
	p.SetEndpoints(all)
	now := time.Now()
	for i, ref := range p.Refs() {
		p.Scraping(ref, now)
		p.Observe(ref, routing.Stats{At: now, Waiting: i % 5, Running: i % 64, CacheUse: float64(i%100) / 100})
	}
	r := rand.New(rand.NewPCG(1, 2)) //nolint:gosec // a measurement
	var took []time.Duration
	for i := range 20000 {
		now = now.Add(100 * time.Microsecond)
		q := &routing.Request{Model: "m", Bytes: 4096, Random: r.Uint64(), Received: now}
		q.Prefix = p.Hasher().Hash(nil, "m", "", []byte(body(fmt.Sprint("tenant ", i%50), 4096)))
		began := processorTime()
		d := p.Decide(q, now)
		f := p.Sent(d.Chosen[0], q, now)
		if t := processorTime() - began; i >= 1000 {
			took = append(took, t)
		}
		if d.Verdict != routing.Serve {
			return nil, fmt.Errorf("a request is not served: %s", d.Reason)
		}
		p.FirstToken(&f, now)
		p.Ended(&f, routing.Answered, 1, now)
	}
	return []line{{"choice among 1,000 servers, processor time, p50", us(quantile(took, 0.5)), ""},
		{"choice among 1,000 servers, processor time, p99", us(quantile(took, 0.99)), "≤ 50 µs"}}, nil
}

func us(d time.Duration) string { return fmt.Sprintf("%.1f µs", float64(d.Nanoseconds())/1000) }

// nothingYet measures a carob with a gateway and without a pool.
func nothingYet(ctx context.Context, l *lab) ([]line, error) {
	if l.ready {
		return nil, errors.New("there are pools")
	}
	pid, err := l.pid()
	if err != nil {
		return nil, err
	}
	if err := l.serves(ctx); err != nil {
		return nil, err
	}
	look := func() (series int, used time.Duration, kb float64, err error) {
		time.Sleep(8 * time.Second) // after its start carob gives memory back
		cpu := processor.Time(pid)
		time.Sleep(4 * time.Second)
		used, kb = processor.Time(pid)-cpu, memory(pid)
		text, err := l.kubectl(ctx, "", "get", "--raw", "/metrics")
		return strings.Count(text, "\ninference_"), used / 4, kb, err
	}
	series, used, kb, err := look()
	if err != nil {
		return nil, err
	}
	if err := l.carob(ctx, "addon", "enable", "inference"); err != nil {
		return nil, err
	}
	after, more, large, err := look()
	return []line{{"without the kinds: series of metrics, processor, memory",
		fmt.Sprintf("%d, %.2f %%, %.0f MB", series, used.Seconds()*100, kb/1024), "0"},
		{"with the kinds, without a pool", fmt.Sprintf("%d, %.2f %%, %.0f MB", after, more.Seconds()*100, large/1024),
			"0"}}, err
}

// latency compares single requests through the gateway with direct ones, which take turns.
func latency(ctx context.Context, l *lab) (out []line, err error) {
	if err := l.pools(ctx); err != nil {
		return nil, err
	}
	servers, err := l.servers(ctx, "fast")
	if err != nil {
		return nil, err
	}
	pid, err := l.pid()
	if err != nil {
		return nil, err
	}
	for _, size := range []struct {
		bytes, n int
		name     string
		p50, p99 string
	}{{4 << 10, 3000, "4 KB", "≤ 0.2 ms", ""}, {220_000, 1000, "220 KB", "", "≤ 3 ms"}} {
		direct, through := &conn{at: servers[0].String()}, &conn{at: gatewayAt}
		var a, b []time.Duration
		cpu := processor.Time(pid)
		for i := range size.n {
			text := body(strconv.Itoa(i), size.bytes)
			for _, way := range []struct {
				c    *conn
				req  []byte
				took *[]time.Duration
			}{{direct, request("", text), &a}, {through, request("/fast", text), &b}} {
				got, err := way.c.roundTrip(way.req)
				if err != nil || got.status != 200 {
					return nil, fmt.Errorf("%d: %w", got.status, err)
				}
				if i >= size.n/10 {
					*way.took = append(*way.took, got.took)
				}
			}
		}
		direct.close()
		through.close()
		used := processor.Time(pid) - cpu
		out = append(out, line{fmt.Sprintf("processor time of carob for one request with %s", size.name),
			us(used / time.Duration(size.n)), ""})
		for _, q := range []struct {
			name, target string
			at           float64
		}{{"fastest twentieth", "", 0.05}, {"p50", size.p50, 0.5}, {"p99", size.p99, 0.99}} {
			da, db := quantile(a, q.at), quantile(b, q.at)
			out = append(out, line{fmt.Sprintf("added latency at %s, %s (direct %s, through the gateway %s)", size.name,
				q.name, ms(da), ms(db)), ms(db - da), q.target})
		}
	}
	return out, nil
}

// rate sends requests with many clients at once.
func rate(ctx context.Context, l *lab) (out []line, err error) {
	if err := l.pools(ctx); err != nil {
		return nil, err
	}
	servers, err := l.servers(ctx, "fast")
	if err != nil {
		return nil, err
	}
	pid, err := l.pid()
	if err != nil {
		return nil, err
	}
	const clients = 32
	for _, way := range []struct{ name, at, prefix, target string }{{"direct", "", "", ""},
		{"through the gateway", gatewayAt, "/fast", "≥ 5,000/s"}} {
		var done, bad atomic.Int64
		cpu, began := processor.Time(pid), time.Now()
		end := began.Add(time.Duration(5 * l.scale * float64(time.Second)))
		var all sync.WaitGroup
		for i := range clients {
			at := way.at
			if at == "" {
				at = servers[i%len(servers)].String()
			}
			req := request(way.prefix, body(fmt.Sprint("client ", i), 4<<10))
			all.Go(func() {
				c := &conn{at: at}
				defer c.close()
				for time.Now().Before(end) {
					if got, err := c.roundTrip(req); err != nil || got.status != 200 {
						bad.Add(1)
						return
					}
					done.Add(1)
				}
			})
		}
		if way.at != "" {
			all.Go(func() { l.profiled(ctx, 5*l.scale) })
		}
		all.Wait()
		if n := bad.Load(); n > 0 {
			return nil, fmt.Errorf("%s: %d requests failed", way.name, n)
		}
		n := float64(done.Load())
		out = append(out, line{fmt.Sprintf("4 KB, %d clients, %s", clients, way.name),
			fmt.Sprintf("%.0f/s", n/time.Since(began).Seconds()), way.target})
		if way.at != "" {
			used := processor.Time(pid) - cpu
			out = append(out, line{"– processor time of carob for one", us(time.Duration(float64(used) / n)), ""})
		}
	}
	return out, nil
}

// profiled writes a profile of carob's processor time to the file for it, if there is one.
func (l *lab) profiled(ctx context.Context, seconds float64) {
	if l.profile == "" {
		return
	}
	text, err := l.kubectl(ctx, "", "get", "--raw", fmt.Sprintf(
		"/debug/pprof/profile?seconds=%d", max(1, int(seconds)-2)))
	if err == nil {
		err = os.WriteFile(l.profile, []byte(text), 0o600)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "no profile:", err)
	}
}

// streams opens responses that do not end, and measures carob's memory.
func streams(ctx context.Context, l *lab) ([]line, error) {
	if err := l.pools(ctx); err != nil {
		return nil, err
	}
	pid, err := l.pid()
	if err != nil {
		return nil, err
	}
	const n = 2000
	text := strings.Replace(body("stream", 4<<10), `"max_tokens":1`, `"max_tokens":2,"stream":true`, 1)
	req := []byte(strings.Replace(string(request("/fast", text)), "/v1/completions", "/v1/completions?pause=10m", 1))
	before := memory(pid)
	for i := range n {
		c := &conn{at: gatewayAt}
		res, err := c.send(req)
		if err != nil {
			return nil, fmt.Errorf("stream %d: %w", i, err)
		}
		defer func() { // they stay open until all are measured
			c.close() // first: to close the body is to read it to its end
			_ = res.Body.Close()
		}()
		if res.StatusCode != http.StatusOK {
			return nil, fmt.Errorf("stream %d: %s", i, res.Status)
		}
		if _, err := res.Body.Read(make([]byte, 1)); err != nil {
			return nil, fmt.Errorf("stream %d: %w", i, err)
		}
	}
	return []line{{fmt.Sprintf("memory of carob for each of %d open streams", n),
		fmt.Sprintf("%.1f KB", (memory(pid)-before)/n), "≤ 60 KB"}}, nil
}

// memory is what a process has, in KB.
func memory(pid int) float64 {
	b, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	for l := range strings.Lines(string(b)) {
		if v, ok := strings.CutPrefix(l, "VmRSS:"); ok {
			n, _ := strconv.ParseFloat(strings.Fields(v)[0], 64)
			return n
		}
	}
	return 0
}

// prefixes compares the time to the first token of prompts that share their beginnings with that of round robin.
func prefixes(ctx context.Context, l *lab) (out []line, err error) {
	if err := l.pools(ctx); err != nil {
		return nil, err
	}
	servers, err := l.servers(ctx, "slow")
	if err != nil {
		return nil, err
	}
	var all []string
	for _, s := range servers {
		all = append(all, s.String())
	}
	robin, err := l.send(ctx, &workloads[0], "", all)
	if err != nil {
		return nil, err
	}
	picked, err := l.send(ctx, &workloads[0], "/slow", []string{gatewayAt})
	if err != nil {
		return nil, err
	}
	for _, q := range []float64{0.5, 0.9} {
		a, b := quantile(robin.first, q), quantile(picked.first, q)
		target := ""
		if q == 0.5 {
			target = "≥ 90 % below"
		}
		out = append(out, line{fmt.Sprintf("shared prefixes: first token, p%.0f (round robin %s)", q*100, ms(a)),
			fmt.Sprintf("%s, %.1f %% below", ms(b), 100*(1-float64(b)/float64(a))), target})
	}
	return out, nil
}
