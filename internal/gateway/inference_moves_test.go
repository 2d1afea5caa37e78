package gateway

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"google.golang.org/grpc"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"carob/internal/base/externalmetrics"
	"carob/internal/base/testwait"
	"carob/internal/core/gatewayplan"
	"carob/internal/core/gatewayplan/inferenceapi"
	"carob/internal/core/httproute"
	"carob/internal/gateway/extproc"
	"carob/internal/gateway/feed"
)

// unready is the listener of a picker that closes its connections until it is ready.
type unready struct {
	net.Listener
	ready atomic.Bool
	tried chan struct{} // capacity 1
}

func (u *unready) Accept() (net.Conn, error) {
	for {
		c, err := u.Listener.Accept()
		if err != nil || u.ready.Load() {
			return c, err
		}
		_ = c.Close()
		poke(u.tried)
	}
}

// listening starts a picker, which the pool does not have yet.
func (l *inferenceLab) listening(p *fakePicker, as ...**grpc.Server) *unready {
	l.t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		l.t.Fatal(err)
	}
	u := &unready{Listener: ln, tried: make(chan struct{}, 1)}
	server := grpc.NewServer()
	for _, to := range as {
		*to = server
	}
	extprocv3.RegisterExternalProcessorServer(server, p)
	var running sync.WaitGroup
	running.Go(func() { _ = server.Serve(u) })
	l.t.Cleanup(func() { server.Stop(); running.Wait() })
	return u
}

// external gives the pool an external picker.
func (l *inferenceLab) external(mode, limit string, at ...net.Addr) {
	l.t.Helper()
	var all []discoveryv1.Endpoint
	for _, one := range at {
		all = append(all, endpointAt(one))
	}
	l.service("picker", "kubernetes.io/h2c", all...)
	l.pool = l.pool.DeepCopy()
	l.pool.Spec.ExtensionRef.PortNumber, l.pool.Spec.ExtensionRef.FailureMode = new(int32(80)), mode
	l.pool.Annotations = map[string]string{gatewayplan.PickerTimeout: limit}
	l.world.Inference.OldPools = []*inferenceapi.OldPool{l.pool}
	l.serveNow()
}

func endpointAt(addr net.Addr) discoveryv1.Endpoint {
	return at(addr.String(), types.UID(addr.String()))
}

// own gives the pool carob's picker.
func (l *inferenceLab) own() {
	l.t.Helper()
	delete(l.world.Services, name{Namespace: "default", Name: "picker"})
	delete(l.slices, name{Namespace: "default", Name: "picker"})
	l.serveNow()
}

func anyLabels(map[string]string) bool { return true }

// posted sends a request, and returns the channel with its result.
func (l *inferenceLab) posted(ctx context.Context, body string) <-chan string {
	out := make(chan string, 1)
	go func() {
		r, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+l.http+"/v1/completions",
			strings.NewReader(body))
		if err != nil {
			out <- err.Error()
			return
		}
		r.Host = "x"
		res, err := http.DefaultClient.Do(r)
		if err != nil {
			out <- "no response"
			return
		}
		defer res.Body.Close()
		text, _ := io.ReadAll(res.Body)
		out <- fmt.Sprint(res.StatusCode, " ", string(text))
	}()
	return out
}

