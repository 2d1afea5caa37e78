package gateway

import (
	"crypto/tls"
	"net"
	"net/http"
	"net/netip"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"carob/internal/core/gatewayplan"
	"carob/internal/gateway/certs"
)

// statusOf sends a request for a URL; 0: there is no answer.
func statusOf(t *testing.T, url string) int {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true, TLSClientConfig: &tls.Config{
		ServerName: "x.example.com", InsecureSkipVerify: true}}}
	res, err := client.Do(r)
	if err != nil {
		return 0
	}
	if err := res.Body.Close(); err != nil {
		t.Error(err)
	}
	return res.StatusCode
}

// Listeners that are added, changed, and removed, a port that is taken, and the Secret of a listener that appears later
// are followed without a new plan.
func TestGatewayChangesAreFollowed(t *testing.T) {
	first := freePort(t)
	l := newStreamLab(t, gatewayv1.HTTPProtocolType, first)
	second := netip.AddrPortFrom(first.Addr(), first.Port()^1)
	l.service("a", "", at(echo(t, "a").URL, "pa"))
	route := &gatewayv1.HTTPRoute{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "r"}}
	route.Spec.ParentRefs = parent()
	route.Spec.Rules = []gatewayv1.HTTPRouteRule{{
		BackendRefs: []gatewayv1.HTTPBackendRef{{BackendRef: toService("a", 1)}}}}
	l.world.HTTPRoutes = []*gatewayv1.HTTPRoute{route}
	l.update()
	plan := l.plan
	gateway := l.world.Gateways[0]
	change := func(edit func(*gatewayv1.Gateway)) {
		t.Helper()
		gateway = gateway.DeepCopy()
		gateway.Generation++
		edit(gateway)
		s := l.snapshot()
		note(&s.Changes.Gateways, nameOf(gateway), gateway)
		l.followed(s)
	}
	expect := func(what string, atFirst, atSecond int) {
		t.Helper()
		if got := statusOf(t, "http://"+first.String()); got != atFirst {
			t.Errorf("%s: %d at the first port", what, got)
		}
		if got := statusOf(t, "http://"+second.String()); got != atSecond {
			t.Errorf("%s: %d at the second port", what, got)
		}
	}
	expect("in the beginning", 200, 0)
	taken, err := net.Listen("tcp", second.String())
	if err != nil {
		t.Fatal(err)
	}
	more := gatewayv1.Listener{Name: "more", Port: gatewayv1.PortNumber(second.Port()),
		Protocol: gatewayv1.HTTPProtocolType}
	change(func(g *gatewayv1.Gateway) { g.Spec.Listeners = append(g.Spec.Listeners, more) })
	programmed := func() metav1.Condition { return l.plan.Gateways[nameOf(gateway)].Conditions[1] }
	if c := programmed(); l.failed[second] == "" || c.Type != "Programmed" || c.Status != metav1.ConditionFalse {
		t.Errorf("the port is taken: %v, %+v", l.failed, c)
	}
	if err := taken.Close(); err != nil {
		t.Fatal(err)
	}
	change(func(*gatewayv1.Gateway) {})
	if c := programmed(); len(l.failed) != 0 || c.Status != metav1.ConditionTrue {
		t.Errorf("the port is free: %v, %+v", l.failed, c)
	}
	expect("with a second listener", 200, 200)
	change(func(g *gatewayv1.Gateway) { g.Spec.Listeners[1].Hostname = new(gatewayv1.Hostname("x.example.com")) })
	expect("for another host", 200, 404)
	change(func(g *gatewayv1.Gateway) { g.Spec.Listeners = g.Spec.Listeners[:1] })
	l.closed.Wait()
	expect("without it", 200, 0)
	key := name{Namespace: "default", Name: "late"}
	change(func(g *gatewayv1.Gateway) {
		more.Protocol, more.TLS = gatewayv1.HTTPSProtocolType, &gatewayv1.ListenerTLSConfig{
			CertificateRefs: []gatewayv1.SecretObjectReference{{Name: "late"}}}
		g.Spec.Listeners = append(g.Spec.Listeners, more)
	})
	if got := statusOf(t, "https://"+second.String()); got != 0 {
		t.Errorf("without its Secret: %d", got)
	}
	cert, err := certs.SelfSigned(time.Now())
	if err != nil {
		t.Fatal(err)
	}
	s := l.snapshot()
	s.Certificates = map[name]*tls.Certificate{key: cert}
	note(&s.Changes.Secrets, key, &gatewayplan.Material{})
	l.followed(s)
	if got := statusOf(t, "https://"+second.String()); got != 200 {
		t.Errorf("with its Secret: %d", got)
	}
	s = l.snapshot()
	note(&s.Changes.Gateways, nameOf(gateway), nil)
	l.followed(s)
	l.closed.Wait()
	expect("without the Gateway", 0, 0)
	if l.plan != plan {
		t.Error("there is a new plan")
	}
}
