package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"carob/internal/base/testwait"
	"carob/internal/runtime/remote"
	"carob/test/containerd"
)

// handlerWorld is a cluster whose RuntimeClass other is served by an installed containerd.
type handlerWorld struct {
	policiesTest
	daemon *containerd.Daemon
}

// pluginDirs makes the directories where a containerd finds carob as its CNI plugin, and the loopback plugin.
func pluginDirs(t *testing.T) (conf, bin string) {
	t.Helper()
	dir := tempDir(t)
	conf, bin = filepath.Join(dir, "conf"), filepath.Join(dir, "bin")
	loopback := "/usr/lib/cni/loopback"
	if p := os.Getenv("RUNTIME_PROGRAMS"); p != "" {
		loopback = filepath.Join(p, "cni", "loopback")
	}
	for _, d := range []string{conf, bin} {
		if err := os.Mkdir(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink(loopback, filepath.Join(bin, "loopback")); err != nil {
		t.Fatal(err)
	}
	return conf, bin
}

func startHandlerWorld(t *testing.T) *handlerWorld {
	t.Helper()
	conf, bin := pluginDirs(t)
	d, err := containerd.StartWith(t.Context(), containerd.Options{Dir: tempDir(t), Bridge: "cb-e2e-none",
		Subnet: "10.222.0.0/16", RegistryConfig: mirrors.dir, Programs: os.Getenv("RUNTIME_PROGRAMS"),
		OCIRuntime: os.Getenv("OCI_RUNTIME"), CNIConf: conf, CNIBin: bin})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := d.Close(); err != nil {
			t.Error(err)
		}
	})
	c, err := newCluster(tempDir(t), "--registry-config", mirrors.dir,
		"--runtime-handler", "other="+d.Endpoint+"#runc")
	if err != nil {
		t.Fatal(err)
	}
	c.carob(t, "cni", "install", "--conf-dir", conf, "--bin-dir", bin)
	t.Cleanup(func() {
		if t.Failed() {
			c.dumpLog(t)
		}
		if err := c.end(); err != nil {
			t.Error(err)
		}
	})
	if err := c.up(); err != nil {
		t.Fatal(err)
	}
	w := &handlerWorld{policiesTest{c, t}, d}
	c.kubectlIn(t, "apiVersion: node.k8s.io/v1\nkind: RuntimeClass\nmetadata: {name: other}\nhandler: other\n",
		"apply", "-f", "-")
	return w
}

// start runs a pod and returns its address; class may be empty.
func (w *handlerWorld) start(name, class string) string {
	w.t.Helper()
	w.kubectlIn(w.t, fmt.Sprintf(`
apiVersion: v1
kind: Pod
metadata: {name: %s, labels: {app: %s}}
spec:
  %s
  terminationGracePeriodSeconds: 0
  containers:
  - {name: c, image: busybox, command: [httpd, -f, -p, "80"], readinessProbe: {tcpSocket: {port: 80}, periodSeconds: 1}}
`, name, name, class), "apply", "-f", "-")
	w.wait(w.t, "pod/"+name, "condition=Ready")
	return w.pod(w.t, name).Status.PodIP
}

// sandboxes counts what the containerd has.
func (w *handlerWorld) sandboxes() int {
	w.t.Helper()
	rt, err := remote.Dial(w.t.Context(), w.daemon.Endpoint)
	if err != nil {
		w.t.Fatal(err)
	}
	defer rt.Close()
	list, err := rt.ListPodSandbox(w.t.Context(), &cri.ListPodSandboxRequest{})
	if err != nil {
		w.t.Fatal(err)
	}
	return len(list.Items)
}

