// Package command is the main function of the benchmarks. They import it; it must never measure anything itself.
package command

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"
)

// Main runs a benchmark until it ends or SIGINT or SIGTERM cancels its context. With an error, which it prints after
// the name of the command, the process exits with 1.
func Main(name string, run func(ctx context.Context) error) {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx)
	stop()
	if err != nil {
		fmt.Fprintf(os.Stderr, "%s: %v\n", name, err)
		os.Exit(1)
	}
}
