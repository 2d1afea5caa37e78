package suites

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"carob/internal/runtime"
	"carob/internal/runtime/remote"
	"carob/internal/runtime/runtimetest"
)

// containerd is a containerd of the test's own: configuration, state, socket, network.
type containerd struct {
	dir, bridge string
	cmd         *exec.Cmd
	rt          *remote.Runtime
}

func (c *containerd) socket() string { return filepath.Join(c.dir, "c.sock") }

func startContainerd(t testing.TB) *containerd {
	t.Helper()
	for _, program := range []string{"containerd", "runc", "ctr"} {
		if _, err := exec.LookPath(program); err != nil {
			t.Skipf("no %s here (apt-get install containerd)", program)
		}
	}
	const plugins = "/usr/lib/cni"
	if _, err := os.Stat(plugins); err != nil {
		t.Skip("no CNI plugins here (apt-get install containernetworking-plugins)")
	}
	if os.Geteuid() != 0 {
		t.Skip("containers need root")
	}
	n := int(serial.Add(1))
	dir, err := os.MkdirTemp("", "ctd")
	if err != nil {
		t.Fatal(err)
	}
	c := &containerd{dir: dir, bridge: fmt.Sprintf("ctd%d", os.Getpid()%100000*10+n)}
	for name, text := range map[string]string{
		"config.toml": fmt.Sprintf(`version = 2
root = %q
state = %q
[grpc]
  address = %q
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "registry.k8s.io/pause:3.10"
  # Without CAP_SYS_RESOURCE nobody may lower the value.
  restrict_oom_score_adj = true
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = %q
    conf_dir = %q
  [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
    runtime_type = "io.containerd.runc.v2"
`, filepath.Join(dir, "root"), filepath.Join(dir, "state"), c.socket(), plugins, filepath.Join(dir, "net.d")),
		"net.d/10-test.conflist": fmt.Sprintf(`{"cniVersion": "1.0.0", "name": "test%d", "plugins": [
  {"type": "bridge", "bridge": %q, "isGateway": true, "ipMasq": false,
   "ipam": {"type": "host-local", "dataDir": %q, "ranges": [[{"subnet": "198.19.%d.0/24"}]]}}]}`, n, c.bridge, filepath.Join(dir, "ipam"), 128+(os.Getpid()*7+n)%128),
	} {
		file := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	c.open(t)
	for _, image := range []string{"pause", "busybox"} {
		if out, err := exec.CommandContext(t.Context(), "ctr", "-a", c.socket(), "-n", "k8s.io", "images", "import", archive(t, image)).CombinedOutput(); err != nil {
			t.Fatalf("import %s: %v: %s", image, err, out)
		}
	}
	t.Cleanup(func() {
		c.close(t)
		if link, err := netlink.LinkByName(c.bridge); err == nil {
			_ = netlink.LinkDel(link)
		}
		_ = os.RemoveAll(dir)
	})
	return c
}

func (c *containerd) open(t testing.TB) {
	t.Helper()
	log, err := os.OpenFile(filepath.Join(c.dir, "log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	c.cmd = exec.Command("containerd", "-c", filepath.Join(c.dir, "config.toml"), "-a", c.socket())
	c.cmd.Stdout, c.cmd.Stderr = log, log
	if err := c.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	deadline := time.Now().Add(20 * time.Second)
	for {
		c.rt, err = remote.Dial(t.Context(), "unix://"+c.socket())
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			text, _ := os.ReadFile(filepath.Join(c.dir, "log"))
			t.Fatalf("containerd does not answer: %v\n%s", err, text)
		}
		time.Sleep(20 * time.Millisecond)
	}
}

func (c *containerd) close(t testing.TB) {
	t.Helper()
	_ = c.rt.Close()
	if err := c.cmd.Process.Signal(unix.SIGTERM); err != nil {
		t.Error(err)
	}
	_ = c.cmd.Wait()
}

// The reference: what the suite asks for is what containerd with runc does.
func TestContainerd(t *testing.T) {
	runtimetest.Run(t, func(t testing.TB) runtimetest.Harness {
		c := startContainerd(t)
		v, err := c.rt.Version(context.Background(), nil)
		if err != nil {
			t.Fatal(err)
		}
		t.Logf("%s %s", v.RuntimeName, v.RuntimeVersion)
		return runtimetest.Harness{Runtime: c.rt, Image: busybox, LogRoot: filepath.Join(c.dir, "log.d"), Network: true,
			Restart: func(t testing.TB) runtime.Runtime {
				c.close(t)
				c.open(t)
				return c.rt
			}}
	})
}
