package e2e

import (
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/miekg/dns"

	"carob/internal/base/testwait"
)

// Names as a pod sees them, with the resolver that it got: Services through the search list, the pods of
// a StatefulSet behind a headless Service, SRV and PTR records, an external name and other names of a
// server of the host; a new Corefile; and after carob has started again (N4).
func TestDNS(t *testing.T) {
	t.Parallel()
	server, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	upstream := &dns.Server{PacketConn: server, Handler: dns.HandlerFunc(func(w dns.ResponseWriter, q *dns.Msg) {
		m := new(dns.Msg).SetReply(q)
		rr, err := dns.NewRR(q.Question[0].Name + " 5 IN A 192.0.2.80")
		if err == nil && q.Question[0].Qtype == dns.TypeA &&
			strings.HasSuffix(q.Question[0].Name, "example.com.") {
			m.Answer = append(m.Answer, rr)
		}
		_ = w.WriteMsg(m)
	})}
	go func() { _ = upstream.ActivateAndServe() }()
	t.Cleanup(func() { _ = upstream.Shutdown() })

	c := startCluster(t, "--registry-config", mirrors.dir)
	corefile := filepath.Join(t.TempDir(), "Corefile")
	text := ".:53 {\n kubernetes cluster.local in-addr.arpa ip6.arpa {\n  fallthrough in-addr.arpa ip6.arpa\n }\n" +
		" hosts {\n  192.0.2.81 printer.office\n  fallthrough\n }\n forward . " + server.LocalAddr().String() + "\n cache 30\n}\n"
	if err := os.WriteFile(corefile, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	c.kubectl(t, "-n", "kube-system", "create", "configmap", "coredns", "--from-file=Corefile="+corefile)
	c.kubectlIn(t, dnsManifest, "apply", "-f", "-")
	c.kubectl(t, "rollout", "status", "statefulset/db", "--timeout="+patience.String())
	lookup := func(args ...string) string {
		out, err := c.tryKubectl("", append([]string{"exec", "db-0", "--", "nslookup"}, args...)...)
		if err != nil {
			return out + err.Error()
		}
		return out
	}
	ip := c.kubectl(t, "get", "pod", "db-1", "-o", "jsonpath={.status.podIP}")
	kubernetes := c.kubectl(t, "get", "service", "kubernetes", "-o", "jsonpath={.spec.clusterIP}")
	check := func(when string) {
		t.Helper()
		for _, one := range []struct{ want, args string }{
			{kubernetes, "kubernetes.default.svc.cluster.local"},
			{ip, "db-1.db.default.svc.cluster.local"},
			{ip, "db.default.svc.cluster.local"},
			{"db-1.db.default.svc.cluster.local", "-type=srv _sql._tcp.db.default.svc.cluster.local"},
			{"kubernetes.default.svc.cluster.local", "-type=ptr " + reversed(kubernetes)},
			{"www.example.com", "-type=cname outside.default.svc.cluster.local"},
			{"192.0.2.80", "outside.default.svc.cluster.local"},
			{"192.0.2.80", "other.example.com"},
			{"192.0.2.81", "printer.office"},
			{"NXDOMAIN", "nobody.default.svc.cluster.local"},
		} {
			testwait.For(t, when+": nslookup "+one.args+" says "+one.want,
				func() bool { return strings.Contains(lookup(strings.Fields(one.args)...), one.want) })
		}
		// Through the search list, as programs do.
		contains(t, when, c.kubectl(t, "exec", "db-0", "--", "ping", "-c1", "-W30", "db-1.db"), ip)
		contains(t, when, c.kubectl(t, "exec", "db-0", "--", "cat", "/etc/resolv.conf"), "default.svc.cluster.local", "ndots:5")
	}
	check("first")
	c.carob(t, "down")
	if err := c.up(); err != nil {
		t.Fatal(err)
	}
	check("after a restart")
}

func reversed(ip string) string {
	p := strings.Split(ip, ".")
	return p[3] + "." + p[2] + "." + p[1] + "." + p[0] + ".in-addr.arpa"
}

const dnsManifest = `
apiVersion: v1
kind: Service
metadata: {name: db}
spec:
  clusterIP: None
  selector: {app: db}
  ports: [{name: sql, port: 5432}]
---
apiVersion: v1
kind: Service
metadata: {name: outside}
spec: {type: ExternalName, externalName: www.example.com}
---
apiVersion: apps/v1
kind: StatefulSet
metadata: {name: db}
spec:
  serviceName: db
  replicas: 2
  selector: {matchLabels: {app: db}}
  template:
    metadata: {labels: {app: db}}
    spec:
      terminationGracePeriodSeconds: 0
      containers:
      - {name: c, image: "busybox:1.32.0", command: [sleep, "100000"]}
`
