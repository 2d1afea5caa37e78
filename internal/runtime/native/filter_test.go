package native

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"carob/internal/base/testwait"
)

// TestProfileOfAnOlderKernel: a profile that was written before Linux had a system call refuses it, with ENOSYS or
// EPERM. Containers and execs start as with runc, and get no descriptor of the helper.
func TestProfileOfAnOlderKernel(t *testing.T) {
	w := newWorld(t)
	const list = "set -- /proc/self/fd/*; echo $# descriptors" // the fourth is the directory
	for _, errno := range []unix.Errno{unix.ENOSYS, unix.EPERM} {
		path := filepath.Join(w.dir, fmt.Sprintf("%d.json", errno))
		text := fmt.Sprintf(`{"defaultAction": "SCMP_ACT_ALLOW", "syscalls": [{"names": ["close_range", "faccessat2",
			"openat2", "clone3"], "action": "SCMP_ACT_ERRNO", "errnoRet": %d}]}`, errno)
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		for name, change := range map[string]func(*cri.ContainerConfig){
			"plain":    func(*cri.ContainerConfig) {},
			"terminal": func(c *cri.ContainerConfig) { c.Tty = true },
			"no-privs": securityContext(func(s *cri.LinuxContainerSecurityContext) { s.NoNewPrivs = true }),
		} {
			name = fmt.Sprintf("%s-%d", name, errno)
			if w.r.preparesHelpers() {
				w.ready() // the container gets a helper that was started ahead
			}
			sb, sbc := w.sandbox(name)
			id := w.run(sb, sbc, name, shell(list+"; sleep 1000"), change,
				securityContext(func(s *cri.LinuxContainerSecurityContext) {
					s.Seccomp = &cri.SecurityProfile{ProfileType: cri.SecurityProfile_Localhost, LocalhostRef: path}
				}))
			log := ""
			testwait.For(t, "the container has listed its descriptors", func() bool {
				log = w.log(sbc, name)
				return strings.Contains(log, "descriptors")
			})
			if !strings.Contains(log, " 4 descriptors") {
				t.Errorf("%s: the container has %s", name, log)
			}
			x, err := w.exec(id, "sh", "-c", list)
			if err != nil || string(x.GetStdout()) != "4 descriptors\n" {
				t.Errorf("%s: an exec has %q, %v", name, x.GetStdout(), err)
			}
		}
	}
}

// TestMonitorInheritsNothing: what was open where carob was started, a lock for example, does not stay open as long as
// its pods run.
func TestMonitorInheritsNothing(t *testing.T) {
	var pipe [2]int
	if err := unix.Pipe2(pipe[:], 0); err != nil { // without O_CLOEXEC
		t.Fatal(err)
	}
	defer unix.Close(pipe[0])
	defer unix.Close(pipe[1])
	ours, err := os.Readlink(fmt.Sprintf("/proc/self/fd/%d", pipe[0]))
	if err != nil {
		t.Fatal(err)
	}
	w := newWorld(t)
	sb, _ := w.sandbox("inherits")
	s, err := w.r.sandbox(sb)
	if err != nil {
		t.Fatal(err)
	}
	dir := fmt.Sprintf("/proc/%d/fd/", s.line().PID())
	entries, err := os.ReadDir(dir)
	if err != nil || len(entries) == 0 {
		t.Fatal(entries, err)
	}
	for _, e := range entries {
		if file, _ := os.Readlink(dir + e.Name()); file == ours {
			t.Errorf("descriptor %s of the monitor is %s of this process", e.Name(), file)
		}
	}
}
