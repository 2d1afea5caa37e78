package app

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"

	"golang.org/x/sync/errgroup"

	"carob/internal/base/instance"
	"carob/internal/network/cniserver"
	"carob/internal/runtime/remote"
	"carob/internal/runtime/router"
)

// handlersName has the records of pods in other runtimes, below runtimeDir.
const handlersName = "handlers"

func handlersDir(in instance.Instance) string {
	return filepath.Join(in.DataDir, runtimeDir, handlersName)
}

// addHandlers puts the runtimes of other RuntimeClass handlers beside the engine's. They need not run yet.
func (e *engine) addHandlers(in instance.Instance) error {
	if len(in.Handlers) == 0 {
		return nil
	}
	cfg := router.Config{Main: e.Runtime, Dir: handlersDir(in)}
	sockets := map[string]*remote.Runtime{}
	var names []string
	for _, h := range in.Handlers {
		if sockets[h.Endpoint] == nil {
			rt, err := remote.New(h.Endpoint)
			if err != nil {
				return fmt.Errorf("runtime handler %s: %w", h.Name, err)
			}
			e.closes = append(e.closes, rt.Close)
			sockets[h.Endpoint] = rt
		}
		cfg.Handlers = append(cfg.Handlers,
			router.Handler{Name: h.Name, Endpoint: h.Endpoint, Handler: h.Handler, Runtime: sockets[h.Endpoint]})
		names = append(names, h.Name)
	}
	rt, err := router.New(cfg)
	if err != nil {
		return err
	}
	e.Runtime, e.handlers = rt, names
	e.detail += ", handlers " + strings.Join(names, ", ")
	run := e.run
	e.attachOthers = func(context.Context) error { return nil }
	if e.plug != nil {
		e.attachOthers = func(ctx context.Context) error {
			return cniserver.Serve(ctx, cniserver.Config{Network: e.plug, Socket: in.SocketCNI, Labels: rt.Labels})
		}
	}
	e.run = func(ctx context.Context) error {
		g, ctx := errgroup.WithContext(ctx)
		g.Go(func() error { return run(ctx) })
		g.Go(func() error { return rt.Run(ctx) })
		g.Go(func() error { return e.attachOthers(ctx) })
		return g.Wait()
	}
	return nil
}

// whileAttaching runs f while other runtimes can attach and detach pods.
func (e *engine) whileAttaching(ctx context.Context, f func(context.Context) error) error {
	if e.attachOthers == nil {
		return f(ctx)
	}
	serving, stop := context.WithCancel(ctx)
	done := make(chan error, 1)
	go func() { done <- e.attachOthers(serving) }()
	err := f(ctx)
	stop()
	return errors.Join(err, <-done)
}
