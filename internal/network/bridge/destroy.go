package bridge

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"carob/internal/base/netns"
)

// Destroy removes everything that a network with this config has on the host, open or not,
// including leftovers of a killed process. Pods lose their network.
func Destroy(cfg Config) error {
	var errs []error
	nsDir := filepath.Join(cfg.RunDir, "netns")
	entries, err := os.ReadDir(nsDir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		errs = append(errs, err)
	}
	for _, e := range entries {
		errs = append(errs, netns.Unpin(filepath.Join(nsDir, e.Name())))
	}
	if link, err := netlink.LinkByName(cfg.Bridge); err == nil {
		if _, ok := link.(*netlink.Bridge); ok {
			errs = append(errs, deletePorts(link.Attrs().Index), netlink.LinkDel(link))
		}
	}
	errs = append(errs, (&rules{table: cfg.Table}).remove(),
		(&hostFirewall{bridge: cfg.Bridge, name: cfg.Table}).remove(),
		(&firewalld{bridge: cfg.Bridge}).distrust(context.Background()),
		os.RemoveAll(nsDir))
	// On a disk that turned read-only it stays, as when the machine stops.
	if err := os.RemoveAll(journalName(cfg.StateDir)); !errors.Is(err, unix.EROFS) {
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// deletePorts removes veth pairs whose other end is still in use.
func deletePorts(bridge int) error {
	links, err := dump(netlink.LinkList)
	if err != nil {
		return fmt.Errorf("list network devices: %w", err)
	}
	var errs []error
	for _, l := range links {
		if l.Attrs().MasterIndex == bridge && l.Type() == "veth" {
			if err := netlink.LinkDel(l); err != nil && !errors.Is(err, unix.ENODEV) {
				errs = append(errs, fmt.Errorf("delete %s: %w", l.Attrs().Name, err))
			}
		}
	}
	return errors.Join(errs...)
}
