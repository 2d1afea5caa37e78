package gatewayplan

import (
	"math/rand/v2"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"
)

func setOf(namespace, name string, age int, parent string, listeners ...gatewayv1.Listener) *gatewayv1.ListenerSet {
	s := &gatewayv1.ListenerSet{ObjectMeta: meta(namespace, name, age)}
	s.Spec.ParentRef.Name = gatewayv1.ObjectName(parent)
	s.Spec.ParentRef.Namespace = new(gatewayv1.Namespace("a"))
	for _, l := range listeners {
		s.Spec.Listeners = append(s.Spec.Listeners, gatewayv1.ListenerEntry(l))
	}
	return s
}

func allowSets(g *gatewayv1.Gateway, from gatewayv1.FromNamespaces) *gatewayv1.Gateway {
	g.Spec.AllowedListeners = &gatewayv1.AllowedListeners{Namespaces: &gatewayv1.ListenerNamespaces{From: &from}}
	return g
}

func reasonOf(all []metav1.Condition, kind string) string {
	for _, c := range all {
		if c.Type == kind {
			return string(c.Status) + " " + c.Reason
		}
	}
	return ""
}

func TestListenerSets(t *testing.T) {
	raw := plain("raw", 80, "")
	raw.Protocol = "TCP"
	for _, c := range []struct {
		name      string
		allow     gatewayv1.FromNamespaces
		sets      []*gatewayv1.ListenerSet
		want      map[string]string // of ListenerSets: Accepted
		listeners map[string]string // set/listener: Accepted
		attached  int32
		hosts     []string // served at port 80, in order
	}{
		{"the default allows none", "", []*gatewayv1.ListenerSet{setOf("a", "s", 1, "gw", plain("x", 80, "x.example"))},
			map[string]string{"s": "False NotAllowed"}, nil, 0, []string{"gw.example"}},
		{"of the same namespace", gatewayv1.NamespacesFromSame, []*gatewayv1.ListenerSet{
			setOf("a", "s", 1, "gw", plain("x", 80, "x.example")), setOf("b", "t", 1, "gw", plain("y", 80, "y.example"))},
			map[string]string{"s": "True Accepted", "t": "False NotAllowed"},
			map[string]string{"s/x": "True Accepted"}, 1, []string{"gw.example", "x.example"}},
		{"the Gateway goes first", gatewayv1.NamespacesFromAll, []*gatewayv1.ListenerSet{
			setOf("b", "s", 9, "gw", plain("x", 80, "gw.example"), plain("y", 80, "y.example"))},
			map[string]string{"s": "True ListenersNotValid"},
			map[string]string{"s/x": "False HostnameConflict", "s/y": "True Accepted"}, 1,
			[]string{"gw.example", "y.example"}},
		{"then the older", gatewayv1.NamespacesFromAll, []*gatewayv1.ListenerSet{
			setOf("a", "young", 1, "gw", plain("x", 80, "x.example")),
			setOf("a", "old", 2, "gw", plain("x", 80, "x.example"))},
			map[string]string{"old": "True Accepted", "young": "False ListenersNotValid"},
			map[string]string{"young/x": "False HostnameConflict"}, 1, []string{"gw.example", "x.example"}},
		{"another protocol", gatewayv1.NamespacesFromAll, []*gatewayv1.ListenerSet{setOf("a", "s", 1, "gw", raw)},
			map[string]string{"s": "False ListenersNotValid"}, map[string]string{"s/raw": "False ProtocolConflict"}, 0,
			[]string{"gw.example"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := world()
			g := gatewayOf("gw", 0, plain("main", 80, "gw.example"))
			if c.allow != "" {
				allowSets(g, c.allow)
			}
			w.Gateways, w.ListenerSets = []*gatewayv1.Gateway{g}, c.sets
			plan := makePlan(w).Plan
			for _, s := range c.sets {
				status := plan.ListenerSets[nameOf(s)]
				if got := reasonOf(status.Conditions, "Accepted"); got != c.want[s.Name] {
					t.Errorf("ListenerSet %s: %q, want %q", s.Name, got, c.want[s.Name])
				}
				for _, l := range status.Listeners {
					key := s.Name + "/" + string(l.Name)
					if got := reasonOf(l.Conditions, "Accepted"); c.listeners[key] != "" && got != c.listeners[key] {
						t.Errorf("%s: %q, want %q", key, got, c.listeners[key])
					}
				}
			}
			status := plan.Gateways[nameOf(g)]
			if got := status.AttachedListenerSets; got == nil || *got != c.attached {
				t.Errorf("attached: %v, want %d", got, c.attached)
			}
			var hosts []string
			for _, p := range plan.Ports {
				for _, l := range p.Listeners {
					hosts = append(hosts, l.Host)
				}
			}
			if len(hosts) != len(c.hosts) {
				t.Fatalf("served: %v, want %v", hosts, c.hosts)
			}
			for i := range hosts {
				if hosts[i] != c.hosts[i] {
					t.Errorf("served: %v, want %v", hosts, c.hosts)
				}
			}
		})
	}
}

