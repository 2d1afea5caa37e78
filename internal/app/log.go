package app

import (
	"fmt"
	"log/slog"
	"os"

	"github.com/containerd/log"
	"k8s.io/klog/v2"
)

// logTo sends what all libraries log to standard error, in one form, from level on.
func logTo(level string) error {
	var l slog.Level
	if err := l.UnmarshalText([]byte(level)); err != nil {
		return fmt.Errorf("--log-level %q: use debug, info, warn or error", level)
	}
	klog.SetSlogLogger(slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: l})))
	// What containerd's libraries warn about are capabilities of file systems; their errors come back as such.
	return log.SetLevel("error")
}
