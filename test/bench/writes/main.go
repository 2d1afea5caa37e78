// writes compares API servers by what they do with pods: in turns, each gets a round
// of creates, patches, lists of all, lists in pages of 500 and deletions by several clients
// on one connection. It prints a client's requests per second, and the CPU time and memory that one request (all pages
// of a list together) costs the server.
//
//	go run ./test/bench/writes [-n 2000 -rounds 3] NAME=KUBECONFIG:PID[,PID] …
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"text/tabwriter"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"

	"carob/test/bench/command"
	"carob/test/bench/processor"
)

const namespace = "writes"

// server is one API server under measurement.
type server struct {
	name string
	pids []int
	c    kubernetes.Interface
}

// sample is what a round of one operation took, for one request.
type sample struct {
	rate       float64 // requests/s
	cpu        float64 // µs of the server's processes
	bytes      float64 // allocated by the API server
	objects    float64
	collection float64 // of garbage, in 1,000 requests
}

func main() { command.Main("writes", run) }

func run(ctx context.Context) error {
	n := flag.Int("n", 2000, "pods of a round")
	rounds := flag.Int("rounds", 3, "rounds of each server; the first one warms up and is not counted")
	clients := flag.Int("clients", 16, "clients at the same time")
	profiles := flag.String("profiles", "",
		"directory for profiles of each operation (the first eight seconds of the last round; the server needs --profiling)")
	flag.Parse()
	var servers []*server
	for _, arg := range flag.Args() {
		s, err := connect(ctx, arg)
		if err != nil {
			return err
		}
		servers = append(servers, s)
	}
	if len(servers) == 0 {
		return errors.New("no server named: NAME=KUBECONFIG:PID[,PID]")
	}
	samples := map[string]map[string][]sample{} // operation → server
	for _, op := range operations {
		samples[op] = map[string][]sample{}
	}
	for round := range *rounds {
		for i := range servers {
			s := servers[(i+round)%len(servers)]
			dir := ""
			if round == *rounds-1 {
				dir = *profiles
			}
			got, err := s.round(ctx, *n, *clients, dir)
			if err != nil {
				return fmt.Errorf("%s: %w", s.name, err)
			}
			for op, x := range got {
				fmt.Fprintf(os.Stderr,
					"%d %-10s %-6s %6.0f/s %6.0f µs %7.0f bytes %5.0f objects %4.1f collections/1000\n", round, s.name,
					op, x.rate, x.cpu, x.bytes, x.objects, x.collection)
				if round > 0 {
					samples[op][s.name] = append(samples[op][s.name], x)
				}
			}
		}
	}
	return print(servers, samples)
}

// connect reads NAME=KUBECONFIG:PID[,PID].
func connect(ctx context.Context, arg string) (*server, error) {
	name, rest, ok := strings.Cut(arg, "=")
	file, list, ok2 := strings.Cut(rest, ":")
	if !ok || !ok2 {
		return nil, fmt.Errorf("%q is not NAME=KUBECONFIG:PID[,PID]", arg)
	}
	s := &server{name: name}
	for p := range strings.SplitSeq(list, ",") {
		pid, err := strconv.Atoi(p)
		if err != nil {
			return nil, fmt.Errorf("%q: %w", arg, err)
		}
		s.pids = append(s.pids, pid)
	}
	cfg, err := clientcmd.BuildConfigFromFlags("", file)
	if err != nil {
		return nil, err
	}
	cfg.QPS = -1
	cfg.AcceptContentTypes, cfg.ContentType = "application/vnd.kubernetes.protobuf,application/json",
		"application/vnd.kubernetes.protobuf"
	if s.c, err = kubernetes.NewForConfig(cfg); err != nil {
		return nil, err
	}
	if _, err := s.c.CoreV1().Namespaces().Create(ctx,
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}}, metav1.CreateOptions{}); err != nil &&
		!apierrors.IsAlreadyExists(err) {
		return nil, err
	}
	// Pods need it, and without controllers nothing else creates it.
	if _, err := s.c.CoreV1().ServiceAccounts(namespace).Create(ctx,
		&corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "default"}}, metav1.CreateOptions{}); err != nil &&
		!apierrors.IsAlreadyExists(err) {
		return nil, err
	}
	return s, nil
}

// operations are what a round is made of, in this order.
var operations = []string{"create", "patch", "list", "pages", "delete"}

// Lists of a round, each by one client after the other: their time is what counts.
const lists, page = 20, 500

