package main

import (
	"context"
	"fmt"
	"os"
	"slices"
	"text/tabwriter"
)

// paths are the ways of a request whose processor time is compared.
var paths = []struct {
	name    string
	measure func(ctx context.Context, l *lab, pid int) (float64, error)
}{
	{"1k", func(ctx context.Context, l *lab, pid int) (float64, error) {
		_, each, err := l.http1(ctx, plainAt, pid, 32, benchHost, "/1k")
		return each, err
	}},
	{"100k", func(ctx context.Context, l *lab, pid int) (float64, error) {
		_, each, err := l.http1(ctx, plainAt, pid, 32, benchHost, "/100k")
		return each, err
	}},
	{"h2", func(ctx context.Context, l *lab, pid int) (float64, error) {
		one, end := streams()
		defer end()
		return l.each(ctx, pid, 100, one)
	}},
	{"tls", func(ctx context.Context, l *lab, pid int) (float64, error) { return l.each(ctx, pid, 8, secureOnce) }},
	{"one", func(ctx context.Context, l *lab, pid int) (float64, error) {
		_, each, err := l.http1(ctx, plainAt, pid, 1, benchHost, "/1k")
		return each, err
	}},
}

// each is the processor time of a server for one of the requests of n clients, in microseconds.
func (l *lab) each(ctx context.Context, pid, n int, one func() (func() error, func(), error)) (float64, error) {
	before, _ := usage(pid)
	r, err := clients(ctx, n, l.time, one)
	if err != nil {
		return 0, err
	}
	after, _ := usage(pid)
	return (after - before) / float64(len(r.all)), nil
}

// costs compares the processor time of a request, in turns: with the load of the machine all change alike.
func (l *lab) costs(ctx context.Context) error {
	l.only = slices.DeleteFunc(l.only, func(name string) bool { return name == "direct" }) // no server between

	table := map[string]map[string][]float64{} // by path and server
	for round := range l.rounds {
		for _, name := range l.only {
			fmt.Fprintf(os.Stderr, "round %d: %s\n", round+1, name)
			if err := l.cost(ctx, name, table); err != nil {
				return fmt.Errorf("%s: %w", name, err)
			}
		}
	}
	fmt.Printf("load at the end: %s; processor time of a request in µs, median (minimum) of %d turns of %v, "+
		"and what it is of %s's\n\n", load(), l.rounds, l.time, l.only[0])
	w := tabwriter.NewWriter(os.Stdout, 8, 8, 2, ' ', 0)
	for _, p := range paths {
		if table[p.name] == nil {
			continue
		}
		fmt.Fprintf(w, "| %s\t", p.name)
		first := 0.0
		for _, name := range l.only {
			all := table[p.name][name]
			slices.Sort(all)
			middle := all[len(all)/2]
			if first == 0 {
				first = middle
			}
			fmt.Fprintf(w, "| %s %s (%s)\t%.2f\t", name, short(middle), short(all[0]), middle/first)
		}
		fmt.Fprintln(w, "|")
	}
	return w.Flush()
}

// cost measures one server.
func (l *lab) cost(ctx context.Context, name string, table map[string]map[string][]float64) error {
	cmd, _, err := l.start(ctx, name, 10)
	if err != nil {
		return err
	}
	defer stop(cmd)
	pid := cmd.Process.Pid
	if err := settled(ctx, pid); err != nil {
		return err
	}
	for _, p := range paths {
		if len(l.paths) > 0 && !slices.Contains(l.paths, p.name) {
			continue
		}
		each, err := p.measure(ctx, l, pid)
		if err != nil {
			return fmt.Errorf("%s: %w", p.name, err)
		}
		if table[p.name] == nil {
			table[p.name] = map[string][]float64{}
		}
		table[p.name][name] = append(table[p.name][name], each)
	}
	return nil
}
