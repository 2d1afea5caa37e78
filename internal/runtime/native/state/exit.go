package state

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// Exit is what the monitor wrote about a container's exit.
type Exit struct {
	Code int32 // as in a shell: 128 plus the signal's number for a kill
	OOM  bool  // the kernel killed a process of the container for lack of memory
	At   int64 // ns since 1970
}

// ReserveExit reserves the space for the exit file, so that the monitor can write the exit of a
// container to a full disk.
func ReserveExit(dir string) error {
	if err := os.WriteFile(filepath.Join(dir, "exit.tmp"), bytes.Repeat([]byte{' '}, 80), 0o600); err != nil {
		return fmt.Errorf("making room for the container's end: %w", err)
	}
	return nil
}

// LoadExit reads how a container exited; it returns false if it has not.
func LoadExit(dir string) (Exit, bool, error) {
	b, err := os.ReadFile(filepath.Join(dir, "exit"))
	if errors.Is(err, fs.ErrNotExist) {
		return Exit{}, false, nil
	}
	if err != nil {
		return Exit{}, false, err
	}
	f := strings.Fields(string(b))
	if len(f) != 3 {
		return Exit{}, false, fmt.Errorf("%s/exit: %q is not code, oom, time", dir, b)
	}
	code, err1 := strconv.Atoi(f[0])
	at, err2 := strconv.ParseInt(f[2], 10, 64)
	if err := errors.Join(err1, err2); err != nil {
		return Exit{}, false, fmt.Errorf("%s/exit: %w", dir, err)
	}
	return Exit{Code: int32(code), OOM: f[1] == "1", At: at}, true, nil
}
