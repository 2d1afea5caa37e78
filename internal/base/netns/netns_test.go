package netns

import (
	"errors"
	"net"
	"os"
	"path/filepath"
	"testing"
)

func TestPin(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("network namespaces need root")
	}
	path := filepath.Join(t.TempDir(), "ns")
	t.Cleanup(func() { _ = Unpin(path) })
	if Pinned(path) {
		t.Error("nothing is pinned")
	}
	if err := DoNew(func() error { return Pin(Current, path) }); err != nil {
		t.Fatal(err)
	}
	if !Pinned(path) {
		t.Error("not pinned")
	}
	if err := Pin("/proc/self/ns/net", path); !errors.Is(err, os.ErrExist) {
		t.Errorf("pinned twice: %v", err)
	}
	if err := Do(path, func() error {
		links, err := net.Interfaces()
		if len(links) != 1 || links[0].Flags&net.FlagLoopback == 0 {
			t.Errorf("a new namespace has %v", links)
		}
		return err
	}); err != nil {
		t.Error(err)
	}
	failure := errors.New("failure")
	if err := Do(path, func() error { return failure }); !errors.Is(err, failure) {
		t.Errorf("what ran inside failed: %v", err)
	}
	for range 2 {
		if err := Unpin(path); err != nil {
			t.Error(err)
		}
	}
	if err := Do(path, func() error { return nil }); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("inside of nothing: %v", err)
	}
}

func TestFailedPinLeavesNoFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "ns")
	if err := Pin(filepath.Join(t.TempDir(), "nothing"), path); err == nil {
		t.Error("no error")
	}
	if _, err := os.Lstat(path); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("left over: %v", err)
	}
}