// Requests that carob's picker holds go on with the one that the pool gets meanwhile: at once; when it is ready; with a
// third one, if the pool changes again; and when it never gets ready, as its failure mode says. A client may leave.
func TestHeldRequestsGetTheNewPicker(t *testing.T) {
	const byPicker, direct = `200 {"got":"by the picker"`, `200 {"got":"{\"model\":\"m\"}"`
	for what, c := range map[string]struct {
		ready       bool // from the beginning
		mode, limit string
		then        func(l *inferenceLab, u *unready, leave func())
		want        string
	}{
		"at once": {ready: true, want: byPicker},
		"late":    {then: func(_ *inferenceLab, u *unready, _ func()) { u.ready.Store(true) }, want: byPicker},
		"late, FailOpen": {mode: "FailOpen", then: func(_ *inferenceLab, u *unready, _ func()) { u.ready.Store(true) },
			want: byPicker},
		"twice":           {then: func(l *inferenceLab, _ *unready, _ func()) { l.own() }, want: direct},
		"never":           {limit: "1ms", want: "503 "},
		"never, FailOpen": {mode: "FailOpen", limit: "1ms", want: direct},
		"the client leaves": {then: func(_ *inferenceLab, _ *unready, leave func()) { leave() },
			want: "no response"},
	} {
		t.Run(what, func(t *testing.T) {
			l := newInferenceLab(t)
			var source externalmetrics.Source
			l.cfg.Measured = func(s externalmetrics.Source) { source = s }
			l.serveNow()
			held := func() bool { // an autoscaler that reads this makes requests wait for the first server
				all, _ := source.Values("default", "inference_pool_requests", anyLabels)
				return len(all) == 1 && all[0].Value == 1
			}
			held()
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			got := l.posted(ctx, `{"model":"m"}`)
			testwait.For(t, "the request is held", held)
			l.server(1, answering)
			picker := &fakePicker{pick: func([]byte) []*extprocv3.ProcessingResponse {
				return append(replaced("by the picker"), toward(l.pods[0].Status.PodIP+":"+fmt.Sprint(l.port)))
			}}
			u := l.listening(picker)
			u.ready.Store(c.ready)
			mode, limit := "FailClose", "1h"
			if c.mode != "" {
				mode = c.mode
			}
			if c.limit != "" {
				limit = c.limit
			}
			l.external(mode, limit, u.Addr())
			if c.then != nil {
				select {
				case <-u.tried: // by the request, which nothing else waits for
				case text := <-got:
					t.Fatalf("it does not wait: %q", text)
				}
				c.then(l, u, cancel)
			}
			if text := <-got; !strings.HasPrefix(text, c.want) {
				t.Errorf("%q, not %q", text, c.want)
			}
			testwait.For(t, "nothing is left", func() bool {
				return l.bodies.Used() == 0 && l.seen.figures.inFlight.Load() == 0
			})
		})
	}
}

// A request stays with its picker when the pool gets carob's, as long as that picker runs: it may decide late. If it
// ends without a decision, carob's picker chooses, and reads the body then.
func TestRequestsOfAPickerThatWasReplaced(t *testing.T) {
	for what, c := range map[string]struct {
		body    string
		decides bool
		want    string
	}{
		"it decides late":                    {`{"model":"m"}`, true, `200 {"got":"by the picker"`},
		"it ends":                            {`{"model":"m"}`, false, `200 {"got":"{\"model\":\"m\"}"`},
		"it ends, and the body is not valid": {`model: m`, false, "400 "},
	} {
		t.Run(what, func(t *testing.T) {
			l := newInferenceLab(t)
			l.server(1, answering)
			picker, server := l.picker()
			begun, decide := make(chan struct{}), make(chan struct{})
			picker.pick = func([]byte) []*extprocv3.ProcessingResponse {
				close(begun)
				if <-decide; !c.decides {
					return nil
				}
				return append(replaced("by the picker"), toward(l.pods[0].Status.PodIP+":"+fmt.Sprint(l.port)))
			}
			got := l.posted(t.Context(), c.body)
			<-begun
			l.own()
			if !c.decides {
				server.Stop()
			}
			close(decide)
			if text := <-got; !strings.HasPrefix(text, c.want) {
				t.Errorf("%q, not %q", text, c.want)
			}
			testwait.For(t, "nothing is left", func() bool {
				return l.bodies.Used() == 0 && l.seen.figures.inFlight.Load() == 0
			})
		})
	}
}

