package gateway

import (
	"crypto/tls"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"carob/internal/core/gatewayplan"
	"carob/internal/gateway/certs"
)

// Sessions are resumed; after the certificate was replaced a client with an old ticket is served, and one without gets
// the new certificate. No data are taken before the handshake (0-RTT), which anybody could send again.
func TestTLSSessions(t *testing.T) {
	l := newLab(t)
	l.service("a", "", at(echo(t, "a").URL, "pa"))
	in := l.ingress("x.example.com", nil, "/=a")
	in.Spec.TLS = []networkingv1.IngressTLS{{Hosts: []string{"x.example.com"}, SecretName: "s"}}
	secret := name{Namespace: "default", Name: "s"}
	rotate := func() *tls.Certificate {
		t.Helper()
		cert, err := certs.SelfSigned(time.Now())
		if err != nil {
			t.Fatal(err)
		}
		l.certs[secret], l.world.Secrets[secret] = cert, gatewayplan.Material{}
		l.update()
		return cert
	}
	handshake := func(cache tls.ClientSessionCache) tls.ConnectionState {
		t.Helper()
		c, err := tls.Dial("tcp", l.https, &tls.Config{InsecureSkipVerify: true, ServerName: "x.example.com",
			ClientSessionCache: cache})
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		if _, err := io.WriteString(c, "GET / HTTP/1.1\r\nHost: x.example.com\r\nConnection: close\r\n\r\n"); err != nil {
			t.Fatal(err)
		}
		if text, err := io.ReadAll(c); err != nil || !strings.Contains(string(text), "a GET") {
			t.Errorf("the answer %q (%v)", text, err)
		}
		return c.ConnectionState()
	}
	rotate()
	cache := tls.NewLRUClientSessionCache(10)
	handshake(cache)
	if !handshake(cache).DidResume {
		t.Error("a session is not resumed")
	}
	next := rotate()
	handshake(cache) // resumed or not: it is served
	if got := handshake(nil).PeerCertificates[0].Raw; string(got) != string(next.Certificate[0]) {
		t.Error("a new client gets another certificate")
	}
	openssl, err := exec.LookPath("openssl")
	if err != nil {
		t.Skip("no openssl")
	}
	session := filepath.Join(t.TempDir(), "session")
	connect := func(more ...string) string {
		cmd := exec.CommandContext(t.Context(), openssl, append([]string{"s_client", "-connect", l.https, "-servername",
			"x.example.com", "-tls1_3", "-ign_eof"}, more...)...)
		cmd.Stdin = strings.NewReader("GET / HTTP/1.1\r\nHost: x.example.com\r\nConnection: close\r\n\r\n")
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Logf("openssl: %v", err) // it may be refused
		}
		return string(out)
	}
	if first := connect("-sess_out", session); !strings.Contains(first, "a GET") ||
		strings.Count(first, "Max Early Data: ") != strings.Count(first, "Max Early Data: 0\n") {
		t.Errorf("the first connection: %s", first)
	}
	early := filepath.Join(t.TempDir(), "early")
	text := "GET /early HTTP/1.1\r\nHost: x.example.com\r\n\r\n"
	if err := os.WriteFile(early, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	if second := connect("-sess_in", session, "-early_data", early); strings.Contains(second, "/early host=") {
		t.Errorf("early data are served: %s", second)
	}
}

// All 64 listeners of a Gateway, as many as the API permits, are served, each with its own routes.
func TestMostListeners(t *testing.T) {
	const most = 64
	ports := freePorts(t, 1+most/2)
	first := ports[0]
	l := newStreamLab(t, gatewayv1.HTTPProtocolType, first)
	g := l.world.Gateways[0]
	g.Spec.Listeners = nil
	l.service("a", "", at(echo(t, "a").URL, "pa"))
	for i := range most {
		host := gatewayv1.Hostname(fmt.Sprintf("h%d.example.com", i))
		of := gatewayv1.PortNumber(first.Port())
		if i%2 == 1 { // half of them have a port of their own
			of = gatewayv1.PortNumber(ports[1+i/2].Port())
		}
		section := gatewayv1.SectionName(fmt.Sprint("l", i))
		g.Spec.Listeners = append(g.Spec.Listeners, gatewayv1.Listener{Name: section, Hostname: &host, Port: of,
			Protocol: gatewayv1.HTTPProtocolType})
		route := &gatewayv1.HTTPRoute{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: fmt.Sprint("r", i)}}
		route.Spec.ParentRefs = parent()
		route.Spec.ParentRefs[0].SectionName = &section
		route.Spec.Rules = []gatewayv1.HTTPRouteRule{{BackendRefs: []gatewayv1.HTTPBackendRef{{
			BackendRef: toService("a", 1)}}}}
		l.world.HTTPRoutes = append(l.world.HTTPRoutes, route)
	}
	l.update()
	for i, listener := range g.Spec.Listeners {
		for _, host := range []int{i, (i + 2) % most} {
			at := netip.AddrPortFrom(first.Addr(), uint16(listener.Port))
			r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+at.String()+"/", http.NoBody)
			if err != nil {
				t.Fatal(err)
			}
			r.Host = fmt.Sprintf("h%d.example.com", host)
			res, err := (&http.Transport{DisableKeepAlives: true}).RoundTrip(r)
			if err != nil {
				t.Fatal(err)
			}
			_ = res.Body.Close()
			want := http.StatusOK
			if host != i && i%2 == 1 { // that listener has another port
				want = http.StatusNotFound
			}
			if res.StatusCode != want {
				t.Errorf("listener %d, host %d: %s", i, host, res.Status)
			}
		}
	}
}
