package apiserver

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/runtime/schema"
	genericregistry "k8s.io/apiserver/pkg/registry/generic/registry"

	"carob/internal/apiserver/storage"
	"carob/internal/base/testwait"
	"carob/internal/kinds/registry"
)

// The disk is full, and a store waits for a read that never ends: the server closes all the same.
func TestCloseAfterAFullDisk(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("mounts a file system of its own")
	}
	disk := t.TempDir()
	if err := unix.Mount("tmpfs", disk, "tmpfs", 0, "size=150m"); err != nil {
		t.Skipf("no file system of its own: %v", err)
	}
	t.Cleanup(func() { _ = unix.Unmount(disk, unix.MNT_DETACH) })
	e, err := storage.Open(t.Context(), storage.Config{Dir: filepath.Join(disk, "etcd")})
	if err != nil {
		t.Fatal(err)
	}
	go func() {
		value := strings.Repeat("x", 500<<10)
		for i := 0; ; i++ {
			if _, err := e.Client.Client.Put(t.Context(), fmt.Sprint("/k/", i), value); err != nil {
				return
			}
		}
	}()
	hang := make(chan struct{})
	store := &registry.Store{Store: &genericregistry.Store{DestroyFunc: func() { <-hang }}}
	s := &Server{engine: e, stores: stores{schema.GroupResource{Resource: "things"}: store}}
	t.Cleanup(func() { close(hang) })
	<-e.Failed()
	closed := make(chan struct{})
	go func() { defer close(closed); s.closeStores() }()
	testwait.For(t, "the stores are closed", func() bool {
		select {
		case <-closed:
			return true
		default:
			return false
		}
	})
}
