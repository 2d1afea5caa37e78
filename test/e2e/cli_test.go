package e2e

import (
	"context"
	"encoding/json"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"

	"carob/test/e2e/host"
)

// carobFails runs carob and requires one clear line and an exit code other than 0.
func carobFails(t *testing.T, args ...string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	return failsClearly(t, exec.CommandContext(ctx, carobBin, args...))
}

func failsClearly(t *testing.T, cmd *exec.Cmd) string {
	t.Helper()
	out, err := cmd.CombinedOutput()
	if err == nil {
		t.Fatalf("%s succeeded: %s", strings.Join(cmd.Args, " "), out)
	}
	var errLines []string
	for l := range strings.Lines(string(out)) {
		if strings.HasPrefix(l, "error: ") {
			errLines = append(errLines, strings.TrimSpace(l))
		}
		if strings.Contains(l, "goroutine ") || strings.HasPrefix(l, "panic") {
			t.Fatalf("%s crashed:\n%s", strings.Join(cmd.Args, " "), out)
		}
	}
	if len(errLines) != 1 {
		t.Errorf("%s: want one line that says what is wrong, got:\n%s", strings.Join(cmd.Args, " "), out)
		return string(out)
	}
	return errLines[0]
}

func TestStatusAndHelp(t *testing.T) {
	c := shared
	contains(t, "status", c.carob(t, "status"), "ready", "node e2e-node", "pods")
	var st struct {
		Running, Ready bool
		PID            int
	}
	if err := json.Unmarshal([]byte(c.carob(t, "status", "-o", "json")), &st); err != nil || !st.Running || !st.Ready ||
		st.PID == 0 {
		t.Errorf("status -o json: %+v, %v", st, err)
	}
	contains(t, "built-in kubectl", c.carob(t, "kubectl", "get", "nodes"), "e2e-node", "Ready")
	contains(t, "kubeconfig", c.carob(t, "kubeconfig"), "kind: Config", "client-certificate-data")
	contains(t, "completion", c.carob(t, "completion", "bash"), "__start_carob")
	contains(t, "version", c.carob(t, "version"), "carob ", "Kubernetes v1.37")

	// What the libraries say of themselves, in the answer of the server, to it, and in metrics.
	commands := [][]string{{"version", "-o", "json"}, {"get", "--raw=/version", "-v=8"}, {"get", "--raw=/metrics"}}
	for _, args := range commands {
		cmd := exec.CommandContext(t.Context(), carobBin,
			append([]string{"--data-dir", c.DataDir, "kubectl"}, args...)...)
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("kubectl %v: %v\n%s", args, err, tail(out, 2000))
		}
		for _, unset := range []string{"$Format", "v0.0.0", "1970-"} {
			if line := regexp.MustCompile(".*" + regexp.QuoteMeta(unset) + ".*").Find(out); line != nil {
				t.Errorf("kubectl %v does not know its build: %s", args, line)
			}
		}
	}
}

func TestImages(t *testing.T) {
	nativeOnly(t, "image import goes to another runtime with its own tools")
	c := shared
	archive := filepath.Join(imageDir, "bench.tar")
	contains(t, "import", c.carob(t, "image", "import", archive), "imported localhost/bench:1")
	contains(t, "ls", c.carob(t, "image", "ls"), "IMAGE", "localhost/bench:1")
	contains(t, "rm", c.carob(t, "image", "rm", "localhost/bench:1"), "removed localhost/bench:1")
	if strings.Contains(c.carob(t, "image", "ls"), "localhost/bench:1") {
		t.Error("the image is still listed")
	}
	contains(t, "pull", c.carob(t, "image", "pull", "busybox:1.36"), "pulled docker.io/library/busybox:1.36")
	garbage := filepath.Join(t.TempDir(), "garbage.tar")
	if err := os.WriteFile(garbage, []byte("this is not an archive"), 0o644); err != nil {
		t.Fatal(err)
	}
	contains(t, "garbage", carobFails(t, "--data-dir", c.DataDir, "image", "import", garbage), "garbage.tar")
	contains(t, "absent file", carobFails(t, "--data-dir", c.DataDir, "image", "import", "/does/not/exist"),
		"no such file")
	contains(t, "unknown image", carobFails(t, "--data-dir", c.DataDir, "image", "pull", "busybox:none"),
		"busybox:none")
}

