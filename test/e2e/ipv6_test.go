package e2e

import (
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"carob/internal/base/testwait"
)

const ipv6Manifest = `
apiVersion: v1
kind: Pod
metadata: {name: web, labels: {app: web}}
spec:
  terminationGracePeriodSeconds: 0
  containers:
  - name: web
    image: busybox
    command: [sh, -c, "echo Hello > /tmp/index.html; exec httpd -f -p '[::]:80' -h /tmp"]
    ports: [{containerPort: 80, hostPort: HOSTPORT}]
    readinessProbe: {tcpSocket: {port: 80}, periodSeconds: 1}
---
apiVersion: v1
kind: Pod
metadata: {name: client, labels: {app: client}}
spec:
  terminationGracePeriodSeconds: 0
  containers: [{name: c, image: nicolaka/netshoot, command: [sleep, "100000"]}]
---
apiVersion: v1
kind: Service
metadata: {name: web}
spec: {type: NodePort, ipFamilyPolicy: PreferDualStack, selector: {app: web}, ports: [{port: 80}]}
`

// TestIPv6 runs clusters whose pods and Services have addresses of IPv6 only, and of IPv6 before IPv4: names, cluster
// IPs, node ports, host ports, the API server in the pod's own words, and network policies work in each family.
func TestIPv6(t *testing.T) {
	t.Parallel()
	nativeOnly(t, "the pods' ranges are those of carob's own network")
	if _, err := os.Stat("/proc/sys/net/ipv6"); err != nil {
		t.Skip("the kernel has no IPv6")
	}
	for name, ranges := range map[string]string{"only": "fd00:f6:1::/64", "first": "fd00:f6:2::/64,FOUR"} {
		t.Run(name, func(t *testing.T) {
			families := 1 + strings.Count(ranges, ",")
			if families == 2 {
				four, err := freeRange()
				if err != nil {
					t.Fatal(err)
				}
				ranges = strings.Replace(ranges, "FOUR", four, 1)
			}
			// The last one of a flag counts.
			c := startCluster(t, "--registry-config", mirrors.dir, "--pod-cidr", ranges)
			hostPort := freePort(t)
			c.kubectlIn(t, strings.ReplaceAll(ipv6Manifest, "HOSTPORT", strconv.Itoa(hostPort)), "apply", "-f", "-")
			c.wait(t, "pod/web", "condition=Ready")
			c.wait(t, "pod/client", "condition=Ready")
			var service corev1.Service
			var web corev1.Pod
			for of, into := range map[string]any{"service/web": &service, "pod/web": &web} {
				if err := json.Unmarshal([]byte(c.kubectl(t, "get", of, "-o", "json")), into); err != nil {
					t.Fatal(err)
				}
			}
			if len(service.Spec.ClusterIPs) != families || len(web.Status.PodIPs) != families ||
				netip.MustParseAddr(service.Spec.ClusterIP).Is4() || netip.MustParseAddr(web.Status.PodIP).Is4() {
				t.Fatalf("the Service has %v, the pod %v", service.Spec.ClusterIPs, web.Status.PodIPs)
			}
			bridge := netip.MustParsePrefix(strings.Split(ranges, ",")[0]).Addr().Next().String()
			reached(t, bridge, hostPort)
			for _, n := range nodeAddresses(t, c) { // of the families that this machine has
				if netip.MustParseAddr(n).Is6() || families == 2 {
					reached(t, n, int(service.Spec.Ports[0].NodePort))
				}
			}
			inPod := func(command string) string {
				out, err := c.tryKubectl("", "exec", "client", "--", "sh", "-c", command)
				return fmt.Sprintln(out, err)
			}
			curl := "curl -sS -m 5 "
			for _, to := range append([]string{"web", "web.default.svc.cluster.local"}, service.Spec.ClusterIPs...) {
				if a, err := netip.ParseAddr(to); err == nil && a.Is6() {
					to = "'[" + to + "]'"
				}
				testwait.For(t, "the client reaches "+to,
					func() bool { return strings.Contains(inPod(curl+to), "Hello") })
			}
			// Both families of the DNS Service answer.
			for s := range strings.Lines(c.kubectl(t, "exec", "client", "--", "grep", "nameserver", "/etc/resolv.conf")) {
				server := strings.TrimSpace(strings.TrimPrefix(s, "nameserver"))
				testwait.For(t, server+" answers", func() bool {
					return strings.Contains(inPod("dig +short AAAA web.default.svc.cluster.local @"+server), service.Spec.ClusterIP)
				})
			}
			token := `-k -H "Authorization: Bearer $(cat /var/run/secrets/kubernetes.io/serviceaccount/token)" `
			contains(t, "the API server", inPod(curl+token+"https://kubernetes.default.svc/version"), `"major": "1"`)
			contains(t, "the API server's certificate", inPod(curl+"--cacert "+
				`/var/run/secrets/kubernetes.io/serviceaccount/ca.crt "https://[$KUBERNETES_SERVICE_HOST]:443/version"`),
				`"major": "1"`)
			p := policiesTest{c, t}
			p.policy("default", "deny", `{podSelector: {matchLabels: {app: web}}, policyTypes: [Ingress]}`)
			for _, ip := range web.Status.PodIPs {
				to := net.JoinHostPort(ip.IP, "80")
				testwait.For(t, "the policy keeps the client from "+to,
					func() bool { return strings.Contains(inPod("curl -sS -g -m 1 http://"+to), "exit status") })
			}
			p.policy("default", "allow",
				`{podSelector: {matchLabels: {app: web}}, ingress: [{from: [{podSelector: {matchLabels: {app: client}}}]}]}`)
			for _, ip := range web.Status.PodIPs {
				to := net.JoinHostPort(ip.IP, "80")
				testwait.For(t, "the policy lets the client reach "+to,
					func() bool { return strings.Contains(inPod("curl -sS -g -m 5 http://"+to), "Hello") })
			}
		})
	}
}

func nodeAddresses(t *testing.T, c *cluster) []string {
	return strings.Fields(c.kubectl(t, "get", "nodes", "-o",
		`jsonpath={.items[0].status.addresses[?(@.type=="InternalIP")].address}`))
}

// reached waits until the web server answers this host at an address.
func reached(t *testing.T, host string, port int) {
	t.Helper()
	at := net.JoinHostPort(host, strconv.Itoa(port))
	client := &http.Client{Timeout: patience, Transport: &http.Transport{DisableKeepAlives: true}}
	testwait.For(t, "this host reaches "+at, func() bool {
		resp, err := client.Get("http://" + at + "/")
		if err != nil {
			return false
		}
		defer resp.Body.Close()
		body, _ := io.ReadAll(resp.Body)
		return strings.Contains(string(body), "Hello")
	})
}

// freePort is a free TCP port of this host.
func freePort(t *testing.T) int {
	l, err := net.Listen("tcp", ":0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port
}
