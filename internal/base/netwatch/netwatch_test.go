package netwatch

import (
	"context"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"carob/internal/base/netns"
	"carob/internal/base/testwait"
)

// look is called at the start and after an address is added, and not after the end.
func TestRun(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("network namespaces need root")
	}
	path := filepath.Join(t.TempDir(), "ns")
	if err := netns.DoNew(func() error { return netns.Pin(netns.Current, path) }); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = netns.Unpin(path) })
	var w *Watch
	if err := netns.Do(path, func() (err error) { w, err = Open(); return err }); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	looks, done := make(chan struct{}, 100), make(chan error, 1)
	go func() { done <- w.Run(ctx, func() { looks <- struct{}{} }) }()
	<-looks
	if err := netns.Do(path, func() error {
		lo, err := netlink.LinkByName("lo")
		if err != nil {
			return err
		}
		addr, err := netlink.ParseAddr("192.0.2.7/24")
		if err != nil {
			return err
		}
		return netlink.AddrAdd(lo, addr)
	}); err != nil {
		t.Fatal(err)
	}
	select {
	case <-looks:
	case <-time.After(testwait.Limit):
		t.Fatal("look was not called after an address was added")
	}
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}
