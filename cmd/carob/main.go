// Command carob is a Kubernetes-compatible pod engine in one binary.
package main

import (
	"context"
	"os"
	"os/signal"
	"runtime"
	"syscall"

	"carob/internal/app"
	"carob/internal/cli"
)

// version is set by the linker.
var version = "dev"

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	code := cli.Main(ctx, app.New(version), cli.Version{
		Carob:      version,
		Kubernetes: app.KubernetesVersion(),
		Go:         runtime.Version(),
		Platform:   runtime.GOOS + "/" + runtime.GOARCH,
	})
	stop()
	os.Exit(code)
}