// A RuntimeClass whose handler is another container runtime: its pods are in the network of all others, and what
// happens to one runtime does not touch the pods of the other.
func TestRuntimeHandler(t *testing.T) {
	t.Parallel()
	nativeOnly(t, "a second runtime beside carob's own")
	w := startHandlerWorld(t)
	near, far := w.start("near", ""), w.start("far", "runtimeClassName: other")
	if n := w.sandboxes(); n != 1 {
		t.Fatalf("containerd has %d sandboxes, want that of one pod", n)
	}
	w.shows(t, []string{"other"}, "get", "nodes", "-o", "jsonpath={.items[0].status.runtimeHandlers[*].name}")
	w.kubectl(t, "expose", "pod", "far", "--port=80")
	service := w.kubectl(t, "get", "service", "far", "-o", "jsonpath={.spec.clusterIP}")
	w.reaches(true, "default", "near", far, 80)
	w.reaches(true, "default", "far", near, 80)
	w.reaches(true, "default", "near", service, 80)
	w.reaches(true, "default", "far", service, 80)
	contains(t, "exec", w.kubectl(t, "exec", "far", "--", "cat", "/etc/hosts"), far)

	w.policy("default", "deny", `{podSelector: {matchLabels: {app: far}}, policyTypes: [Ingress]}`)
	w.reaches(false, "default", "near", far, 80)
	w.kubectl(t, "delete", "networkpolicy", "deny")
	w.reaches(true, "default", "near", far, 80)

	before := w.pod(t, "far").Status.ContainerStatuses[0].ContainerID
	same := func(when string) {
		t.Helper()
		if now := w.pod(t, "far").Status; now.ContainerStatuses[0].ContainerID != before || now.PodIP != far ||
			now.ContainerStatuses[0].RestartCount != 0 {
			t.Errorf("%s: the pod has changed: %+v", when, now)
		}
	}
	// Without its runtime a pod says so; the other runtime's pods go on.
	if err := w.daemon.Kill(); err != nil {
		t.Fatal(err)
	}
	contains(t, "exec", w.kubectlFails(t, "exec", "far", "--", "true"), "does not answer")
	w.start("meanwhile", "")
	w.kubectl(t, "exec", "near", "--", "true")
	w.reaches(true, "default", "near", far, 80) // its containers run
	w.handlerIsMissed()
	w.kubectl(t, "delete", "pod", "meanwhile")
	if err := w.daemon.Run(t.Context()); err != nil {
		t.Fatal(err)
	}
	testwait.Until(t, "the runtime is used again", func() error {
		_, err := w.tryKubectl("", "exec", "far", "--", "true")
		return err
	})
	same("after containerd was killed")
	w.handlerIsBack()

	w.kill(t)
	if err := w.up(); err != nil {
		t.Fatal(err)
	}
	w.wait(t, "pod/far", "condition=Ready")
	same("after carob was killed")
	w.reaches(true, "default", "near", far, 80)

	// A pod that is deleted frees its place and its record.
	w.start("short", "runtimeClassName: other")
	w.kubectl(t, "delete", "pod", "short")
	testwait.For(t, "the deleted pod's sandbox is removed", func() bool { return w.sandboxes() == 1 })

	w.carob(t, "down")
	contains(t, "another start", carobFails(t, "up", "--data-dir", w.DataDir, "--node-name", "e2e-node"),
		"--runtime-handler: it was other=")
	if err := w.end(); err != nil {
		t.Fatal(err)
	}
	if n := w.sandboxes(); n != 0 {
		t.Errorf("`carob down --pods` left %d sandboxes in containerd", n)
	}
}

// explains waits until `carob explain` prints all that is wanted.
func (w *handlerWorld) explains(of string, all ...string) {
	w.t.Helper()
	testwait.Until(w.t, "carob explain "+of, func() error {
		out := w.explain(of)
		for _, want := range all {
			if !strings.Contains(out, want) {
				return fmt.Errorf("it lacks %q:\n%s", want, out)
			}
		}
		return nil
	})
}

// fine waits until `carob explain` finds no problem.
func (w *handlerWorld) fine(of string) {
	w.t.Helper()
	testwait.Until(w.t, "carob explain "+of, func() error {
		if out := w.explain(of); !strings.HasPrefix(out, "  ") || strings.Contains(out, "! ") {
			return fmt.Errorf("it does not say that all is well:\n%s", out)
		}
		return nil
	})
}

const handlersOfNode = "jsonpath={.status.runtimeHandlers[*].name}"

// handlerIsMissed: the node and the handler's pod show that its runtime does not answer; other pods do not.
func (w *handlerWorld) handlerIsMissed() {
	w.t.Helper()
	w.hasEvents(w.t, "e2e-node",
		"Warning RuntimeHandlerNotReady The container runtime of handler other at "+w.daemon.Endpoint)
	testwait.Until(w.t, "the node does not list the handler", func() error {
		if names := w.kubectl(w.t, "get", "node", "e2e-node", "-o", handlersOfNode); strings.Contains(names, "other") {
			return fmt.Errorf("it lists %s", names)
		}
		return nil
	})
	w.hasEvents(w.t, "far", "Warning FailedSync error determining status: ")
	w.explains("node/e2e-node", "does not answer", "(RuntimeHandlerNotReady)")
	w.explains("pod/far", "! its container runtime, that of handler other, cannot be used on node e2e-node now", "FailedSync")
	w.fine("pod/near")
}

// handlerIsBack: nothing is wrong any more.
func (w *handlerWorld) handlerIsBack() {
	w.t.Helper()
	w.hasEvents(w.t, "e2e-node",
		"Normal RuntimeHandlerReady The container runtime of handler other at "+w.daemon.Endpoint+
			" answers again")
	w.shows(w.t, []string{"other"}, "get", "node", "e2e-node", "-o", handlersOfNode)
	w.fine("node/e2e-node")
	w.fine("pod/far")
}
