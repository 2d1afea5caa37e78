package gateway

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"

	"carob/internal/base/testwait"
	"carob/internal/core/gatewayplan/inferenceapi"
)

// stream begins a stream of events at the lab's gateway, and reads its first event.
func (l *inferenceLab) stream() (*http.Response, *bufio.Reader) {
	l.t.Helper()
	r, err := http.NewRequestWithContext(context.WithoutCancel(l.t.Context()), http.MethodPost,
		"http://"+l.http+"/v1/completions", strings.NewReader(`{"model":"m","stream":true}`))
	if err != nil {
		l.t.Fatal(err)
	}
	r.Host = "x"
	tr := &http.Transport{}
	l.t.Cleanup(tr.CloseIdleConnections)
	res, err := (&http.Client{Transport: tr}).Do(r)
	if err != nil {
		l.t.Fatal(err)
	}
	l.t.Cleanup(func() { _ = res.Body.Close() })
	lines := bufio.NewReader(res.Body)
	if line, err := lines.ReadString('\n'); err != nil || line != "data: first\n" || res.StatusCode != http.StatusOK {
		l.t.Fatalf("%d %q %v", res.StatusCode, line, err)
	}
	return res, lines
}

// streaming answers in two events; the second comes when the channel is closed.
func streaming(second <-chan struct{}) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/metrics" {
			answering(w, r)
			return
		}
		_, _ = io.Copy(io.Discard, r.Body)
		w.Header().Set("Content-Type", "text/event-stream")
		_, _ = io.WriteString(w, "data: first\n")
		_ = http.NewResponseController(w).Flush()
		select {
		case <-second:
			_, _ = io.WriteString(w, "data: second\n")
		case <-r.Context().Done():
		}
	}
}

// What a stream came from may be deleted or changed while it goes on: the stream ends as the server ends it, requests
// that begin afterwards see the change, and nothing is left of either.
func TestChangesDuringAStream(t *testing.T) {
	for what, c := range map[string]struct {
		external bool
		change   func(*inferenceLab)
		status   int // of a request after the change; 0: nothing listens
	}{
		"the pool is deleted": {false, func(l *inferenceLab) { l.world.Inference.OldPools = nil }, 500},
		"the pool with an external picker is deleted": {true, func(l *inferenceLab) {
			l.world.Inference.OldPools = nil
		}, 500},
		"the route is deleted": {false, func(l *inferenceLab) { l.world.HTTPRoutes = nil }, 404},
		"the selector matches nothing": {false, func(l *inferenceLab) {
			l.pool.Spec.Selector = map[string]string{"app": "other"}
		}, 503},
		"the port is another one": {false, func(l *inferenceLab) { l.pool.Spec.TargetPortNumber = 1 }, 503},
		"the port is another one, external picker": {true, func(l *inferenceLab) {
			l.pool.Spec.TargetPortNumber = 1
		}, 503},
		"the pod is deleted": {false, func(l *inferenceLab) { l.pods = nil }, 503},
		"an external picker that is not there": {false, func(l *inferenceLab) {
			l.pool.Spec.ExtensionRef = &inferenceapi.OldPicker{Kind: "Service", Name: "picker",
				PortNumber: new(int32(80)), FailureMode: "FailClose"}
			l.service("picker", "kubernetes.io/h2c")
		}, 503},
		"carob's picker instead of an external one": {true, func(l *inferenceLab) {
			l.pool.Spec.ExtensionRef = nil
		}, 200},
		"the external picker's Service is deleted": {true, func(l *inferenceLab) {
			delete(l.world.Services, name{Namespace: "default", Name: "picker"})
			l.slices = nil
		}, 200}, // v1alpha2: carob's own picker
		"the Gateway is deleted": {false, func(l *inferenceLab) { l.world.Gateways = nil }, 0},
	} {
		t.Run(what, func(t *testing.T) {
			l := newInferenceLab(t)
			second := make(chan struct{})
			l.server(1, streaming(second))
			l.serveNow()
			if c.external {
				picker, _ := l.picker()
				picker.pick = func([]byte) []*extprocv3.ProcessingResponse {
					return append(replaced(`{"model":"m"}`), toward(l.pods[0].Status.PodIP+":"+fmt.Sprint(l.port)))
				}
			}
			_, lines := l.stream()
			l.pool = l.pool.DeepCopy()
			l.world.Inference.OldPools = []*inferenceapi.OldPool{l.pool}
			c.change(l)
			l.serveNow()
			served := l.streamed(second, lines)
			if served != "data: second\n" {
				t.Errorf("the stream ends with %q", served)
			}
			if c.status == 0 {
				if res, err := http.Get("http://" + l.http); err == nil { //nolint:noctx // of a test
					_ = res.Body.Close()
					t.Errorf("the port is open: %d", res.StatusCode)
				}
			} else if status, text, _ := l.get("POST", "x", "/v1/completions",
				strings.NewReader(`{"model":"m"}`)); status != c.status {
				t.Errorf("%d, not %d: %s", status, c.status, text)
			}
			testwait.For(t, "nothing is left", func() bool {
				return l.bodies.Used() == 0 && l.seen.figures.inFlight.Load() == 0
			})
		})
	}
}

// streamed lets a server go on and reads the rest.
func (l *inferenceLab) streamed(second chan<- struct{}, lines io.Reader) string {
	l.t.Helper()
	close(second)
	rest, err := io.ReadAll(lines)
	if err != nil {
		l.t.Error(err)
	}
	return string(rest)
}
