package app

import (
	"context"
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
	klog.SetSlogLogger(slog.New(calm{slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: l})}))
	// What containerd's libraries warn about are capabilities of file systems; their errors come back as such.
	return log.SetLevel("error")
}

// harmless is what libraries call an error though it is how a client goes away:
// kubectl ends an exec or a port-forward by closing the connection.
var harmless = map[string]bool{
	"Error on socket receive":                    true,
	"Error proxying data from client to backend": true,
	"Error proxying data from backend to client": true,
	"Error closing streaming connection":         true,
}

// calm is a handler that shows harmless messages only to those who debug.
type calm struct{ slog.Handler }

func (h calm) Handle(ctx context.Context, r slog.Record) error {
	if harmless[r.Message] && !h.Enabled(ctx, slog.LevelDebug) {
		return nil
	}
	return h.Handler.Handle(ctx, r)
}

func (h calm) WithAttrs(a []slog.Attr) slog.Handler { return calm{h.Handler.WithAttrs(a)} }

func (h calm) WithGroup(name string) slog.Handler { return calm{h.Handler.WithGroup(name)} }
