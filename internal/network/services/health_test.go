package services

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"carob/internal/base/netns"
)

// fetch sends a request over HTTP from a machine of the lab.
func (l *lab) fetch(from, method, url string) (status int, header http.Header, body string, err error) {
	client := http.Client{Timeout: patience, Transport: &http.Transport{DisableKeepAlives: true,
		DialContext: func(_ context.Context, network, to string) (net.Conn, error) {
			return l.dial(from, network, netip.MustParseAddrPort(to), patience)
		}}}
	req, err := http.NewRequestWithContext(l.t.Context(), method, url, nil)
	l.must(err)
	resp, err := client.Do(req)
	if err != nil {
		return 0, nil, "", err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	return resp.StatusCode, resp.Header, string(text), err
}

const healthPort = 32100

func localBalancer(s *corev1.Service) {
	s.Spec.Type, s.Spec.HealthCheckNodePort = corev1.ServiceTypeLoadBalancer, healthPort
	s.Spec.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicyLocal
}

// A load balancer learns at the health check port how many ready endpoints the node has: 503 while
// they are only terminating, though they still answer; the port is closed when the Service no longer
// needs it (N2.54 to N2.57).
func TestHealthCheckNodePort(t *testing.T) {
	d := newDriver(t)
	d.store("a", d.ip(1), localBalancer, "pod1", "pod2", "remote")
	url := fmt.Sprintf("http://%s/any/path", netip.AddrPortFrom(d.addr("node"), healthPort))
	until := func(what string, status, local int) {
		t.Helper()
		d.until(what, func() bool {
			got, header, body, err := d.fetch("outside", http.MethodPost, url)
			if err != nil || got != status {
				return false
			}
			want := fmt.Sprintf(
				`{"service":{"namespace":"ns","name":"a"},"localEndpoints":%d,"serviceProxyHealthy":true}`, local)
			if body != want || header.Get("Content-Type") != "application/json" ||
				header.Get("X-Content-Type-Options") != "nosniff" ||
				header.Get("X-Load-Balancing-Endpoint-Weight") != fmt.Sprint(local) {
				t.Errorf("%s: %v %s", what, header, body)
			}
			return true
		})
	}
	until("two here", http.StatusOK, 2)
	if _, _, _, err := d.fetch("node", http.MethodGet,
		fmt.Sprintf("http://127.0.0.1:%d/", healthPort)); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("loopback answers, where node ports do not: %v", err)
	}
	s := d.slice("a", "pod1", "pod2", "remote")
	for i := range 2 {
		s.Endpoints[i].Conditions = discoveryv1.EndpointConditions{Ready: new(false), Serving: new(true),
			Terminating: new(true)}
	}
	d.setEndpoints(s)
	until("none is ready", http.StatusServiceUnavailable, 0)
	if name, _, err := d.reach("outside", "tcp", netip.AddrPortFrom(d.addr("node"), 80), patience); err != nil {
		t.Errorf("an endpoint that is terminating: %s, %v", name, err)
	}
	d.setEndpoints(d.slice("a", "pod1"))
	until("one is ready", http.StatusOK, 1)

	closed := func(what string) {
		t.Helper()
		d.until(what, func() bool {
			_, _, _, err := d.fetch("outside", http.MethodGet, url)
			return errors.Is(err, syscall.ECONNREFUSED)
		})
	}
	change := func(f func(*corev1.Service)) {
		t.Helper()
		now, err := d.api.CoreV1().Services("ns").Get(t.Context(), "a", metav1.GetOptions{})
		d.must(err)
		f(now)
		_, err = d.api.CoreV1().Services("ns").Update(t.Context(), now, metav1.UpdateOptions{})
		d.must(err)
	}
	change(func(s *corev1.Service) {
		s.Spec.ExternalTrafficPolicy, s.Spec.HealthCheckNodePort = corev1.ServiceExternalTrafficPolicyCluster, 0
	})
	closed("policy Cluster")
	change(localBalancer)
	until("Local again", http.StatusOK, 1)
	d.must(d.api.CoreV1().Services("ns").Delete(t.Context(), "a", metav1.DeleteOptions{}))
	closed("deleted")
}

