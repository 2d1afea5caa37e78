package gateway

import (
	"bufio"
	"crypto/tls"
	"encoding/pem"
	"fmt"
	"io"
	"net"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"carob/internal/core/gatewayplan"
	"carob/internal/core/httproute"
	"carob/internal/gateway/certs"
)

// A backend of a TCPRoute whose Service has a BackendTLSPolicy gets TLS, and is verified: one that shows another
// certificate than the policy requires, and one without TLS, get no data of a client.
func TestTCPBackendWithPolicy(t *testing.T) {
	cert, err := certs.SelfSigned(time.Now())
	if err != nil {
		t.Fatal(err)
	}
	other, err := certs.SelfSigned(time.Now())
	if err != nil {
		t.Fatal(err)
	}
	secure, err := tls.Listen("tcp", "127.0.0.1:0", &tls.Config{Certificates: []tls.Certificate{*cert}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { secure.Close() })
	go func() {
		for {
			c, err := secure.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				fmt.Fprintln(c, "encrypted")
				text, _ := io.ReadAll(c)
				_, _ = c.Write(text)
			}()
		}
	}()
	for what, c := range map[string]struct {
		ca       *tls.Certificate
		host     string
		endpoint string
		served   bool
	}{
		"verified":         {cert, "gateway.invalid", secure.Addr().String(), true},
		"another CA":       {other, "gateway.invalid", secure.Addr().String(), false},
		"another name":     {cert, "other.invalid", secure.Addr().String(), false},
		"it is not TLS":    {cert, "gateway.invalid", tcpEcho(t, "plain"), false},
		"it does not talk": {cert, "gateway.invalid", closes(t), false},
	} {
		at80 := freePort(t)
		l := newStreamLab(t, gatewayv1.TCPProtocolType, at80)
		l.service("a", "", at(c.endpoint, "pa"))
		l.world.TCPRoutes = []*gatewayv1.TCPRoute{tcpRoute("r", toService("a", 1))}
		l.world.Policies = []*gatewayv1.BackendTLSPolicy{policyFor("a", c.host)}
		l.world.CAs = map[name]gatewayplan.Material{{Namespace: "default", Name: "ca"}: {
			PEM: string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: c.ca.Certificate[0]}))}}
		l.update()
		conn, r, who := dialNamed(t, at80)
		if !c.served {
			if !strings.HasPrefix(who, "error: ") {
				t.Errorf("%s: %s", what, who)
			}
			continue
		}
		if who != "encrypted" {
			t.Fatalf("%s: %s", what, who)
		}
		_, _ = io.WriteString(conn, "and back")
		_ = conn.(*net.TCPConn).CloseWrite()
		if got, err := io.ReadAll(r); err != nil || string(got) != "and back" {
			t.Errorf("%s: %q %v", what, got, err)
		}
	}
}

// policyFor has the backends of a Service show a certificate of the CA "ca" for a name.
func policyFor(service, host string) *gatewayv1.BackendTLSPolicy {
	policy := &gatewayv1.BackendTLSPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "p"}}
	policy.Spec.TargetRefs = []gatewayv1.LocalPolicyTargetReferenceWithSectionName{{}}
	policy.Spec.TargetRefs[0].Kind, policy.Spec.TargetRefs[0].Name = "Service", gatewayv1.ObjectName(service)
	policy.Spec.Validation.Hostname = gatewayv1.PreciseHostname(host)
	policy.Spec.Validation.CACertificateRefs = []gatewayv1.LocalObjectReference{{Kind: "ConfigMap", Name: "ca"}}
	return policy
}

// closes accepts connections and closes them.
func closes(t *testing.T) string {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { ln.Close() })
	go func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			_ = c.Close()
		}
	}()
	return ln.Addr().String()
}

// A backend that takes the first message of TLS and never answers holds a client for the time of a connection attempt.
func TestSilentBackend(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		near, far := net.Pipe()
		go func() { _, _ = io.Copy(io.Discard, far) }()
		began := time.Now()
		if _, err := encrypt(t.Context(), near, &httproute.BackendTLS{Name: "x"}, ""); err == nil {
			t.Error("verified by silence")
		}
		if took := time.Since(began); took != connectTimeout {
			t.Errorf("waited %v, want %v", took, connectTimeout)
		}
		if _, err := near.Write(nil); err == nil {
			t.Error("the connection is left open")
		}
		_ = far.Close()
	})
}

