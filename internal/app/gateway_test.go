package app

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/discovery"

	"carob/internal/base/addons"
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

// lateKinds is the discovery of an API server that serves a kind from a time on.
type lateKinds struct {
	discovery.ServerResourcesInterface
	late string
	from time.Time
}

func (l *lateKinds) ServerResourcesForGroupVersion(version string) (*metav1.APIResourceList, error) {
	out := &metav1.APIResourceList{GroupVersion: version}
	for _, kind := range []string{"Gateway", "GatewayClass", "HTTPRoute", "GRPCRoute", "TLSRoute", "TCPRoute", "UDPRoute",
		"ReferenceGrant", "BackendTLSPolicy", "ListenerSet"} {
		if kind != l.late || !time.Now().Before(l.from) {
			out.APIResources = append(out.APIResources, metav1.APIResource{Kind: kind})
		}
	}
	if !strings.HasPrefix(version, "gateway.networking.k8s.io/v1") {
		return nil, errors.New("there is no such group")
	}
	return out, nil
}

// The kinds of the gateway are stored before they are served: HTTPRoutes that a user applied right after the start were
// refused.
func TestKindsAreServed(t *testing.T) {
	addon, _ := addons.Find(addons.Gateway)
	manifests, err := addon.Manifests()
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		late       string
		by, within time.Duration // within: the start waits so long
		fails      bool
	}{{"", 0, 0, false}, {"HTTPRoute", time.Minute, time.Minute + time.Second, false},
		{"UDPRoute", time.Hour, time.Minute, true}} {
		synctest.Test(t, func(t *testing.T) {
			began := time.Now()
			ctx, stop := context.WithTimeout(t.Context(), max(c.within, time.Second))
			defer stop()
			err := awaitKinds(ctx, &lateKinds{late: c.late, from: began.Add(c.by)}, manifests)
			if took := time.Since(began); (err != nil) != c.fails || took < min(c.by, c.within) || took > c.within {
				t.Errorf("%s after %s: %v after %s", c.late, c.by, err, took)
			}
		})
	}
}
