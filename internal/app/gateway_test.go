package app

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"carob/internal/gateway"
)

// The start waits until the kinds of the gateway are stored, for a limited time, and no longer than carob runs.
func TestTheStartWaitsForTheGateway(t *testing.T) {
	running := func() *carob {
		return &carob{parts: newStack(), gateway: &gateway.Gateway{}, gatewayStored: make(chan struct{})}
	}
	for name, c := range map[string]struct {
		before func(t *testing.T, c *carob, stop context.CancelFunc)
		waits  time.Duration
		want   string
	}{
		"stored before": {func(_ *testing.T, c *carob, _ context.CancelFunc) { close(c.gatewayStored) }, 0, ""},
		"late": {func(_ *testing.T, c *carob, _ context.CancelFunc) {
			time.AfterFunc(gatewayTime-1, func() { close(c.gatewayStored) })
		}, gatewayTime - 1, ""},
		"never": {func(*testing.T, *carob, context.CancelFunc) {}, gatewayTime, ""},
		"stopped": {func(_ *testing.T, _ *carob, stop context.CancelFunc) { time.AfterFunc(1, stop) }, 1,
			"context canceled"},
		"another part fails": {func(t *testing.T, c *carob, _ context.CancelFunc) {
			t.Helper()
			c.parts.start(t.Context(), "bad", func(context.Context) error { return errors.New("no luck") })
		}, 0, "no luck"},
		"no gateway": {func(_ *testing.T, c *carob, _ context.CancelFunc) { c.gateway = nil }, 0, ""},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, stop := context.WithCancel(t.Context())
				defer stop()
				of := running()
				c.before(t, of, stop)
				began := time.Now()
				err := of.awaitGateway(ctx)
				if took := time.Since(began); took != c.waits {
					t.Errorf("it took %s, not %s", took, c.waits)
				}
				if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
					t.Errorf("%v, not %q", err, c.want)
				}
			})
		})
	}
}
