package volume

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// devicesDir has a link to each block device that a pod uses, named after its volume (S0.51). Beside it, if carob
// attached a file to a loop device for it, is a link with a dot before the name whose target is the file, as the kernel
// shows it. After a reboot the device may be another file's.
func (m *Manager) devicesDir(uid types.UID) string {
	return filepath.Join(m.podDir(uid), "volumeDevices", "kubernetes.io~local-volume")
}

// blockDevice returns the device of a volume, and whether the pod's link to it is new. A file becomes one by a loop
// device. The link comes before anything uses the device, so that Remove finds it.
func (m *Manager) blockDevice(uid types.UID, pv *corev1.PersistentVolume) (device string, linked bool, err error) {
	if pv.Spec.Local == nil {
		return "", false, errors.New("no volume plugin matched: this node supports block volumes of kind local")
	}
	if err := checkName(pv.Name); err != nil {
		return "", false, err
	}
	m.devices.Lock()
	defer m.devices.Unlock()
	device = pv.Spec.Local.Path
	// Use the descriptor from here on, not the name: the file that was checked must be the one that is attached.
	f, err := os.OpenFile(device, os.O_RDWR|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return "", false, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return "", false, err
	}
	backing := ""
	switch mode := info.Mode(); {
	case mode.IsRegular():
		if device, err = attachLoop(f); err != nil {
			return "", false, err
		}
		if backing, err = backingFile(device); err != nil {
			return "", false, err
		}
	case mode&(fs.ModeDevice|fs.ModeCharDevice) != fs.ModeDevice:
		return "", false, fmt.Errorf("%q is neither a block device nor a file", device)
	}
	link := filepath.Join(m.devicesDir(uid), pv.Name)
	if err := os.MkdirAll(filepath.Dir(link), 0o750); err != nil {
		return "", false, err
	}
	if _, err := relink(loopRecord(link), backing); err != nil {
		return "", false, err
	}
	linked, err = relink(link, device)
	return device, linked, err
}

// loopRecord is where the file of a loop device is recorded that a link names.
func loopRecord(link string) string {
	return filepath.Join(filepath.Dir(link), "."+filepath.Base(link))
}

// relink makes a link to a target, in place of another link, and reports whether it is new. Without a target there is
// no link.
func relink(link, target string) (bool, error) {
	old, err := os.Readlink(link)
	if err == nil && old == target || target == "" && errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err := os.Remove(link); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return false, err
	}
	if target == "" {
		return false, nil
	}
	return true, os.Symlink(target, link)
}

// releaseDevices frees the loop devices of a pod that no other pod uses.
func (m *Manager) releaseDevices(uid types.UID) error {
	m.devices.Lock()
	defer m.devices.Unlock()
	links, err := os.ReadDir(m.devicesDir(uid))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	pods, err := m.OnDisk()
	if err != nil {
		return err
	}
	var errs []error
	for _, l := range links {
		if strings.HasPrefix(l.Name(), ".") {
			continue
		}
		link := filepath.Join(m.devicesDir(uid), l.Name())
		device, err := os.Readlink(link)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		used := false
		for _, other := range pods {
			at, err := os.Readlink(filepath.Join(m.devicesDir(other), l.Name()))
			used = used || other != uid && err == nil && at == device
		}
		if !used && attachedFor(link, device) {
			if err := freeLoop(device); err != nil {
				errs = append(errs, err)
				continue
			}
		}
		_, err = relink(loopRecord(link), "")
		errs = append(errs, os.Remove(link), err)
	}
	return errors.Join(errs...)
}

// attachedFor reports whether a device shows the file that was attached to it for a link: it is neither a device of the
// administrator, nor that of another file since the machine started again.
func attachedFor(link, device string) bool {
	file, err := os.Readlink(loopRecord(link))
	if err != nil {
		return false
	}
	now, err := backingFile(device)
	return err == nil && (now == file || now == file+" (deleted)")
}

// backingFile is the name of a loop device's file as the kernel shows it.
func backingFile(device string) (string, error) {
	text, err := os.ReadFile(filepath.Join("/sys/block", filepath.Base(device), "loop/backing_file"))
	if err != nil {
		return "", err
	}
	return strings.TrimSuffix(string(text), "\n"), nil
}

// freeLoop detaches a loop device; other devices are left alone.
func freeLoop(device string) error {
	const major = 7
	f, err := os.OpenFile(device, os.O_RDWR|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENXIO) {
		return nil
	}
	if err != nil {
		return err
	}
	defer f.Close()
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil || unix.Major(st.Rdev) != major {
		return err
	}
	if err := unix.IoctlSetInt(int(f.Fd()), unix.LOOP_CLR_FD, 0); err != nil && !errors.Is(err, unix.ENXIO) {
		return &os.PathError{Op: "detach", Path: device, Err: err}
	}
	return nil
}
