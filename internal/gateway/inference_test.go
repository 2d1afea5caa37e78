package gateway

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"sync"
	"testing"

	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/structpb"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"carob/internal/base/testwait"
	"carob/internal/core/gatewayplan"
	"carob/internal/core/gatewayplan/inferenceapi"
	"carob/internal/core/routing"
	"carob/internal/gateway/feed"
)

// modelServer is one on an address of its own: all endpoints of a pool have the same port.
func modelServer(t testing.TB, at string, h http.HandlerFunc) *corev1.Pod {
	t.Helper()
	ln, err := net.Listen("tcp", at)
	if err != nil {
		t.Fatal(err)
	}
	s := &httptest.Server{Listener: ln, Config: &http.Server{Handler: h, Protocols: &http.Protocols{}}}
	s.Config.Protocols.SetHTTP1(true)
	s.Config.Protocols.SetUnencryptedHTTP2(true)
	s.Start()
	t.Cleanup(s.Close)
	ip := netip.MustParseAddrPort(at).Addr().String()
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default",
		Name: "m-" + strings.ReplaceAll(ip, ".", "-"),
		UID:  types.UID(at), Labels: map[string]string{"app": "llm"}}, Status: corev1.PodStatus{PodIP: ip,
		Phase: corev1.PodRunning, Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: "True"}}}}
}

// answering answers as a model server, with the body that it got.
func answering(w http.ResponseWriter, r *http.Request) {
	if r.URL.Path == "/metrics" {
		fmt.Fprint(w, "vllm:num_requests_waiting 0\nvllm:num_requests_running 0\nvllm:kv_cache_usage_perc 0\n")
		return
	}
	text, _ := io.ReadAll(r.Body)
	w.Header().Set("X-Who", r.Context().Value(http.LocalAddrContextKey).(net.Addr).String())
	fmt.Fprintf(w, `{"got":%q,"length":%d,"usage":{"prompt_tokens":3,"completion_tokens":4}}`, text, r.ContentLength)
}

// inferenceLab has a Gateway with a route to the pool llm of the document's version.
type inferenceLab struct {
	*lab
	pods []*corev1.Pod
	pool *inferenceapi.OldPool
	port int32
}

func newInferenceLab(t testing.TB) *inferenceLab {
	l := &inferenceLab{lab: newLab(t), port: int32(freePort(t).Port())}
	at := netip.MustParseAddrPort(l.http)
	l.world.GatewayClasses = []*gatewayv1.GatewayClass{{ObjectMeta: metav1.ObjectMeta{Name: "carob"},
		Spec: gatewayv1.GatewayClassSpec{ControllerName: gatewayplan.GatewayController}}}
	l.world.Gateways = []*gatewayv1.Gateway{{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "g"},
		Spec: gatewayv1.GatewaySpec{GatewayClassName: "carob", Listeners: []gatewayv1.Listener{{Name: "http",
			Port: gatewayv1.PortNumber(at.Port()), Protocol: gatewayv1.HTTPProtocolType}}}}}
	ref := gatewayv1.HTTPBackendRef{}
	ref.Group, ref.Kind = new(gatewayv1.Group(inferenceapi.OldGroup)), new(gatewayv1.Kind("InferencePool"))
	ref.Name = "llm"
	l.world.HTTPRoutes = []*gatewayv1.HTTPRoute{{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "r"},
		Spec: gatewayv1.HTTPRouteSpec{
			CommonRouteSpec: gatewayv1.CommonRouteSpec{ParentRefs: []gatewayv1.ParentReference{{Name: "g"}}},
			Rules:           []gatewayv1.HTTPRouteRule{{BackendRefs: []gatewayv1.HTTPBackendRef{ref}}}}}}
	l.pool = &inferenceapi.OldPool{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "llm"},
		Spec: inferenceapi.OldPoolSpec{Selector: map[string]string{"app": "llm"}, TargetPortNumber: l.port,
			ExtensionRef: &inferenceapi.OldPicker{Kind: "Service", Name: "picker"}}}
	l.world.Inference = &gatewayplan.Inference{OldPools: []*inferenceapi.OldPool{l.pool}}
	return l
}

