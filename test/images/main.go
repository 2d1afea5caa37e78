// images builds the container images that carob's tests, benchmarks and demo
// run, as OCI archives that `carob image import` and containerd read.
//
//	go run ./test/images [-out DIR] [-list] [NAME... | upstream]
//
// "upstream" are the images of Kubernetes' conformance suite, which need its
// sources; without a name all others are built.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"time"

	"carob/test/images/build"
)

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "images:", err)
		os.Exit(1)
	}
}

func run() error {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	out := flag.String("out", "",
		"directory for the archives and the downloaded packages (default: the user's cache directory)")
	list := flag.Bool("list", false, "print the images and their references, build nothing")
	flag.Parse()
	names := flag.Args()
	switch {
	case len(names) == 0:
		names = build.Names()
	case len(names) == 1 && names[0] == "upstream":
		names = build.UpstreamNames()
	}
	if *list {
		for _, n := range names {
			fmt.Printf("%s\t%s\n", n, strings.Join(build.Refs(n), " "))
		}
		return nil
	}
	if *out == "" {
		dir, err := build.DefaultDir()
		if err != nil {
			return err
		}
		*out = dir
	}
	b := build.Builder{Dir: *out}
	for _, n := range names {
		start := time.Now()
		file, err := b.Build(ctx, n)
		if err != nil {
			return err
		}
		fmt.Printf("%-18s %s  (%s)\n", n, file, time.Since(start).Round(time.Millisecond))
	}
	return nil
}
