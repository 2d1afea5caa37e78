package operator

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

// cluster is a carob of CAROB, the binary, in a directory of its own.
type cluster struct{ carob, dir, pods string }

// up starts a cluster with the image of the Websites; it ends with the test.
func up(t *testing.T) *cluster {
	c := &cluster{carob: os.Getenv("CAROB"), pods: fmt.Sprintf("10.%d.0.0/16", 225+os.Getpid()%28)}
	if c.carob == "" || os.Getuid() != 0 {
		t.Fatal("CAROB, the binary, is not set, or this is not root: use `make operator`")
	}
	var err error
	if c.dir, err = os.MkdirTemp("", "carob-operator-"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			log, _ := os.ReadFile(filepath.Join(c.dir, "carob.log"))
			t.Logf("carob's log:\n%s", log[max(0, len(log)-8000):])
		}
		c.run(t, "down", "--pods")
		if err := os.RemoveAll(c.dir); err != nil {
			t.Error(err)
		}
	})
	c.up(t)
	c.run(t, "image", "import", "../../internal/cli/dist/demo.tar")
	return c
}

func (c *cluster) up(t *testing.T) {
	t.Helper()
	c.run(t, "up", "--detach", "--node-name", "operator-node", "--pod-cidr", c.pods)
}

func (c *cluster) run(t *testing.T, args ...string) string {
	t.Helper()
	out, err := exec.Command(c.carob, append(args, "--data-dir", c.dir)...).CombinedOutput()
	if err != nil {
		t.Fatalf("carob %q: %v\n%s", args, err, bytes.TrimSpace(out))
	}
	return string(out)
}

// kill ends carob with SIGKILL and waits until it is gone.
func (c *cluster) kill(t *testing.T) {
	t.Helper()
	var status struct{ PID int }
	if err := json.Unmarshal([]byte(c.run(t, "status", "-o", "json")), &status); err != nil || status.PID == 0 {
		t.Fatalf("carob status: no process, %v", err)
	}
	fd, err := unix.PidfdOpen(status.PID, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	if err := unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0); err != nil {
		t.Fatal(err)
	}
	for {
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 30_000)
		if n == 1 {
			return
		}
		if !errors.Is(err, unix.EINTR) {
			t.Fatalf("carob does not end: %v", err)
		}
	}
}

func (c *cluster) config(t *testing.T) *rest.Config {
	t.Helper()
	cfg, err := clientcmd.BuildConfigFromFlags("", filepath.Join(c.dir, "admin.kubeconfig"))
	if err != nil {
		t.Fatal(err)
	}
	return cfg
}
