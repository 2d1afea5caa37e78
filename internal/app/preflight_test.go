package app

import (
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
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
