package app

import (
	"context"
	"fmt"
	"log/slog"
	"os"

	"github.com/containerd/log"
	"k8s.io/klog/v2"

	"carob/internal/base/logfile"
)

// logTo sends the logs of all libraries to standard error, in one format, from this level on.
func logTo(level string) (*logfile.Log, error) {
	var l slog.Level
	if err := l.UnmarshalText([]byte(level)); err != nil {
		return nil, fmt.Errorf("--log-level %q: use debug, info, warn or error", level)
	}
	out := logfile.New(os.Stderr)
	klog.SetSlogLogger(slog.New(quietHandler{slog.NewTextHandler(out, &slog.HandlerOptions{Level: l})}))
	// containerd's libraries warn about missing features of file systems; errors are returned
	// anyway.
	return out, log.SetLevel("error")
}

// harmless lists messages that libraries log as errors when a client disconnects: kubectl ends exec
// and port-forward by closing the connection.
var harmless = map[string]bool{
	"Error on socket receive":                    true,
	"Error proxying data from client to backend": true,
	"Error proxying data from backend to client": true,
	"Error closing streaming connection":         true,
}

// quietHandler is a handler that logs harmless messages at debug level only.
type quietHandler struct{ slog.Handler }

func (h quietHandler) Handle(ctx context.Context, r slog.Record) error {
	if harmless[r.Message] && !h.Enabled(ctx, slog.LevelDebug) {
		return nil
	}
	return h.Handler.Handle(ctx, r)
}

func (h quietHandler) WithAttrs(a []slog.Attr) slog.Handler {
	return quietHandler{h.Handler.WithAttrs(a)}
}

func (h quietHandler) WithGroup(name string) slog.Handler {
	return quietHandler{h.Handler.WithGroup(name)}
}
