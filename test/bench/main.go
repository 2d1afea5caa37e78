// bench measures a whole carob, on its own runtime and on containerd + runc
// through the same agent, and prints one table with their ratio. It drives the
// real binary and takes every time by its own watch.
//
//	go run ./test/bench -carob bin/carob -images .cache/images [-idle 60s] [-runtimes native,containerd]
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"strings"
	"text/tabwriter"
	"time"

	"carob/test/bench/command"
)

// result is one column of the table.
type result struct {
	name   string
	values map[string]float64
}

// row is one line of the table: what is measured, in which unit, and the budget of the product.
type row struct {
	key, title, unit, budget string
	lessIsBetter             bool
}

var rows = []row{
	{"boot_ready", "boot → API ready", "ms", "≤ 250", true},
	{"boot_pod", "boot → first pod Running", "ms", "≤ 600", true},
	{"running_p50", "create → Running, one by one, p50", "ms", "≤ 40", true},
	{"running_p99", "create → Running, one by one, p99", "ms", "", true},
	{"ready_p50", "create → Ready, one by one, p50", "ms", "", true},
	{"delete_p50", "delete → gone (exits on TERM), p50", "ms", "", true},
	{"delete_p99", "delete → gone (exits on TERM), p99", "ms", "", true},
	{"burst_rate", "burst, pods Running", "pods/s", "≥ 25", false},
	{"burst_delete", "burst, pods gone", "pods/s", "", false},
	{"rss_idle", "memory of carob, idle", "MB", "≤ 110", true},
	{"rss_daemon", "memory of the runtime's daemon", "MB", "", true},
	{"pss_pod", "memory beside the app, per pod", "MB", "≤ 1", true},
	{"cpu_idle", "CPU while idle", "% of a core", "≤ 1", true},
	{"switches_idle", "context switches while idle", "/s", "", true},
	{"api_create", "API: pod creates, 16 clients", "/s", "≥ 1,500", false},
	{"cpu_create", "– CPU of carob for one", "µs", "", true},
	{"api_patch", "API: pod patches, 16 clients", "/s", "≥ 1,200", false},
	{"cpu_patch", "– CPU of carob for one", "µs", "", true},
	{"rss_watches", "memory of 1,000 idle watches", "MB", "≤ 50", true},
}

func main() { command.Main("bench", run) }

func run(ctx context.Context) error {
	var o options
	runtimes := flag.String("runtimes", "native,containerd", "what to measure, in this order")
	flag.StringVar(&o.carob, "carob", "bin/carob", "carob to measure")
	flag.StringVar(&o.images, "images", ".cache/images", "directory with the test images")
	flag.IntVar(&o.n, "n", 30, "pods one by one")
	flag.IntVar(&o.burst, "burst", 50, "pods at once")
	flag.IntVar(&o.writes, "writes", 3000,
		"pods made and patched by several clients, without being scheduled; 0 leaves the API out")
	flag.DurationVar(&o.idle, "idle", time.Minute, "how long to look at an idle cluster")
	flag.Parse()
	if os.Getuid() != 0 {
		return errors.New("real containers need root")
	}
	var results []result
	for name := range strings.SplitSeq(*runtimes, ",") {
		fmt.Fprintf(os.Stderr, "measuring %s …\n", name)
		r, err := measure(ctx, o, name)
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		results = append(results, r)
	}
	return print(results)
}

func print(results []result) error {
	w := tabwriter.NewWriter(os.Stdout, 0, 8, 2, ' ', tabwriter.AlignRight)
	var head strings.Builder
	head.WriteString("\tunit\tbudget\t")
	for _, r := range results {
		head.WriteString(r.name + "\t")
	}
	if len(results) == 2 {
		head.WriteString("better by\t")
	}
	fmt.Fprintln(w, head.String())
	for _, row := range rows {
		var line strings.Builder
		line.WriteString(row.title + "\t" + row.unit + "\t" + row.budget + "\t")
		for _, r := range results {
			v, ok := r.values[row.key]
			if !ok {
				line.WriteString("-\t")
				continue
			}
			fmt.Fprintf(&line, "%.4g\t", v)
		}
		if len(results) == 2 {
			line.WriteString(ratio(results[0].values[row.key], results[1].values[row.key], row.lessIsBetter) + "\t")
		}
		fmt.Fprintln(w, line.String())
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
