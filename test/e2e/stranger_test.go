package e2e

import (
	"archive/tar"
	"bufio"
	"compress/gzip"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// TestKubectlEndsBySignals: what waits in kubectl ends by SIGTERM, as kubectl itself does.
func TestKubectlEndsBySignals(t *testing.T) {
	nativeOnly(t, "the demo image is imported")
	c := shared
	c.carob(t, "demo", "--keep")
	c.remove(t, "carob-demo")
	for _, args := range [][]string{{"proxy", "--port=0"}, {"port-forward", "pod/carob-demo", ":8080"},
		{"get", "pods", "--watch"}} {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		cmd := exec.CommandContext(ctx, carobBin, append([]string{"--data-dir", c.DataDir, "kubectl"}, args...)...)
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		if _, err := bufio.NewReader(out).ReadString('\n'); err != nil {
			t.Errorf("%v says nothing: %v", args, err)
		}
		_ = cmd.Process.Signal(syscall.SIGTERM)
		_ = cmd.Wait()
		if ctx.Err() != nil {
			t.Errorf("%v does not end", args)
		}
		cancel()
	}
}

// TestDemoIntoHead: a reader that goes away ends the demo, and the pod goes, too.
func TestDemoIntoHead(t *testing.T) {
	nativeOnly(t, "the demo image is imported")
	if out, err := run("sh", "-c", carobBin+" --data-dir "+shared.DataDir+" demo | head -2"); err != nil ||
		strings.Count(out, "\n") != 2 {
		t.Errorf("%q, %v", out, err)
	}
	shared.kubectl(t, "wait", "--for=delete", "pod/carob-demo", "--timeout="+patience.String())
}

func TestLsAndStatus(t *testing.T) {
	c := shared
	var all []struct {
		Name, DataDir, State string
		Pods                 *int
	}
	if err := json.Unmarshal([]byte(c.carob(t, "ls", "-o", "json")), &all); err != nil {
		t.Fatal(err)
	}
	found := false
	for _, x := range all {
		if x.DataDir == c.DataDir {
			found = x.Name == c.ID && x.State == "ready" && x.Pods != nil
		}
	}
	if !found {
		t.Errorf("%s is not listed as ready: %+v", c.DataDir, all)
	}
	contains(t, "ls", c.carob(t, "ls"), "NAME", c.ID, c.DataDir)
	contains(t, "ls -o name", c.carob(t, "ls", "-o", "name"), c.DataDir+"\n")

	out, err := run(carobBin, "--kubeconfig", c.Kubeconfig, "status")
	if err != nil {
		t.Error(err)
	}
	contains(t, "status of a kubeconfig", out, "ready", "node e2e-node", c.Kubeconfig)
	file := filepath.Join(t.TempDir(), "config")
	contains(t, "merge", c.carob(t, "kubeconfig", "--merge", "--file", file), "context "+c.ID)
	if out, err := run(kubectlBin, "--kubeconfig", file, "get", "nodes", "-o", "name"); err != nil ||
		out != "node/e2e-node\n" {
		t.Errorf("%q, %v", out, err)
	}
}

func TestImageNames(t *testing.T) {
	nativeOnly(t, "image import goes to another runtime with its own tools")
	c := shared
	c.carob(t, "image", "import", filepath.Join(imageDir, "demo.tar"))
	contains(t, "tag", c.carob(t, "image", "tag", "carob.local/demo:1", "localhost/other:2"), "localhost/other:2")
	contains(t, "ls", c.carob(t, "image", "ls"), "localhost/other:2", "carob.local/demo:1")
	// The requested name, also if the image has other names.
	contains(t, "pull", c.carob(t, "image", "pull", "carob.local/demo:1"), "pulled carob.local/demo:1")
	contains(t, "tag of nothing", carobFails(t, "--data-dir", c.DataDir, "image", "tag", "nosuch:1", "a:1"),
		"there is no image nosuch:1")
	contains(t, "a name that is none",
		carobFails(t, "--data-dir", c.DataDir, "image", "tag", "carob.local/demo:1", "A B"), "not a name of an image")
}

// TestWarnsOfKindsWithoutController: the API server warns a user who creates an Ingress that nothing serves it.
func TestWarnsOfKindsWithoutController(t *testing.T) {
	cmd := shared.command(t.Context(), "create", "ingress", "idle", "--rule=idle.example/=web:80")
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	contains(t, "create", string(out), "Warning: carob was started without --gateway-http")
	out, err = shared.command(t.Context(), "create", "configmap", "driven").CombinedOutput()
	if err != nil || strings.Contains(string(out), "Warning") {
		t.Errorf("%v: %s", err, out)
	}
	shared.kubectl(t, "delete", "ingress/idle", "configmap/driven")
}

// TestSupportBundle: the file has the diagnostic data, and none of the secrets.
func TestSupportBundle(t *testing.T) {
	c := shared
	const secret, env = "planted-s3cret-value", "planted-environment-value"
	c.kubectl(t, "create", "secret", "generic", "planted", "--from-literal=p="+secret)
	c.kubectl(t, "run", "planted", "--image=carob.local/none:1", "--image-pull-policy=Never", "--env=X="+env, "--",
		"--password="+secret)
	t.Cleanup(func() { c.kubectl(t, "delete", "secret/planted", "pod/planted", "--grace-period=1") })
	file := filepath.Join(t.TempDir(), "fault.tar.gz")
	contains(t, "bundle", c.carob(t, "support-bundle", "--output-file", file), file)
	f, err := os.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	z, err := gzip.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	key, err := os.ReadFile(filepath.Join(c.DataDir, "pki", "ca.key"))
	if err != nil {
		t.Fatal(err)
	}
	have := map[string]bool{}
	for r := tar.NewReader(z); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		text, err := io.ReadAll(r)
		if err != nil {
			t.Fatal(err)
		}
		have[strings.TrimPrefix(h.Name, "fault/")] = len(text) > 0
		for _, planted := range []string{secret, env, base64.StdEncoding.EncodeToString([]byte(secret)),
			strings.Split(string(key), "\n")[1], "PRIVATE KEY"} {
			if strings.Contains(string(text), planted) {
				t.Errorf("%s has %q in it", h.Name, planted)
			}
		}
	}
	for _, name := range []string{"version.json", "status.json", "flags.json", "pods.json", "nodes.json", "events.json",
		"metrics/apiserver.txt", "host/nft.txt", "host/cgroups.txt", "timeline/default/planted.json"} {
		if !have[name] {
			t.Errorf("%s is missing or empty: %v", name, have)
		}
	}
}
