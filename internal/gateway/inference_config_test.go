package gateway

import (
	"context"
	"net/http"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/types"

	"carob/internal/core/gatewayplan"
	"carob/internal/core/gatewayplan/inferenceapi"
	"carob/internal/core/httproute"
	"carob/internal/core/podlife"
	"carob/internal/inference"
)

// A ConfigMap that a pool names configures its picker, also later and again; one that cannot be used changes nothing.
func TestPickerConfig(t *testing.T) {
	l := newInferenceLab(t)
	l.server(0, answering)
	l.pool.Spec.ExtensionRef = &inferenceapi.OldPicker{Group: gatewayplan.PickerGroup, Kind: gatewayplan.PickerKind,
		Name: "mine"}
	mine, read := name{Namespace: "default", Name: "mine"}, map[string]gatewayplan.PickerConfig{}
	configure := func(text string) {
		t.Helper()
		if _, known := read[text]; !known { // as the feed does
			var problem string
			config, err := inference.ReadConfig([]byte(text))
			if err != nil {
				problem = err.Error()
			}
			read[text] = gatewayplan.PickerConfig{Config: config, Problem: problem}
		}
		l.world.Inference.Configs = map[name]gatewayplan.PickerConfig{mine: read[text]}
		l.serveNow()
		status, body, _ := l.get("POST", "x", "/v1/completions", strings.NewReader(`{"model":"m"}`))
		want(t, "a request", status, body, 200, "")
	}
	pool := func() *served {
		p, _ := l.pools.Get(httproute.Ref{Namespace: "default", Name: "llm", Pool: inferenceapi.OldGroup})
		return p.served.Load()
	}
	const config = `
apiVersion: inference.networking.x-k8s.io/v1alpha1
kind: EndpointPickerConfig
plugins: [{type: queue-scorer}, {type: max-score-picker}]
schedulingProfiles: [{name: default, plugins: [{pluginRef: queue-scorer}, {pluginRef: max-score-picker}]}]
`
	l.serveNow()
	first := pool()
	if first.own == nil || first.config != nil {
		t.Fatalf("before the ConfigMap is there: %+v", first)
	}
	configure(config)
	second := pool()
	if second.own != first.own || second.config == nil {
		t.Errorf("the ConfigMap came later: %+v", second)
	}
	configure(config)
	if again := pool(); again.config != second.config {
		t.Error("the same text was read again")
	}
	configure("kind: Nothing\n")
	if broken := pool(); broken.own != first.own || broken.config != second.config {
		t.Errorf("one that cannot be used: %+v", broken)
	}
	configure(strings.Replace(config, "queue-scorer", "kv-cache-utilization-scorer", 2))
	if other := pool(); other.config == nil || other.config == second.config {
		t.Errorf("another one: %+v", other)
	}
	l.world.Inference.Configs = nil
	l.serveNow()
	if gone := pool(); gone.own != first.own || gone.config != nil {
		t.Errorf("after the ConfigMap is gone: %+v", gone)
	}
}

// How long a deleted pod may be waited for is what its pool says now, also when the pod has left the pool and a request
// is still with it (D4).
func TestDrainTimeout(t *testing.T) {
	l := newInferenceLab(t)
	entered, leave := make(chan struct{}), make(chan struct{})
	l.server(1, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/metrics" {
			entered <- struct{}{}
			<-leave
		}
		answering(w, r)
	})
	l.serveNow()
	pod := l.pods[0].UID
	expect := func(want string) {
		t.Helper()
		got := "nothing"
		if d := l.DrainTimeout(pod); d != nil {
			got = d.String()
		}
		if got != want {
			t.Errorf("%s, not %s", got, want)
		}
	}
	annotate := func(text string) {
		l.pool = l.pool.DeepCopy()
		l.pool.Annotations = map[string]string{podlife.DrainAnnotation: text}
		l.world.Inference.OldPools = []*inferenceapi.OldPool{l.pool}
		l.serveNow()
	}
	expect("nothing")
	annotate("5m")
	expect("5m0s")
	annotate("long")
	expect("nothing")
	if s := l.PoolStates("")[0]; !strings.Contains(s.DrainProblem, podlife.DrainAnnotation) {
		t.Errorf("%+v", s)
	}
	annotate("5m")
	over := make(chan struct{})
	go func() {
		defer close(over)
		_, _, _ = l.get("POST", "x", "/v1/completions", strings.NewReader(`{"model":"m"}`))
	}()
	<-entered
	l.pods = nil
	l.serveNow()
	if !l.Routed(pod) {
		t.Error("the pod has a request, and is not waited for")
	}
	expect("5m0s")
	released := make(chan types.UID)
	ctx, cancel := context.WithCancel(t.Context())
	followed := make(chan struct{})
	go func() {
		defer close(followed)
		l.Follow(ctx, func(of types.UID) {
			select {
			case released <- of:
			case <-ctx.Done():
			}
		})
	}()
	annotate("1m")
	if <-released != pod { // the change is announced
		t.Error("another pod")
	}
	expect("1m0s")
	close(leave)
	for l.Routed(<-released) { // a change may be announced twice
	}
	<-over
	cancel()
	<-followed
}
