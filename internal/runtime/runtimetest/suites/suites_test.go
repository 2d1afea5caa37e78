// Package suites runs the runtime's contract on every implementation in the composition of the
// product: real images, the real pod network, the CRI socket.
package suites

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"sync/atomic"
	"testing"

	"github.com/opencontainers/cgroups"
	"github.com/opencontainers/cgroups/manager"
	"golang.org/x/sys/unix"

	"carob/internal/network/bridge"
	"carob/internal/runtime"
	"carob/internal/runtime/native"
	"carob/internal/runtime/native/criserver"
	"carob/internal/runtime/native/images"
	"carob/internal/runtime/native/streaming"
	"carob/internal/runtime/remote"
	"carob/internal/runtime/runtimetest"
	"carob/test/images/build"
)

var serial atomic.Int32

const busybox = "docker.io/library/busybox:1.36"

// archive builds the busybox image once.
func archive(t testing.TB, name string) string {
	t.Helper()
	dir, err := build.DefaultDir()
	if err != nil {
		t.Fatal(err)
	}
	file, err := (&build.Builder{Dir: dir}).Build(t.Context(), name)
	if err != nil {
		t.Fatal(err)
	}
	return file
}

// carob is carob's runtime with its own directories, images, and network.
type carob struct {
	dir     string
	cfg     native.Config
	images  *images.Store
	network *bridge.Network
	bridge  bridge.Config
	streams context.CancelFunc
	rt      *native.Runtime
}

func startCarob(t testing.TB) *carob {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("containers need root")
	}
	n := int(serial.Add(1))
	id := fmt.Sprintf("%d-%d", os.Getpid(), n)
	// Short: paths of sockets and overlays have a maximum length.
	dir, err := os.MkdirTemp("", "crt")
	if err != nil {
		t.Fatal(err)
	}
	o := &carob{dir: dir, bridge: bridge.Config{
		Bridge: fmt.Sprintf("crt%d", os.Getpid()%100000*10+n), Table: "carob-suite-" + id,
		Pods:     netip.PrefixFrom(netip.AddrFrom4([4]byte{198, 19, byte((os.Getpid()*7 + n) % 128), 0}), 24),
		StateDir: filepath.Join(dir, "network"), RunDir: filepath.Join(dir, "run"),
	}}
	o.cfg = native.Config{RootDir: filepath.Join(dir, "root"), StateDir: filepath.Join(dir, "run", "rt"),
		CgroupRoot: "/carob-suite-" + id,
		Name:       "carob", Version: "0.0.0-test", SandboxPool: 1}
	o.open(t)
	f, err := os.Open(archive(t, "busybox"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := o.images.Import(t.Context(), f, nil); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		o.close(t)
		if err := bridge.Destroy(o.bridge); err != nil {
			t.Error(err)
		}
		removeGroups(o.cfg.CgroupRoot)
		if err := os.RemoveAll(dir); err != nil {
			t.Errorf("something is left in %s: %v", dir, err)
		}
	})
	return o
}

func (o *carob) open(t testing.TB) {
	t.Helper()
	var err error
	if o.images, err = images.Open(context.Background(),
		images.Config{Root: filepath.Join(o.dir, "images")}); err != nil {
		t.Fatal(err)
	}
	if o.network, err = bridge.Open(context.Background(), o.bridge); err != nil {
		t.Fatal(err)
	}
	o.cfg.Images, o.cfg.Network = o.images, o.network
	if o.rt, err = native.New(context.Background(), o.cfg); err != nil {
		t.Fatal(err)
	}
	s, err := streaming.New(o.rt.Streams())
	if err != nil {
		t.Fatal(err)
	}
	o.rt.UseStreaming(s)
	var ctx context.Context
	ctx, o.streams = context.WithCancel(context.Background())
	go func() { _ = s.Run(ctx) }()
}

func (o *carob) close(t testing.TB) {
	t.Helper()
	o.streams()
	for what, f := range map[string]func() error{"runtime": o.rt.Close} {
		if err := f(); err != nil {
			t.Errorf("close %s: %v", what, err)
		}
	}
	if err := o.network.Close(); err != nil {
		t.Errorf("close network: %v", err)
	}
	if err := o.images.Close(); err != nil {
		t.Errorf("close images: %v", err)
	}
}

// removeGroups removes what is left of the runtime's root cgroup, in every hierarchy.
func removeGroups(group string) {
	tops, _ := filepath.Glob("/sys/fs/cgroup/*" + group)
	for _, top := range append(tops, "/sys/fs/cgroup"+group) {
		var dirs []string
		_ = filepath.WalkDir(top, func(p string, d os.DirEntry, err error) error {
			if err == nil && d.IsDir() {
				dirs = append(dirs, p)
			}
			return nil
		})
		for _, dir := range slices.Backward(dirs) {
			_ = unix.Rmdir(dir)
		}
	}
}

func (o *carob) harness(rt runtime.Runtime) runtimetest.Harness {
	return runtimetest.Harness{Runtime: rt, Image: busybox, LogRoot: filepath.Join(o.dir, "log"), Events: true,
		Network:      true,
		CgroupParent: func(pod string) string { return o.cfg.CgroupRoot + "/pods/" + pod }, LimitPod: limitPod}
}

// limitPod creates a pod's cgroup like the node agent.
func limitPod(t testing.TB, parent string, bytes int64) {
	t.Helper()
	cm, err := manager.New(&cgroups.Cgroup{Path: parent, Resources: &cgroups.Resources{SkipDevices: true}})
	if err != nil {
		t.Fatal(err)
	}
	if err := cm.Apply(-1); err != nil {
		t.Fatal(err)
	}
	if err := cm.Set(&cgroups.Resources{SkipDevices: true, SkipFreezeOnSet: true, Memory: bytes,
		MemorySwap: bytes}); err != nil {
		t.Fatal(err)
	}
}

func TestNative(t *testing.T) {
	t.Parallel()
	runtimetest.Run(t, func(t testing.TB) runtimetest.Harness {
		o := startCarob(t)
		h := o.harness(o.rt)
		h.Records = true
		h.Restart = func(t testing.TB) runtime.Runtime {
			o.close(t)
			o.open(t)
			return o.rt
		}
		return h
	})
}

// The same runtime over its socket, as crictl and other agents use it.
func TestNativeOverSocket(t *testing.T) {
	t.Parallel()
	runtimetest.Run(t, func(t testing.TB) runtimetest.Harness {
		o := startCarob(t)
		return o.harness(overSocket(t, o.rt, filepath.Join(o.dir, "cri.sock")))
	})
}

func overSocket(t testing.TB, rt runtime.Runtime, path string) *remote.Runtime {
	t.Helper()
	l, err := criserver.Listen(path, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- criserver.New(rt).Run(ctx, l) }()
	client, err := remote.Dial(t.Context(), "unix://"+path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = client.Close()
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return client
}
