package e2e

import (
	"fmt"
	"os/exec"
	"strings"
	"testing"
	"time"

	"carob/internal/base/testwait"
)

const policyPod = `
apiVersion: v1
kind: Pod
metadata: {name: NAME, namespace: NS, labels: {app: NAME}}
spec:
  terminationGracePeriodSeconds: 0
  containers:
  - name: web
    image: busybox
    command: [sh, -c, "httpd -p 81; exec httpd -f -p 80"]
    ports: [{name: WEB, containerPort: 80}]
    readinessProbe: {tcpSocket: {port: 80}, periodSeconds: 1}
`

// policiesTest is a cluster with a namespace for each of the two tenants.
type policiesTest struct {
	*cluster
	t *testing.T
}

func (p policiesTest) run(ns, name string, more ...string) (ip string) {
	p.t.Helper()
	web := "web"
	if len(more) > 0 {
		web = more[0]
	}
	p.kubectlIn(p.t, strings.NewReplacer("NAME", name, "NS", ns, "WEB", web).Replace(policyPod), "apply", "-f", "-")
	p.wait(p.t, "pod/"+name, "condition=Ready", "-n", ns) // the node reaches its pods, whatever the policies
	return p.kubectl(p.t, "get", "pod", "-n", ns, name, "-o", "jsonpath={.status.podIP}")
}

// policy applies a policy whose spec is in flow style.
func (p policiesTest) policy(ns, name, spec string) {
	p.t.Helper()
	p.kubectlIn(p.t, fmt.Sprintf(`
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: %s, namespace: %s}
spec: %s
`, name, ns, spec), "apply", "-f", "-")
}

// reaches waits until a pod's connection has the wanted outcome.
func (p policiesTest) reaches(want bool, ns, from, to string, port int) {
	p.t.Helper()
	what := fmt.Sprintf("%s/%s reaches %s:%d: %v", ns, from, to, port, want)
	testwait.For(p.t, what, func() bool {
		out, err := p.tryKubectl("", "exec", "-n", ns, from, "--", "sh", "-c",
			fmt.Sprintf("echo GET / | nc -w 1 %s %d", to, port))
		if err == nil && !strings.Contains(out, "HTTP") {
			p.t.Fatalf("%s: %q", what, out)
		}
		return (err == nil) == want
	})
}

