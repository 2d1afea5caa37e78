// bench-network measures what the network of a cluster costs: carob's own Services and DNS beside upstream's
// kube-proxy in nftables mode and CoreDNS, on the same node, one after the other, and prints one table. Everything
// runs in a network and a mount namespace of its own.
//
//	hack/bench-network [-only carob] [-services 1,1000] [-n 50]
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"strconv"
	"strings"
	"syscall"
	"text/tabwriter"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

type options struct {
	carob, kubeProxy, coreDNS, image string

	n        int   // pods, one after the other
	flips    int   // changes of an endpoint
	services []int // how many there are while endpoints change
	seconds  time.Duration
}

// row is one line of the table: what is measured, its unit, and the target.
type row struct{ key, title, unit, target string }

func rows(services []int) []row {
	out := []row{
		{"sync_p50", "write of 1 KB synced to the disk, 50 a second, p50", "ms", ""},
		{"sync_p99", "– p99", "ms", ""},
		{"slice_p50", "Ready → EndpointSlice, p50", "ms", "≤ 3"},
		{"slice_p99", "– p99", "ms", ""},
		{"ready_p50", "Ready → first packet, p50", "ms", "≤ 5"},
		{"ready_p99", "Ready → first packet, p99", "ms", "≤ 15"},
		{"gone_p50", "delete → last packet to the pod, p50", "ms", ""},
		{"gone_p99", "delete → last packet to the pod, p99", "ms", ""},
		{"lost", "connections that fail, for each deletion", "", "0"},
	}
	for _, n := range services {
		out = append(out, row{fmt.Sprint("change_p50_", n), fmt.Sprintf("endpoint changed → packet, %d Services, p50", n), "ms", "≤ 3"},
			row{fmt.Sprint("change_p99_", n), "– p99", "ms", ""},
			row{fmt.Sprint("change_after_", n), "– after the API's answer, p50", "ms", ""})
	}
	return append(out,
		row{"connect_pod", "connection set-up, pod to pod, p50", "µs", ""},
		row{"connect_ratio", "– through a Service ÷ pod to pod", "", "≤ 1.1"},
		row{"stream_loopback", "throughput, loopback", "Gbit/s", ""},
		row{"stream_pod", "throughput, pod to pod", "Gbit/s", ""},
		row{"stream_service", "throughput, through a Service", "Gbit/s", ""},
		row{"dns_rate", "DNS, answers for a second of one core", "/s", "≥ 60,000"},
		row{"dns_p99", "DNS, p99 at 1,000 questions/s", "ms", ""},
		row{"memory", "memory of carob, proxy and DNS, few Services", "MB", ""},
		row{"memory_services", "– with all Services", "MB", ""})
}

// result is one column.
type result struct {
	name   string
	values map[string]float64
}

func main() {
	if len(os.Args) > 1 && peerCommands[os.Args[1]] != nil {
		exit(peerCommands[os.Args[1]](os.Args[2:]))
		return
	}
	if os.Getenv(insideEnv) == "" {
		exit(isolated())
		return
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	exit(run(ctx))
}

func exit(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench-network:", err)
		os.Exit(1)
	}
}

const insideEnv = "CAROB_BENCH_NETWORK_INSIDE"

// isolated runs this program again in namespaces of its own.
func isolated() error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	signal.Ignore(os.Interrupt) // the child ends what it started
	cmd := exec.Command(self, os.Args[1:]...)
	cmd.Env = append(os.Environ(), insideEnv+"=1")
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWNET | unix.CLONE_NEWNS,
		Pdeathsig: syscall.SIGTERM}
	return cmd.Run()
}