// A route is attached to the listeners of the set that it names, and to no other; what the set may not refer
// to, its listeners may not refer to either.
func TestRoutesOfListenerSets(t *testing.T) {
	w := world()
	w.Secrets[Name{Namespace: "a", Name: "cert"}] = Material{}
	g := allowSets(gatewayOf("gw", 0, plain("main", 80, "gw.example")), gatewayv1.NamespacesFromAll)
	set := setOf("b", "s", 1, "gw", plain("x", 80, "x.example"), secure("tls", "cert", "a"))
	ref := gatewayv1.ParentReference{Kind: new(gatewayv1.Kind("ListenerSet")), Name: "s"}
	r := routeOf("b", "r", ref)
	w.Gateways, w.ListenerSets, w.HTTPRoutes = []*gatewayv1.Gateway{g}, []*gatewayv1.ListenerSet{set},
		[]*gatewayv1.HTTPRoute{r}
	plan := makePlan(w).Plan
	if got := reasonOf(plan.HTTPRoutes[nameOf(r)][0].Conditions, "Accepted"); got != "True Accepted" {
		t.Errorf("route: %q", got)
	}
	s := plan.ListenerSets[nameOf(set)]
	if got := s.Listeners[0].AttachedRoutes; got != 1 {
		t.Errorf("the set has %d routes", got)
	}
	if got := plan.Gateways[nameOf(g)].Listeners[0].AttachedRoutes; got != 0 {
		t.Errorf("the Gateway has %d routes", got)
	}
	if got := reasonOf(s.Listeners[1].Conditions, "ResolvedRefs"); got != "False RefNotPermitted" {
		t.Errorf("a Secret of another namespace: %q", got)
	}
}

// A Gateway presents its certificate to the backends that use TLS.
func TestClientIdentity(t *testing.T) {
	for _, c := range []struct {
		name   string
		secret string
		kind   gatewayv1.Kind
		pem    string
		want   string
	}{
		{"valid", "client", "Secret", "PEM", "True ResolvedRefs"},
		{"missing", "nothing", "Secret", "PEM", "False InvalidClientCertificateRef"},
		{"unreadable", "client", "Secret", "", "False InvalidClientCertificateRef"},
		{"no Secret", "client", "ConfigMap", "PEM", "False InvalidClientCertificateRef"},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := world()
			w.Secrets[Name{Namespace: "a", Name: "client"}] = Material{PEM: c.pem}
			w.CAs[Name{Namespace: "a", Name: "ca"}] = Material{PEM: "CA"}
			g := gatewayOf("gw", 0, plain("main", 80, ""))
			g.Spec.TLS = &gatewayv1.GatewayTLSConfig{Backend: &gatewayv1.GatewayBackendTLS{
				ClientCertificateRef: &gatewayv1.SecretObjectReference{Name: gatewayv1.ObjectName(c.secret),
					Kind: &c.kind}}}
			policy := &gatewayv1.BackendTLSPolicy{ObjectMeta: meta("a", "p", 0)}
			policy.Spec.TargetRefs = []gatewayv1.LocalPolicyTargetReferenceWithSectionName{{
				LocalPolicyTargetReference: gatewayv1.LocalPolicyTargetReference{Kind: "Service", Name: "web"}}}
			policy.Spec.Validation.Hostname = "web.example"
			policy.Spec.Validation.CACertificateRefs = []gatewayv1.LocalObjectReference{{Kind: "ConfigMap", Name: "ca"}}
			w.Gateways, w.Policies = []*gatewayv1.Gateway{g}, []*gatewayv1.BackendTLSPolicy{policy}
			w.HTTPRoutes = []*gatewayv1.HTTPRoute{routeOf("a", "r", gatewayv1.ParentReference{Name: "gw"})}
			plan := makePlan(w).Plan
			if got := reasonOf(plan.Gateways[nameOf(g)].Conditions, "ResolvedRefs"); got != c.want {
				t.Errorf("ResolvedRefs: %q, want %q", got, c.want)
			}
			want := ""
			if c.want[0] == 'T' {
				want = c.pem
			}
			for _, p := range plan.Ports {
				if b := p.Listeners[0].Routes[0].Rules[0].Backends[0]; b.TLS == nil || b.TLS.Cert != want {
					t.Errorf("backend: %+v, want the certificate %q", b.TLS, want)
				}
			}
		})
	}
}

// Whether a listener of a set conflicts is found without a look at each listener before it, with the same result.
func TestConflictsOfSets(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	protocols := []gatewayv1.ProtocolType{"HTTP", "HTTP", "HTTPS", "TLS", "TCP", "UDP", "other"}
	found := map[gatewayv1.ListenerConditionReason]int{}
	for range 300 {
		g := &gateway{}
		var before []*listener
		for range 20 {
			l := &listener{Listener: &gatewayv1.Listener{Port: gatewayv1.PortNumber(1 + r.IntN(4)),
				Protocol: protocols[r.IntN(len(protocols))]}}
			if !l.raw() {
				l.host = []string{"", "a", "b", "*.a"}[r.IntN(4)]
			}
			if r.IntN(5) == 0 {
				l.broken = gatewayv1.ListenerReasonInvalidCertificateRef
			}
			want := gatewayv1.ListenerConditionReason("")
			for _, o := range before {
				if o.port() != l.port() {
					continue
				}
				if want = o.use().conflict(l); want != "" {
					break
				}
			}
			if l.conflict = g.used[l.port()].conflict(l); l.conflict != want {
				t.Fatalf("%+v after %d: %q, want %q", l, len(before), l.conflict, want)
			}
			found[want]++
			if served := l.serves(); g.use(l) != served {
				t.Fatal("another listener is used than the one that is served")
			} else if served {
				before = append(before, l)
			}
		}
	}
	if len(found) != 3 {
		t.Errorf("found %v", found)
	}
}
