package suites

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"carob/internal/runtime"
	"carob/internal/runtime/remote"
	"carob/internal/runtime/runtimetest"
	"carob/test/containerd"
)

// The reference: what the suite asks for is what containerd with runc does.
func TestContainerd(t *testing.T) {
	runtimetest.Run(t, func(t testing.TB) runtimetest.Harness {
		c := startContainerd(t)
		rt := c.dial(t)
		v, err := rt.Version(context.Background(), nil)
		if err != nil {
			t.Fatal(err)
		}
		t.Logf("%s %s", v.RuntimeName, v.RuntimeVersion)
		return runtimetest.Harness{Runtime: rt, Image: busybox, LogRoot: filepath.Join(c.dir, "log.d"), Network: true,
			Restart: func(t testing.TB) runtime.Runtime {
				if err := c.Restart(t.Context()); err != nil {
					t.Fatal(err)
				}
				return c.dial(t)
			}}
	})
}

// daemon is a containerd with the connections to it, which end before it does.
type daemon struct {
	*containerd.Daemon
	dir   string
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
	c, err := containerd.Start(t.Context(), dir, bridge, subnet, "", archive(t, "pause"), archive(t, "busybox"))
	if errors.Is(err, containerd.ErrNotInstalled) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	d := &daemon{Daemon: c, dir: dir}
	t.Cleanup(func() {
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
