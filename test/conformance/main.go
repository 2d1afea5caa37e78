// conformance runs Kubernetes' own conformance suite against a carob cluster,
// without any registry: it builds the suite from Go modules and its images from
// Debian packages, starts a cluster of its own, and prints what passed.
//
//	go run . [-focus REGEXP] [-list FILE] [-stand-in endpoints] [-kubeconfig FILE] …
//
// Tests that wait for parts carob does not have are listed in waiting.txt; they
// are counted apart and not run. Upstream's own controllers can stand in for the
// parts that are controllers: these tests then prove what they require of the API.
//
// It lives in a module of its own because the suite is part of Kubernetes, which
// carob must never import.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"maps"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"syscall"
)

type options struct {
	among         string
	focus, skip   string
	list, waiting string
	standIn       string
	kubeconfig    string
	carob, images string
	up            string
	addons        string
	cache, out    string
	procs         int
	show, all     bool
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	failed, err := run(ctx)
	if err != nil {
		fmt.Fprintln(os.Stderr, "conformance:", err)
		os.Exit(2)
	}
	if failed {
		os.Exit(1)
	}
}

func run(ctx context.Context) (failed bool, err error) {
	o := options{}
	flag.StringVar(&o.among, "among", `\[Conformance\]`,
		"of all tests of the suite, take those whose name matches; others than conformance tests may skip")
	flag.StringVar(&o.focus, "focus", "",
		"run the conformance tests whose name matches this regular expression (default: all)")
	flag.StringVar(&o.skip, "skip", "", "leave out those whose name matches")
	flag.StringVar(&o.list, "list", "", "run exactly the tests named in this file, one a line")
	flag.StringVar(&o.waiting, "waiting", "waiting.txt",
		"tests that wait for a part that is not there, with the part and the reason; they are told, not run")
	flag.StringVar(&o.standIn, "stand-in", "",
		"parts that upstream's kube-controller-manager stands in for, separated by commas: endpoints; tests that wait for them are run")
	flag.BoolVar(&o.all, "all", false, "run those, too: they take their time until they give up")
	flag.StringVar(&o.kubeconfig, "kubeconfig", "",
		"use this cluster, which must have the images, instead of one of our own")
	flag.StringVar(&o.carob, "carob", "../../bin/carob", "the binary to test")
	flag.StringVar(&o.up, "up", "", "further flags of carob up, separated by spaces: --pod-cidr 10.77.0.0/16,fd00:77::/64")
	flag.StringVar(&o.addons, "addons", "",
		"add-ons of the cluster, separated by spaces; their images are among -images")
	flag.StringVar(&o.images, "images", "", "serve the archives in this folder instead of building the suite's images")
	flag.StringVar(&o.cache, "cache", "../../.cache/conformance", "where the built suite and its images are kept")
	flag.StringVar(&o.out, "out", "", "where logs and results go (default: the cache's folder run)")
	flag.IntVar(&o.procs, "procs", 4, "tests that run side by side; serial ones run alone afterwards")
	flag.BoolVar(&o.show, "show", false, "print the names of the tests and stop")
	flag.Parse()
	if flag.NArg() > 0 {
		return false, fmt.Errorf("unexpected argument %q", flag.Arg(0))
	}
	for _, p := range []*string{&o.cache, &o.carob} {
		if *p, err = filepath.Abs(*p); err != nil {
			return false, err
		}
	}
	if o.out == "" {
		o.out = filepath.Join(o.cache, "run")
	}
	if o.out, err = filepath.Abs(o.out); err != nil {
		return false, err
	}
	waiting, err := readWaiting(o.waiting)
	if err != nil {
		return false, err
	}
	parts, controllers, err := standIns(o.standIn)
	if err != nil {
		return false, err
	}
	maps.DeleteFunc(waiting, func(_ string, w wait) bool { return w.onlyFor(parts) })
	s, err := buildSuite(ctx, o.cache)
	if err != nil {
		return false, err
	}
	all, err := s.names(ctx, o.among)
	if err != nil {
		return false, err
	}
	want, err := choose(all, o)
	if err != nil {
		return false, err
	}
	if o.show {
		for _, n := range want {
			fmt.Println(n)
		}
		return false, nil
	}
	if err := os.RemoveAll(o.out); err != nil {
		return false, err
	}
	if err := os.MkdirAll(o.out, 0o755); err != nil {
		return false, err
	}
	kubeconfig := o.kubeconfig
	if kubeconfig == "" {
		c, failure := startCluster(ctx, o)
		if failure != nil {
			return false, failure
		}
		defer func() { err = errors.Join(err, c.stop()) }()
		kubeconfig = c.kubeconfig
	}
	if len(controllers) > 0 {
		stop, failure := startControllers(ctx, kubeconfig, controllers, o)
		if failure != nil {
			return false, failure
		}
		defer func() { err = errors.Join(err, stop()) }()
	}
	run := slices.Clone(want)
	if !o.all {
		run = slices.DeleteFunc(run, func(n string) bool { return waiting[n].reason != "" })
	}
	results, err := s.run(ctx, kubeconfig, run, o)
	if err != nil {
		return false, err
	}
	return report(os.Stdout, want, results, waiting), nil
}