func (l *inferenceLab) server(n int, h http.HandlerFunc) {
	at := fmt.Sprintf("%s:%d", netip.MustParseAddrPort(l.http).Addr().Next(), l.port)
	for range n {
		a := netip.MustParseAddrPort(at)
		at = netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 78, a.Addr().As4()[2], a.Addr().As4()[3] + byte(n)}),
			a.Port()).String()
	}
	l.pods = append(l.pods, modelServer(l.t, at, h))
}

func (l *inferenceLab) serveNow() {
	l.t.Helper()
	w := &feed.Snapshot{World: l.world, Services: l.world.Services, Slices: l.slices, Certificates: l.certs,
		Pods: map[string][]*corev1.Pod{"default": l.pods}}
	l.apply(l.t.Context(), w)
	if len(l.failed) > 0 {
		l.t.Fatal(l.failed)
	}
}

// The model of the body decides: other names by weight, with the right length; bad bodies get a clear answer.
func TestInference(t *testing.T) {
	l := newInferenceLab(t)
	l.serveNow()
	status, text, h := l.get("POST", "x", "/v1/completions", strings.NewReader(`{"model":"m"}`))
	want(t, "no server", status, text, 503)
	if h.Get(routing.ReasonHeader) != "rejected-no-endpoints" {
		t.Error(h)
	}
	l.server(1, answering)
	pool := inferenceapi.PoolRef{Group: inferenceapi.OldGroup, Kind: "InferencePool", Name: "llm"}
	l.world.Inference.Models = []*inferenceapi.Model{{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "a"},
		Spec: inferenceapi.ModelSpec{ModelName: "llama2", Criticality: "Critical", PoolRef: pool,
			TargetModels: []inferenceapi.TargetModel{{Name: "llama2-2024-11-20", Weight: new(int32(75))},
				{Name: "llama2-2025-03-24", Weight: new(int32(25))}}}}}
	l.serveNow()
	seen := map[string]int{}
	for range 400 {
		status, text, _ = l.get("POST", "x", "/v1/completions", strings.NewReader(`{"prompt":"hi","model":"llama2"}`))
		want(t, "a request", status, text, 200, `"length":43,`)
		seen[text]++
	}
	old := seen[`{"got":"{\"prompt\":\"hi\",\"model\":\"llama2-2024-11-20\"}","length":43,`+
		`"usage":{"prompt_tokens":3,"completion_tokens":4}}`]
	if len(seen) != 2 || old < 240 || old > 360 { // 300 ± 7 sigma
		t.Errorf("%v", seen)
	}
	for what, c := range map[string]struct {
		body   io.Reader
		status int
		reason string
		kind   string
	}{
		"no JSON":      {strings.NewReader(`hello`), 400, badBody, ""},
		"two models":   {strings.NewReader(`{"model":"a","model":"b"}`), 400, badBody, ""},
		"no model":     {strings.NewReader(`{"prompt":"x"}`), 400, badBody, ""},
		"cut":          {strings.NewReader(`{"model":"llama2"`), 400, badBody, ""},
		"nested":       {strings.NewReader(`{"a":` + strings.Repeat("[", 5000)), 400, badBody, ""},
		"large":        {&endless{left: 1 << 30}, 413, largeBody, ""},
		"large length": {strings.NewReader(strings.Repeat(" ", inferenceBody+1)), 413, largeBody, ""},
		"unknown":      {strings.NewReader(`{"model":"nobody"}`), 200, "", ""},
	} {
		headers := []string{"Content-Type", "application/json"}
		status, text, h := l.get("POST", "x", "/v1/completions", c.body, headers...)
		if status != c.status || h.Get(routing.ReasonHeader) != c.reason {
			t.Errorf("%s: %d %s %s", what, status, h.Get(routing.ReasonHeader), text)
		}
		// The client may have the answer before the request has ended.
		testwait.For(t, what+": all bytes are given back", func() bool { return l.bodies.Used() == 0 })
	}
	status, text, _ = l.get("GET", "x", "/v1/models", nil)
	want(t, "without a body", status, text, 200)
}

// endless is a long body of unknown length.
type endless struct{ left int }

func (e *endless) Read(p []byte) (int, error) {
	if e.left <= 0 {
		return 0, io.EOF
	}
	n := min(len(p), e.left)
	for i := range p[:n] {
		p[i] = ' '
	}
	e.left -= n
	return n, nil
}

