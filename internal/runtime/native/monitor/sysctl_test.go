package monitor

import (
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"testing"

	"golang.org/x/sys/unix"

	"carob/internal/runtime/native/cgroups"
	"carob/internal/runtime/native/wire"
)

// TestSysctlsStayBelowProcSys: for any names and values in a request, a monitor writes nothing
// outside of /proc/sys.
func TestSysctlsStayBelowProcSys(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("namespaces need root")
	}
	dir := t.TempDir()
	victim := filepath.Join(dir, "victim")
	if err := os.WriteFile(victim, []byte("mine"), 0o644); err != nil {
		t.Fatal(err)
	}
	bin := filepath.Join("..", "csrc", "bin", runtime.GOARCH)
	m, err1 := os.ReadFile(filepath.Join(bin, "monitor"))
	h, err2 := os.ReadFile(filepath.Join(bin, "helper"))
	programs, err3 := Load(m, h)
	if err := errors.Join(err1, err2, err3); err != nil {
		t.Fatal(err)
	}
	defer programs.Close()
	link := filepath.Join(dir, "link")
	if err := os.Symlink("/proc/sys/kernel", link); err != nil {
		t.Fatal(err)
	}
	pack := func(list ...string) string {
		b, err := wire.Pack(list)
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	shm := "kernel/shm_rmid_forced"
	for what, r := range map[string]wire.Message{
		"as the first release wrote it": {S: [4]string{"",
			"/proc/sys/" + shm + "\x001\x00" + victim + "\x00theirs\x00"}},
		"the same as a list": {Flags: wire.Bytes << 1,
			S: [4]string{"", "/proc/sys/" + shm + "\x001\x00" + victim + "\x00theirs\x00"}},
		"a NUL in an element": {Flags: wire.Bytes << 1,
			S: [4]string{"", "\x06\x00\x00\x00a\x00b\x00cd\x00" + pack("x")}},
		"a name alone":       {Flags: wire.Bytes << 1, S: [4]string{"", pack(shm)}},
		"an absolute path":   {Flags: wire.Bytes << 1, S: [4]string{"", pack(victim, "theirs")}},
		"a path that climbs": {Flags: wire.Bytes << 1, S: [4]string{"", pack("../.."+victim, "theirs")}},
		"a link": {Flags: wire.Bytes << 1,
			S: [4]string{"", pack("../.."+link+"/domainname", "theirs")}},
		"another mount": {Flags: wire.Bytes << 1,
			S: [4]string{"", pack("fs/binfmt_misc/register", "theirs")}},
	} {
		m, err := programs.StartMonitor(cgroups.Entry{})
		if err != nil {
			t.Fatal(err)
		}
		r.Code, r.Seq, r.N = msgSetup, 1, [4]int64{0, unix.CLONE_NEWIPC | unix.CLONE_NEWUTS}
		answer := make(chan wire.Message, 1)
		m.mu.Lock()
		m.waiting[1] = answer
		m.mu.Unlock()
		if _, err := m.conn.Write(r.Append(nil)); err != nil {
			t.Fatal(err)
		}
		select {
		case a := <-answer:
			if a.N[0] == 0 {
				t.Errorf("%s: the monitor takes it", what)
			}
		case <-m.Gone(): // it exits when it receives a message that it cannot read
		}
		m.Quit()
	}
	if b, err := os.ReadFile(victim); err != nil || string(b) != "mine" {
		t.Errorf("ESCAPED: the host's file holds %q, %v", b, err)
	}
}