func TestDemoAndTimeline(t *testing.T) {
	nativeOnly(t, "the demo image is imported")
	c := shared
	contains(t, "demo", c.carob(t, "demo"), "scheduled to node e2e-node",
		"init container prepare ended: Completed, exit code 0", "container web is running",
		"ready: the readiness probe succeeded", "Hello from", "hook: postStart", "deletion requested", "gone")
	// The pod is gone; what happened to it is still known.
	line := c.carob(t, "timeline", "pod/carob-demo")
	contains(t, "timeline", line, "web", "prepare")
	contains(t, "no entries", carobFails(t, "--data-dir", c.DataDir, "timeline", "pod/never-was"),
		"no entries for pod default/never-was")
}

func TestInvalidCommandLines(t *testing.T) {
	dir := tempDir(t)
	contains(t, "wrong flag", carobFails(t, "up", "--no-such-flag"), "unknown flag: --no-such-flag")
	contains(t, "wrong address", carobFails(t, "up", "--data-dir", dir, "--listen", "nowhere"), "--listen")
	contains(t, "wrong range", carobFails(t, "up", "--data-dir", dir, "--pod-cidr", "10.0.0.0"), "--pod-cidr")
	contains(t, "surplus argument", carobFails(t, "status", "extra"), "takes no argument")
	contains(t, "no etcd", carobFails(t, "up", "--data-dir", dir, "--etcd-servers", "http://127.0.0.1:1"),
		"etcd at http://127.0.0.1:1 does not answer")
	contains(t, "no cluster", carobFails(t, "--data-dir", dir, "kubectl", "get", "pods"), "carob up")
	contains(t, "second up", carobFails(t, append([]string{"up"}, shared.args...)...), "already running")
	contains(t, "second up, detached", carobFails(t, append([]string{"up", "--detach"}, shared.args...)...),
		"already running")

	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	contains(t, "port taken", carobFails(t, "up", "--data-dir", dir, "--listen", l.Addr().String()),
		"address already in use", l.Addr().String())

	if err := os.Chmod(carobBin, 0o755); err != nil {
		t.Fatal(err)
	}
	nobody := exec.Command(carobBin, "up", "--data-dir", filepath.Join(os.TempDir(), "carob-nobody"))
	nobody.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
	contains(t, "not root", failsClearly(t, nobody), "root")
}

func TestCorruptDataDir(t *testing.T) {
	dir := tempDir(t)
	c, err := newCluster(dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.end(); err != nil {
			t.Error(err)
		}
	})
	if err := c.up(); err != nil {
		t.Fatal(err)
	}
	if _, err := run(carobBin, "down", "--data-dir", dir); err != nil {
		t.Fatal(err)
	}
	var dbs []string
	_ = filepath.Walk(filepath.Join(dir, "etcd"), func(p string, fi os.FileInfo, err error) error {
		if err == nil && fi.Mode().IsRegular() {
			dbs = append(dbs, p)
		}
		return nil
	})
	if len(dbs) == 0 {
		t.Fatal("no store found to damage")
	}
	for _, p := range dbs {
		if err := os.WriteFile(p, []byte("garbage"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := run(carobBin, "down", "--pods", "--data-dir", dir); err != nil {
		t.Fatal(err)
	}
	before, err := host.Take()
	if err != nil {
		t.Fatal(err)
	}
	contains(t, "corrupt store", carobFails(t, append([]string{"up"}, c.args...)...), "etcd")
	after, err := host.Take()
	if err != nil {
		t.Fatal(err)
	}
	if left := host.Of(host.Diff(before, after), c.ID, c.BridgeName, dir); len(left) > 0 {
		t.Errorf("a start that failed left %v", left)
	}
}

func TestFullDisk(t *testing.T) {
	dir := tempDir(t)
	if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, "size=20m"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := syscall.Unmount(dir, 0); err != nil {
			t.Error(err)
		}
	})
	contains(t, "full disk", carobFails(t, "up", "--data-dir", filepath.Join(dir, "d")), "MB left")
}

func TestTwoCarobsSideBySide(t *testing.T) {
	c := startCluster(t, "--registry-config", mirrors.dir)
	for _, x := range []*cluster{shared, c} {
		x.kubectl(t, "run", "twin", "--image=nginx:1.26")
		x.remove(t, "twin")
	}
	for _, x := range []*cluster{shared, c} {
		x.wait(t, "pod/twin", "condition=Ready")
		get(t, "http://"+x.pod(t, "twin").Status.PodIP)
	}
	if a, b := shared.pod(t, "twin").Status.PodIP, c.pod(t, "twin").Status.PodIP; a == b {
		t.Errorf("both pods have address %s", a)
	}
}
