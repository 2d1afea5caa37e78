package monitor

import (
	"fmt"
	"os"
	"os/exec"
	"testing"

	"carob/internal/base/openfile"
)

// A child inherits descriptors from 3 on, and then executes the program by the number of its own.
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
	cmd := exec.Cmd{Path: fmt.Sprintf("/proc/self/fd/%d", openfile.FD(program)), Args: []string{"true"}}
	for range lowestProgram - 3 {
		cmd.ExtraFiles = append(cmd.ExtraFiles, null)
	}
	if err := cmd.Run(); err != nil {
		t.Error(err)
	}
}
