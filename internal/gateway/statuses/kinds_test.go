package statuses

import (
	"bytes"
	"encoding/json"
	"io"
	"maps"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"carob/internal/core/gatewayplan"
)

// api is an API server that stores statuses, or fails.
type api struct {
	fails  int               // requests, with 500
	stored map[string]string // conditions by the path of the request
}

func (a *api) RoundTrip(r *http.Request) (*http.Response, error) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return nil, err
	}
	answer := &http.Response{StatusCode: http.StatusOK, Header: http.Header{"Content-Type": {"application/json"}},
		Body: io.NopCloser(bytes.NewReader(body)), Request: r}
	if a.fails > 0 {
		a.fails--
		answer.StatusCode = http.StatusInternalServerError
		return answer, nil
	}
	var o struct{ Status any }
	if err := json.Unmarshal(body, &o); err != nil {
		return nil, err
	}
	status, err := json.Marshal(o.Status)
	a.stored[r.Method+" "+strings.TrimPrefix(r.URL.Path, "/apis/gateway.networking.k8s.io/v1")] = string(status)
	return answer, err
}

// Of each kind the status of an object that differs is stored, and tried again when that failed; one that says the same
// is not written, nor one of which the plan says nothing. The objects stay as they are: watches own them.
func TestStatusesOfEachKind(t *testing.T) {
	at := metav1.NewTime(time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC))
	conditions := []metav1.Condition{{Type: "Accepted", Status: metav1.ConditionTrue, Reason: "Accepted"}}
	withTime := slices.Clone(conditions)
	withTime[0].LastTransitionTime = at
	parents := func(c []metav1.Condition) []gatewayv1.RouteParentStatus {
		return []gatewayv1.RouteParentStatus{{ControllerName: gatewayplan.GatewayController, Conditions: c}}
	}
	ancestors := func(c []metav1.Condition) []gatewayv1.PolicyAncestorStatus {
		return []gatewayv1.PolicyAncestorStatus{{ControllerName: gatewayplan.GatewayController, Conditions: c}}
	}
	named := func(name string) metav1.ObjectMeta { return metav1.ObjectMeta{Namespace: "ns", Name: name} }
	world, plan := &gatewayplan.World{}, &gatewayplan.Plan{
		Gateways: map[name]gatewayv1.GatewayStatus{}, ListenerSets: map[name]gatewayv1.ListenerSetStatus{},
		HTTPRoutes: map[name][]gatewayv1.RouteParentStatus{}, GRPCRoutes: map[name][]gatewayv1.RouteParentStatus{},
		TLSRoutes: map[name][]gatewayv1.RouteParentStatus{}, Policies: map[name][]gatewayv1.PolicyAncestorStatus{}}
	for object, stored := range map[string][]metav1.Condition{"new": nil, "same": withTime, "unknown": nil} {
		o, n := named(object), name{Namespace: "ns", Name: object}
		world.Gateways = append(world.Gateways, &gatewayv1.Gateway{ObjectMeta: o,
			Status: gatewayv1.GatewayStatus{Conditions: stored}})
		world.ListenerSets = append(world.ListenerSets, &gatewayv1.ListenerSet{ObjectMeta: o,
			Status: gatewayv1.ListenerSetStatus{Conditions: stored}})
		var http gatewayv1.HTTPRoute
		var grpc gatewayv1.GRPCRoute
		var tls gatewayv1.TLSRoute
		var policy gatewayv1.BackendTLSPolicy
		if stored != nil {
			http.Status.Parents, grpc.Status.Parents = parents(stored), parents(stored)
			tls.Status.Parents = parents(stored)
			policy.Status.Ancestors = ancestors(stored)
		}
		http.ObjectMeta, grpc.ObjectMeta, tls.ObjectMeta, policy.ObjectMeta = o, o, o, o
		world.HTTPRoutes, world.GRPCRoutes = append(world.HTTPRoutes, &http), append(world.GRPCRoutes, &grpc)
		world.TLSRoutes, world.Policies = append(world.TLSRoutes, &tls), append(world.Policies, &policy)
		if object == "unknown" {
			continue
		}
		plan.Gateways[n] = gatewayv1.GatewayStatus{Conditions: conditions}
		plan.ListenerSets[n] = gatewayv1.ListenerSetStatus{Conditions: conditions}
		plan.HTTPRoutes[n], plan.GRPCRoutes[n] = parents(conditions), parents(conditions)
		plan.TLSRoutes[n] = parents(conditions)
		plan.Policies[n] = ancestors(conditions)
	}
	server := &api{fails: 2, stored: map[string]string{}}
	w := New(Config{REST: &rest.Config{Host: "https://none.example", Transport: server},
		Now: func() time.Time { return at.Time }})
	var err error
	if w.rest, err = GatewayClient(w.cfg.REST); err != nil {
		t.Fatal(err)
	}
	w.All(world, plan)
	if w.store(t.Context()).IsZero() || len(server.stored) != 4 {
		t.Errorf("after two failures %d are stored", len(server.stored))
	}
	w.repeat(time.Now().Add(time.Hour))
	if !w.store(t.Context()).IsZero() || w.queue != nil {
		t.Errorf("tried again, and not done: %v", w.queue)
	}
	want := []string{"backendtlspolicies", "gateways", "grpcroutes", "httproutes", "listenersets", "tlsroutes"}
	for i := range want {
		want[i] = "PUT /namespaces/ns/" + want[i] + "/new/status"
	}
	if got := slices.Sorted(maps.Keys(server.stored)); !slices.Equal(got, want) {
		t.Errorf("stored %q, want %q", got, want)
	}
	for path, status := range server.stored {
		if !strings.Contains(status, `"lastTransitionTime":"2026-01-02T03:04:05Z"`) || !strings.Contains(status, "Accepted") {
			t.Errorf("%s: %s", path, status)
		}
	}
	for _, r := range world.HTTPRoutes {
		if r.Name == "new" && r.Status.Parents != nil {
			t.Error("the object of the watch was changed")
		}
	}
}