// If a server ends before it answers, the request goes to another one, once; the body is sent again in full.
func TestInferenceRetry(t *testing.T) {
	l := newInferenceLab(t)
	var mu sync.Mutex
	died := 0
	l.server(1, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/metrics" {
			answering(w, r)
			return
		}
		_, _ = io.ReadAll(r.Body)
		mu.Lock()
		died++
		mu.Unlock()
		panic(http.ErrAbortHandler)
	})
	l.server(2, answering)
	l.serveNow()
	for i := range 20 { // each prompt is another one: a server that has seen one would get it again
		body := fmt.Sprintf(`{"model":"m","prompt":"%d %s"}`, i, strings.Repeat("x", 300<<10))
		status, text, _ := l.get("POST", "x", "/v1/completions", strings.NewReader(body))
		want(t, "a request", status, text[:min(99, len(text))], 200)
		want(t, "a request", status, text, 200, fmt.Sprintf(`"length":%d`, len(body)))
	}
	mu.Lock()
	defer mu.Unlock()
	if died == 0 {
		t.Error("the server that dies was never tried")
	}
}

// fakePicker is an endpoint picker whose answers a test chooses.
type fakePicker struct {
	extprocv3.UnimplementedExternalProcessorServer
	mu     sync.Mutex
	pick   func(body []byte) []*extprocv3.ProcessingResponse
	served []string
	answer []byte   // bodies of answers
	among  []string // for each request: the endpoints to choose from, or ""
}

// picker starts an external picker for the pool, with FailClose, and serves the pool.
func (l *inferenceLab) picker() (*fakePicker, *grpc.Server) {
	l.t.Helper()
	picker := &fakePicker{}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		l.t.Fatal(err)
	}
	server := grpc.NewServer()
	extprocv3.RegisterExternalProcessorServer(server, picker)
	var running sync.WaitGroup
	running.Go(func() { _ = server.Serve(ln) })
	l.t.Cleanup(func() { server.Stop(); running.Wait() })
	l.service("picker", "kubernetes.io/h2c", at("http://"+ln.Addr().String(), "pp"))
	l.pool.Spec.ExtensionRef.PortNumber = new(int32(80))
	l.pool.Spec.ExtensionRef.FailureMode = "FailClose"
	l.serveNow()
	return picker, server
}

func (p *fakePicker) Process(s extprocv3.ExternalProcessor_ProcessServer) error {
	var body []byte
	decide := func() error {
		p.mu.Lock()
		answers := p.pick(body)
		p.mu.Unlock()
		for _, a := range answers {
			if err := s.Send(a); err != nil {
				return err
			}
		}
		return nil
	}
	for {
		m, err := s.Recv()
		if err != nil {
			return nil //nolint:nilerr // the gateway has ended the stream
		}
		switch v := m.Request.(type) {
		case *extprocv3.ProcessingRequest_RequestHeaders:
			var among []string
			for _, at := range m.MetadataContext.GetFilterMetadata()["envoy.lb.subset_hint"].
				GetFields()["x-gateway-destination-endpoint-subset"].GetListValue().GetValues() {
				among = append(among, at.GetStringValue())
			}
			p.mu.Lock()
			p.among = append(p.among, strings.Join(among, ","))
			p.mu.Unlock()
			if v.RequestHeaders.EndOfStream {
				err = decide()
			}
		case *extprocv3.ProcessingRequest_RequestBody:
			if body = append(body, v.RequestBody.Body...); v.RequestBody.EndOfStream {
				err = decide()
			}
		case *extprocv3.ProcessingRequest_ResponseHeaders:
			p.mu.Lock()
			p.served = append(p.served, m.MetadataContext.FilterMetadata["envoy.lb"].
				Fields["x-gateway-destination-endpoint-served"].GetStringValue())
			p.mu.Unlock()
			err = s.Send(&extprocv3.ProcessingResponse{Response: &extprocv3.ProcessingResponse_ResponseHeaders{
				ResponseHeaders: &extprocv3.HeadersResponse{}}})
		case *extprocv3.ProcessingRequest_ResponseBody:
			p.mu.Lock()
			p.answer = append(p.answer, v.ResponseBody.Body...)
			p.mu.Unlock()
			err = s.Send(&extprocv3.ProcessingResponse{Response: &extprocv3.ProcessingResponse_ResponseBody{
				ResponseBody: &extprocv3.BodyResponse{}}})
		}
		if err != nil {
			return err
		}
	}
}

