package gateway

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"net/http"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	networkingv1 "k8s.io/api/networking/v1"

	"carob/internal/base/testwait"
	"carob/internal/core/gatewayplan"
	"carob/internal/core/httproute"
	"carob/internal/gateway/certs"
)

// Changes of routes (ROUTE_CHANGES, 100 without it) and of a certificate under load: no request fails, neither on kept
// connections nor on new ones, and each answer is that of a route that there was.
func TestChangesUnderLoad(t *testing.T) {
	l := newLab(t)
	l.service("a", "", at(echo(t, "a").URL, "pa"))
	l.service("b", "", at(echo(t, "b").URL, "pb"))
	in := l.ingress("x.example.com", nil, "/=a")
	in.Spec.TLS = []networkingv1.IngressTLS{{Hosts: []string{"x.example.com"}, SecretName: "cert"}}
	key := name{Namespace: "default", Name: "cert"}
	l.world.Secrets[key] = gatewayplan.Material{}
	roots := x509.NewCertPool()
	var trusted sync.RWMutex
	rotate := func() {
		t.Helper()
		cert, err := certs.SelfSigned(time.Now())
		if err != nil {
			t.Fatal(err)
		}
		leaf, err := x509.ParseCertificate(cert.Certificate[0])
		if err != nil {
			t.Fatal(err)
		}
		trusted.Lock()
		roots = roots.Clone()
		roots.AddCert(leaf)
		trusted.Unlock()
		l.certs = map[name]*tls.Certificate{key: cert}
	}
	rotate()
	l.update()
	var served, secure atomic.Int64
	stop := make(chan struct{})
	var clients sync.WaitGroup
	client := func(kept, encrypted bool, count *atomic.Int64) {
		tr := &http.Transport{DisableKeepAlives: !kept}
		defer tr.CloseIdleConnections()
		url := "http://" + l.http + "/"
		if encrypted {
			url = "https://" + l.https + "/"
			tr.TLSClientConfig = &tls.Config{ServerName: "x.example.com", InsecureSkipVerify: true,
				VerifyConnection: func(s tls.ConnectionState) error {
					trusted.RLock()
					defer trusted.RUnlock()
					_, err := s.PeerCertificates[0].Verify(x509.VerifyOptions{Roots: roots})
					return err
				}}
		}
		for {
			select {
			case <-stop:
				return
			default:
			}
			r, err := http.NewRequest(http.MethodGet, url, nil)
			if err != nil {
				t.Error(err)
				return
			}
			r.Host = "x.example.com"
			res, err := tr.RoundTrip(r)
			if err != nil {
				t.Errorf("a request failed: %v", err)
				return
			}
			_, err = io.Copy(io.Discard, res.Body)
			_ = res.Body.Close()
			who := res.Header.Get("X-Who")
			if res.StatusCode != http.StatusOK || who != "a" && who != "b" || err != nil {
				t.Errorf("%s from %q %v", res.Status, who, err)
				return
			}
			count.Add(1)
		}
	}
	clients.Go(func() { client(true, false, &served) })
	clients.Go(func() { client(false, false, &served) })
	clients.Go(func() { client(false, true, &secure) })
	l.ingress("y0.example.com", nil, "/=a")
	changes := 100
	if more, err := strconv.Atoi(os.Getenv("ROUTE_CHANGES")); err == nil {
		changes = more
	}
	for i := range changes {
		backend := []string{"a", "b"}[i%2]
		in.Spec.Rules[0].HTTP.Paths[0].Backend.Service.Name = backend
		l.world.Ingresses[1] = l.world.Ingresses[1].DeepCopy()
		l.world.Ingresses[1].Spec.Rules[0].Host = fmt.Sprintf("y%d.example.com", i)
		if i%20 == 0 {
			rotate()
			l.update()
		} else {
			changed := map[string]*networkingv1.Ingress{in.Name: in.DeepCopy()}
			changed[l.world.Ingresses[1].Name] = l.world.Ingresses[1]
			l.change(changed)
		}
		if i%20 == 0 {
			before, encrypted := served.Load(), secure.Load()
			testwait.For(t, "requests between the changes", func() bool {
				return t.Failed() || served.Load() > before+1 && secure.Load() > encrypted
			})
		}
	}
	close(stop)
	clients.Wait()
	t.Logf("%d requests, %d with TLS", served.Load(), secure.Load())
}

// A request that has begun when its route changes is answered by the backend that its route had.
func TestRouteChangesDuringRequest(t *testing.T) {
	l := newLab(t)
	l.service("a", "", at(echo(t, "a").URL, "pa"))
	l.service("b", "", at(echo(t, "b").URL, "pb"))
	in := l.ingress("x.example.com", nil, "/=b")
	l.update()
	p, _ := l.pools.Get(httproute.Ref{Namespace: "default", Name: "b", Port: 80})
	p.pick = &late{Picker: p.pick, event: func() {
		in.Spec.Rules[0].HTTP.Paths[0].Backend.Service.Name = "a"
		l.update()
		if !l.Routed("pb") {
			t.Error("the pod has lost its request")
		}
	}}
	status, text, _ := l.get("GET", "x.example.com", "/", nil)
	want(t, "the request", status, text, 200, "b GET")
	select {
	case <-l.emptied:
	case <-time.After(30 * time.Second):
		t.Fatal("nobody says that the old routes are not in use")
	}
	l.Gateway.mu.Lock()
	l.release()
	l.Gateway.mu.Unlock()
	if l.Routed("pb") {
		t.Error("the pod that no route leads to is routed still")
	}
	status, text, _ = l.get("GET", "x.example.com", "/", nil)
	want(t, "the next", status, text, 200, "a GET")
}
