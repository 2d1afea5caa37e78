// node measures the node agent of a real carob: volumes, idle pods, probes, files of config maps, and
// /metrics/cadvisor. Processor times can be measured on a busy machine, latencies cannot.
//
//	make bench-node BENCH='-only exec'
//	make bench-node BENCH="-only csi,idle -kubelet $(hack/reference-component .cache/tools/reference kubelet)"
//
// With -kubelet, upstream's kubelet is another node of the same cluster, with Debian's containerd and runc, and the
// parts that do not need carob's own files are measured there, too.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"carob/test/bench/command"
)

// options are the flags.
type options struct {
	carob, images string
	n             int           // of each latency
	pods          int           // that are idle
	seconds       time.Duration // how long processor time is counted
	profiles      string        // directory for profiles of carob; empty: none
	kubelet       string        // upstream's; empty: none
}

// figure is one line of the table.
type figure struct {
	title, unit, goal string
	value             float64
}

// part is one group of figures. Each leaves the cluster as it was.
type part struct {
	name string
	run  func(*bench, context.Context) error
	each bool // for each agent
}

var parts = []part{
	{"claims", (*bench).claims, false},
	{"csi", (*bench).csi, false}, // in turns
	{"files", (*bench).files, false},
	{"idle", (*bench).idle, true},
	{"http", (*bench).httpProbes, true},
	{"exec", (*bench).execProbes, true},
}

func main() {
	if port, err := strconv.Atoi(os.Getenv(connectionsPort)); err == nil {
		fmt.Fprintln(os.Stderr, "bench-node:", connect(port))
		os.Exit(1)
	}
	command.Main("bench-node", run)
}

func run(ctx context.Context) error {
	var o options
	names := make([]string, 0, len(parts))
	for _, p := range parts {
		names = append(names, p.name)
	}
	only := flag.String("only", strings.Join(names, ","), "what to measure")
	flag.StringVar(&o.carob, "carob", "bin/carob", "carob to measure")
	flag.StringVar(&o.images, "images", ".cache/images", "directory with the test images")
	flag.IntVar(&o.n, "n", 30, "how often each latency is measured")
	flag.IntVar(&o.pods, "pods", 100, "idle pods")
	flag.DurationVar(&o.seconds, "for", 20*time.Second, "how long processor time is counted")
	flag.StringVar(&o.kubelet, "kubelet", "", "upstream's kubelet, to measure it beside carob")
	flag.StringVar(&o.profiles, "profiles", "", "directory for processor profiles of carob under probes")
	flag.Parse()
	chosen := strings.Split(*only, ",")
	for _, c := range chosen {
		if !slices.Contains(names, c) {
			return fmt.Errorf("-only: there is no %q, only %s", c, strings.Join(names, ", "))
		}
	}
	if os.Getuid() != 0 {
		return errors.New("real containers need root")
	}
	b, stop, err := start(ctx, o)
	if err != nil {
		return err
	}
	if o.kubelet != "" {
		var k *kubelet
		if k, err = b.startKubelet(ctx); err == nil {
			b.agents = append(b.agents, k.agent())
			end := stop
			stop = func() error { return errors.Join(k.stop(), end()) }
		}
	}
	for _, p := range parts {
		if err != nil || !slices.Contains(chosen, p.name) {
			continue
		}
		fmt.Fprintf(os.Stderr, "measuring %s …\n", p.name)
		if p.each {
			err = b.each(ctx, p.run)
		} else {
			err = p.run(b, ctx)
		}
		if err != nil {
			err = fmt.Errorf("%s: %w", p.name, err)
		}
	}
	return errors.Join(err, stop(), show(b.figures))
}

func show(figures []figure) error {
	w := tabwriter.NewWriter(os.Stdout, 0, 8, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(w, "\tunit\tgoal\t\t")
	for _, f := range figures {
		fmt.Fprintf(w, "%s\t%s\t%s\t%.4g\t\n", f.title, f.unit, f.goal, f.value)
	}
	return w.Flush()
}
