package app

import (
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"carob/internal/base/instance"
)

func TestMissingKernelFeatures(t *testing.T) {
	dir := t.TempDir()
	fs := filepath.Join(dir, "filesystems")
	if err := os.WriteFile(fs, []byte("nodev\tproc\n\text4\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	err := kernel(fs, filepath.Join(dir, "ns"), filepath.Join(dir, "cgroup"))
	if err == nil {
		t.Fatal("an empty machine has no problem")
	}
	for _, want := range []string{"net namespaces (CONFIG_NET_NS)", "control groups mounted on /sys/fs/cgroup"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%q lacks %q", err, want)
		}
	}
	if err := kernel("/proc/filesystems", "/proc/self/ns", "/proc"); err != nil {
		t.Errorf("this machine: %v", err)
	}
}

func TestListenNamesTheFlag(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	_, err = listen("the API server", "--listen", l.Addr().String())
	if err == nil || !strings.Contains(err.Error(), "already in use") || !strings.Contains(err.Error(), "--listen") {
		t.Errorf("got %v", err)
	}
	_, err = listen("the API server", "--listen", "192.0.2.1:0")
	if err == nil || !strings.Contains(err.Error(), "does not have this address") {
		t.Errorf("got %v", err)
	}
}

// On a full disk, a second start says that carob already runs there.
func TestFullDisk(t *testing.T) {
	dir := t.TempDir()
	in := instance.Instance{LockFile: filepath.Join(dir, "lock")}
	in.DataDir = dir
	if err := hasSpace(in, minFree); err != nil {
		t.Error(err)
	}
	if err := hasSpace(in, minFree-1); err == nil || !strings.Contains(err.Error(), "free some space") {
		t.Errorf("a full disk: %v", err)
	}
	lock, err := instance.Acquire(in.LockFile, instance.Owner{PID: os.Getpid(), URL: "https://127.0.0.1:6443"})
	if err != nil {
		t.Fatal(err)
	}
	var held *instance.HeldError
	if err := hasSpace(in, 0); !errors.As(err, &held) || held.Owner.PID != os.Getpid() {
		t.Errorf("beside a running carob: %v", err)
	}
	lock.Release()
	if err := hasSpace(in, 0); err == nil || errors.As(err, &held) {
		t.Errorf("after its end: %v", err)
	}
}
