package app

import (
	"context"
	"errors"
	"fmt"

	"carob/internal/base/instance"
	"carob/internal/base/tracing"
)

// traces exports spans, with --tracing-config-file.
type traces struct{ api, gateway tracing.Provider } // nil: there are none

// openTraces begins to export spans, of each part as a service of its own. They end after all other parts.
func (c *carob) openTraces(ctx context.Context) error {
	if c.in.Tracing == "" {
		return nil
	}
	config, err := tracing.Read(c.in.Tracing)
	if err != nil {
		return fmt.Errorf("%w --tracing-config-file: %w", instance.ErrFlag, err)
	}
	if c.traces.api, err = tracing.New(ctx, config, "apiserver", c.in.NodeName); err != nil {
		return err
	}
	if c.in.Routes.On() {
		if c.traces.gateway, err = tracing.New(ctx, config, "gateway", c.in.NodeName); err != nil {
			return errors.Join(err, tracing.Close(c.traces.api))
		}
	}
	c.parts.start(ctx, "traces", func(ctx context.Context) error {
		<-ctx.Done()
		err := tracing.Close(c.traces.api)
		if c.traces.gateway != nil {
			err = errors.Join(err, tracing.Close(c.traces.gateway))
		}
		return err
	})
	return nil
}
