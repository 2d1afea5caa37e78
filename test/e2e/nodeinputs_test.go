package e2e

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"carob/internal/base/testwait"
)

// writeFile puts a file in place in one step, as tools that write manifests do.
func writeFile(t *testing.T, path, text string) {
	t.Helper()
	tmp := filepath.Join(filepath.Dir(path), "."+filepath.Base(path))
	if err := os.WriteFile(tmp, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(tmp, path); err != nil {
		t.Fatal(err)
	}
}

// become waits for a condition of a pod that others delete and make anew meanwhile.
func (c *cluster) become(t *testing.T, pod, condition string) corev1.Pod {
	t.Helper()
	testwait.Until(t, pod+": "+condition, func() error {
		if _, err := c.tryKubectl("", "wait", "pod/"+pod, "--for=create", "--timeout=10s"); err != nil {
			return err
		}
		_, err := c.tryKubectl("", "wait", "pod/"+pod, "--for="+condition, "--timeout=10s")
		return err
	})
	return c.pod(t, pod)
}

func staticManifest(version string) string {
	return fmt.Sprintf(`apiVersion: v1
kind: Pod
metadata: {name: web, labels: {version: %q}}
spec:
  terminationGracePeriodSeconds: 1
  containers: [{name: c, image: 'busybox:1.32.0', command: [sh, -c, 'echo version %s; trap "exit 0" TERM; while :; do sleep 3600 & wait; done']}]
`, version, version)
}

// TestStaticPod: a manifest in the directory is a pod, independent of changes in the API server (L7.110–L7.116).
func TestStaticPod(t *testing.T) {
	t.Parallel()
	c := startCluster(t, "--registry-config", mirrors.dir)
	file := filepath.Join(c.DataDir, "manifests", "web.yaml")
	const name = "web-e2e-node"

	writeFile(t, file, staticManifest("1"))
	first := c.become(t, name, "condition=Ready")
	hash := first.Annotations["kubernetes.io/config.hash"]
	if first.Annotations[corev1.MirrorPodAnnotationKey] != hash || len(hash) != 32 || len(first.OwnerReferences) != 1 ||
		first.OwnerReferences[0].Kind != "Node" {
		t.Errorf("its mirror: %v, owners %v", first.Annotations, first.OwnerReferences)
	}
	c.shows(t, []string{"version 1"}, "logs", name)
	contains(t, "exec", c.kubectl(t, "exec", name, "--", "echo", "hello"), "hello")
	id := first.Status.ContainerStatuses[0].ContainerID
	links := filepath.Join(c.DataDir, "log", "containers")
	link := filepath.Join(links, name+"_default_c-"+id[strings.LastIndex(id, "/")+1:]+".log")
	if text, err := os.ReadFile(link); err != nil || !strings.Contains(string(text), "version 1") {
		t.Errorf("the link of its log: %q, %v", text, err)
	}

	c.kubectl(t, "delete", "pod", name)
	again := c.become(t, name, "condition=Ready")
	if again.UID == first.UID || again.Status.ContainerStatuses[0].ContainerID != id {
		t.Errorf("deleted: uid %s, container %s, was %s, %s", again.UID, again.Status.ContainerStatuses[0].ContainerID,
			first.UID, id)
	}

	c.kill(t)
	forgotten := filepath.Join(c.DataDir, "log", "pods", "default_gone_5a1c0000-0000-4000-8000-000000000000")
	if err := os.MkdirAll(filepath.Join(forgotten, "c"), 0o755); err != nil {
		// of a pod that went in the moment of the crash
		t.Fatal(err)
	}
	dangling := filepath.Join(links, "gone_default_c-0123.log")
	if err := os.Symlink(filepath.Join(c.DataDir, "log", "pods", "default_gone_u", "c", "0.log"),
		dangling); err != nil {
		t.Fatal(err)
	}
	if err := c.up(); err != nil {
		t.Fatal(err)
	}
	after := c.become(t, name, "condition=Ready")
	if s := after.Status.ContainerStatuses[0]; after.UID != again.UID || s.ContainerID != id || s.RestartCount != 0 {
		t.Errorf("restarted: uid %s, %+v", after.UID, s)
	}

	writeFile(t, file, "kind: [")
	writeFile(t, filepath.Join(c.DataDir, "manifests", "other.yaml"),
		strings.Replace(staticManifest("1"), "name: web", "name: other", 1))
	c.become(t, "other-e2e-node", "condition=Ready")
	if s := c.pod(t, name).Status.ContainerStatuses[0]; s.ContainerID != id {
		t.Errorf("a bad manifest ended the pod: %+v", s)
	}

	writeFile(t, file, staticManifest("2"))
	c.become(t, name, "jsonpath={.metadata.labels.version}=2")
	changed := c.become(t, name, "condition=Ready")
	if changed.Annotations["kubernetes.io/config.hash"] == hash ||
		changed.Status.ContainerStatuses[0].ContainerID == id {
		t.Errorf("changed: %v", changed.Annotations)
	}
	c.shows(t, []string{"version 2"}, "logs", name)

	if _, err := os.Stat(forgotten); !os.IsNotExist(err) {
		t.Errorf("logs of a pod that is gone are left: %v", err)
	}
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	c.kubectl(t, "wait", "pod/"+name, "--for=delete", "--timeout="+patience.String())
	for _, path := range []string{link, dangling} {
		if _, err := os.Lstat(path); !os.IsNotExist(err) {
			t.Errorf("the link %s is left: %v", path, err)
		}
	}
}

// TestStaticPodMakesRoom: a static pod is critical; others end for it (L3.40).
func TestStaticPodMakesRoom(t *testing.T) {
	t.Parallel()
	c := startCluster(t, "--registry-config", mirrors.dir)
	cpu := c.kubectl(t, "get", "node", "e2e-node", "-o", "jsonpath={.status.allocatable.cpu}")
	c.kubectlIn(t, fmt.Sprintf(`apiVersion: v1
kind: Pod
metadata: {name: big}
spec:
  terminationGracePeriodSeconds: 1
  containers: [{name: c, image: 'busybox:1.32.0', command: [sleep, '3600'], resources: {requests: {cpu: %q}}}]
`, cpu), "apply", "-f", "-")
	c.wait(t, "pod/big", "condition=Ready")
	writeFile(t, filepath.Join(c.DataDir, "manifests", "web.yaml"),
		strings.Replace(staticManifest("1"), "{name: c,", "{name: c, resources: {requests: {cpu: 100m}},", 1))
	c.become(t, "web-e2e-node", "condition=Ready")
	c.wait(t, "pod/big", "jsonpath={.status.phase}=Failed")
	p := c.pod(t, "big")
	if p.Status.Phase != corev1.PodFailed || p.Status.Reason != "Preempting" ||
		p.Status.Message != "Preempted in order to admit critical pod" {
		t.Errorf("%s %s: %q", p.Status.Phase, p.Status.Reason, p.Status.Message)
	}
	c.waitEvent(t, "big", "Preempting")
}

// TestEviction: pods that store too much are evicted, and when the node is short of memory a pod that uses more than it
// requests (L7.150–L7.153).
func TestEviction(t *testing.T) {
	t.Parallel()
	c := startCluster(t, "--registry-config", mirrors.dir)
	c.kubectlIn(t, `apiVersion: v1
kind: Pod
metadata: {name: volume}
spec:
  terminationGracePeriodSeconds: 1
  volumes: [{name: v, emptyDir: {sizeLimit: 1Mi}}]
  containers: [{name: c, image: 'busybox:1.32.0', volumeMounts: [{name: v, mountPath: /v}], command: [sh, -c, 'dd if=/dev/zero of=/v/f bs=1M count=3; sleep 3600']}]
---
apiVersion: v1
kind: Pod
metadata: {name: layer}
spec:
  terminationGracePeriodSeconds: 1
  containers: [{name: c, image: 'busybox:1.32.0', resources: {limits: {ephemeral-storage: 1Mi}}, command: [sh, -c, 'dd if=/dev/zero of=/f bs=1M count=3; sleep 3600']}]
---
apiVersion: v1
kind: Pod
metadata: {name: modest}
spec:
  terminationGracePeriodSeconds: 1
  containers: [{name: c, image: 'busybox:1.32.0', command: [sleep, '3600']}]
`, "apply", "-f", "-")
	c.wait(t, "pod/modest", "condition=Ready")
	for name, message := range map[string]string{
		"volume": `Usage of EmptyDir volume "v" exceeds the limit "1Mi". `,
		"layer":  "Pod ephemeral local storage usage exceeds the total limit of containers 1Mi. ",
	} {
		c.wait(t, "pod/"+name, "jsonpath={.status.phase}=Failed")
		if p := c.pod(t, name); p.Status.Reason != "Evicted" || p.Status.Message != message {
			t.Errorf("%s: %s: %q", name, p.Status.Reason, p.Status.Message)
		}
		c.waitEvent(t, name, "Evicted")
	}
	c.wait(t, "node/e2e-node", "jsonpath={.status.conditions[?(@.type==\"MemoryPressure\")].status}=False")

	c.carob(t, "down")
	if _, err := run(append([]string{carobBin, "up", "--detach", "--eviction-hard", "memory.available<99%"},
		c.args...)...); err != nil {
		t.Fatal(err)
	}
	c.wait(t, "pod/modest", "jsonpath={.status.phase}=Failed")
	p := c.pod(t, "modest")
	contains(t, "the message", p.Status.Message, "The node was low on resource: memory. Threshold quantity: ",
		"Container c was using ", "request is 0, has larger consumption of memory. ")
	target := ""
	for _, cond := range p.Status.Conditions {
		if cond.Type == corev1.DisruptionTarget {
			target = string(cond.Status) + " " + cond.Reason
		}
	}
	if p.Status.Reason != "Evicted" || target != "True TerminationByKubelet" {
		t.Errorf("%s, DisruptionTarget %s", p.Status.Reason, target)
	}
	c.waitEvent(t, "modest", "Evicted")
	c.waitEvent(t, "e2e-node", "EvictionThresholdMet")
	c.wait(t, "node/e2e-node", "jsonpath={.status.conditions[?(@.type==\"MemoryPressure\")].status}=True")
}

// TestUnusedImagesAreRemoved (L7.133).
func TestUnusedImagesAreRemoved(t *testing.T) {
	t.Parallel()
	c := startCluster(t, "--registry-config", mirrors.dir, "--image-gc-high-threshold", "2", "--image-gc-low-threshold",
		"1", "--minimum-image-ttl-duration", "1s")
	c.kubectl(t, "run", "stays", "--image=busybox:1.32.0", "--", "sleep", "3600")
	c.kubectl(t, "run", "goes", "--image=nginx:1.26")
	c.wait(t, "pod/stays", "condition=Ready")
	c.wait(t, "pod/goes", "condition=Ready")
	c.kubectl(t, "delete", "pod", "goes", "--grace-period=1")
	testwait.Until(t, "an unused image goes", func() error {
		left := c.carob(t, "image", "ls")
		contains(t, "images", left, "busybox")
		if strings.Contains(left, "nginx") {
			return errors.New(left)
		}
		return nil
	})
	c.kubectl(t, "exec", "stays", "--", "true")
}

// TestImageVolume (L3.115).
func TestImageVolume(t *testing.T) {
	shared.kubectlIn(t, `apiVersion: v1
kind: Pod
metadata: {name: model}
spec:
  terminationGracePeriodSeconds: 1
  restartPolicy: Never
  containers:
  - name: c
    image: busybox:1.32.0
    command: [sh, -c, 'ls /whole/bin/busybox /part/busybox; touch /whole/x; echo wrote $?; sleep 3600']
    volumeMounts: [{name: v, mountPath: /whole}, {name: v, mountPath: /part, subPath: bin}]
  volumes: [{name: v, image: {reference: 'nginx:1.26', pullPolicy: Always}}]
`, "apply", "-f", "-")
	shared.remove(t, "model")
	shared.wait(t, "pod/model", "condition=Ready")
	testwait.For(t, "it has tried to write",
		func() bool { return strings.Contains(shared.kubectl(t, "logs", "model"), "wrote") })
	contains(t, "what it sees", shared.kubectl(t, "logs", "model"), "/whole/bin/busybox", "/part/busybox",
		"Read-only file system", "wrote 1")
	shared.hasEvents(t, "model", `Pulling image "nginx:1.26"`)
}

// TestNodeProxyByItsUsualPort: the agent's port differs per instance, its name does not.
func TestNodeProxyByItsUsualPort(t *testing.T) {
	for _, node := range []string{"e2e-node", "e2e-node:10250", "https:e2e-node:10250"} {
		contains(t, node, shared.kubectl(t, "get", "--raw", "/api/v1/nodes/"+node+"/proxy/pods"), `"kind":"PodList"`)
	}
	contains(t, "another port", shared.kubectlFails(t, "get", "--raw", "/api/v1/nodes/e2e-node:22/proxy/"),
		"only the agent of a node can be reached")
}
