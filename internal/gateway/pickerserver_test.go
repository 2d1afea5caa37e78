package gateway

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"runtime"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/metadata"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"carob/internal/core/gatewayplan"
	"carob/internal/core/gatewayplan/endpoints"
	"carob/internal/core/gatewayplan/inferenceapi"
	"carob/internal/core/httproute"
	"carob/internal/core/routing"
	"carob/internal/gateway/certs"
	"carob/internal/gateway/extproc"
)

// Another gateway calls the picker for a pool without a route in carob, with TLS: the model is rewritten, requests that
// cannot be served are refused, and nothing is left when the requests have ended.
func TestAnotherGatewayCallsThePicker(t *testing.T) {
	l := newInferenceLab(t)
	l.world.HTTPRoutes = nil
	l.server(1, answering)
	l.world.Inference.Rewrites = []*inferenceapi.Rewrite{}
	l.world.Inference.Models = []*inferenceapi.Model{{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "a"},
		Spec: inferenceapi.ModelSpec{ModelName: "llama2", Criticality: "Critical",
			PoolRef:      inferenceapi.PoolRef{Group: inferenceapi.OldGroup, Kind: "InferencePool", Name: "llm"},
			TargetModels: []inferenceapi.TargetModel{{Name: "llama2-2024-11-20"}}}}}
	cert, err := certs.SelfSigned(time.Now())
	if err != nil {
		t.Fatal(err)
	}
	l.cfg.Picker = freePort(t)
	l.cfg.PickerTLS = &tls.Config{MinVersion: tls.VersionTLS12, Certificates: []tls.Certificate{*cert}}
	l.serveNow()
	ctx, cancel := context.WithCancel(t.Context())
	over := make(chan struct{})
	go func() { l.offer(ctx); close(over) }()
	client, err := extproc.New(func(ctx context.Context) (net.Conn, error) {
		for { // until it listens
			if c, err := net.Dial("tcp", l.cfg.Picker.String()); err == nil || ctx.Err() != nil {
				return c, err
			}
			runtime.Gosched()
		}
	}, &tls.Config{InsecureSkipVerify: true}, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	pick := func(pool, body string, headers ...string) (*extproc.Stream, *extproc.Picked, error) {
		r := httptest.NewRequest(http.MethodPost, "/v1/completions", nil)
		for i := 0; i < len(headers); i += 2 {
			r.Header.Set(headers[i], headers[i+1])
		}
		ctx := metadata.AppendToOutgoingContext(t.Context(), extproc.PoolHeader, pool)
		return client.Pick(ctx, r, []byte(body), nil)
	}
	stream, got, err := pick("llm.default", `{"prompt":"hi","model":"llama2"}`, extproc.Destination, "127.0.0.1:22")
	if err != nil || got.Answer != nil {
		t.Fatalf("%+v: %v", got, err)
	}
	at, _ := endpoints.AddressOf(l.pods[0])
	to := netip.AddrPortFrom(at, uint16(l.port))
	if fmt.Sprint(got.Endpoints) != "["+to.String()+"]" || got.Headers.Set.Get(extproc.Destination) != to.String() ||
		string(got.Body) != `{"prompt":"hi","model":"llama2-2024-11-20"}` {
		t.Errorf("%v %v %s", got.Endpoints, got.Headers, got.Body)
	}
	p := l.known(httproute.Ref{Namespace: "default", Name: "llm", Pool: inferenceapi.OldGroup})
	target := (*p.endpoints.Load())[0]
	if _, all := p.served.Load().own.Statuses(); all[0].InFlight != 1 || target.requests.Load() != 1 {
		t.Errorf("%+v, the pod has %d requests", all, target.requests.Load())
	}
	res := &http.Response{StatusCode: http.StatusOK, Header: http.Header{}, Body: http.NoBody}
	if err := stream.Answered(t.Context(), res,
		extproc.Following{Served: to, Reserve: func(int64) bool { return true }}); err != nil {
		t.Error(err)
	}
	for what, c := range map[string]struct {
		body, kind, coding string
		status             int
	}{
		"no JSON":    {"hello", "application/json", "", 400},
		"cut":        {`{"model":"llama2"`, "application/json", "", 400},
		"no model":   {`{"prompt":"x"}`, "application/json", "", 400},
		"empty":      {"", "application/json", "", 0},
		"large":      {strings.Repeat(" ", inferenceBody+1), "application/json", "", 413},
		"compressed": {"x", "application/json", "gzip", 415},
		"audio":      {"RIFF", "audio/wav", "", 0},
	} {
		s, got, err := pick("llm.default", c.body, "Content-Type", c.kind, "Content-Encoding", c.coding)
		switch {
		case err != nil:
			t.Errorf("%s: %v", what, err)
		case c.status == 0 && got.Answer != nil:
			t.Errorf("%s: %+v", what, got.Answer)
		case c.status == 0:
			if string(got.Body) != c.body {
				t.Errorf("%s: %q", what, got.Body)
			}
			s.Close()
		case got.Answer == nil || got.Answer.Status != c.status ||
			got.Answer.Headers.Set.Get(routing.ReasonHeader) == "":
			t.Errorf("%s: %+v", what, got.Answer)
		}
	}
	if _, _, err := pick("llm.other", "{}"); err == nil {
		t.Error("a pool that is not there is served")
	}
	cancel() // also the first stream, which was not closed
	<-over
	_, all := p.served.Load().own.Statuses()
	if all[0].InFlight != 0 || target.requests.Load() != 0 || l.bodies.Used() != 0 {
		t.Errorf("%+v, the pod has %d requests, bodies have %d bytes", all, target.requests.Load(), l.bodies.Used())
	}
}

