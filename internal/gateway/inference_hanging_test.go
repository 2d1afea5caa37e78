package gateway

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"carob/internal/base/testwait"
	"carob/internal/core/gatewayplan"
)

// A picker whose server responds may hang nevertheless: its decision comes after the pool's limit, twice, or never. The
// pool's failure mode applies then, and what comes late has no effect.
func TestHangingPicker(t *testing.T) {
	l := newInferenceLab(t)
	l.server(1, answering)
	picker, _ := l.picker()
	there := fmt.Sprintf("%s:%d", l.pods[0].Status.PodIP, l.port)
	decided := append(replaced("decided"), toward(there))
	late := make(chan struct{})
	never := func([]byte) []*extprocv3.ProcessingResponse { return nil }
	for what, c := range map[string]struct {
		mode  string
		limit string
		pick  func([]byte) []*extprocv3.ProcessingResponse

		status int
		text   string
	}{
		"twice": {"FailClose", "1h", func([]byte) []*extprocv3.ProcessingResponse {
			return append(decided, decided...)
		}, 200, `"got":"decided"`},
		"never, FailClose": {"FailClose", "1ms", never, 503, ""},
		"never, FailOpen":  {"FailOpen", "1ms", never, 200, `"got":"{\"model\":\"m\"}"`},
		"late, FailOpen": {"FailOpen", "1ms", func([]byte) []*extprocv3.ProcessingResponse {
			<-late
			return decided
		}, 200, `"got":"{\"model\":\"m\"}"`},
		"an endpoint that is not there, FailOpen": {"FailOpen", "1h", func([]byte) []*extprocv3.ProcessingResponse {
			return append(replaced("decided"), toward("10.255.255.255:1"))
		}, 200, `"got":"{\"model\":\"m\"}"`},
	} {
		l.pool = l.pool.DeepCopy()
		l.pool.Spec.ExtensionRef.FailureMode = c.mode
		l.pool.Annotations = map[string]string{gatewayplan.PickerTimeout: c.limit}
		l.world.Inference.OldPools[0] = l.pool
		l.serveNow()
		picker.mu.Lock()
		picker.pick = c.pick
		picker.mu.Unlock()
		status, text, _ := l.get("POST", "x", "/v1/completions", strings.NewReader(`{"model":"m"}`))
		want(t, what, status, text, c.status, c.text)
		if strings.HasPrefix(what, "late") {
			close(late)
		}
		testwait.For(t, what+": all bytes are given back", func() bool { return l.bodies.Used() == 0 })
	}
}

// The timeout of a route is that of the whole request: it does not let a request through, and the client learns of it.
func TestHangingPickerAndTheRoutesTimeout(t *testing.T) {
	l := newInferenceLab(t)
	l.server(1, answering)
	picker, _ := l.picker()
	picker.mu.Lock()
	picker.pick = func([]byte) []*extprocv3.ProcessingResponse { return nil }
	picker.mu.Unlock()
	l.pool.Spec.ExtensionRef.FailureMode = "FailOpen"
	for _, r := range l.world.HTTPRoutes {
		for i := range r.Spec.Rules {
			r.Spec.Rules[i].Timeouts = &gatewayv1.HTTPRouteTimeouts{Request: new(gatewayv1.Duration("1ms"))}
		}
	}
	l.serveNow()
	r, err := http.NewRequestWithContext(context.WithoutCancel(t.Context()), http.MethodPost,
		"http://"+l.http+"/v1/completions", strings.NewReader(`{"model":"m"}`))
	if err != nil {
		t.Fatal(err)
	}
	r.Host = "x"
	res, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusGatewayTimeout {
		t.Errorf("the status is %d", res.StatusCode)
	}
}

// A limit that is none has no effect, and explain says why.
func TestPickerTimeout(t *testing.T) {
	l := newInferenceLab(t)
	l.server(1, answering)
	l.picker()
	for text, want := range map[string]time.Duration{"": 0, "5s": 5 * time.Second, "1h": time.Hour, "0s": 0, "-1s": 0,
		"2h": 0, "soon": 0} {
		modes := map[string]time.Duration{"FailOpen": 10 * time.Second, "FailClose": 90 * time.Second}
		for mode, otherwise := range modes {
			l.pool = l.pool.DeepCopy()
			l.pool.Spec.ExtensionRef.FailureMode = mode
			if l.pool.Annotations = nil; text != "" {
				l.pool.Annotations = map[string]string{gatewayplan.PickerTimeout: text}
			}
			l.world.Inference.OldPools[0] = l.pool
			l.serveNow()
			got := time.Duration(0)
			for _, p := range l.plan.Pools {
				got = p.Picker.Timeout
			}
			problem := l.PoolStates("")[0].PickerProblem
			if expected := max(want, 0); got != expected && (expected != 0 || got != otherwise) {
				t.Errorf("%q, %s: %s", text, mode, got)
			}
			if (problem != "") != (want == 0 && text != "") ||
				problem != "" && !strings.Contains(problem, gatewayplan.PickerTimeout) {
				t.Errorf("%q: %q", text, problem)
			}
		}
	}
}
