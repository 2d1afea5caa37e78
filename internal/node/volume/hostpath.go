package volume

import (
	"errors"
	"fmt"
	"io/fs"
	"os"

	corev1 "k8s.io/api/core/v1"

	"carob/internal/node/spec"
)

// hostPath checks, and for two types creates, the path of a hostPath volume (L10.29).
func hostPath(src *corev1.HostPathVolumeSource) (spec.Volume, error) {
	v := spec.Volume{HostPath: src.Path}
	kind := corev1.HostPathUnset
	if src.Type != nil {
		kind = *src.Type
	}
	switch kind {
	case corev1.HostPathUnset:
		// Some runtimes create a missing source, too, but not all.
		if _, err := os.Stat(src.Path); !errors.Is(err, fs.ErrNotExist) {
			return v, nil
		}
		return v, os.MkdirAll(src.Path, 0o755)
	case corev1.HostPathDirectoryOrCreate:
		if _, err := os.Stat(src.Path); errors.Is(err, fs.ErrNotExist) {
			return v, os.MkdirAll(src.Path, 0o755)
		}
		return v, checkType(src.Path, "directory")
	case corev1.HostPathFileOrCreate:
		if _, err := os.Stat(src.Path); errors.Is(err, fs.ErrNotExist) {
			f, err := os.OpenFile(src.Path, os.O_CREATE|os.O_EXCL|os.O_RDONLY, 0o644)
			if err != nil {
				return v, err
			}
			return v, f.Close()
		}
		return v, checkType(src.Path, "file")
	case corev1.HostPathDirectory:
		return v, checkType(src.Path, "directory")
	case corev1.HostPathFile:
		return v, checkType(src.Path, "file")
	case corev1.HostPathSocket:
		return v, checkType(src.Path, "socket file")
	case corev1.HostPathCharDev:
		return v, checkType(src.Path, "character device")
	case corev1.HostPathBlockDev:
		return v, checkType(src.Path, "block device")
	}
	return v, fmt.Errorf("unknown hostPath type %q", kind)
}

func checkType(path, want string) error {
	info, err := os.Stat(path)
	if err != nil {
		return fmt.Errorf("hostPath type check failed, %s is not a %s, unable to determine its type: %w", path, want,
			err)
	}
	if have := typeName(info.Mode()); have != want {
		return fmt.Errorf("hostPath type check failed: %s is not a %s, it's a %s", path, want, have)
	}
	return nil
}

func typeName(mode fs.FileMode) string {
	switch mode.Type() {
	case 0:
		return "file"
	case fs.ModeDir:
		return "directory"
	case fs.ModeSocket:
		return "socket file"
	case fs.ModeDevice | fs.ModeCharDevice:
		return "character device"
	case fs.ModeDevice:
		return "block device"
	case fs.ModeNamedPipe:
		return "named pipe"
	default:
		return "file of an unknown type"
	}
}
