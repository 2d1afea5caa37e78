package logs

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"

	"carob/internal/node/spec"
)

// Newest is the highest restart count among the log files of a container, N.log and its rotated
// files (L3.88); ok is false if there are none, as of a pod whose name is too long for a directory.
func Newest(root string, pod *corev1.Pod, container string) (attempt int, ok bool, err error) {
	entries, err := os.ReadDir(filepath.Join(spec.PodLogDir(root, pod), container))
	if err != nil && !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, unix.ENAMETOOLONG) {
		return 0, false, err
	}
	for _, e := range entries {
		number, _, isLog := strings.Cut(e.Name(), ".log")
		n, err := strconv.ParseUint(number, 10, 31)
		if !isLog || err != nil {
			continue
		}
		attempt, ok = max(attempt, int(n)), true
	}
	return attempt, ok, nil
}
