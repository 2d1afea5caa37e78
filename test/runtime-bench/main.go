// runtime-bench measures container runtimes side by side at the CRI socket: carob's
// native one and containerd with runc and with crun, in one run, with their
// ratios; and where the milliseconds of carob's own go, step by step. Nothing of
// Kubernetes is between: one client calls RunPodSandbox, CreateContainer,
// StartContainer and so on. Each runtime is a process of its own in cgroups of its
// own, so that processor time counts all that it starts.
//
//	go run ./test/runtime-bench -programs .cache/tools/reference
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"text/tabwriter"
	"time"
)

// row is one line of the table: what is measured, in which unit, and the target.
type row struct {
	key, title, unit, target string
	lessIsBetter             bool
}

var rows = []row{
	{"run_p50", "RunPodSandbox, p50", "ms", "", true},
	{"create_p50", "CreateContainer, p50", "ms", "", true},
	{"start_p50", "StartContainer, p50", "ms", "", true},
	{"running_min", "create → running, serial, best", "ms", "", true},
	{"running_p50", "create → running, serial, p50", "ms", "≤ 15", true},
	{"running_p95", "create → running, serial, p95", "ms", "≤ 35", true},
	{"running_p99", "create → running, serial, p99", "ms", "", true},
	{"teardown_p50", "stop and remove, serial, p50", "ms", "", true},
	{"exec_p50", "ExecSync true, p50", "ms", "≤ 5", true},
	{"exec_p99", "ExecSync true, p99", "ms", "", true},
	{"creates", "creates, 8 parallel", "/s", "≥ 60", false},
	{"cycles", "full cycles, 8 parallel", "/s", "≥ 40", false},
	{"cpu", "CPU per cycle, serial", "ms", "≤ 25", true},
	{"cpu_parallel", "CPU per cycle, 8 parallel", "ms", "", true},
	{"pss_pod", "memory per pod beside the app (PSS)", "MB", "≤ 1", true},
	{"rss", "memory of the daemon, after", "MB", "", true},
	{"boot", "boot → CRI answers", "ms", "", true},
	{"restart", "killed with %d live pods → all known again", "ms", "≤ 200", true},
}

type options struct {
	programs, images string
	weight           bool
	n, cycles, live  int
}

func main() {
	if dir := os.Getenv(serveDir); dir != "" {
		if err := serve(dir); err != nil {
			fmt.Fprintln(os.Stderr, "runtime-bench: serving:", err)
			os.Exit(1)
		}
		return
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "runtime-bench:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context) error {
	var o options
	runtimes := flag.String("runtimes", "native,runc,crun",
		"what to measure, in this order; runc and crun stand for containerd with them")
	flag.StringVar(&o.programs, "programs", "",
		"directory with containerd, runc and cni/ (hack/reference-runtimes); empty for Debian's")
	flag.StringVar(&o.images, "images", ".cache/images", "directory with the test images")
	flag.IntVar(&o.n, "n", 50, "pods one by one")
	flag.IntVar(&o.cycles, "parallel", 96, "pods eight at a time")
	flag.IntVar(&o.live, "live", 100, "pods that live through a restart")
	flag.BoolVar(&o.weight, "weight", false,
		"on a busy machine: give what is measured, and this program, processor time before others")
	flag.Parse()
	if os.Getuid() != 0 {
		return errors.New("containers need root")
	}
	fmt.Printf("%s, load before %s\n", time.Now().UTC().Format(time.RFC3339), load())
	if o.weight {
		fmt.Println("measured with the highest processor weight")
	}
	var results []map[string]float64
	var names []string
	var steps []step
	for name := range strings.SplitSeq(*runtimes, ",") {
		fmt.Fprintf(os.Stderr, "measuring %s …\n", name)
		t, err := open(ctx, o, name)
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		values, err := t.measure(ctx, o)
		if err == nil && name == "native" {
			steps, err = t.steps(ctx, o.n)
		}
		if err := errors.Join(err, t.close()); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		results, names = append(results, values), append(names, t.title)
	}
	fmt.Printf("load after %s (own work included)\n\n", load())
	if err := table(o, names, results); err != nil {
		return err
	}
	return stepTable(steps)
}

// load is the machine's load average: figures of a busy machine are to be read as ratios.
func load() string {
	b, err := os.ReadFile("/proc/loadavg")
	f := strings.Fields(string(b))
	if err != nil || len(f) < 3 {
		return "unknown"
	}
	return strings.Join(f[:3], " ")
}

func table(o options, names []string, results []map[string]float64) error {
	w := tabwriter.NewWriter(os.Stdout, 0, 8, 2, ' ', tabwriter.AlignRight)
	fmt.Fprint(w, "\tunit\ttarget\t")
	for i, n := range names {
		fmt.Fprint(w, n+"\t")
		if i > 0 {
			fmt.Fprint(w, "ratio\t")
		}
	}
	fmt.Fprintln(w)
	for _, r := range rows {
		title := r.title
		if strings.Contains(title, "%d") {
			title = fmt.Sprintf(title, o.live)
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t", title, r.unit, r.target)
		for i, v := range results {
			fmt.Fprintf(w, "%.4g\t", v[r.key])
			if i > 0 {
				fmt.Fprint(w, ratio(results[0][r.key], v[r.key], r.lessIsBetter)+"\t")
			}
		}
		fmt.Fprintln(w)
	}
	return w.Flush()
}

// ratio is how many times better a is than b.
func ratio(a, b float64, lessIsBetter bool) string {
	if a == 0 || b == 0 {
		return ""
	}
	if lessIsBetter {
		a, b = b, a
	}
	return fmt.Sprintf("%.2g×", a/b)
}

func stepTable(steps []step) error {
	if len(steps) == 0 {
		return nil
	}
	fmt.Print("\nWhere it goes in carob's runtime (serial)\n")
	w := tabwriter.NewWriter(os.Stdout, 0, 8, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(w, "step\tp50 µs\tp95 µs\t")
	sum := 0.0
	for _, s := range steps {
		fmt.Fprintf(w, "%s\t%.0f\t%.0f\t\n", s.name, s.p50, s.p95)
		sum += s.p50
	}
	fmt.Fprintf(w, "sum\t%.0f\t\t\n", sum)
	return w.Flush()
}