// Where TLS ends before a backend that gets the bytes of the client, a client that offers several protocols gets none
// that the backend may not speak, and one that speaks one protocol is served, whatever it is. A backend with TLS is
// offered the same one.
func TestProtocolsOfTerminatedTLS(t *testing.T) {
	cert, err := certs.SelfSigned(time.Now())
	if err != nil {
		t.Fatal(err)
	}
	secure, err := tls.Listen("tcp", "127.0.0.1:0", &tls.Config{Certificates: []tls.Certificate{*cert},
		NextProtos: []string{"h2", "postgresql"}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { secure.Close() })
	go func() {
		for {
			c, err := secure.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				if s, ok := c.(*tls.Conn); ok && s.Handshake() == nil {
					fmt.Fprintln(c, "over "+s.ConnectionState().NegotiatedProtocol)
				}
			}()
		}
	}()
	at443 := freePort(t)
	l := newStreamLab(t, gatewayv1.TLSProtocolType, at443)
	of := name{Namespace: "default", Name: "cert"}
	l.world.Secrets[of], l.certs[of] = gatewayplan.Material{}, cert
	l.world.Gateways[0].Spec.Listeners[0].TLS = &gatewayv1.ListenerTLSConfig{Mode: new(gatewayv1.TLSModeTerminate),
		CertificateRefs: []gatewayv1.SecretObjectReference{{Name: "cert"}}}
	l.service("plain", "", at(tcpEcho(t, "plain"), "p"))
	l.service("h2c", "kubernetes.io/h2c", at(tcpEcho(t, "h2c"), "q"))
	l.service("secure", "", at(secure.Addr().String(), "r"))
	l.world.Policies = []*gatewayv1.BackendTLSPolicy{policyFor("secure", "gateway.invalid")}
	l.world.CAs = map[name]gatewayplan.Material{{Namespace: "default", Name: "ca"}: {
		PEM: string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: cert.Certificate[0]}))}}
	for _, service := range []string{"plain", "h2c", "secure"} {
		r := &gatewayv1.TLSRoute{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: service}}
		r.Spec.ParentRefs = parent()
		r.Spec.Hostnames = []gatewayv1.Hostname{gatewayv1.Hostname(service + ".example.com")}
		r.Spec.Rules = []gatewayv1.TLSRouteRule{{BackendRefs: []gatewayv1.BackendRef{toService(service, 1)}}}
		l.world.TLSRoutes = append(l.world.TLSRoutes, r)
	}
	l.update()
	for _, c := range []struct {
		service string
		offered []string
		chosen  string
		answer  string
	}{
		{"plain", []string{"h2", "http/1.1"}, "", "plain"},
		{"plain", []string{"postgresql"}, "postgresql", "plain"},
		{"plain", nil, "", "plain"},
		{"h2c", []string{"h2", "http/1.1"}, "h2", "h2c"},
		{"h2c", []string{"one", "other"}, "", "h2c"},
		{"secure", []string{"h2"}, "h2", "over h2"},
		{"secure", []string{"postgresql"}, "postgresql", "over postgresql"},
		{"secure", nil, "", "over"},
	} {
		conn, err := tls.Dial("tcp", at443.String(), &tls.Config{ServerName: c.service + ".example.com",
			InsecureSkipVerify: true, NextProtos: c.offered})
		if err != nil {
			t.Errorf("%s, %q: %v", c.service, c.offered, err)
			continue
		}
		_ = conn.SetDeadline(time.Now().Add(30 * time.Second))
		line, err := bufio.NewReader(conn).ReadString('\n')
		chosen := conn.ConnectionState().NegotiatedProtocol
		if err != nil || strings.TrimSpace(line) != c.answer || chosen != c.chosen {
			t.Errorf("%s, %q: %q, chose %q, %v", c.service, c.offered, line, chosen, err)
		}
		_ = conn.Close()
	}
}
