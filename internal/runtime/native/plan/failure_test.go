package plan

import (
	"errors"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// A subPath that its image does not have, or that leads out of it, is named as the user wrote it.
func TestFailureOfImageSubPath(t *testing.T) {
	for errno, want := range map[unix.Errno]string{
		unix.ENOENT: `subPath "no/such" of an image volume: no such file or directory`,
		unix.EXDEV:  `subPath "no/such" leads out of its image volume: invalid cross-device link`,
		unix.ELOOP:  `subPath "no/such" leads out of its image volume: too many levels of symbolic links`,
	} {
		p := &Program{}
		p.treeIn("/state/containers/1/volume-0", "no/such")
		err := p.Failure(0, 0, errno, "")
		if err == nil || err.Error() != want || !errors.Is(err, errno) {
			t.Errorf("%v: %v, want %s", errno, err, want)
		}
	}
	p := &Program{}
	p.treeIn("/state/containers/1/volume-0", "")
	if err := p.Failure(0, 0, unix.ENOENT, ""); err == nil || !strings.Contains(err.Error(), "/state/containers") {
		t.Errorf("the place of the whole image is not named: %v", err)
	}
}

// A file system that cannot have the IDs of a user namespace is named by its place in the container.
func TestFailureOfUserNamespace(t *testing.T) {
	p := &Program{}
	p.tree("/dev/null", false)
	h := p.tree("/pods/1/volumes/token", false)
	p.attr(h, 0, unix.MS_PRIVATE, false, 1)
	for _, want := range []string{"showing /pods/1/volumes/token ", "showing /var/run/secrets ", "Linux 6.3"} {
		if err := p.Failure(2, 0, unix.EINVAL, ""); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %s", err, want)
		}
		p.Attach(h, "/var/run/secrets", ProcNever)
	}
}

// What a container's configuration names is named in the error: a device plugin may request a device anywhere.
func TestFailureOfPaths(t *testing.T) {
	for want, add := range map[string]func(p *Program){
		`making device "/proc/self/x": not a directory`:   func(p *Program) { p.mknod("/proc/self/x", 0, 0, 0, 0, 0) },
		`making directory "/dev/pts": not a directory`:    func(p *Program) { p.mkdir("/dev/pts", 0o755) },
		`hiding or protecting "/proc/x": not a directory`: func(p *Program) { p.readonly("/proc/x") },
	} {
		p := &Program{}
		add(p)
		if err := p.Failure(0, 0, unix.ENOTDIR, ""); err == nil || err.Error() != want {
			t.Errorf("%v, want %s", err, want)
		}
	}
}
