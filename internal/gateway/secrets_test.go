package gateway

import (
	"context"
	"crypto/ecdsa"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/tools/record"

	"carob/internal/base/testwait"
	"carob/internal/core/gatewayplan"
	"carob/internal/gateway/certs"
)

// secretOf is a Secret with a certificate of its own.
func secretOf(t *testing.T, version string) (*corev1.Secret, []byte) {
	t.Helper()
	cert, err := certs.SelfSigned(time.Now())
	if err != nil {
		t.Fatal(err)
	}
	own, ok := cert.PrivateKey.(*ecdsa.PrivateKey)
	if !ok {
		t.Fatalf("%T", cert.PrivateKey)
	}
	key, err := x509.MarshalPKCS8PrivateKey(own)
	if err != nil {
		t.Fatal(err)
	}
	return &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "s", ResourceVersion: version},
		Type: corev1.SecretTypeTLS, Data: map[string][]byte{
			corev1.TLSCertKey: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: cert.Certificate[0]}),
			corev1.TLSPrivateKeyKey: pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY",
				Bytes: key})}}, cert.Certificate[0]
}

// A new certificate in a Secret is served without a new plan, as are one that cannot be read any more, which is
// reported by an event, one that comes back, and a Secret without a reference (N6.16).
func TestSecretsAreFollowed(t *testing.T) {
	client := fake.NewClientset(&networkingv1.IngressClass{ObjectMeta: metav1.ObjectMeta{Name: "carob"},
		Spec: networkingv1.IngressClassSpec{Controller: gatewayplan.IngressController}})
	at := freePort(t)
	events := record.NewFakeRecorder(100)
	g := New(Config{Client: client, HTTPS: at, Events: events,
		Host: func() []netip.Addr { return nil }})
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	wg.Go(func() { _ = g.Run(ctx) })
	defer wg.Wait()
	defer cancel()
	l := &lab{t: t}
	in := l.ingress("x.example.com", nil, "/=missing")
	in.Spec.TLS = []networkingv1.IngressTLS{{Hosts: []string{"x.example.com"}, SecretName: "s"}}
	if _, err := client.NetworkingV1().Ingresses("default").Create(ctx, in, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	api := client.CoreV1().Secrets("default")
	serves := func(what string, der []byte) {
		t.Helper()
		testwait.For(t, what, func() bool {
			c, err := tls.Dial("tcp", at.String(), &tls.Config{InsecureSkipVerify: true, ServerName: "x.example.com"})
			if err != nil {
				return false
			}
			defer c.Close()
			got := c.ConnectionState().PeerCertificates[0].Raw
			if der == nil {
				g.mu.Lock()
				defer g.mu.Unlock()
				return string(got) == string(g.fallback.Certificate[0])
			}
			return string(got) == string(der)
		})
	}
	plan := func() *gatewayplan.Live {
		g.mu.Lock()
		defer g.mu.Unlock()
		return g.plan
	}
	serves("there is no Secret", nil)
	first, der := secretOf(t, "1")
	if _, err := api.Create(ctx, first, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	serves("the first certificate", der)
	before := plan()
	other, _ := secretOf(t, "1")
	other.Name = "other"
	if _, err := api.Create(ctx, other, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	second, der := secretOf(t, "2")
	if _, err := api.Update(ctx, second, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	serves("the second certificate", der)
	broken := second.DeepCopy()
	broken.ResourceVersion, broken.Data[corev1.TLSCertKey] = "3", []byte("x")
	if _, err := api.Update(ctx, broken, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	serves("it cannot be read", nil)
	for text := ""; !strings.Contains(text, "InvalidSecret"); {
		testwait.For(t, "an event about the Secret", func() bool {
			select {
			case text = <-events.Events:
				return true
			default:
				return false
			}
		})
	}
	third, der := secretOf(t, "4")
	if _, err := api.Update(ctx, third, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	serves("the third certificate", der)
	if err := api.Delete(ctx, "s", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	serves("it has gone", nil)
	if plan() != before {
		t.Error("there is a new plan")
	}
}

// A Secret that is renewed changes the certificates of its hosts only, and of those only its own.
func TestOneSecretOfMany(t *testing.T) {
	l := newLab(t)
	l.service("a", "")
	certOf := func() *tls.Certificate {
		c, err := certs.SelfSigned(time.Now())
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	of := func(s string) name { return name{Namespace: "default", Name: s} }
	for host, secrets := range map[string][]string{"x.example.com": {"s", "t"}, "y.example.com": {"s"},
		"z.example.com": {"t"}} {
		in := l.ingress(host, nil, "/=a")
		for _, s := range secrets {
			in.Spec.TLS = append(in.Spec.TLS, networkingv1.IngressTLS{Hosts: []string{host}, SecretName: s})
		}
	}
	for _, s := range []string{"s", "t"} {
		l.certs[of(s)], l.world.Secrets[of(s)] = certOf(), gatewayplan.Material{}
	}
	l.update()
	serves := func(what string, wanted map[string]*tls.Certificate) {
		t.Helper()
		for host, want := range wanted {
			c, err := tls.Dial("tcp", l.https, &tls.Config{InsecureSkipVerify: true, ServerName: host})
			if err != nil {
				t.Fatal(err)
			}
			if got := c.ConnectionState().PeerCertificates[0].Raw; string(got) != string(want.Certificate[0]) {
				t.Errorf("%s: another certificate for %s", what, host)
			}
			_ = c.Close()
		}
	}
	first, other := l.certs[of("s")], l.certs[of("t")]
	serves("before", map[string]*tls.Certificate{"x.example.com": first, "y.example.com": first, "z.example.com": other})
	next := certOf()
	s := l.snapshot()
	note(&s.Changes.Secrets, of("s"), &gatewayplan.Material{})
	note(&s.Certificates, of("s"), next)
	l.followed(s)
	serves("renewed", map[string]*tls.Certificate{"x.example.com": next, "y.example.com": next, "z.example.com": other})
	s = l.snapshot()
	note(&s.Changes.Secrets, of("s"), &gatewayplan.Material{Problem: "broken"})
	note(&s.Certificates, of("s"), nil)
	l.followed(s)
	serves("broken", map[string]*tls.Certificate{"x.example.com": other, "y.example.com": l.fallback,
		"z.example.com": other})
}
