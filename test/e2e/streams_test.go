package e2e

import (
	"bufio"
	"errors"
	"fmt"
	"net"
	"strings"
	"testing"
	"time"
)

// talkers answer over TCP and UDP with their names and what they were sent: each line, and each datagram. They end as
// soon as they get SIGTERM. A Gateway has one route to them for each protocol, at the same port.
const talkers = `
apiVersion: apps/v1
kind: Deployment
metadata: {name: web}
spec:
  replicas: 2
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec:
      terminationGracePeriodSeconds: 1200 # a pod waits for its connections for half of it
      containers:
      - name: web
        image: harbor.l00n9.icu/public/pod-test:v0.1
        readinessProbe: {tcpSocket: {port: 5300}, periodSeconds: 1}
        command:
        - python3
        - -c
        - |
          import os, signal, socket, socketserver, threading
          name = socket.gethostname().encode() + b" "
          signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
          class Lines(socketserver.StreamRequestHandler):
              def handle(self):
                  for line in self.rfile:
                      self.wfile.write(name + line)
          class Datagrams(socketserver.BaseRequestHandler):
              def handle(self):
                  self.request[1].sendto(name + self.request[0], self.client_address)
          class Server(socketserver.ThreadingTCPServer):
              allow_reuse_address, request_queue_size, daemon_threads = True, 128, True
          udp = socketserver.UDPServer(("", 5300), Datagrams)
          threading.Thread(target=udp.serve_forever, daemon=True).start()
          Server(("", 5300), Lines).serve_forever()
---
apiVersion: v1
kind: Service
metadata: {name: web}
spec:
  selector: {app: web}
  ports:
  - {name: tcp, port: 53, targetPort: 5300}
  - {name: udp, port: 53, targetPort: 5300, protocol: UDP}
---
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {name: web}
spec:
  gatewayClassName: carob
  listeners: [{name: tcp, port: 5300, protocol: TCP}, {name: udp, port: 5300, protocol: UDP}]
---
apiVersion: gateway.networking.k8s.io/v1
kind: TCPRoute
metadata: {name: web}
spec: {parentRefs: [{name: web, sectionName: tcp}], rules: [{backendRefs: [{name: web, port: 53}]}]}
---
apiVersion: gateway.networking.k8s.io/v1
kind: UDPRoute
metadata: {name: web}
spec: {parentRefs: [{name: web, sectionName: udp}], rules: [{backendRefs: [{name: web, port: 53}]}]}
`

// echoOf sends a line and returns the name of the talker that has answered.
func echoOf(c net.Conn, text string) (string, error) {
	if err := c.SetDeadline(time.Now().Add(patience)); err != nil {
		return "", err
	}
	if _, err := fmt.Fprintln(c, text); err != nil {
		return "", err
	}
	answer, err := bufio.NewReader(c).ReadString('\n')
	who, echoed, _ := strings.Cut(strings.TrimSpace(answer), " ")
	if err == nil && echoed != text {
		err = fmt.Errorf("%q is answered with %q", text, answer)
	}
	return who, err
}

// echoTraffic sends lines to talkers: with kept each sender over one connection or from one address, else over a new
// one each time.
func echoTraffic(name, network, address string, kept bool) *traffic {
	x := &traffic{name: name, close: func() {}}
	const senders = 3
	conns := make(chan net.Conn, senders)
	for range senders {
		conns <- nil
	}
	if kept {
		x.close = func() {
			for range senders {
				if c := <-conns; c != nil {
					_ = c.Close()
				}
			}
		}
	}
	return x.run(senders, func() error {
		c := <-conns
		defer func() { conns <- c }()
		x.sent.Add(1)
		var err error
		if c == nil {
			if c, err = net.DialTimeout(network, address, patience); err != nil {
				return err
			}
		}
		_, err = echoOf(c, fmt.Sprint("word", x.sent.Load()))
		if !kept || err != nil {
			_ = c.Close()
			c = nil
		}
		return err
	})
}

// TestStreamsThroughTheGateway replaces all pods behind a TCPRoute and a UDPRoute under load: no new connection fails,
// and no datagram is without an answer. A connection that was there before keeps its pod, which waits for its end.
func TestStreamsThroughTheGateway(t *testing.T) {
	t.Parallel()
	const at = "127.77.9.8:5300"
	c := startCluster(t, "--gateway-addresses", "127.77.9.8", "--registry-config", mirrors.dir,
		"--deletion-drain-timeout", "10m")
	r := rollouts{c, t, "streams"}
	c.kubectl(t, "create", "namespace", r.namespace)
	c.acceptGateways(t)
	c.kubectlIn(t, talkers, "-n", r.namespace, "apply", "-f", "-")
	r.rolledOut()
	r.do("wait", "--for=condition=Programmed", "--timeout="+patience.String(), "gateway/web")
	for _, route := range []string{"tcproute/web", "udproute/web"} {
		r.do("wait", "--for=jsonpath={.status.parents[0].conditions[0].status}=True", "--timeout="+patience.String(),
			route)
	}
	open, err := net.DialTimeout("tcp", at, patience)
	if err != nil {
		t.Fatal(err)
	}
	defer open.Close()
	before, err := echoOf(open, "before")
	if err != nil {
		t.Fatal(err)
	}
	all := []*traffic{echoTraffic("new TCP connections", "tcp", at, false),
		echoTraffic("new clients of UDP", "udp", at, false),
		echoTraffic("kept clients of UDP", "udp", at, true)}
	r.do("rollout", "restart", "deployment/web")
	r.rolledOut()
	var errs []error
	for _, x := range all {
		errs = append(errs, x.end())
		if x.sent.Load() < 100 {
			t.Errorf("%s: only %d requests", x.name, x.sent.Load())
		}
		t.Logf("%s: %d requests", x.name, x.sent.Load())
	}
	if err := errors.Join(errs...); err != nil {
		t.Error(err)
	}
	r.do("wait", "--for=jsonpath={.metadata.deletionTimestamp}", "--timeout="+patience.String(), "pod/"+before)
	if after, err := echoOf(open, "after"); after != before || err != nil {
		t.Errorf("the open connection to %s is answered by %q after the rollout: %v", before, after, err)
	}
	if err := open.Close(); err != nil {
		t.Error(err)
	}
	r.do("wait", "--for=delete", "--timeout="+patience.String(), "pod/"+before)
	for _, network := range []string{"tcp", "udp"} {
		c, err := net.DialTimeout(network, at, patience)
		if err != nil {
			t.Fatal(err)
		}
		if who, err := echoOf(c, "late"); who == before || err != nil {
			t.Errorf("%s: %q answers after the rollout: %v", network, who, err)
		}
		_ = c.Close()
	}
	contains(t, "carob routes", c.carob(t, "routes", "-n", r.namespace), "tcproute/web", "udproute/web", at)
}
