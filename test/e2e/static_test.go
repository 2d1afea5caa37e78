package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// staticPod is a manifest whose container runs until it is stopped; fields are added to the pod's spec, more to its
// container.
func staticPod(name, version, fields, more string) string {
	return fmt.Sprintf(`apiVersion: v1
kind: Pod
metadata: {name: %s, labels: {version: %q}}
spec:
  terminationGracePeriodSeconds: 1
  %s
  containers:
  - name: c
    image: busybox:1.32.0
    command: [sh, -c, 'trap "exit 0" TERM; while :; do sleep 3600 & wait; done']
    %s
`, name, version, fields, more)
}

// mirrorReplaced waits until a pod has another UID, and returns it.
func (c *cluster) mirrorReplaced(t *testing.T, name string, old types.UID, condition string) corev1.Pod {
	t.Helper()
	c.kubectl(t, "wait", "pod/"+name, "--for=create", "--timeout="+patience.String())
	p := c.become(t, name, condition)
	if p.UID == old {
		t.Errorf("%s is still the mirror %s", name, old)
	}
	return p
}

// TestRejectedStaticPods: a static pod that the node rejects stays Failed, whatever happens to what it lacks, and also
// when its mirror is deleted, until its manifest changes or carob starts again.
func TestRejectedStaticPods(t *testing.T) {
	t.Parallel()
	c := startCluster(t, "--registry-config", mirrors.dir)
	dir := filepath.Join(c.DataDir, "manifests")
	port := fmt.Sprintf("ports: [{containerPort: 80, hostPort: %d}]", freePort(t))
	writeFile(t, filepath.Join(dir, "holder.yaml"), staticPod("holder", "1", "", port))
	c.become(t, "holder-e2e-node", "condition=Ready")

	selector := "nodeSelector: {disk: ssd}"
	writeFile(t, filepath.Join(dir, "port.yaml"), staticPod("port", "1", "", port))
	writeFile(t, filepath.Join(dir, "big.yaml"), staticPod("big", "1", "", "resources: {requests: {cpu: 1000}}"))
	writeFile(t, filepath.Join(dir, "label.yaml"), staticPod("label", "1", selector, ""))
	writeFile(t, filepath.Join(dir, "edited.yaml"), staticPod("edited", "1", selector, ""))
	rejected := map[string]corev1.Pod{}
	for name, want := range map[string]string{
		"port":   "NodePorts Pod was rejected: Predicate NodePorts failed: node(s) didn't have free ports for the requested pod ports",
		"big":    "OutOfcpu Pod was rejected: Node didn't have enough resource: cpu, requested: 1000000, used: ",
		"label":  "NodeAffinity Pod was rejected: Predicate NodeAffinity failed: node(s) didn't match Pod's node affinity/selector",
		"edited": "NodeAffinity Pod was rejected: Predicate NodeAffinity failed: node(s) didn't match Pod's node affinity/selector",
	} {
		p := c.become(t, name+"-e2e-node", "jsonpath={.status.phase}=Failed")
		if have := p.Status.Reason + " " + p.Status.Message; !strings.HasPrefix(have, want) {
			t.Errorf("%s: %s", name, have)
		}
		if len(p.Status.ContainerStatuses) > 0 {
			t.Errorf("%s has containers: %+v", name, p.Status.ContainerStatuses)
		}
		c.waitEvent(t, p.Name, p.Status.Reason)
		rejected[name] = p
	}

	// What two of them lack comes, and the mirrors of two are deleted: they stay Failed, the mirrors come back.
	c.kubectl(t, "label", "node", "e2e-node", "disk=ssd")
	if err := os.Remove(filepath.Join(dir, "holder.yaml")); err != nil {
		t.Fatal(err)
	}
	c.gone(t, "pod", "holder-e2e-node")
	for _, name := range []string{"port", "label"} {
		c.kubectl(t, "delete", "pod", name+"-e2e-node")
		p := c.mirrorReplaced(t, name+"-e2e-node", rejected[name].UID, "jsonpath={.status.phase}=Failed")
		if old := rejected[name].Status; p.Status.Reason != old.Reason || p.Status.Message != old.Message {
			t.Errorf("%s after its mirror was deleted: %s: %q", name, p.Status.Reason, p.Status.Message)
		}
		rejected[name] = p
	}

	// A changed manifest is another pod, which is admitted.
	writeFile(t, filepath.Join(dir, "edited.yaml"), staticPod("edited", "2", selector, ""))
	c.become(t, "edited-e2e-node", "jsonpath={.metadata.labels.version}=2")
	edited := c.become(t, "edited-e2e-node", "condition=Ready")
	for name, old := range rejected {
		if p := c.pod(t, name+"-e2e-node"); name != "edited" &&
			(p.UID != old.UID || p.Status.Phase != corev1.PodFailed || p.Status.Reason != old.Status.Reason) {
			t.Errorf("%s: %s, was %s: %+v", name, p.UID, old.UID, p.Status)
		}
	}

	// A renamed manifest is another pod, too: the first ends, and the second starts.
	id := edited.Status.ContainerStatuses[0].ContainerID
	if err := os.Rename(filepath.Join(dir, "edited.yaml"), filepath.Join(dir, "renamed.yaml")); err != nil {
		t.Fatal(err)
	}
	renamed := c.mirrorReplaced(t, "edited-e2e-node", edited.UID, "condition=Ready")
	if have := renamed.Status.ContainerStatuses[0]; have.ContainerID == id || have.RestartCount != 0 {
		t.Errorf("renamed: %+v", have)
	}

	// A start of carob admits each of them again.
	c.kill(t)
	if err := c.up(); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"port", "label"} {
		if p := c.become(t, name+"-e2e-node", "condition=Ready"); p.UID != rejected[name].UID {
			t.Errorf("%s has another mirror", name)
		}
	}
	if p := c.become(t, "big-e2e-node", "jsonpath={.status.phase}=Failed"); p.Status.Reason != "OutOfcpu" {
		t.Errorf("big: %+v", p.Status)
	}
	if p := c.pod(t, "edited-e2e-node"); p.UID != renamed.UID ||
		p.Status.ContainerStatuses[0].ContainerID != renamed.Status.ContainerStatuses[0].ContainerID {
		t.Errorf("edited: %s, %+v", p.UID, p.Status.ContainerStatuses)
	}

	// Their files are removed: nothing is left.
	for _, name := range []string{"port", "label", "big", "renamed"} {
		if err := os.Remove(filepath.Join(dir, name+".yaml")); err != nil {
			t.Fatal(err)
		}
	}
	c.gone(t, "pods")
}
