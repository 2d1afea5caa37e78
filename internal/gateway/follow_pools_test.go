package gateway

import (
	"net/netip"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"carob/internal/core/gatewayplan"
	"carob/internal/core/gatewayplan/inferenceapi"
	"carob/internal/core/httproute"
	"carob/internal/core/routing"
	"carob/internal/gateway/feed"
)

// follows passes changed objects of the inference extension to the gateway.
func (l *inferenceLab) follows(in *gatewayplan.Inference) {
	l.t.Helper()
	s := &feed.Snapshot{Changed: map[name]bool{}, Services: map[name]*corev1.Service{},
		Slices: map[name][]*discoveryv1.EndpointSlice{}, Pods: map[string][]*corev1.Pod{}}
	s.Changes.Inference = in
	l.fill = func(s *feed.Snapshot, services map[name]bool, _ map[httproute.Ref]bool) {
		s.Pods["default"] = l.pods
		for of := range services { // any order: into maps
			s.Services[of], s.Slices[of] = l.world.Services[of], l.slices[of]
		}
	}
	if !l.follow(l.t.Context(), s) {
		l.t.Fatal("the whole world is needed")
	}
	l.Gateway.update(l.t.Context(), s)
}

// Pools that come, go, and change, with their models and configurations, are followed without a new plan.
func TestPoolsAreFollowed(t *testing.T) {
	l := newInferenceLab(t)
	l.server(1, answering)
	l.pods[0].Name, l.pods[0].Labels = "one", map[string]string{"app": "one"}
	l.world.Inference.OldPools = nil
	l.cfg.Picker = netip.MustParseAddrPort("127.0.0.1:9002") // other gateways are offered the pools, too
	l.serveNow()
	plan := l.plan
	offered := func(what string, want bool) {
		t.Helper()
		if got := l.offers.Load().find("llm.default", "") != nil; got != want {
			t.Errorf("%s: offered: %v", what, got)
		}
	}
	offered("no pool", false)
	post := func(what string, status int, parts ...string) {
		t.Helper()
		got, body, _ := l.get("POST", "x", "/v1/completions", strings.NewReader(`{"model":"m"}`))
		want(t, what, got, body, status, parts...)
	}
	pool := func(selector string) *gatewayplan.Inference {
		p := l.pool.DeepCopy()
		p.Spec.Selector = map[string]string{"app": selector}
		p.Spec.ExtensionRef = &inferenceapi.OldPicker{Group: gatewayplan.PickerGroup, Kind: gatewayplan.PickerKind,
			Name: "mine"}
		return &gatewayplan.Inference{OldPools: []*inferenceapi.OldPool{p}}
	}
	post("no pool", 500)
	l.follows(pool("one"))
	post("a pool", 200, `"got":"{\"model\":\"m\"}"`)
	offered("a pool", true)
	if states := l.PoolStates(""); len(states) != 1 || len(states[0].Servers) != 1 {
		t.Errorf("the state is %+v", states)
	}
	l.follows(pool("two"))
	post("another selector", 503)
	if l.Routed(l.pods[0].UID) {
		t.Error("the pod that left the pool gets requests")
	}
	in := pool("one")
	in.Models = []*inferenceapi.Model{{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "a"},
		Spec: inferenceapi.ModelSpec{ModelName: "m", TargetModels: []inferenceapi.TargetModel{{Name: "m2"}},
			PoolRef: inferenceapi.PoolRef{Group: inferenceapi.OldGroup, Kind: "InferencePool", Name: "llm"}}}}
	l.follows(in)
	post("a model", 200, `"got":"{\"model\":\"m2\"}"`)
	in = pool("one")
	in.Configs = map[name]gatewayplan.PickerConfig{
		{Namespace: "default", Name: "mine"}: {Config: routing.DefaultConfig()}}
	l.follows(in)
	post("a configuration", 200, `"got":"{\"model\":\"m\"}"`)
	var served *served
	for ref := range l.plan.Pools {
		p, _ := l.pools.Get(ref)
		served = p.served.Load()
	}
	if served == nil || served.config == nil {
		t.Errorf("the picker has no configuration: %+v", served)
	}
	l.follows(&gatewayplan.Inference{})
	post("the pool has gone", 500)
	offered("the pool has gone", false)
	if l.plan != plan || l.pools.Len() != 0 || len(l.retired) != 0 {
		t.Errorf("a new plan: %v, %d pools, %d retired", l.plan != plan, l.pools.Len(), len(l.retired))
	}
}

// The first Ingress opens the ports, and the last closes them, without a new plan.
func TestFirstAndLastIngressAreFollowed(t *testing.T) {
	l := newLab(t)
	l.service("a", "", at(echo(t, "a").URL, "pa"))
	l.update()
	plan := l.plan
	in := l.ingress("x.example.com", nil, "/=a")
	for range 3 {
		if got := statusOf(t, "http://"+l.http); got != 0 {
			t.Errorf("without Ingresses there is an answer: %d", got)
		}
		l.change(map[string]*networkingv1.Ingress{in.Name: in})
		status, body, _ := l.get("GET", "x.example.com", "/", nil)
		want(t, "the first Ingress", status, body, 200, "a GET")
		l.change(map[string]*networkingv1.Ingress{in.Name: nil})
		l.closed.Wait()
	}
	if l.plan != plan {
		t.Error("there is a new plan")
	}
}