// A picker that runs, but is no endpoint of its Service any more, is not called when the Service has others: neither
// after a change of the endpoints alone, nor with a new plan. Without others it is called as long as it runs. Requests
// that it has not decided stay with it.
func TestPickerIsNoEndpointAnyMore(t *testing.T) {
	l := newInferenceLab(t)
	l.server(1, answering)
	picks := func(who string, decide <-chan struct{}) func([]byte) []*extprocv3.ProcessingResponse {
		return func([]byte) []*extprocv3.ProcessingResponse {
			if decide != nil {
				<-decide
			}
			return append(replaced(who), toward(l.pods[0].Status.PodIP+":"+fmt.Sprint(l.port)))
		}
	}
	first, second := &fakePicker{pick: picks("first", nil)}, &fakePicker{pick: picks("second", nil)}
	one, two := l.listening(first), l.listening(second)
	one.ready.Store(true)
	two.ready.Store(true)
	served := func(want string) {
		t.Helper()
		text := <-l.posted(t.Context(), `{"model":"m"}`)
		if !strings.HasPrefix(text, fmt.Sprintf(`200 {"got":%q`, want)) {
			t.Errorf("%q, not by the %s", text, want)
		}
	}
	endpoints := func(all ...net.Addr) { // without a new plan
		var now []discoveryv1.Endpoint
		for _, one := range all {
			now = append(now, endpointAt(one))
		}
		l.service("picker", "kubernetes.io/h2c", now...)
		key := name{Namespace: "default", Name: "picker"}
		l.Gateway.update(t.Context(), &feed.Snapshot{Changed: map[name]bool{key: true}, Services: l.world.Services,
			Slices: l.slices, Pods: map[string][]*corev1.Pod{"default": l.pods}})
	}
	l.external("FailClose", "1h", one.Addr())
	served("first")
	endpoints(two.Addr(), one.Addr())
	served("first")
	endpoints(two.Addr())
	served("second")
	endpoints()
	served("second")
	l.external("FailClose", "1h", one.Addr())
	served("first")
	decide, begun := make(chan struct{}), make(chan struct{})
	first.mu.Lock()
	late := picks("first", decide)
	first.pick = func(body []byte) []*extprocv3.ProcessingResponse { close(begun); return late(body) }
	first.mu.Unlock()
	got := l.posted(t.Context(), `{"model":"m"}`)
	<-begun
	endpoints(two.Addr())
	served("second")
	close(decide)
	if text := <-got; !strings.HasPrefix(text, `200 {"got":"first"`) {
		t.Errorf("the late one: %q", text)
	}
}

// A port that gets another protocol serves it at once; its requests in flight end as before.
func TestProtocolOfAPortChanges(t *testing.T) {
	l := newInferenceLab(t)
	begun, end := make(chan struct{}), make(chan struct{})
	l.server(1, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/metrics" {
			close(begun)
			<-end
		}
		answering(w, r)
	})
	l.serveNow()
	got := l.posted(t.Context(), `{"model":"m"}`)
	<-begun
	l.service("t", "", at(tcpEcho(t, "tcp"), "pt"))
	l.world.TCPRoutes = []*gatewayv1.TCPRoute{tcpRoute("r", toService("t", 1))}
	l.world.TCPRoutes[0].Spec.ParentRefs[0].Name = "g"
	l.world.Gateways[0] = l.world.Gateways[0].DeepCopy()
	l.world.Gateways[0].Spec.Listeners[0].Protocol = gatewayv1.TCPProtocolType
	l.serveNow()
	if _, _, who := dialNamed(t, netip.MustParseAddrPort(l.http)); who != "tcp" {
		t.Error(who)
	}
	close(end)
	if text := <-got; !strings.HasPrefix(text, "200 ") {
		t.Error(text)
	}
}