// A port that another process uses gets an event (N2.58), and is opened when it is free.
func TestHealthCheckPortIsTaken(t *testing.T) {
	d := newDriver(t)
	var other net.Listener
	at := netip.AddrPortFrom(d.addr("node"), healthPort)
	d.must(netns.Do(d.path("node"), func() (err error) {
		other, err = net.Listen("tcp", at.String())
		return err
	}))
	d.store("a", d.ip(1), localBalancer, "pod1")
	event := <-d.events.Events
	if !strings.HasPrefix(event, `Warning FailedToStartServiceHealthcheck node here failed to start healthcheck "ns/a"`+
		` on port 32100: `) {
		t.Errorf("event %q", event)
	}
	d.must(other.Close())
	poke(d.proxy.checks.wake) // the clock's turn
	for end := time.Now().Add(30 * time.Second); ; {
		if status, _, _, err := d.fetch("outside", http.MethodGet, "http://"+at.String()); err == nil {
			if status != http.StatusOK {
				t.Errorf("status %d", status)
			}
			return
		}
		if time.Now().After(end) {
			t.Fatal("the port was never taken")
		}
	}
}

// The data plane is unhealthy when a change has waited for a minute, in either family, whether it was
// taken or not; only /healthz also depends on whether the node stays in the cluster (N2.59, N2.60).
func TestHealthz(t *testing.T) {
	h := newHealth()
	check := func(what string, after time.Duration, healthy, eligible bool) {
		t.Helper()
		if s, e := h.status(time.Now().Add(after)); s.Healthy != healthy || e != eligible {
			t.Errorf("%s: %+v %v", what, s, e)
		}
	}
	check("at the start", time.Hour, true, false)
	h.setEligible(true)
	h.begin("IPv4")
	check("the first write", 0, true, true)
	check("the first write hangs", 2*time.Minute, false, true)
	h.done("IPv4")
	check("written", time.Hour, true, true)
	h.queue()
	check("a change", 30*time.Second, true, true)
	check("a change that nobody takes", 2*time.Minute, false, true)
	h.begin("IPv4")
	h.queue() // another one meanwhile
	h.done("IPv4")
	check("the second one waits", 2*time.Minute, false, true)
	h.begin("IPv4")
	h.begin("IPv4") // the first attempt failed
	check("tried again", 2*time.Minute, false, true)
	h.done("IPv4")
	h.begin("IPv6")
	s, _ := h.status(time.Now().Add(time.Hour))
	if s.Healthy || !s.Status["IPv4"].Healthy || s.Status["IPv6"].Healthy {
		t.Errorf("one family: %+v", s)
	}
	h.done("IPv6")
}

func TestHealthzServer(t *testing.T) {
	d := &driver{testPlane: &testPlane{lab: newLab(t)}}
	d.driverParts(t)
	d.must(netns.Do(d.path("node"), func() (err error) {
		d.healthz, err = net.Listen("tcp", "127.0.0.1:10256")
		return err
	}))
	d.run()
	t.Cleanup(func() { d.stop() })
	d.until("it runs", func() bool { return d.proxy.running })
	get := func(path string, want int) (got map[string]any) {
		t.Helper()
		d.untilAnswer("http://127.0.0.1:10256"+path, want, func(body string) {
			d.must(json.Unmarshal([]byte(body), &got))
		})
		return got
	}
	for path, more := range map[string]bool{"/healthz": true, "/livez": false} {
		got := get(path, http.StatusOK)
		_, has := got["nodeEligible"]
		status, _ := got["status"].(map[string]any)["IPv4"].(map[string]any)
		if got["healthy"] != true || has != more || got["lastUpdated"] == nil || got["currentTime"] == nil ||
			status["healthy"] != true {
			t.Errorf("%s: %v", path, got)
		}
	}
	node, err := d.api.CoreV1().Nodes().Get(t.Context(), "here", metav1.GetOptions{})
	d.must(err)
	node.Spec.Taints = []corev1.Taint{{Key: taintToBeDeleted, Effect: corev1.TaintEffectNoSchedule}}
	_, err = d.api.CoreV1().Nodes().Update(t.Context(), node, metav1.UpdateOptions{})
	d.must(err)
	if got := get("/healthz", http.StatusServiceUnavailable); got["nodeEligible"] != false || got["healthy"] != true {
		t.Errorf("a node that is to be deleted: %v", got)
	}
	get("/livez", http.StatusOK)
}

// untilAnswer repeats a request until it gets the wanted status.
func (d *driver) untilAnswer(url string, want int, then func(body string)) {
	d.t.Helper()
	for end := time.Now().Add(30 * time.Second); time.Now().Before(end); {
		status, _, body, err := d.fetch("node", http.MethodGet, url)
		if err == nil && status == want {
			then(body)
			return
		}
	}
	d.t.Fatalf("%s was never %d", url, want)
}
