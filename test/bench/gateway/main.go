// gateway measures carob's gateway beside nginx, HAProxy and Caddy: the same server behind each, the same clients, in
// turns. Programs that are not installed are downloaded from Debian and unpacked in a temporary directory, without
// their services. It listens on loopback addresses only and leaves nothing behind.
//
//	go run ./test/bench/gateway [-only carob,nginx] [-rounds 3] [-time 2s]
//	go run ./test/bench/gateway -cluster bin/carob [-routes 10000]
//	go run ./test/bench/gateway -costs 1k,100k,h2,tls,one [-before BINARY -only before,carob]
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"carob/test/bench/command"
)

// Addresses that nothing else on a machine uses.
const (
	upstreamAt = "127.94.16.1:8080"
	plainAt    = "127.94.16.2:8080" // of each server in its turn
	secureAt   = "127.94.16.2:8443"
)

func main() { command.Main("gateway", run) }

type options struct {
	rounds, routes, idle int
	time                 time.Duration
	only                 []string
	paths                []string
	profile, before      string
}

func run(ctx context.Context) (err error) {
	if len(os.Args) > 1 {
		switch os.Args[1] {
		case "upstream":
			return upstream(ctx)
		case "carob":
			return carob(ctx, os.Args[2:])
		}
	}
	var o options
	flag.IntVar(&o.rounds, "rounds", 3, "how often each server has its turn; the table has the medians")
	flag.IntVar(&o.routes, "routes", 10_000, "routes of the larger configuration")
	flag.IntVar(&o.idle, "idle", 2_000, "idle connections whose memory is measured")
	flag.DurationVar(&o.time, "time", 2*time.Second, "how long each measurement takes")
	only := flag.String("only", "direct,carob,nginx,haproxy,caddy", "who is measured, by comma")
	flag.StringVar(&o.profile, "profile", "", "file for a profile of carob's processor time, of its last start")
	flag.StringVar(&o.before, "before", "", "another build of this program: the server \"before\"")
	costs := flag.String("costs", "", "measure only the processor time of a request, in these ways, by comma")
	whole := flag.String("cluster", "", "a carob: only how long a route takes in a whole one, among 10 and -routes others")
	flag.Parse()
	o.only = strings.Split(*only, ",")
	dir, err := os.MkdirTemp("", "bench-gateway-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	if *whole != "" {
		for _, n := range []int{10, o.routes} {
			after, r, err := cluster(ctx, *whole, filepath.Join(dir, fmt.Sprint(n)), n)
			if err != nil {
				return err
			}
			fmt.Printf("load %s: an HTTPRoute is created → served among %d, ms: p5 %s, p50 %s, p99 %s; "+
				"after the API server's answer: p5 %s, p50 %s, p99 %s\n", load(), n, short(r.at(.05)/1e3),
				short(r.at(.5)/1e3), short(r.at(.99)/1e3), short(after.at(.05)/1e3), short(after.at(.5)/1e3),
				short(after.at(.99)/1e3))
		}
		return nil
	}
	l := &lab{options: o, dir: dir}
	if err := l.prepare(ctx); err != nil {
		return err
	}
	defer l.end()
	if *costs != "" {
		l.paths = strings.Split(*costs, ",")
		return l.costs(ctx)
	}
	began := load()
	table := map[string]map[string][]float64{} // by measurement and server
	for round := range o.rounds {
		for _, name := range o.only {
			fmt.Fprintf(os.Stderr, "round %d: %s\n", round+1, name)
			values, err := l.turn(ctx, name)
			if err != nil {
				return fmt.Errorf("%s: %w", name, err)
			}
			for what, v := range values {
				if table[what] == nil {
					table[what] = map[string][]float64{}
				}
				table[what][name] = append(table[what][name], v)
			}
		}
	}
	fmt.Printf("load at the start: %s; at the end: %s; medians of %d turns of %v\n\n", began, load(), o.rounds, o.time)
	w := tabwriter.NewWriter(os.Stdout, 8, 8, 2, ' ', 0)
	fmt.Fprintf(w, "| | %s |\n", strings.Join(o.only, "\t| "))
	fmt.Fprintf(w, "|---|%s\n", strings.Repeat("---|", len(o.only)))
	for _, what := range rows {
		fmt.Fprintf(w, "| %s\t", strings.ReplaceAll(what, "ROUTES", fmt.Sprint(o.routes)))
		for _, name := range o.only {
			all := table[what][name]
			if len(all) == 0 {
				fmt.Fprint(w, "| –\t")
				continue
			}
			slices.Sort(all)
			fmt.Fprintf(w, "| %s\t", short(all[len(all)/2]))
		}
		fmt.Fprintln(w, "|")
	}
	return w.Flush()
}

// short is a number with three digits.
func short(v float64) string {
	switch {
	case v >= 100:
		return fmt.Sprintf("%.0f", v)
	case v >= 10:
		return fmt.Sprintf("%.1f", v)
	}
	return fmt.Sprintf("%.2f", v)
}

func load() string {
	text, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return "unknown"
	}
	return strings.Join(strings.Fields(string(text))[:1], " ")
}
