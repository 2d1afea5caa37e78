package e2e

import (
	"bytes"
	"context"
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

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/types/known/wrapperspb"
	corev1 "k8s.io/api/core/v1"
)

// lossless is four servers without a preStop hook, whose program closes its listeners as soon as it gets SIGTERM, and
// the Service that leads to them.
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
        image: localhost/echo:1
        readinessProbe: {httpGet: {path: /readyz, port: 8080}, periodSeconds: 1}
---
apiVersion: v1
kind: Service
metadata: {name: web}
spec:
  type: NodePort
  selector: {app: web}
  ports: [{name: http, port: 80, targetPort: 8080}, {name: grpc, port: 90, targetPort: 9090}]
`

// traffic sends requests until it is stopped, and remembers those that failed.
type traffic struct {
	name   string
	stop   chan struct{}
	done   sync.WaitGroup
	sent   atomic.Int64
	failed atomic.Int64
	mu     sync.Mutex
	errs   []error
	close  func()
}

// run starts so many senders; each calls once again and again, which counts what it sends in sent.
func (x *traffic) run(senders int, once func() error) *traffic {
	x.stop = make(chan struct{})
	for range senders {
		x.done.Go(func() {
			for {
				select {
				case <-x.stop:
					return
				default:
				}
				if err := once(); err != nil {
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

// send sends requests of HTTP/1.1. With keepAlive each sender reuses its connection, otherwise each request has one of
// its own.
func send(name, url string, senders int, keepAlive bool) *traffic {
	return sendBy(name, url, senders, &http.Transport{DisableKeepAlives: !keepAlive, MaxIdleConnsPerHost: senders,
		DialContext: (&net.Dialer{Timeout: patience}).DialContext})
}

// sendHTTP2 sends all requests over one connection, until its server ends.
func sendHTTP2(name, url string, senders int) *traffic {
	t := &http.Transport{Protocols: &http.Protocols{}, DialContext: (&net.Dialer{Timeout: patience}).DialContext}
	t.Protocols.SetUnencryptedHTTP2(true)
	return sendBy(name, url, senders, t)
}

func sendBy(name, url string, senders int, transport *http.Transport) *traffic {
	client := &http.Client{Timeout: patience, Transport: transport}
	x := &traffic{name: name, close: client.CloseIdleConnections}
	return x.run(senders, func() error {
		x.sent.Add(1)
		resp, err := client.Get(url)
		if err != nil {
			return err
		}
		body, err := io.ReadAll(resp.Body)
		resp.Body.Close()
		if err == nil && (resp.StatusCode != http.StatusOK || !bytes.HasPrefix(body, []byte("Hello"))) {
			err = fmt.Errorf("%s: %.40q", resp.Status, body)
		}
		return err
	})
}

// sendGRPC opens streams over one connection for each sender, one after the other, each with so many messages that are
// answered one by one; a stream of one message is a call.
func sendGRPC(name, address string, senders, messages int) *traffic {
	x := &traffic{name: name}
	var conns []*grpc.ClientConn
	next := make(chan *grpc.ClientConn, senders)
	x.close = func() {
		for _, c := range conns {
			_ = c.Close()
		}
	}
	for range senders {
		conn, err := grpc.NewClient("passthrough:///"+address, grpc.WithTransportCredentials(insecure.NewCredentials()),
			grpc.WithConnectParams(grpc.ConnectParams{MinConnectTimeout: patience, // next to no wait between attempts
				Backoff: backoff.Config{BaseDelay: time.Millisecond, Multiplier: 1, MaxDelay: time.Millisecond}}))
		if err != nil {
			panic(err) // wrong options
		}
		conns = append(conns, conn)
		next <- conn
	}
	return x.run(senders, func() error {
		conn := <-next
		defer func() { next <- conn }()
		return x.stream(conn, messages)
	})
}

func (x *traffic) stream(conn *grpc.ClientConn, messages int) error {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	s, err := conn.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true, ClientStreams: true}, "/carob.Echo/Stream")
	if err != nil {
		x.sent.Add(1)
		return fmt.Errorf("open a stream: %w", err)
	}
	for i := range messages {
		x.sent.Add(1)
		var got wrapperspb.StringValue
		if err := s.SendMsg(wrapperspb.String(strconv.Itoa(i))); err != nil {
			return errors.Join(err, s.RecvMsg(&got))
		}
		if err := s.RecvMsg(&got); err != nil || got.GetValue() != strconv.Itoa(i) {
			return fmt.Errorf("message %d was answered with %q: %w", i, got.GetValue(), err)
		}
	}
	if err := s.CloseSend(); err != nil {
		return err
	}
	if err := s.RecvMsg(&wrapperspb.StringValue{}); !errors.Is(err, io.EOF) {
		return fmt.Errorf("the end of a stream: %w", err)
	}
	return nil
}

// end stops the senders and reports the requests that failed.
func (x *traffic) end() error {
	close(x.stop)
	x.done.Wait()
	x.close()
	if n := x.failed.Load(); n > 0 {
		return fmt.Errorf("%s: %d of %d requests failed: %w", x.name, n, x.sent.Load(),
			errors.Join(x.errs[:min(len(x.errs), 5)]...))
	}
	return nil
}

// replaced sends all kinds of traffic to the servers of lossless while their Deployment replaces them all so many
// times. It returns how many requests were sent and which failed.
func (r rollouts) replaced(rounds int) (sent, failed int64, err error) {
	r.Helper()
	r.kubectl(r.T, "create", "namespace", r.namespace)
	defer r.kubectl(r.T, "delete", "namespace", r.namespace)
	r.kubectlIn(r.T, lossless, "-n", r.namespace, "apply", "-f", "-")
	r.rolledOut()
	service := list[corev1.Service](r, "services")[0]
	host := strings.Fields(r.kubectl(r.T, "get", "nodes", "-o",
		`jsonpath={.items[0].status.addresses[?(@.type=="InternalIP")].address}`))[0]
	var all []*traffic
	ip := service.Spec.ClusterIP
	for way, at := range map[string][2]string{
		"the cluster IP": {net.JoinHostPort(ip, "80"), net.JoinHostPort(ip, "90")},
		"the node port": {net.JoinHostPort(host, strconv.Itoa(int(service.Spec.Ports[0].NodePort))),
			net.JoinHostPort(host, strconv.Itoa(int(service.Spec.Ports[1].NodePort)))},
	} {
		url := "http://" + at[0] + "/"
		all = append(all, send("new connections to "+way, url, 3, false), send("kept connections to "+way, url, 3, true),
			sendHTTP2("HTTP/2 to "+way, url, 3), sendGRPC("gRPC calls to "+way, at[1], 2, 1),
			sendGRPC("gRPC streams to "+way, at[1], 2, 100))
	}
	begin := time.Now()
	for range rounds {
		r.do("rollout", "restart", "deployment/web")
		r.rolledOut()
	}
	took := time.Since(begin)
	var errs []error
	for _, x := range all {
		errs = append(errs, x.end())
		sent += x.sent.Load()
		failed += x.failed.Load()
		r.Logf("%-36s %8d sent, %d failed", x.name, x.sent.Load(), x.failed.Load())
		if x.sent.Load() < 100 {
			errs = append(errs, fmt.Errorf("%s: only %d requests", x.name, x.sent.Load()))
		}
	}
	r.Logf("%d requests, %.0f per second, %d failed, while 4 pods were replaced %d times", sent,
		float64(sent)/took.Seconds(), failed, rounds)
	return sent, failed, errors.Join(errs...)
}

// rounds is how often the pods of TestNoRequestIsLost are replaced.
func rounds(t *testing.T) int {
	text := os.Getenv("CAROB_ROLLOUTS")
	if text == "" {
		return 2
	}
	n, err := strconv.Atoi(text)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// TestNoRequestIsLost replaces all pods behind a Service again and again, under load through its cluster IP and its
// node port, by new and kept connections, HTTP/2, and gRPC: no request fails (N8.13, N8.21). CAROB_ROLLOUTS sets how
// often; `make nightly` does so 20 times.
func TestNoRequestIsLost(t *testing.T) {
	if _, _, err := (rollouts{shared, t, "lossless"}).replaced(rounds(t)); err != nil {
		t.Error(err)
	}
}

// TestRequestsAreLostWithoutTheWait is the same without the wait of a deleted pod for the data plane, as upstream: it
// shows what TestNoRequestIsLost would find, and the effect of the wait.
func TestRequestsAreLostWithoutTheWait(t *testing.T) {
	if os.Getenv("CAROB_ROLLOUTS") == "" {
		t.Skip("CAROB_ROLLOUTS is not set: `make nightly` does")
	}
	c := startCluster(t, "--registry-config", mirrors.dir, "--deletion-drain-timeout", "0")
	if _, failed, err := (rollouts{c, t, "lossy"}).replaced(rounds(t)); failed == 0 {
		t.Errorf("nothing was lost: TestNoRequestIsLost would not notice if the wait were missing: %v", err)
	}
}
