package suites

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"carob/internal/runtime"
	"carob/internal/runtime/remote"
	"carob/internal/runtime/runtimetest"
	"carob/test/containerd"
)

//go:embed testdata/containerd-1.6.txt
var containerd1 string

//go:embed testdata/containerd-2.4.txt
var containerd2 string

// The reference: the suite requires what containerd with runc does.
func TestContainerd(t *testing.T) {
	t.Parallel()
	runtimetest.Run(t, func(t testing.TB) runtimetest.Harness {
		c := startContainerd(t)
		rt := c.dial(t)
		v, err := rt.Version(context.Background(), nil)
		if err != nil {
			t.Fatal(err)
		}
		t.Logf("%s %s", v.RuntimeName, v.RuntimeVersion)
		differs := containerd2
		if strings.HasPrefix(strings.TrimPrefix(v.RuntimeVersion, "v"), "1.") {
			differs = containerd1
		}
		return runtimetest.Harness{Runtime: rt, Image: busybox, LogRoot: filepath.Join(c.dir, "log.d"), Network: true,
			CgroupParent: func(pod string) string { return c.group + "/" + pod }, LimitPod: limitPod, Differs: differs,
			Restart: func(t testing.TB) runtime.Runtime {
				if err := c.Restart(t.Context()); err != nil {
					t.Fatal(err)
				}
				return c.dial(t)
			}}
	})
}

// daemon is a containerd with the connections to it, which are closed first.
type daemon struct {
	*containerd.Daemon
	dir   string
	group string // parent of all its pods' cgroups
	conns []*remote.Runtime
}

func startContainerd(t testing.TB) *daemon {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("containers need root")
	}
	n := int(serial.Add(1))
	dir, err := os.MkdirTemp("", "ctd")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	bridge := fmt.Sprintf("ctd%d", os.Getpid()%100000*10+n)
	subnet := fmt.Sprintf("198.19.%d.0/24", 128+(os.Getpid()*7+n)%128)
	o := containerd.Options{Dir: dir, Bridge: bridge, Subnet: subnet, Programs: os.Getenv("RUNTIME_PROGRAMS"),
		OCIRuntime: os.Getenv("OCI_RUNTIME")}
	c, err := containerd.StartWith(t.Context(), o, archive(t, "pause"), archive(t, "busybox"))
	if errors.Is(err, containerd.ErrNotInstalled) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	d := &daemon{Daemon: c, dir: dir, group: "/" + bridge}
	t.Cleanup(func() {
		defer removeGroups(d.group)
		for _, rt := range d.conns {
			_ = rt.Close()
		}
		if err := d.Close(); err != nil {
			t.Error(err)
		}
	})
	return d
}

func (d *daemon) dial(t testing.TB) *remote.Runtime {
	t.Helper()
	rt, err := remote.Dial(t.Context(), d.Endpoint)
	if err != nil {
		t.Fatal(err)
	}
	d.conns = append(d.conns, rt)
	return rt
}
