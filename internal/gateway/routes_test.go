package gateway

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"testing"

	networkingv1 "k8s.io/api/networking/v1"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"carob/internal/base/routeapi"
	"carob/internal/core/gatewayplan"
)

func TestRoutes(t *testing.T) {
	l := newLab(t)
	if got := l.Routes(""); len(got.Routes) > 0 {
		t.Errorf("before the first plan: %+v", got)
	}
	l.service("web", "", at("127.0.0.1:9999", "p1"))
	l.ingress("web.example", map[string]string{"rewrite-target": "/y"}, "/x=web", "/gone=none")
	g := &gatewayv1.Gateway{}
	g.Namespace, g.Name = "other", "gw"
	g.Spec.GatewayClassName = gatewayplan.Class
	g.Spec.Listeners = []gatewayv1.Listener{{Name: "a", Port: 1, Protocol: "example.com/sctp"}}
	class := &gatewayv1.GatewayClass{}
	class.Name, class.Spec.ControllerName = gatewayplan.Class, gatewayplan.GatewayController
	l.world.GatewayClasses, l.world.Gateways = []*gatewayv1.GatewayClass{class}, []*gatewayv1.Gateway{g}
	l.update()
	w := httptest.NewRecorder()
	l.ServeRoutes(w, httptest.NewRequest(http.MethodGet, "/carob/routes?namespace=default", nil))
	var list routeapi.List
	if err := json.Unmarshal(w.Body.Bytes(), &list); err != nil {
		t.Fatal(err)
	}
	found := map[string]routeapi.Route{}
	for _, r := range list.Routes {
		found[r.Protocol+" "+r.Host+r.Path] = r
	}
	r := found["HTTP web.example/x"]
	if r.Address != l.http || r.Kind != "Ingress" || len(r.Filters) != 1 || len(r.Backends) != 1 ||
		r.Backends[0].Service != "default/web:80" || len(r.Backends[0].Endpoints) != 1 {
		t.Errorf("%+v in %+v", r, list.Routes)
	}
	if r := found["HTTPS web.example/gone"]; len(r.Backends) != 1 || r.Backends[0].Problem == "" {
		t.Errorf("a backend that is not there: %+v", r)
	}
	if r := found["HTTP web.example/"]; r.Answer != "404" {
		t.Errorf("the rest: %+v", r)
	}
	reasons := map[string]bool{}
	for _, p := range list.Problems {
		reasons[p.Kind+" "+p.Reason] = true
	}
	if !reasons["Ingress BackendNotFound"] || reasons["Gateway Invalid"] {
		t.Errorf("problems of the namespace: %v", list.Problems)
	}
	if got := l.Routes("").Problems; len(got) <= len(list.Problems) {
		t.Errorf("problems of all namespaces: %v", got)
	}
	l.world.Ingresses, l.world.Gateways = []*networkingv1.Ingress{}, nil
	l.update()
	if got := l.Routes(""); len(got.Routes) != 0 || len(got.Problems) != 0 {
		t.Errorf("after everything has gone: %+v", got)
	}
}
