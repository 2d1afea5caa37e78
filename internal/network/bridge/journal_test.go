package bridge

import (
	"net/netip"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"carob/internal/base/netns"
	"carob/internal/network"
)

// tearing is a file on a disk with room for so many bytes.
type tearing struct {
	*os.File
	room int
}

func (f *tearing) Write(b []byte) (int, error) {
	n, err := f.File.Write(b[:min(f.room, len(b))])
	f.room -= n
	if err == nil && n < len(b) {
		err = unix.ENOSPC
	}
	return n, err
}

// attachments are the sandboxes that a journal has.
func attachments(t *testing.T, name string) map[string]int {
	t.Helper()
	out := map[string]int{}
	if err := readJournal(name, func(e entry) {
		if e.Attach != nil {
			out[e.Attach.Sandbox] = len(e.Attach.Ports)
		}
	}); err != nil {
		t.Fatal(err)
	}
	return out
}

// An entry of which the disk took only a part does not damage the next one.
func TestJournalOnFullDisk(t *testing.T) {
	name := filepath.Join(t.TempDir(), "journal")
	j, err := rewriteJournal(name, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer j.close()
	file := &tearing{File: j.file.(*os.File), room: 20}
	j.out.To = file
	for range 3 {
		if err := j.append(entry{Attach: &attachment{Sandbox: "lost"}}); err == nil {
			t.Fatal("the disk is not full")
		}
	}
	file.room = 1 << 20
	for _, sandbox := range []string{"a", "b"} {
		if err := j.append(entry{Attach: &attachment{Sandbox: sandbox}}); err != nil {
			t.Fatal(err)
		}
	}
	if have := attachments(t, name); len(have) != 2 {
		t.Errorf("the journal has %v", have)
	}
}

// A pod may have more host ports than fit into a line of usual length.
func TestLongJournalEntry(t *testing.T) {
	name := filepath.Join(t.TempDir(), "journal")
	at := &attachment{Sandbox: "many"}
	for port := range 20_000 {
		at.Ports = append(at.Ports, network.PortMapping{Protocol: "tcp", ContainerPort: 1, HostPort: uint16(port + 1),
			HostIP: netip.IPv4Unspecified()})
	}
	j, err := rewriteJournal(name, []entry{{Attach: at}, {Attach: &attachment{Sandbox: "next"}}})
	if err != nil {
		t.Fatal(err)
	}
	defer j.close()
	if have := attachments(t, name); have["many"] != len(at.Ports) || len(have) != 2 {
		t.Errorf("the journal has %v", have)
	}
}

// A pod is detached on a full disk, too: its end makes room. The next process knows that it has ended.
func TestDetachOnFullDisk(t *testing.T) {
	cfg := testConfig(t)
	n := open(t, cfg)
	pod := network.Pod{UID: "u", SandboxID: "s"}
	at, err := n.Attach(t.Context(), pod)
	if err != nil {
		t.Fatal(err)
	}
	n.mu.Lock()
	n.journal.out.To = &tearing{File: n.journal.file.(*os.File), room: 5}
	n.mu.Unlock()
	if err := n.Detach(t.Context(), pod.SandboxID); err != nil {
		t.Error(err)
	}
	if netns.Pinned(at.NetNS) {
		t.Error("the namespace is left")
	}
	if err := n.Close(); err != nil {
		t.Fatal(err)
	}
	n = open(t, cfg)
	n.mu.Lock()
	left := len(n.attached)
	n.mu.Unlock()
	if left > 0 {
		t.Errorf("the next process has %d pods", left)
	}
	pod.SandboxID = "again"
	if again, err := n.Attach(t.Context(), pod); err != nil || again.IPs[0] != at.IPs[0] {
		t.Errorf("the pod had %v, and gets %v, %v", at.IPs, again.IPs, err)
	}
}
