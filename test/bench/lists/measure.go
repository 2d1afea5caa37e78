package main

import (
	"context"
	"fmt"
	"os"
	"slices"
	"text/tabwriter"
	"time"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"carob/test/bench/processor"
)

// source is where a client lists.
type source struct {
	name   string
	server *child
	cfg    *rest.Config
}

// measure lists each way from each source, in turns.
func measure(ctx context.Context, ways []way, rounds int, sources []source) error {
	out := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', 0)
	fmt.Fprint(out, "list")
	for _, s := range sources {
		fmt.Fprintf(out, "\t%s: ms\tserver's ms\tclient's ms", s.name)
	}
	fmt.Fprintln(out)
	for _, w := range ways {
		fmt.Fprint(out, w.name)
		clients := make([]kubernetes.Interface, len(sources))
		took := make([][]time.Duration, len(sources))
		server, client := make([]time.Duration, len(sources)), make([]time.Duration, len(sources))
		for i, s := range sources {
			var err error
			if clients[i], err = kubernetes.NewForConfig(w.config(s.cfg)); err != nil {
				return err
			}
		}
		for round := range rounds + 2 { // the first two warm up
			for i, s := range sources {
				theirs, own, began := processor.Time(s.server.Process.Pid), processor.Time(os.Getpid()), time.Now()
				if err := w.list(ctx, clients[i]); err != nil {
					return fmt.Errorf("%s, %s: %w", w.name, s.name, err)
				}
				if round >= 2 {
					took[i] = append(took[i], time.Since(began))
					server[i] += processor.Time(s.server.Process.Pid) - theirs
					client[i] += processor.Time(os.Getpid()) - own
				}
			}
		}
		for i := range sources {
			slices.Sort(took[i])
			fmt.Fprintf(out, "\t%.1f\t%.1f\t%.1f", ms(took[i][len(took[i])/2]), ms(server[i])/float64(rounds),
				ms(client[i])/float64(rounds))
		}
		fmt.Fprintln(out)
	}
	return out.Flush()
}

func ms(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

// profile lists for so many seconds while the server profiles itself.
func profile(ctx context.Context, ways []way, cfg *rest.Config, seconds int) error {
	c, err := kubernetes.NewForConfig(cfg)
	if err != nil {
		return err
	}
	type result struct {
		data []byte
		err  error
	}
	done := make(chan result, 1)
	go func() {
		data, err := c.CoreV1().RESTClient().Get().AbsPath("/debug/pprof/profile").
			Param("seconds", fmt.Sprint(seconds)).DoRaw(ctx)
		done <- result{data, err}
	}()
	for {
		for _, w := range ways {
			lister, err := kubernetes.NewForConfig(w.config(cfg))
			if err != nil {
				return err
			}
			if err := w.list(ctx, lister); err != nil {
				return err
			}
		}
		select {
		case r := <-done:
			if r.err != nil {
				return r.err
			}
			return os.WriteFile("PROFILE", r.data, 0o600)
		default:
		}
	}
}
