package e2e

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// lossless is four web servers without a preStop hook, whose program closes its listener as soon as it gets SIGTERM,
// and the Services that lead to them.
const lossless = `
apiVersion: apps/v1
kind: Deployment
metadata: {name: web}
spec:
  replicas: 4
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec:
      containers:
      - name: web
        image: carob.local/demo:1
        imagePullPolicy: IfNotPresent
        readinessProbe: {httpGet: {path: /readyz, port: 8080}, periodSeconds: 1}
---
apiVersion: v1
kind: Service
metadata: {name: web}
spec: {type: NodePort, selector: {app: web}, ports: [{port: 80, targetPort: 8080}]}
`

// traffic sends requests until it is stopped, and remembers those that failed.
type traffic struct {
	client *http.Client
	url    string
	name   string
	kept   bool // connections
	stop   chan struct{}
	done   sync.WaitGroup
	sent   atomic.Int64
	failed atomic.Int64
	mu     sync.Mutex
	errs   []error
}

// send starts so many senders. With keepAlive each reuses its connection, otherwise each request has one of its own.
func send(name, url string, senders int, keepAlive bool) *traffic {
	x := &traffic{name: name, url: url, kept: keepAlive, stop: make(chan struct{}),
		client: &http.Client{Timeout: patience,
			Transport: &http.Transport{DisableKeepAlives: !keepAlive, MaxIdleConnsPerHost: senders,
				DialContext: (&net.Dialer{Timeout: patience}).DialContext}}}
	for range senders {
		x.done.Go(func() {
			for {
				select {
				case <-x.stop:
					return
				default:
				}
				x.sent.Add(1)
				if err := x.once(); err != nil {
					err = fmt.Errorf("%s: %w", time.Now().UTC().Format("15:04:05.000"), err)
					x.failed.Add(1)
					x.mu.Lock()
					x.errs = append(x.errs, err)
					x.mu.Unlock()
				}
			}
		})
	}
	return x
}

func (x *traffic) once() error {
	resp, err := x.client.Get(x.url)
	if err != nil {
		return err
	}
	body, err := io.ReadAll(resp.Body)
	resp.Body.Close()
	if err == nil && (resp.StatusCode != http.StatusOK || !bytes.HasPrefix(body, []byte("Hello"))) {
		err = fmt.Errorf("%s: %.40q", resp.Status, body)
	}
	return err
}

// tolerated: one of so many new connections may fail. Two runs of 20 rollouts lost none, one lost 1 of 158,965 to a
// reset after the connection had been accepted (docs/untested.md).
const tolerated = 5000

// end stops the senders and reports the requests that failed.
func (x *traffic) end() error {
	close(x.stop)
	x.done.Wait()
	x.client.CloseIdleConnections()
	if n := x.failed.Load(); n > 0 && (n*tolerated > x.sent.Load() || x.kept) {
		return fmt.Errorf("%s: %d of %d requests failed; the first: %w", x.name, n, x.sent.Load(), x.errs[0])
	}
	return nil
}

// TestNoRequestIsLost replaces all pods behind a Service again and again, under load through its cluster IP and its
// node port: no request fails but for the tolerated ones (N8.13, N8.21). CAROB_ROLLOUTS sets how often; the
// default is 3.
func TestNoRequestIsLost(t *testing.T) {
	rounds := 3
	if text := os.Getenv("CAROB_ROLLOUTS"); text != "" {
		var err error
		if rounds, err = strconv.Atoi(text); err != nil {
			t.Fatal(err)
		}
	}
	c := shared
	c.carob(t, "image", "import", "../../internal/cli/dist/demo.tar")
	r := rollouts{c, t, "lossless"}
	c.kubectl(t, "create", "namespace", r.namespace)
	defer c.kubectl(t, "delete", "namespace", r.namespace)
	c.kubectlIn(t, lossless, "-n", r.namespace, "apply", "-f", "-")
	r.rolledOut()
	service := list[corev1.Service](r, "services")[0]
	cluster := "http://" + net.JoinHostPort(service.Spec.ClusterIP, "80") + "/"
	node := fmt.Sprintf("http://%s/", net.JoinHostPort(strings.Fields(c.kubectl(t, "get", "nodes", "-o",
		`jsonpath={.items[0].status.addresses[?(@.type=="InternalIP")].address}`))[0], strconv.Itoa(int(
		service.Spec.Ports[0].NodePort))))
	all := []*traffic{
		send("new connections to the cluster IP", cluster, 4, false),
		send("kept connections to the cluster IP", cluster, 4, true),
		send("new connections to the node port", node, 4, false),
		send("kept connections to the node port", node, 4, true),
	}
	begin := time.Now()
	for range rounds {
		r.do("rollout", "restart", "deployment/web")
		r.rolledOut()
	}
	took := time.Since(begin)
	var errs []error
	total := int64(0)
	for _, x := range all {
		errs = append(errs, x.end())
		total += x.sent.Load()
	}
	t.Logf("%d requests, %.0f per second, while 4 pods were replaced %d times", total, float64(total)/took.Seconds(),
		rounds)
	if err := errors.Join(errs...); err != nil {
		t.Error(err)
	}
}
