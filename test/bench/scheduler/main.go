// scheduler measures schedulers on many nodes that are objects only: an API server of
// carob in this process, without agents and controllers, and each scheduler in a process of its own that uses TLS, one
// after the other, on the same nodes. The pods of a case exist before the scheduler starts, so the result is its rate,
// not that of the clients that create pods.
//
//	go run ./test/bench/scheduler [-nodes 5000 -pods 2000 -cases basic,spread] [-upstream KUBE-SCHEDULER]
//
// With -inside, carob's scheduler runs in this process, too, as it does in the product: its
// processor time is then that of the API server as well.
//
// With -stages, it measures the decision, the binding, and the event of a pod one after the other
// instead, without a scheduler.
//
// With -writes, it also measures a client that makes the requests of a scheduler and decides nothing.
//
// It prints, for each case and scheduler, the pods bound per second between the first and
// the last binding, and from its start to the last one; what one pod took of the scheduler's processor time; and the
// decisions per second of the time that the scheduler says they took.
package main

import (
	"context"
	"flag"
	"fmt"
	"net"
	"os"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"

	"carob/internal/scheduler"
	"carob/test/bench/command"
	"carob/test/bench/standalone"
)

// The first argument that makes this program carob's scheduler, or the client that only writes. The kubeconfig
// follows, and of the scheduler the address of its metrics.
const (
	child       = "run-scheduler"
	writerChild = "write-alone"
)

func main() {
	command.Main("scheduler", func(ctx context.Context) error {
		switch {
		case len(os.Args) == 4 && os.Args[1] == child:
			return schedule(ctx, os.Args[2], os.Args[3])
		case len(os.Args) == 3 && os.Args[1] == writerChild:
			return writeAlone(ctx, os.Args[2])
		}
		return run(ctx)
	})
}

// schedule is carob's scheduler as a process.
func schedule(ctx context.Context, kubeconfig, metrics string) error {
	scheduler.RegisterMetrics()
	if err := serveMetrics(metrics); err != nil {
		return err
	}
	cfg, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return err
	}
	s, err := scheduler.New(cfg, scheduler.Options{})
	if err != nil {
		return err
	}
	return s.Run(ctx)
}

func run(ctx context.Context) error {
	nodes := flag.Int("nodes", 5000, "how many nodes")
	pods := flag.Int("pods", 2000, "how many pods in each case")
	names := flag.String("cases", strings.Join(caseNames(), ","), "which cases")
	upstream := flag.String("upstream", "", "program of upstream's kube-scheduler; empty: carob's only")
	inside := flag.Bool("inside", true, "measure carob's scheduler in the API server's process, too")
	profile := flag.String("cpuprofile", "", "write a profile of that to a file")
	writes := flag.Bool("writes", true, "measure a client that only writes, too")
	stages := flag.Bool("stages", false, "measure the parts of a pod's way one after the other instead")
	limit := flag.Duration("limit", 5*time.Minute, "longest time for one case and scheduler")
	flag.Parse()
	dir, err := os.MkdirTemp("", "scheduler-bench-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	b, stop, err := open(ctx, dir)
	if err != nil {
		return err
	}
	defer stop()
	if err := b.makeNodes(ctx, *nodes); err != nil {
		return err
	}
	if *stages {
		return b.stages(ctx, *nodes, *pods, *profile)
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	metrics, err := freeAddress()
	if err != nil {
		return err
	}
	host, port, err := net.SplitHostPort(metrics)
	if err != nil {
		return err
	}
	kinds := []kind{{name: "carob", metrics: "http://" + metrics + "/metrics",
		command: []string{self, child, b.kubeconfig, metrics}}}
	if *inside {
		scheduler.RegisterMetrics()
		kinds = append([]kind{{name: "carob, inside", profile: *profile}}, kinds...)
	}
	if *writes {
		kinds = append(kinds, kind{name: "writes alone", command: []string{self, writerChild, b.kubeconfig}})
	}
	if *upstream != "" {
		kinds = append(kinds,
			kind{name: "upstream", metrics: "https://" + metrics + "/metrics",
				command: []string{*upstream, "--kubeconfig", b.kubeconfig, "--leader-elect=false",
					"--kube-api-qps=5000", "--kube-api-burst=5000", "--cert-dir", dir,
					"--bind-address", host, "--secure-port", port, "--authentication-skip-lookup",
					"--authorization-always-allow-paths=/metrics", "-v=0"}})
	}
	out := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintf(out,
		"case (%d nodes, %d pods)\tscheduler\tbound\tpods/s\tfrom its start\tprocessor time a pod\tpods per second of it"+
			"\tdecisions\tper second\n", *nodes, *pods)
	for name := range strings.SplitSeq(*names, ",") {
		i := slices.IndexFunc(cases(), func(c workload) bool { return c.name == name })
		if i < 0 {
			return fmt.Errorf("unknown case %q; there are %s", name, strings.Join(caseNames(), ", "))
		}
		var rates []result
		for _, k := range kinds {
			r, err := b.measure(ctx, k, cases()[i], *pods, *limit)
			if err != nil {
				return fmt.Errorf("%s, %s: %w", name, k.name, err)
			}
			rates = append(rates, r)
			fmt.Fprintf(out, "%s\t%s\t%d\t%.0f\t%.0f\t%v\t%.0f\t%.0f\t%.0f\n", name, k.name, r.bound, r.rate, r.whole,
				r.each.Round(time.Microsecond), float64(time.Second)/float64(r.each), r.decisions.n, r.decisions.rate())
		}
		for i, r := range rates[:len(rates)-1] {
			if last := rates[len(rates)-1]; *upstream != "" && last.rate > 0 {
				decided := 0.0
				if last.decisions.n > 0 {
					decided = r.decisions.rate() / last.decisions.rate()
				}
				fmt.Fprintf(out, "%s\tratio of %s\t\t%.1f\t%.1f\t%.2f\t\t\t%.1f\n", name, kinds[i].name, r.rate/last.rate,
					r.whole/last.whole, float64(r.each)/float64(last.each), decided)
			}
		}
		if err := out.Flush(); err != nil {
			return err
		}
	}
	return nil
}

// bench is the API server under the schedulers.
type bench struct {
	client     kubernetes.Interface
	kubeconfig string
	dir        string
	inside     func(ctx context.Context) error // runs a scheduler in this process
}

func open(ctx context.Context, dir string) (*bench, func(), error) {
	server, stop, err := standalone.Start(ctx, dir)
	if err != nil {
		return nil, nil, err
	}
	b := &bench{dir: dir, kubeconfig: server.Kubeconfig}
	if b.client, err = kubernetes.NewForConfig(server.ClientConfig("bench", user.SystemPrivilegedGroup)); err != nil {
		stop()
		return nil, nil, err
	}
	b.inside = func(ctx context.Context) error {
		s, err := scheduler.New(server.ClientConfig("system:kube-scheduler"), scheduler.Options{})
		if err != nil {
			return err
		}
		return s.Run(ctx)
	}
	return b, stop, nil
}