// furnish makes a node's network of an empty namespace: loopback, and an uplink that leads nowhere.
func furnish() error {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return err
	}
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		return err
	}
	uplink := &netlink.Veth{LinkAttrs: netlink.NewLinkAttrs(), PeerName: "world0"}
	uplink.Name = "uplink0"
	addr, err := netlink.ParseAddr(nodeAddress + "/24")
	if err != nil {
		return err
	}
	if err := errors.Join(netlink.LinkSetUp(lo), netlink.LinkAdd(uplink)); err != nil {
		return err
	}
	world, err := netlink.LinkByName("world0")
	if err != nil {
		return err
	}
	everywhere := &net.IPNet{IP: net.IPv4zero, Mask: net.CIDRMask(0, 32)}
	return errors.Join(netlink.LinkSetUp(world), netlink.AddrAdd(uplink, addr), netlink.LinkSetUp(uplink),
		netlink.RouteAdd(&netlink.Route{LinkIndex: uplink.Index, Dst: everywhere, Gw: net.IPv4(192, 0, 2, 1)}))
}

const nodeAddress = "192.0.2.2"

func run(ctx context.Context) error {
	var o options
	flag.StringVar(&o.carob, "carob", "bin/carob", "carob to measure")
	flag.StringVar(&o.kubeProxy, "kube-proxy", "", "upstream's kube-proxy")
	flag.StringVar(&o.coreDNS, "coredns", "", "CoreDNS")
	flag.StringVar(&o.image, "image", "internal/cli/dist/demo.tar", "archive with the image of the pods")
	flag.IntVar(&o.n, "n", 100, "pods, one after the other")
	flag.IntVar(&o.flips, "changes", 100, "changes of an endpoint for each number of Services")
	flag.DurationVar(&o.seconds, "for", 3*time.Second, "how long to measure each throughput and DNS")
	counts := flag.String("services", "1,1000,10000", "how many Services there are while endpoints change")
	only := flag.String("only", "carob,upstream,upstream-1ms", "what to measure, in this order; upstream-1ms is "+
		"kube-proxy with a minSyncPeriod of 1 ms instead of its default of 1 s")
	flag.Parse()
	for text := range strings.SplitSeq(*counts, ",") {
		n, err := strconv.Atoi(text)
		if err != nil {
			return err
		}
		o.services = append(o.services, n)
	}
	if err := furnish(); err != nil {
		return fmt.Errorf("the network of the node: %w", err)
	}
	began, before := time.Now().UTC(), load()
	var results []result
	for name := range strings.SplitSeq(*only, ",") {
		fmt.Fprintf(os.Stderr, "measuring %s …\n", name)
		values, err := measure(ctx, o, name)
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		results = append(results, result{name, values})
	}
	fmt.Printf("%s to %s UTC, load %s before, %s after\n\n", began.Format("2 January 2006, 15:04"),
		time.Now().UTC().Format("15:04"), before, load())
	return print(rows(o.services), results)
}

// load is the average of the last minute, with the work of others.
func load() string {
	b, _ := os.ReadFile("/proc/loadavg")
	first, _, _ := strings.Cut(string(b), " ")
	return first
}

func print(rows []row, results []result) error {
	w := tabwriter.NewWriter(os.Stdout, 0, 8, 1, ' ', 0)
	fmt.Fprint(w, "| what\t| unit\t| target\t|")
	for _, r := range results {
		fmt.Fprintf(w, " %s\t|", r.name)
	}
	fmt.Fprint(w, "\n|---\t|---\t|---\t|", strings.Repeat("---\t|", len(results)), "\n")
	for _, row := range rows {
		fmt.Fprintf(w, "| %s\t| %s\t| %s\t|", row.title, row.unit, row.target)
		for _, r := range results {
			if v, ok := r.values[row.key]; ok {
				fmt.Fprintf(w, " %s\t|", number(v))
			} else {
				fmt.Fprint(w, " –\t|")
			}
		}
		fmt.Fprintln(w)
	}
	return w.Flush()
}

// number has three digits that count.
func number(v float64) string {
	switch {
	case v >= 1000:
		return strconv.Itoa(int(v))
	case v >= 100:
		return strconv.FormatFloat(v, 'f', 0, 64)
	case v >= 10:
		return strconv.FormatFloat(v, 'f', 1, 64)
	}
	return strconv.FormatFloat(v, 'f', 2, 64)
}