// The whole of network policies on real containers.
func TestNetworkPolicies(t *testing.T) {
	nativeOnly(t, "with other runtimes, policies are the work of the CNI plugin")
	t.Parallel()
	c := startCluster(t, "--registry-config", mirrors.dir)
	p := policiesTest{c, t}
	for _, ns := range []string{"x", "z"} {
		c.kubectl(t, "create", "namespace", ns)
	}
	table := c.NFTable + "-policy"
	tables := func() string {
		out, err := exec.Command("nft", "list", "tables").CombinedOutput()
		if err != nil {
			t.Fatalf("nft: %v\n%s", err, out)
		}
		return string(out)
	}
	server, other := p.run("x", "server"), p.run("x", "other", "elsewhere")
	p.run("x", "friend")
	p.run("z", "friend")
	p.reaches(true, "z", "friend", server, 80)
	if strings.Contains(tables(), table) {
		t.Error("there is a table without policies")
	}

	// Default deny: only their own node reaches the pods of x.
	p.policy("x", "deny", `{podSelector: {}, policyTypes: [Ingress]}`)
	p.reaches(false, "x", "friend", server, 80)
	p.reaches(false, "z", "friend", server, 80)
	p.reaches(true, "x", "server", server, 80) // itself
	c.kubectl(t, "exec", "-n", "x", "server", "--", "true")
	// A pod that begins to run under the policy becomes ready, and no other pod reaches it.
	late := p.run("x", "late")
	p.reaches(false, "z", "friend", late, 80)

	// By label, on a named port that only one of the two servers has.
	p.policy("x", "friends", `{podSelector: {}, ingress: [{from: [{podSelector: {matchLabels: {app: friend}}}],
		ports: [{port: web}]}]}`)
	p.reaches(true, "x", "friend", server, 80)
	p.reaches(false, "x", "friend", server, 81)
	p.reaches(false, "x", "friend", other, 80) // its port has another name
	p.reaches(false, "z", "friend", server, 80)
	p.policy("x", "others", `{podSelector: {}, ingress: [{from: [{namespaceSelector: {matchLabels: {
		kubernetes.io/metadata.name: z}}}], ports: [{port: 80, endPort: 90}]}]}`)
	p.reaches(true, "z", "friend", server, 81)
	c.kubectl(t, "label", "namespace", "z", "team=b")
	c.kubectl(t, "delete", "networkpolicy", "-n", "x", "others")
	p.reaches(false, "z", "friend", server, 81)
	c.kubectl(t, "label", "pod", "-n", "x", "friend", "app=stranger", "--overwrite")
	p.reaches(false, "x", "friend", server, 80)
	c.kubectl(t, "label", "pod", "-n", "x", "friend", "app=friend", "--overwrite")
	p.reaches(true, "x", "friend", server, 80)

	// Egress: by block, without an exception.
	p.policy("z", "out", fmt.Sprintf(`{podSelector: {}, policyTypes: [Egress], egress: [{to: [{ipBlock: {
		cidr: 0.0.0.0/0, except: [%s/32]}}]}]}`, other))
	c.kubectl(t, "delete", "networkpolicy", "-n", "x", "--all")
	p.reaches(true, "z", "friend", server, 80)
	p.reaches(false, "z", "friend", other, 80)

	// carob is killed and starts again: the rules stay in force meanwhile, and afterwards.
	c.kill(t)
	if !strings.Contains(tables(), table) {
		t.Error("the rules went with the process")
	}
	if err := c.up(); err != nil {
		t.Fatal(err)
	}
	p.reaches(false, "z", "friend", other, 80)
	p.reaches(true, "z", "friend", server, 80)
	// Another program removes the rules: they are restored.
	if out, err := exec.Command("nft", "delete", "table", "ip", table).CombinedOutput(); err != nil {
		t.Fatalf("nft: %v\n%s", err, out)
	}
	p.reaches(false, "z", "friend", other, 80)

	c.kubectl(t, "delete", "networkpolicy", "-n", "z", "--all")
	p.reaches(true, "z", "friend", other, 80)
	testwait.For(t, "the table is gone", func() bool { return !strings.Contains(tables(), table) })
}

// The first packet of a pod's first process meets the rules already.
func TestFirstPacket(t *testing.T) {
	nativeOnly(t, "with other runtimes, policies are the work of the CNI plugin")
	t.Parallel()
	c := startCluster(t, "--registry-config", mirrors.dir)
	p := policiesTest{c, t}
	c.kubectl(t, "create", "namespace", "x")
	server := p.run("default", "server")
	p.run("x", "free")
	p.reaches(true, "x", "free", server, 80)
	p.policy("x", "deny", `{podSelector: {}, policyTypes: [Egress]}`)
	var pods strings.Builder
	const many = 20
	for i := range many {
		fmt.Fprintf(&pods, `
apiVersion: v1
kind: Pod
metadata: {name: first-%d, namespace: x}
spec:
  restartPolicy: Never
  terminationGracePeriodSeconds: 0
  containers:
  - {name: c, image: busybox, command: [sh, -c, "echo GET / | nc -w 2 %s 80"]}
---`, i, server)
	}
	c.kubectlIn(t, pods.String(), "apply", "-f", "-")
	began := time.Now()
	for i := range many {
		name := fmt.Sprint("first-", i)
		c.wait(t, "pod/"+name, "jsonpath={.status.phase}=Failed", "-n", "x")
		if out := c.kubectl(t, "logs", "-n", "x", name); strings.Contains(out, "HTTP") {
			t.Errorf("%s reached the server", name)
		}
	}
	t.Logf("%d pods in %v", many, time.Since(began))
}
