package monitor

import (
	"os"
	"testing"

	"golang.org/x/sys/unix"

	"carob/internal/base/openfile"
)

// The number that a program has here may be another file in the child: Go's runtime uses those after the highest of the
// descriptors that the child inherits.
func TestProgramBesideInheritedFiles(t *testing.T) {
	content, err := os.ReadFile("/bin/true")
	if err != nil {
		t.Fatal(err)
	}
	program, err := sealed("true", content)
	if err != nil {
		t.Fatal(err)
	}
	defer program.Close()
	null, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	defer null.Close()
	high, err := unix.FcntlInt(program.Fd(), unix.F_DUPFD_CLOEXEC, 1000)
	if err != nil {
		t.Fatal(err)
	}
	program = os.NewFile(uintptr(high), "true")
	defer program.Close()
	below := high - 1
	if err := unix.Dup3(openfile.FD(null), below, unix.O_CLOEXEC); err != nil {
		t.Fatal(err)
	}
	inherited := os.NewFile(uintptr(below), "null")
	defer inherited.Close()
	cmd := command(program, inherited)
	cmd.Args = []string{"true"}
	if err := cmd.Run(); err != nil {
		t.Error(err)
	}
}
