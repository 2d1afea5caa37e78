package native

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"carob/internal/runtime/native/plan"
)

// podFiles are the pod's files below /etc, in the sandbox's directory.
var podFiles = []string{"hostname", "hosts", "resolv.conf"}

// writePodFiles creates the files that containers see below /etc, and /dev/shm.
func (r *Runtime) writePodFiles(s *sandbox) error {
	dir := r.sandboxDir(s.rec.ID)
	hosts, err := os.ReadFile("/etc/hosts")
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("reading the host's names: %w", err)
	}
	var resolv []byte
	if d := s.config.DnsConfig; len(d.GetServers())+len(d.GetSearches())+len(d.GetOptions()) > 0 {
		resolv = resolvConf(d)
	} else if resolv, err = os.ReadFile("/etc/resolv.conf"); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("reading the host's resolv.conf: %w", err)
	}
	for name, content := range map[string][]byte{"hostname": []byte(s.hostname() + "\n"), "hosts": hosts,
		"resolv.conf": resolv} {
		if err := writeFile(filepath.Join(dir, name), content, 0o644); err != nil {
			return fmt.Errorf("writing the pod's %s: %w", name, err)
		}
	}
	if s.options().GetIpc() == cri.NamespaceMode_NODE {
		return nil
	}
	uid, gid := idsOf(s).hostRoot()
	shm := filepath.Join(r.runDir(s.rec.ID), "shm")
	if err := os.Mkdir(shm, 0o700); err != nil {
		return fmt.Errorf("making the pod's shared memory: %w", err)
	}
	if err := unix.Mount("shm", shm, "tmpfs", plan.StdFlags,
		fmt.Sprintf("mode=1777,size=65536k,uid=%d,gid=%d", uid, gid)); err != nil {
		return fmt.Errorf("mounting the pod's shared memory: %w", err)
	}
	return nil
}

// writeFile writes a file that containers read, independent of carob's umask.
func writeFile(name string, content []byte, perm os.FileMode) error {
	if err := os.WriteFile(name, content, perm); err != nil {
		return err
	}
	return os.Chmod(name, perm)
}

func resolvConf(d *cri.DNSConfig) []byte {
	var b strings.Builder
	if len(d.Searches) > 0 {
		b.WriteString("search " + strings.Join(d.Searches, " ") + "\n")
	}
	for _, s := range d.Servers {
		b.WriteString("nameserver " + s + "\n")
	}
	if len(d.Options) > 0 {
		b.WriteString("options " + strings.Join(d.Options, " ") + "\n")
	}
	return []byte(b.String())
}
