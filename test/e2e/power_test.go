package e2e

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"carob/internal/base/testwait"
	"carob/test/e2e/host"
)

// disk is an ext4 file system of its own that can lose power: what no program has synced is lost then.
type disk struct {
	dir   string
	image string
}

// newDisk mounts a new disk until the test ends. Without loop devices the test is skipped.
func newDisk(t *testing.T, size int64) *disk {
	t.Helper()
	base := tempDir(t)
	d := &disk{dir: filepath.Join(base, "d"), image: filepath.Join(base, "image")}
	if err := os.Mkdir(d.dir, 0o755); err != nil {
		t.Fatal(err)
	}
	f, err := os.Create(d.image)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(f.Truncate(size), f.Close()); err != nil {
		t.Fatal(err)
	}
	if _, err := run("mkfs.ext4", "-q", "-E", "lazy_itable_init=1,lazy_journal_init=1", d.image); err != nil {
		t.Fatal(err)
	}
	if err := d.mount(); err != nil {
		t.Skipf("no loop devices: %v", err)
	}
	t.Cleanup(func() { d.unmount(t) })
	return d
}

func (d *disk) mount() error {
	_, err := run("mount", "-o", "loop", d.image, d.dir)
	return err
}

// unmount waits for the last process that has a file open.
func (d *disk) unmount(t *testing.T) {
	t.Helper()
	testwait.Until(t, "the disk is free", func() error {
		if err := unix.Unmount(d.dir, 0); err != nil && !errors.Is(err, unix.EINVAL) { // EINVAL: not mounted
			holders, _ := exec.Command("fuser", "-vm", d.dir).CombinedOutput()
			return fmt.Errorf("%w\n%s", err, holders)
		}
		return nil
	})
}

// ext4Shutdown (EXT4_IOC_SHUTDOWN) ends all writes to a file system; with noLogFlush also those of its journal.
const (
	ext4Shutdown = 0x8004587d
	noLogFlush   = 2
)

// losePower ends everything of a cluster on the disk at once, as when the machine loses power, and gives the host as it
// is after the machine has started: no process, mount, cgroup, link, table or file in /run is left, and the disk has
// what was synced. The cluster can be started again.
func (d *disk) losePower(t *testing.T, c *cluster) {
	t.Helper()
	pid := c.owner(t).PID // the file with it cannot be read any more after this
	f, err := os.Open(d.dir)
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.IoctlSetPointerInt(int(f.Fd()), ext4Shutdown, noLogFlush); err != nil {
		t.Fatalf("shut the file system down: %v", err)
	}
	_ = f.Close()
	c.machineStops(t, pid, d.dir)
	d.unmount(t)
	if err := d.mount(); err != nil {
		t.Fatal(err)
	}
}

// machineStops ends everything of a cluster, whose process has this ID, at once, and gives the host as it is after the
// machine has started: no process, mount but these, cgroup, link, table or file in /run is left.
func (c *cluster) machineStops(t *testing.T, pid int, mounts ...string) {
	t.Helper()
	_ = unix.Kill(pid, unix.SIGKILL)
	testwait.Until(t, "no process of the cluster runs", func() error {
		pids := c.processes(t)
		for _, p := range append(pids, pid) {
			_ = unix.Kill(p, unix.SIGKILL)
		}
		if len(pids) > 0 || unix.Kill(pid, 0) == nil {
			return fmt.Errorf("these run: %v, carob %d", pids, pid)
		}
		return nil
	})
	seen, err := host.Take()
	if err != nil {
		t.Fatal(err)
	}
	ours := func(kind string) []string {
		names := host.Of(seen[kind], c.ID, c.BridgeName, c.DataDir)
		slices.SortFunc(names, func(a, b string) int { return strings.Compare(b, a) }) // what is below first
		return names
	}
	for _, m := range ours("mount") {
		if !slices.Contains(mounts, m) {
			if err := unix.Unmount(m, unix.MNT_DETACH); err != nil && !errors.Is(err, unix.EINVAL) {
				t.Fatalf("unmount %s: %v", m, err)
			}
		}
	}
	for _, l := range ours("link") {
		_ = exec.Command("ip", "link", "delete", l).Run() // or its peer has gone, and it with it
	}
	for _, n := range ours("nft") {
		if _, err := run(append([]string{"nft", "delete"}, strings.Fields(n)...)...); err != nil {
			t.Fatal(err)
		}
	}
	for _, g := range ours("cgroup") {
		testwait.Until(t, "the cgroup is empty", func() error {
			if err := os.Remove(g); !errors.Is(err, fs.ErrNotExist) {
				return err
			}
			return nil
		})
	}
	if err := os.RemoveAll(c.RunDir); err != nil {
		t.Fatal(err)
	}
}

// processes are those in cgroups of the cluster: its containers and their monitors.
func (c *cluster) processes(t *testing.T) []int {
	t.Helper()
	return processesOf(t, "/"+c.ID)
}

// processesOf are those of which a cgroup's name contains the text.
func processesOf(t *testing.T, text string) []int {
	t.Helper()
	entries, err := os.ReadDir("/proc")
	if err != nil {
		t.Fatal(err)
	}
	var all []int
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		groups, err := os.ReadFile(filepath.Join("/proc", e.Name(), "cgroup"))
		if err == nil && strings.Contains(string(groups), text) {
			all = append(all, pid)
		}
	}
	return all
}