// A picker that ends before it has decided is followed by another one of its Service, once.
func TestPickerEndsDuringAPick(t *testing.T) {
	l := newInferenceLab(t)
	l.server(1, answering)
	var servers [2]*grpc.Server
	var at []net.Addr
	var calls atomic.Int64
	for i := range servers {
		u := l.listening(&fakePicker{pick: func([]byte) []*extprocv3.ProcessingResponse {
			if calls.Add(1) == 1 {
				go servers[i].Stop()
				return nil
			}
			return append(replaced("by the other one"), toward(l.pods[0].Status.PodIP+":"+fmt.Sprint(l.port)))
		}}, &servers[i])
		u.ready.Store(true)
		at = append(at, u.Addr())
	}
	l.external("FailClose", "1h", at...)
	if text := <-l.posted(t.Context(), `{"model":"m"}`); !strings.HasPrefix(text, `200 {"got":"by the other one"`) {
		t.Errorf("%q after %d calls", text, calls.Load())
	}
}

// The models of a pool are the business of its picker: carob does not read bodies for another one.
func TestModelsOfAnExternalPicker(t *testing.T) {
	l := newInferenceLab(t)
	l.server(1, answering)
	l.world.Inference.Models = []*inferenceapi.Model{{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "a"},
		Spec: inferenceapi.ModelSpec{ModelName: "llama2", Criticality: "Critical",
			PoolRef: inferenceapi.PoolRef{Group: inferenceapi.OldGroup, Kind: "InferencePool", Name: "llm"}}}}
	picker, _ := l.picker()
	picker.pick = func(body []byte) []*extprocv3.ProcessingResponse {
		return append(replaced(string(body)), toward(l.pods[0].Status.PodIP+":"+fmt.Sprint(l.port)))
	}
	for _, body := range []string{`{"model":"llama2"}`, `{"model":"another"}`, `{}`, `no JSON`} {
		if text := <-l.posted(t.Context(), body); !strings.HasPrefix(text, fmt.Sprintf(`200 {"got":%q`, body)) {
			t.Errorf("%s: %q", body, text)
		}
	}
}

// A request of another gateway that carob's picker holds gets an endpoint when the pool gets another picker: the
// gateway calls that one for the next request.
func TestHeldRequestsOfOtherGateways(t *testing.T) {
	for what, change := range map[string]func(*inferenceLab, *unready){
		"an external picker": func(l *inferenceLab, u *unready) { l.external("FailClose", "1h", u.Addr()) },
	} {
		l := newInferenceLab(t)
		l.cfg.Picker = netip.MustParseAddrPort("127.0.0.1:1")
		var source externalmetrics.Source
		l.cfg.Measured = func(s externalmetrics.Source) { source = s }
		l.serveNow()
		held := func() bool {
			all, _ := source.Values("default", "inference_pool_requests", anyLabels)
			return len(all) == 1 && all[0].Value == 1
		}
		held()
		r, ok := l.beginPick("llm.default", "", http.Header{}, nil)
		if !ok {
			t.Fatal("the pool is not offered")
		}
		if err := r.Body([]byte(`{"model":"m"}`)); err != nil {
			t.Fatal(err)
		}
		type picked struct {
			choice *extproc.Choice
			err    error
		}
		got := make(chan picked, 1)
		go func() { c, err := r.Pick(t.Context()); got <- picked{c, err} }()
		testwait.For(t, "the request is held", held)
		l.server(1, answering)
		change(l, l.listening(&fakePicker{}))
		p := <-got
		if p.err != nil || len(p.choice.Endpoints) != 1 || string(slices.Concat(p.choice.Body...)) != `{"model":"m"}` {
			t.Errorf("%s: %+v %v", what, p.choice, p.err)
		}
		r.Sent()
		r.Answered(200, p.choice.Endpoints[0])
		r.End(true)
		if n := l.bodies.Used(); n != 0 {
			t.Errorf("%s: %d bytes are held", what, n)
		}
		for _, target := range *l.known(httproute.Ref{Namespace: "default", Name: "llm",
			Pool: inferenceapi.OldGroup}).endpoints.Load() {
			if n := target.requests.Load(); n != 0 {
				t.Errorf("%s: the endpoint has %d requests", what, n)
			}
		}
	}
}
