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
// It prints, for each case and scheduler, the pods bound per second between the first and
// the last binding, and what one pod took of the scheduler's processor time.
package main

import (
	"context"
	"flag"
	"fmt"
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

// child, as the first argument, makes this program carob's scheduler; its kubeconfig follows.
const child = "run-scheduler"

func main() {
	command.Main("scheduler", func(ctx context.Context) error {
		if len(os.Args) == 3 && os.Args[1] == child {
			return schedule(ctx, os.Args[2])
		}
		return run(ctx)
	})
}

// schedule is carob's scheduler as a process.
func schedule(ctx context.Context, kubeconfig string) error {
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
	kinds := []kind{{name: "carob", command: []string{self, child, b.kubeconfig}}}
	if *inside {
		kinds = append([]kind{{name: "carob, inside", profile: *profile}}, kinds...)
	}
	if *upstream != "" {
		kinds = append(kinds,
			kind{name: "upstream", command: []string{*upstream, "--kubeconfig", b.kubeconfig, "--leader-elect=false",
				"--kube-api-qps=5000", "--kube-api-burst=5000",
				"--secure-port=0", "--authentication-skip-lookup", "-v=0"}})
	}
	out := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintf(out,
		"case (%d nodes, %d pods)\tscheduler\tbound\tpods/s\tprocessor time a pod\tpods per second of it\n", *nodes,
		*pods)
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
			fmt.Fprintf(out, "%s\t%s\t%d\t%.0f\t%v\t%.0f\n", name, k.name, r.bound, r.rate,
				r.each.Round(time.Microsecond), float64(time.Second)/float64(r.each))
		}
		for i, r := range rates[:len(rates)-1] {
			if last := rates[len(rates)-1]; *upstream != "" && last.rate > 0 {
				fmt.Fprintf(out, "%s\tratio of %s\t\t%.1f\t%.2f\t\n", name, kinds[i].name, r.rate/last.rate,
					float64(r.each)/float64(last.each))
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
