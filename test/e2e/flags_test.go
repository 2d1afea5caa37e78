package e2e

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"carob/internal/base/testwait"
)

// TestOtherStoreKeepsPods: flags and stores that would be another cluster are refused, and the pods go on.
func TestOtherStoreKeepsPods(t *testing.T) {
	t.Parallel()
	nativeOnly(t, "the demo image is imported")
	c := startCluster(t)
	c.carob(t, "demo", "--keep")
	before := c.pod(t, "carob-demo").Status.ContainerStatuses[0]
	if _, err := run(carobBin, "down", "--data-dir", c.DataDir); err != nil {
		t.Fatal(err)
	}
	up := append([]string{"up"}, c.args...)
	for _, x := range []struct{ flag, value, want string }{
		{"--etcd-servers", "http://127.0.0.1:1", "would be another cluster"},
		{"--runtime-endpoint", "unix:///run/none.sock", "down --pods"},
		{"--node-name", "another", "down --pods"},
		{"--pod-cidr", "10.254.0.0/16", "down --pods"},
		{"--service-cidr", "10.254.0.0/16", "stored Services"},
	} {
		contains(t, x.flag, carobFails(t, append(slices.Clip(up), x.flag, x.value)...), x.flag+":", x.want, "--force")
	}
	etcd := filepath.Join(c.DataDir, "etcd")
	if err := os.Rename(etcd, etcd+".kept"); err != nil {
		t.Fatal(err)
	}
	contains(t, "a store that is gone", carobFails(t, up...), "another cluster", "--force")
	if err := os.RemoveAll(etcd); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(etcd+".kept", etcd); err != nil {
		t.Fatal(err)
	}
	if err := c.up(); err != nil {
		t.Fatal(err)
	}
	after := c.pod(t, "carob-demo").Status.ContainerStatuses[0]
	if after.ContainerID != before.ContainerID || after.RestartCount != 0 || after.State.Running == nil {
		t.Errorf("the pod was touched:\nbefore %+v\nafter  %+v", before, after)
	}
}

// TestForcedStoreEndsPods: with --force a new store is the cluster, and `down --pods` clears the way without it.
func TestForcedStoreEndsPods(t *testing.T) {
	t.Parallel()
	nativeOnly(t, "the demo image is imported")
	c := startCluster(t)
	c.carob(t, "demo", "--keep")
	if _, err := run(carobBin, "down", "--data-dir", c.DataDir); err != nil {
		t.Fatal(err)
	}
	if err := os.RemoveAll(filepath.Join(c.DataDir, "etcd")); err != nil {
		t.Fatal(err)
	}
	if _, err := run(append([]string{carobBin, "up", "--detach", "--force"}, c.args...)...); err != nil {
		t.Fatal(err)
	}
	if out := c.kubectl(t, "get", "pods", "-o", "name"); out != "" {
		t.Errorf("pods of the old cluster: %s", out)
	}
	c.carob(t, "demo", "--keep")
	if err := c.end(); err != nil {
		t.Fatal(err)
	}
	// Nothing runs: nothing is lost by another name.
	if _, err := run(append([]string{carobBin, "up", "--detach"},
		append(c.args, "--node-name", "another")...)...); err != nil {
		t.Error(err)
	}
}

// With an audit log, requests that the server makes while it handles another one work, too, such as those for kubectl
// top, and the log shows who does what: each controller is a user of its own (W11.6).
func TestAuditLog(t *testing.T) {
	dir := t.TempDir()
	policy, file := filepath.Join(dir, "policy.yaml"), filepath.Join(dir, "audit.log")
	if err := os.WriteFile(policy, []byte("apiVersion: audit.k8s.io/v1\nkind: Policy\nrules: [{level: Metadata}]\n"),
		0o600); err != nil {
		t.Fatal(err)
	}
	c := startCluster(t, "--registry-config", mirrors.dir, "--audit-policy-file", policy, "--audit-log-path", file)
	c.kubectl(t, "create", "deployment", "none", "--image=busybox:1.36", "--replicas=0")
	c.kubectl(t, "rollout", "status", "deployment/none")
	testwait.Until(t, "kubectl top node", func() error {
		_, err := c.tryKubectl("", "top", "node", "--no-headers")
		return err
	})
	testwait.Until(t, "the audit log", func() error {
		log, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		wanted := map[string]string{
			"system:serviceaccount:kube-system:deployment-controller create": "kube-controller-manager/",
			"system:apiserver get": "kube-apiserver/",
		}
		for line := range strings.Lines(string(log)) {
			var e struct {
				Verb, UserAgent string
				User            struct{ Username string }
			}
			if err := json.Unmarshal([]byte(line), &e); err != nil {
				return err
			}
			who := e.User.Username + " " + e.Verb
			if agent, ok := wanted[who]; ok && strings.HasPrefix(e.UserAgent, agent) {
				delete(wanted, who)
			}
		}
		if len(wanted) > 0 {
			return fmt.Errorf("no request of %v", wanted)
		}
		return nil
	})
}