// Only endpoints of the gateway's subset are chosen.
func TestOfferedSubset(t *testing.T) {
	l := newInferenceLab(t)
	l.cfg.Picker = netip.MustParseAddrPort("127.0.0.1:1")
	l.server(1, answering)
	l.serveNow()
	for _, subset := range [][]netip.AddrPort{{}, {netip.MustParseAddrPort("192.0.2.1:0")}} {
		r, ok := l.beginPick("llm.default", "", http.Header{}, subset)
		if !ok {
			t.Fatal("the pool is not there")
		}
		_, err := r.Pick(t.Context())
		if no, is := err.(*extproc.Refused); !is || no.Status != 503 { //nolint:errorlint // it is not wrapped
			t.Errorf("%v: %v", subset, err)
		}
		r.End(false)
	}
}

// A pool is found by its name or by the Service that it names, in the forms of Envoy and Istio; never by a guess.
func TestOfferedPoolIsFound(t *testing.T) {
	pools, plan := newPools(), &gatewayplan.Plan{Pools: map[httproute.Ref]*gatewayplan.Pool{}}
	add := func(group, poolName, service string, foreign bool) *pool {
		ref := httproute.Ref{Namespace: "ns", Name: poolName, Pool: group}
		of := newPool()
		pools.Set(ref, of)
		plan.Pools[ref] = &gatewayplan.Pool{Ref: ref}
		if service != "" {
			plan.Pools[ref].OfferedAs = name{Namespace: "ns", Name: service}
		}
		if foreign {
			plan.Pools[ref].Picker = &gatewayplan.PoolPicker{}
		}
		return of
	}
	add(inferenceapi.OldGroup, "llama", "", false)
	llama := add(inferenceapi.Group, "llama", "epp", false)
	dotted := add(inferenceapi.Group, "v1.5", "both", false)
	add(inferenceapi.Group, "other", "both", false)
	add(inferenceapi.Group, "foreign", "", true)
	o := newOffers(plan, pools)
	for _, c := range []struct {
		pool, authority string
		want            *pool
	}{
		{"llama.ns", "x", llama}, {"v1.5.ns", "x", dotted}, {"", "epp.ns", llama}, {"", "epp.ns:9002", llama},
		{"", "epp.ns.svc.cluster.local:9002", llama}, {"", "outbound|9002||epp.ns.svc.cluster.local", llama},
		{"", "llama.ns", llama}, {"", "v1.5.ns:1", dotted}, {"", "both.ns", nil}, {"", "epp.ns.evil", nil},
		{"epp.ns", "epp.ns", nil}, {"", "", nil}, {"foreign.ns", "", nil}, {"", "|", nil}, {"", ".", nil},
		{"llama", "epp.ns", nil},
	} {
		if got := o.find(c.pool, c.authority); got != c.want {
			t.Errorf("%q %q: %p, not %p", c.pool, c.authority, got, c.want)
		}
	}
	if (*offers)(nil).find("llama.ns", "") != nil {
		t.Error("found before anything is known")
	}
}
