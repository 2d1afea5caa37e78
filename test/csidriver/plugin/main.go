// plugin is what a CSI driver's pod has beside upstream's sidecars, for upstream's end-to-end tests: a stand-in for
// node-driver-registrar, livenessprobe, and hostpathplugin, whose modules the Go module proxy does not have; also for
// hello-populator, and for volume-data-source-validator, whose events no test looks at: it only runs.
//
//	plugin registrar|liveness|hostpath|populator|validator FLAGS
//	hostpathplugin FLAGS
//
// The second form is what tests run in a pod to reach their own drivers of devices. The flags are those of the programs
// that upstream's manifests use; others are accepted without effect.
package main

import (
	"context"
	"fmt"
	"log"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
)

func main() {
	log.SetFlags(log.Lmicroseconds)
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, program(os.Args)); err != nil {
		log.Print(err)
		os.Exit(1) //nolint:gocritic // the signals' handler ends with the process
	}
}

// program returns the arguments with the program to run in front: under the name of upstream's driver it is that one.
func program(args []string) []string {
	if filepath.Base(args[0]) == "hostpathplugin" {
		return append([]string{"hostpath"}, args[1:]...)
	}
	return args[1:]
}

func run(ctx context.Context, args []string) error {
	if len(args) == 0 {
		return fmt.Errorf("usage: plugin registrar|liveness|hostpath|populator|validator FLAGS")
	}
	flags, err := parse(args[1:])
	if err != nil {
		return err
	}
	switch args[0] {
	case "registrar":
		return register(ctx, flags)
	case "liveness":
		return liveness(ctx, flags)
	case "hostpath":
		if flags["proxy-endpoint"] != "" {
			return proxy(ctx, flags["endpoint"], flags["proxy-endpoint"])
		}
		return hostpath(ctx, flags)
	case "populator":
		return populate(ctx, flags)
	case "validator":
		<-ctx.Done()
		return nil
	}
	return fmt.Errorf("unknown program %q", args[0])
}

// parse returns the flags by their names. Each has its value behind an equals sign or in the next argument; without one
// it is "true".
func parse(args []string) (map[string]string, error) {
	flags := map[string]string{}
	for len(args) > 0 {
		name, value, ok := strings.Cut(strings.TrimLeft(args[0], "-"), "=")
		if !strings.HasPrefix(args[0], "-") || name == "" {
			return nil, fmt.Errorf("unexpected argument %q", args[0])
		}
		args = args[1:]
		switch {
		case ok:
		case len(args) > 0 && !strings.HasPrefix(args[0], "-"):
			value, args = args[0], args[1:]
		default:
			value = "true"
		}
		flags[name] = value
	}
	return flags, nil
}
