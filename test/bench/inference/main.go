// inference measures what carob's gateway adds to requests for model servers, beside requests that go to them directly.
// The model servers are twins (test/images/build/modelserver) in pods behind an InferencePool of a carob of its own,
// which is removed at the end.
//
//	go run ./test/bench/inference -carob bin/carob -images .cache/images [-only latency,rate] [-llmd DIR]
//	    [-simulator DIR] [-profile FILE]
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"carob/test/bench/command"
)

type options struct {
	carob, images string
	llmd          string
	simulator     string
	scale         float64
	profile       string
}

// line is one measured value.
type line struct{ what, value, target string }

// step is a measurement. Those with a cluster need one.
type step struct {
	name    string
	cluster bool
	run     func(context.Context, *lab) ([]line, error)
}

var steps = []step{
	{"picks", false, picks},
	{"off", true, nothingYet},
	{"streams", true, streams}, // while the heap is small
	{"latency", true, latency},
	{"rate", true, rate},
	{"prefixes", true, prefixes},
	{"pickers", true, pickers},
}

func main() { command.Main("inference", run) }

func run(ctx context.Context) (err error) {
	var o options
	flag.StringVar(&o.carob, "carob", "bin/carob", "carob to measure")
	flag.StringVar(&o.images, "images", ".cache/images", "directory with the test images")
	flag.StringVar(&o.llmd, "llmd", "", "directory with llm-d's endpoint picker (hack/reference-inference), to compare")
	flag.StringVar(&o.simulator, "simulator", "", "directory with llm-d-inference-sim (hack/reference-inference): the "+
		"model servers of the pickers")
	flag.Float64Var(&o.scale, "scale", 1, "how much longer each measurement takes")
	flag.StringVar(&o.profile, "profile", "", "file for a profile of carob's processor time during the rate")
	only := flag.String("only", "", "what to measure, by comma (default: all)")
	flag.Parse()
	var l *lab
	w := tabwriter.NewWriter(os.Stdout, 80, 8, 2, ' ', 0)
	fmt.Fprintf(w, "load %s\t\t\n", load())
	for _, s := range steps {
		if *only != "" && !slices.Contains(strings.Split(*only, ","), s.name) {
			continue
		}
		if s.cluster && l == nil {
			if os.Getuid() != 0 {
				return errors.New("real containers need root")
			}
			if l, err = begin(ctx, o); l != nil {
				defer func() { err = errors.Join(err, l.end()) }()
			}
			if err != nil {
				return err
			}
		}
		began := time.Now()
		fmt.Fprintf(os.Stderr, "measuring %s …\n", s.name)
		lines, err := s.run(ctx, l)
		if err != nil {
			return fmt.Errorf("%s: %w", s.name, err)
		}
		for _, l := range lines {
			fmt.Fprintf(w, "%s\t%s\t%s\n", l.what, l.value, l.target)
		}
		if err := w.Flush(); err != nil {
			return err
		}
		fmt.Fprintf(os.Stderr, "%s took %s\n", s.name, time.Since(began).Round(time.Second))
	}
	fmt.Fprintf(w, "load %s\t\t\n", load())
	return w.Flush()
}

// load is that of the machine in the last minute: processes that want a processor.
func load() string {
	b, _ := os.ReadFile("/proc/loadavg")
	one, _, _ := strings.Cut(string(b), " ")
	return one
}

// quantile sorts the values.
func quantile(v []time.Duration, q float64) time.Duration {
	if len(v) == 0 {
		return 0
	}
	slices.Sort(v)
	return v[min(len(v)-1, int(q*float64(len(v))))]
}

func ms(d time.Duration) string { return fmt.Sprintf("%.3f ms", float64(d.Microseconds())/1000) }
