package e2e

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"carob/internal/base/testwait"
)

// agentPods are the pods that a standalone node agent lists.
func (c *cluster) agentPods(path string) ([]corev1.Pod, error) {
	text, err := c.tryKubectl("", "get", "--raw", path)
	if err != nil {
		return nil, err
	}
	var list corev1.PodList
	err = json.Unmarshal([]byte(text), &list)
	return list.Items, err
}

// runs waits until the agent's only pod runs and has restarted so often.
func (c *cluster) runs(t *testing.T, restarts int32) corev1.ContainerStatus {
	t.Helper()
	var status corev1.ContainerStatus
	testwait.Until(t, fmt.Sprintf("the pod runs, %d restarts", restarts), func() error {
		pods, err := c.agentPods("/pods")
		if err != nil || len(pods) != 1 || len(pods[0].Status.ContainerStatuses) != 1 {
			return fmt.Errorf("pods %v, %w", pods, err)
		}
		if status = pods[0].Status.ContainerStatuses[0]; !status.Ready || status.RestartCount != restarts {
			return fmt.Errorf("status %+v", status)
		}
		return nil
	})
	return status
}

// TestStandalone: without an API server, static pods run, restart, outlive carob, and end with their manifests (S14).
func TestStandalone(t *testing.T) {
	t.Parallel()
	nativeOnly(t, "the images of its store")
	dir := tempDir(t)
	manifest := filepath.Join(dir, "web.yaml")
	writeFile(t, manifest, staticManifest("1"))
	c := startCluster(t, "--registry-config", mirrors.dir, "--standalone", "--pod-manifest-dir", dir)
	first := c.runs(t, 0)
	contains(t, "status", c.carob(t, "status"), "ready, pid", "node agent", "pods        1 (1 running)")
	contains(t, "images", c.carob(t, "image", "ls"), "busybox")
	pods, err := c.agentPods("/pods")
	if err != nil || len(pods) != 1 {
		t.Fatalf("pods %v, %v", pods, err)
	}
	contains(t, "timeline", c.carob(t, "timeline", "pod/"+pods[0].Name), first.Name)
	if _, err := run(carobBin, "timeline", "pod/none", "--data-dir", c.DataDir); err == nil ||
		!strings.Contains(err.Error(), "no entries for pod default/none") {
		t.Errorf("the timeline of no pod: %v", err)
	}
	if _, err := run(carobBin, "explain", "pod/"+pods[0].Name, "--data-dir", c.DataDir); err == nil ||
		!strings.Contains(err.Error(), "standalone mode") {
		t.Errorf("explain: %v", err)
	}
	if text, err := c.tryKubectl("", "get", "--raw", "/healthz"); err != nil || text != "ok" {
		t.Errorf("/healthz: %q, %v", text, err)
	}
	if running, err := c.agentPods("/runningpods/"); err != nil || len(running) != 1 {
		t.Errorf("/runningpods/: %v, %v", running, err)
	}
	if conn, err := net.Dial("tcp", c.ListenAddr.String()); err == nil {
		conn.Close()
		t.Error("something listens on the API server's port")
	}
	if _, err := os.Stat(filepath.Join(c.DataDir, "etcd")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("there is an etcd: %v", err)
	}
	if _, err := c.tryKubectl("", "get", "pods"); err == nil {
		t.Error("the agent answers as an API server")
	}

	c.carob(t, "down")
	cluster := append([]string{carobBin, "up", "--detach", "--pod-manifest-dir", dir}, c.args[:6]...)
	if _, err := run(cluster...); err == nil || !strings.Contains(err.Error(), "--standalone") {
		t.Errorf("another mode while pods run: %v", err)
	}
	if err := c.up(); err != nil {
		t.Fatal(err)
	}
	if again := c.runs(t, 0); again.ContainerID != first.ContainerID {
		t.Errorf("after a restart of carob: container %s, was %s", again.ContainerID, first.ContainerID)
	}

	writeFile(t, manifest, strings.ReplaceAll(staticManifest("2"), "while :;", "sleep 0.3; exit 3; while :;"))
	testwait.Until(t, "the changed pod restarts", func() error {
		pods, err := c.agentPods("/pods")
		if err != nil || len(pods) != 1 || len(pods[0].Status.ContainerStatuses) != 1 ||
			pods[0].Status.ContainerStatuses[0].RestartCount == 0 {
			return fmt.Errorf("%v, %w", pods, err)
		}
		return nil
	})
	if err := os.Remove(manifest); err != nil {
		t.Fatal(err)
	}
	testwait.Until(t, "the pod goes with its manifest", func() error {
		if pods, err := c.agentPods("/pods"); err != nil || len(pods) > 0 {
			return fmt.Errorf("%d pods, %w", len(pods), err)
		}
		return nil
	})
}
