package monitor

import (
	"encoding/binary"
	"errors"
	"io"
	"os"
	"testing"

	"golang.org/x/sys/unix"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"carob/internal/runtime/native/cgroups"
	"carob/internal/runtime/native/plan"
)

// What a helper reports after its last answer is read when its process has ended, whether or not the helper's own end
// of the connection is closed by then.
func TestLateLine(t *testing.T) {
	ready, process := reportOf('X', 0, 0, 0, ""), reportOf('P', 0, 4711, 0, "")
	failed := reportOf('E', 3, unix.ENOEXEC, 3, "/bin/sh")
	for _, c := range []struct {
		name    string
		reports [][]byte
		open    bool
		want    string
	}{
		{"runs", [][]byte{process, ready}, false, ""},
		{"runs, and the helper has not ended yet", [][]byte{ready}, true, ""},
		{"cannot be executed", [][]byte{process, ready, failed}, false, "exec /bin/sh: exec format error"},
		{"is killed", [][]byte{process}, false, ErrKilledEarly.Error()},
		{"is killed while it reports", [][]byte{ready[:7]}, true, ErrKilledEarly.Error()},
		{"is killed before it reports", nil, false, ErrKilledEarly.Error()},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := &plan.Program{}
			p.RequestFiles(func(p *plan.Program, files [][]byte) (*plan.Identity, error) {
				if string(files[0]) != "root" {
					t.Errorf("file %q", files[0])
				}
				p.Cwd("/")
				p.Lookup([]string{"sh"}, nil)
				p.Exec()
				return &plan.Identity{}, nil
			}, "/etc/passwd")
			line, theirs, err := NewLateLine()
			if err != nil {
				t.Fatal(err)
			}
			defer line.Close()
			defer theirs.Close()
			question := reportOf('F', 0, 0, 0, "root")
			go func() {
				_, _ = theirs.Write(question[:22]) // the rest comes late
				_, _ = theirs.Write(question[22:])
			}()
			d := &Session{Program: p}
			if err := line.Answer(d); err != nil {
				t.Fatal(err)
			}
			readAnswer(t, theirs)
			for _, r := range c.reports {
				if _, err := theirs.Write(r); err != nil {
					t.Fatal(err)
				}
			}
			if !c.open {
				theirs.Close()
			}
			if err := line.Outcome(d); err == nil && c.want != "" || err != nil && err.Error() != c.want {
				t.Errorf("%v, want %q", err, c.want)
			}
		})
	}
}

// A helper that ends before it has its answer, and one that fails.
func TestLateLineWithoutAnswer(t *testing.T) {
	p := &plan.Program{}
	p.Chdir("/nowhere")
	p.RequestFiles(func(*plan.Program, [][]byte) (*plan.Identity, error) { return nil, errors.New("no user") }, "/p")
	for _, c := range []struct {
		sent []byte
		want string
	}{
		{nil, ErrKilledEarly.Error()},
		{reportOf('F', 0, 0, 0, "x")[:5], ErrKilledEarly.Error()},
		{reportOf('F', 0, 0, 0, "x"), "no user"},
	} {
		line, theirs, err := NewLateLine()
		if err != nil {
			t.Fatal(err)
		}
		if _, err := theirs.Write(c.sent); err != nil {
			t.Fatal(err)
		}
		theirs.Close()
		if err := line.Answer(&Session{Program: p}); err == nil || err.Error() != c.want {
			t.Errorf("%v, want %q", err, c.want)
		}
		line.Close()
		line.Close() // harmless
	}
}

// A program for a file that has changed is not executed, whatever its helper reports besides.
func TestLateLineOfAPlannedProgram(t *testing.T) {
	pl := &plan.Container{Groups: &cgroups.Hierarchies{}, Config: &cri.ContainerConfig{}}
	p := pl.ExecProgram([]string{"sh"}, false, 0, 0, plan.Identity{}, false, []byte("root:x:0:0::/root:\n"))
	if _, err := p.Encode(); err != nil || !p.Planned() || p.RequestsFiles() {
		t.Fatal(err, p.Planned(), p.RequestsFiles())
	}
	for _, c := range []struct {
		sent []byte
		want error
	}{
		{reportOf('F', 3, 0, 0, "root:x:0:0::/tmp:\n"), ErrChanged},
		{append(reportOf('F', 3, 0, 0, ""), reportOf('X', 0, 0, 0, "")...), ErrChanged},
		{reportOf('F', 3, 0, 0, "root:x")[:23], ErrKilledEarly}, // while it sent the file
		{reportOf('X', 0, 0, 0, ""), nil},
	} {
		line, theirs, err := NewLateLine()
		if err != nil {
			t.Fatal(err)
		}
		if _, err := theirs.Write(c.sent); err != nil {
			t.Fatal(err)
		}
		theirs.Close()
		if err := line.Outcome(&Session{Program: p}); !errors.Is(err, c.want) {
			t.Errorf("%q: %v, want %v", c.sent, err, c.want)
		}
		line.Close()
	}
}

func readAnswer(t *testing.T, f *os.File) {
	t.Helper()
	var size [4]byte
	if _, err := io.ReadFull(f, size[:]); err != nil {
		t.Fatal(err)
	}
	if _, err := io.CopyN(io.Discard, f, int64(binary.LittleEndian.Uint32(size[:]))); err != nil {
		t.Fatal(err)
	}
}
