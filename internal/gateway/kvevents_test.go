package gateway

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"testing"

	"carob/internal/base/testwait"
	"carob/internal/core/gatewayplan"
	"carob/internal/core/gatewayplan/endpoints"
	"carob/internal/core/gatewayplan/inferenceapi"
	"carob/internal/core/httproute"
	"carob/internal/inference"
)

// publisher is the socket of a model server's KV events. It publishes one block of 16 tokens, 0 to 15.
func publisher(t *testing.T, at netip.AddrPort) {
	ln, err := net.Listen("tcp", at.String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = ln.Close() })
	handshake := "\xff" + strings.Repeat("\x00", 8) + "\x7f\x03\x00NULL" + strings.Repeat("\x00", 48) +
		"\x04\x19\x05READY\x0bSocket-Type\x00\x00\x00\x03PUB" +
		"\x01\x08kv@pod@m\x01\x08\x00\x00\x00\x00\x00\x00\x00\x00"
	batch := "\x92\xc0\x91\x95\xabBlockStored\x91\x07\xc0\xdc\x00\x10"
	for i := range byte(16) {
		batch += string([]byte{i})
	}
	batch += "\x10"
	handshake += "\x00" + string([]byte{byte(len(batch))}) + batch
	go func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			_, _ = io.WriteString(c, handshake)
			go func() { _, _ = io.Copy(io.Discard, c); _ = c.Close() }()
		}
	}()
}

// A request goes to the server whose KV events contain the prompt, through carob's own Gateway and through another
// gateway. The prompts are tokens already, so that no call of /tokenize has to end in time (inference.TestTokens covers
// it).
func TestRequestsFollowEvents(t *testing.T) {
	l := newInferenceLab(t)
	l.server(1, answering)
	l.server(2, answering)
	const body = `{"model":"m","prompt":[0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16]}`
	at, _ := endpoints.AddressOf(l.pods[1])
	events := netip.AddrPortFrom(at, freePort(t).Port())
	publisher(t, events)
	config, err := inference.ReadConfig(fmt.Appendf(nil, `{"apiVersion": "llm-d.ai/v1alpha1", "kind": "EndpointPickerConfig",
		"plugins": [{"type": "precise-prefix-cache-scorer", "parameters": {"speculativeIndexing": false,
			"kvEventsConfig": {"podDiscoveryConfig": {"socketPort": %d}}}}]}`, events.Port()))
	if err != nil {
		t.Fatal(err)
	}
	l.pool.Spec.ExtensionRef = &inferenceapi.OldPicker{Group: gatewayplan.PickerGroup, Kind: gatewayplan.PickerKind,
		Name: "mine"}
	l.world.Inference.Configs = map[name]gatewayplan.PickerConfig{
		{Namespace: "default", Name: "mine"}: {Config: config}}
	l.serveNow()
	testwait.For(t, "the events are heard", func() bool {
		e := l.PoolStates("")[0].Servers[1].Events
		return e != nil && e.Blocks == 1 && e.Whole
	})
	to := netip.AddrPortFrom(at, uint16(l.port))
	for i := range 8 {
		_, _, h := l.get("POST", "x", "/v1/completions", strings.NewReader(body))
		if got := h.Get("X-Who"); got != to.String() {
			t.Errorf("request %d went to %s, not to %s", i, got, to)
		}
	}
	p, _ := l.pools.Get(httproute.Ref{Namespace: "default", Name: "llm", Pool: inferenceapi.OldGroup})
	r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/v1/completions", nil)
	r.Header.Set(":path", "/v1/completions?x=1")
	for range 8 {
		a := &pickRequest{pool: p, served: p.served.Load(), header: r.Header}
		if err := a.Body([]byte(body)); err != nil {
			t.Fatal(err)
		}
		got, err := a.Pick(t.Context())
		if err != nil || got.Endpoints[0] != to {
			t.Errorf("%+v, %v", got, err)
		}
		a.End(true)
	}
}