// toward answers the headers, with the endpoints as metadata.
func toward(list string) *extprocv3.ProcessingResponse {
	lb, _ := structpb.NewStruct(map[string]any{"envoy.lb": map[string]any{"x-gateway-destination-endpoint": list}})
	return &extprocv3.ProcessingResponse{DynamicMetadata: lb,
		Response: &extprocv3.ProcessingResponse_RequestHeaders{RequestHeaders: &extprocv3.HeadersResponse{}}}
}

// replaced answers a body with another one, in two parts.
func replaced(body string) (out []*extprocv3.ProcessingResponse) {
	for i, part := range []string{body[:1], body[1:]} {
		out = append(out, &extprocv3.ProcessingResponse{Response: &extprocv3.ProcessingResponse_RequestBody{
			RequestBody: &extprocv3.BodyResponse{Response: &extprocv3.CommonResponse{
				BodyMutation: &extprocv3.BodyMutation{Mutation: &extprocv3.BodyMutation_StreamedResponse{
					StreamedResponse: &extprocv3.StreamedBodyResponse{Body: []byte(part), EndOfStream: i == 1}}}}}}})
	}
	return out
}

// A pool's own picker chooses the endpoints of requests, changes their bodies, and refuses some; it can't choose
// endpoints outside of the pool.
func TestExternalPicker(t *testing.T) {
	l := newInferenceLab(t)
	l.server(1, answering)
	l.server(2, answering)
	outside := echo(t, "stranger")
	picker, server := l.picker()
	addr := func(i int) string { return fmt.Sprintf("%s:%d", l.pods[i].Status.PodIP, l.port) }
	post := func(answers func([]byte) []*extprocv3.ProcessingResponse) (int, string, http.Header) {
		picker.mu.Lock()
		picker.pick = answers
		picker.mu.Unlock()
		return l.get("POST", "x", "/v1/completions", strings.NewReader(strings.Repeat("x", 200<<10)),
			"X-Gateway-Destination-Endpoint", addr(0))
	}
	for i := range l.pods {
		status, text, h := post(func(body []byte) []*extprocv3.ProcessingResponse {
			if len(body) != 200<<10 {
				t.Errorf("the picker got %d bytes", len(body))
			}
			return append(replaced("another body"), toward("10.255.255.255:1,"+addr(i)))
		})
		want(t, "picked", status, text, 200, `"got":"another body","length":12`)
		if h.Get("X-Who") != addr(i) || picker.served[len(picker.served)-1] != addr(i) {
			t.Errorf("served by %s, told %v, not %s", h.Get("X-Who"), picker.served, addr(i))
		}
	}
	picker.mu.Lock()
	if !strings.Contains(string(picker.answer), `"completion_tokens":4`) {
		t.Errorf("the picker has seen no usage: %s", picker.answer)
	}
	picker.mu.Unlock()
	status, text, h := post(func([]byte) []*extprocv3.ProcessingResponse {
		return append(replaced("xx"), toward(strings.TrimPrefix(outside.URL, "http://")))
	})
	want(t, "an address outside of the pool", status, text, 503)
	if h.Get(routing.ReasonHeader) == "" {
		t.Error("no reason")
	}
	status, text, _ = post(func([]byte) []*extprocv3.ProcessingResponse {
		return []*extprocv3.ProcessingResponse{{Response: &extprocv3.ProcessingResponse_ImmediateResponse{
			ImmediateResponse: &extprocv3.ImmediateResponse{Status: &typev3.HttpStatus{Code: 429},
				Body: []byte("later")}}}}
	})
	want(t, "shed", status, text, 429, "later")
	server.Stop()
	status, text, _ = post(nil)
	want(t, "FailClose", status, text, 503)
	l.pool.Spec.ExtensionRef.FailureMode = "FailOpen"
	l.serveNow()
	status, text, _ = post(nil)
	want(t, "FailOpen", status, text, 200, `"length":204800`)
}