// round creates pods that are not scheduled, patches each, lists them and removes them.
func (s *server) round(ctx context.Context, n, clients int, profiles string) (map[string]sample, error) {
	pods := s.c.CoreV1().Pods(namespace)
	name := func(i int) string { return fmt.Sprint("w-", i) }
	out := map[string]sample{}
	list := func(limit int64) error {
		o := metav1.ListOptions{Limit: limit}
		for got := 0; ; {
			l, err := pods.List(ctx, o)
			if err != nil {
				return err
			}
			got += len(l.Items)
			if o.Continue = l.Continue; o.Continue == "" {
				if got != n {
					return fmt.Errorf("%d pods are listed, want %d", got, n)
				}
				return nil
			}
		}
	}
	for _, op := range []struct {
		name       string
		n, clients int
		do         func(i int) error
	}{
		{"create", n, clients, func(i int) error {
			_, err := pods.Create(ctx,
				&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name(i), Labels: map[string]string{"app": "writes"}},
					Spec: corev1.PodSpec{
						SchedulerName: "nobody", TerminationGracePeriodSeconds: new(int64(0)),
						Containers: []corev1.Container{{Name: "c", Image: "localhost/bench:1",
							Command: []string{"/pause"}}}}},
				metav1.CreateOptions{})
			return err
		}},
		{"patch", n, clients, func(i int) error {
			_, err := pods.Patch(ctx, name(i), types.MergePatchType, []byte(`{"metadata":{"labels":{"x":"y"}}}`),
				metav1.PatchOptions{})
			return err
		}},
		{"list", lists, 1, func(int) error { return list(0) }},
		{"pages", lists, 1, func(int) error { return list(page) }},
		{"delete", n, clients, func(i int) error {
			return pods.Delete(ctx, name(i), metav1.DeleteOptions{GracePeriodSeconds: new(int64(0))})
		}},
	} {
		wait := func() error { return nil }
		if profiles != "" {
			wait = s.profiles(ctx, filepath.Join(profiles, s.name+"-"+op.name))
		}
		x, err := s.measure(ctx, op.n, op.clients, op.do)
		if err := errors.Join(err, wait()); err != nil {
			return nil, fmt.Errorf("%s: %w", op.name, err)
		}
		out[op.name] = x
	}
	return out, nil
}

func (s *server) measure(ctx context.Context, n, clients int, do func(i int) error) (sample, error) {
	before, err := s.totals(ctx)
	if err != nil {
		return sample{}, err
	}
	cpu, start := s.cpu(), time.Now()
	var next atomic.Int64
	var failed error
	var once sync.Once
	var wg sync.WaitGroup
	for range clients {
		wg.Go(func() {
			for i := int(next.Add(1)) - 1; i < n; i = int(next.Add(1)) - 1 {
				if err := do(i); err != nil {
					once.Do(func() { failed = err })
					return
				}
			}
		})
	}
	wg.Wait()
	took := time.Since(start)
	used := s.cpu() - cpu
	after, err := s.totals(ctx)
	if err := errors.Join(failed, err); err != nil {
		return sample{}, err
	}
	per := func(metric string) float64 { return (after[metric] - before[metric]) / float64(n) }
	return sample{float64(n) / took.Seconds(), float64(used.Microseconds()) / float64(n),
		per("go_memstats_alloc_bytes_total"), per("go_memstats_mallocs_total"),
		1000 * per("go_gc_duration_seconds_count")}, nil
}

// totals reads the metrics without labels.
func (s *server) totals(ctx context.Context) (map[string]float64, error) {
	raw, err := s.c.CoreV1().RESTClient().Get().AbsPath("/metrics").DoRaw(ctx)
	if err != nil {
		return nil, err
	}
	out := map[string]float64{}
	for line := range strings.Lines(string(raw)) {
		name, value, ok := strings.Cut(strings.TrimSpace(line), " ")
		if v, err := strconv.ParseFloat(value, 64); ok && err == nil && strings.HasPrefix(name, "go_") {
			out[name] = v
		}
	}
	return out, nil
}

// profiles takes profiles of processor time and of allocations for some seconds;
// the returned function waits for them.
func (s *server) profiles(ctx context.Context, file string) (wait func() error) {
	kinds := []string{"profile", "allocs"}
	done := make(chan error, len(kinds))
	for _, kind := range kinds {
		go func() {
			raw, err := s.c.CoreV1().RESTClient().Get().AbsPath("/debug/pprof/"+kind).Param("seconds", "8").DoRaw(ctx)
			done <- errors.Join(err, os.WriteFile(file+"."+kind, raw, 0o644))
		}()
	}
	return func() error { return errors.Join(<-done, <-done) }
}

// cpu is what all threads of the server's processes have run.
func (s *server) cpu() time.Duration {
	var sum time.Duration
	for _, pid := range s.pids {
		sum += processor.Time(pid)
	}
	return sum
}

// print shows the medians.
func print(servers []*server, samples map[string]map[string][]sample) error {
	w := tabwriter.NewWriter(os.Stdout, 0, 8, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(w, "\trequests/s\tCPU µs\tbytes\tobjects\t")
	for _, op := range operations {
		for _, s := range servers {
			all := samples[op][s.name]
			median := func(of func(sample) float64) float64 {
				v := make([]float64, len(all))
				for i, x := range all {
					v[i] = of(x)
				}
				slices.Sort(v)
				return v[len(v)/2]
			}
			if len(all) > 0 {
				fmt.Fprintf(w, "%s %s\t%.0f\t%.0f\t%.0f\t%.0f\t\n", op, s.name,
					median(func(x sample) float64 { return x.rate }), median(func(x sample) float64 { return x.cpu }),
					median(func(x sample) float64 { return x.bytes }),
					median(func(x sample) float64 { return x.objects }))
			}
		}
	}
	return w.Flush()
}
