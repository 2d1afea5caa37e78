package csi

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"

	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/types"

	"carob/internal/base/atomicfile"
	"carob/internal/base/securepath"
	"carob/internal/core/volume"
)

// Keys of vol_data.json (S4.66, S4.67).
const (
	keySpec       = "specVolID"
	keyHandle     = "volumeHandle"
	keyDriver     = "driverName"
	keyNode       = "nodeName"
	keyAttachment = "attachmentID"
	keyMode       = "volumeLifecycleMode"
	keySELinux    = "seLinuxMountContext"
)

// maxRecord bounds a record that is read.
const maxRecord = 64 << 10

var driverName = regexp.MustCompile(`^[A-Za-z0-9]([-A-Za-z0-9.]*[A-Za-z0-9])?$`)

// checkDriver refuses names of drivers that are not one element of a path.
func checkDriver(name string) error {
	if len(name) > maxDriverName || !driverName.MatchString(name) || name == blockDirectory {
		return fmt.Errorf("invalid name of a CSI driver: %.80q", name)
	}
	return nil
}

// checkHandle refuses invalid volume handles.
func checkHandle(h volume.Handle) error {
	if err := checkDriver(h.Driver); err != nil {
		return err
	}
	if h.ID == "" || len(h.ID) > maxHandle || strings.ContainsRune(h.ID, 0) {
		return fmt.Errorf("invalid handle of a volume of driver %s: %d bytes", h.Driver, len(h.ID))
	}
	return nil
}

// checkStep refuses names that are not one element of a path.
func checkStep(name string) error {
	if name == "" || name == "." || name == ".." || len(name) > 255 || strings.ContainsAny(name, "/\x00") {
		return fmt.Errorf("invalid name %.80q", name)
	}
	return nil
}

// writeRecord creates a directory and records in it what will be done next.
func writeRecord(dir string, data map[string]string) error {
	if err := os.MkdirAll(dir, permDir); err != nil {
		return fmt.Errorf("make the directory of a volume: %w", err)
	}
	text, err := json.Marshal(data)
	if err != nil {
		return fmt.Errorf("encode the record of a volume: %w", err)
	}
	if err := atomicfile.Write(filepath.Join(dir, recordName), append(text, '\n'), 0o600); err != nil {
		return fmt.Errorf("store the record of a volume: %w", err)
	}
	return nil
}

// readRecord reads a record, which must name a volume. Links are not followed.
func readRecord(dir string) (map[string]string, volume.Handle, error) {
	none := volume.Handle{}
	f, err := os.OpenFile(filepath.Join(dir, recordName), os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, none, fmt.Errorf("open the record of a volume: %w", err)
	}
	defer func() { _ = f.Close() }()
	text, err := io.ReadAll(io.LimitReader(f, maxRecord))
	if err != nil {
		return nil, none, fmt.Errorf("read the record of a volume: %w", err)
	}
	var data map[string]string
	if err := json.Unmarshal(text, &data); err != nil {
		return nil, none, fmt.Errorf("the record of a volume is damaged: %w", err)
	}
	h := volume.Handle{Driver: data[keyDriver], ID: data[keyHandle]}
	if err := checkHandle(h); err != nil {
		return nil, none, err
	}
	return data, h, nil
}

// entries are the names in a directory; none if it does not exist.
func entries(dir string) ([]string, error) {
	list, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENOTDIR) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read a directory of volumes: %w", err)
	}
	var names []string
	for _, e := range list {
		names = append(names, e.Name())
	}
	return names, nil
}

// load finds the volumes that an earlier agent staged or published, or began to (S4.96).
func (m *Manager) load() error {
	drivers, err := entries(m.pluginDir())
	if err != nil {
		return err
	}
	for _, d := range drivers {
		if d == blockDirectory || checkDriver(d) != nil {
			continue
		}
		hashes, err := entries(filepath.Join(m.pluginDir(), d))
		if err != nil {
			return err
		}
		for _, hash := range hashes {
			m.loadStaged(filepath.Join(m.pluginDir(), d, hash), "")
		}
	}
	blocks, err := entries(m.blockDir())
	if err != nil {
		return err
	}
	for _, pv := range blocks {
		if pv != "staging" && pv != "publish" {
			m.loadStaged(filepath.Join(m.blockDir(), pv, "data"), pv)
		}
	}
	for _, s := range m.volumes { // any order: each by itself
		if !s.block {
			continue
		}
		uids, err := entries(filepath.Join(m.blockDir(), "publish", s.pv))
		if err != nil {
			return err
		}
		for _, uid := range uids {
			m.found(&target{targetKey: targetKey{types.UID(uid), s.pv}, handle: s.handle, block: true})
		}
	}
	pods, err := entries(filepath.Join(m.cfg.Root, "pods"))
	if err != nil {
		return err
	}
	for _, uid := range pods {
		if err := m.loadPod(types.UID(uid)); err != nil {
			return err
		}
	}
	return nil
}

func (m *Manager) loadStaged(dir, pv string) {
	_, h, err := readRecord(dir)
	s := &staged{handle: h, pv: pv, block: pv != "", record: true, users: map[targetKey]bool{}}
	if err == nil && m.stageDir(s) != dir {
		err = fmt.Errorf("the record in %s names another volume", dir)
	}
	if err != nil {
		m.cfg.Logger.Error(err, "A directory of a CSI volume without a usable record stays as it is", "dir", dir)
		return
	}
	m.volumes[h] = s
}

func (m *Manager) loadPod(uid types.UID) error {
	links, err := entries(filepath.Join(m.podDir(uid), "volumeDevices", escapedPlugin))
	if err != nil {
		return err
	}
	for _, name := range links {
		for h, s := range m.volumes { // any order: at most one
			if s.block && s.pv == name {
				m.cfg.Meter.Reconstructed(nil)
				m.found(&target{targetKey: targetKey{uid, name}, handle: h, block: true})
			}
		}
	}
	parent := filepath.Join(m.podDir(uid), "volumes", escapedPlugin)
	names, err := entries(parent)
	if err != nil {
		return err
	}
	for _, name := range names {
		data, h, err := readRecord(filepath.Join(parent, name))
		if err == nil && data[keySpec] != name {
			err = errors.New("the record of a volume names another one")
		}
		m.cfg.Meter.Reconstructed(err)
		if err != nil { // S4.99
			m.cfg.Logger.Error(
				err,
				"A volume without a usable record is removed with its pod",
				"pod",
				uid,
				"volume",
				name,
			)
			m.damaged[uid] = append(m.damaged[uid], filepath.Join(parent, name))
			continue
		}
		m.found(&target{targetKey: targetKey{uid, name}, handle: h, label: data[keySELinux]})
	}
	return nil
}

// found adds a target that was found on disk.
func (m *Manager) found(t *target) {
	t.record, t.before = true, true
	m.targets[t.targetKey] = t
	m.user(t)
}

// user records that a target uses its volume, and returns the volume. Either m.mu is held, or no
// other goroutine exists yet.
func (m *Manager) user(t *target) *staged {
	s := m.volumes[t.handle]
	if s == nil {
		s = &staged{handle: t.handle, block: t.block, users: map[targetKey]bool{}}
		if t.block {
			s.pv = t.name
		}
		m.volumes[t.handle] = s
	}
	s.users[t.targetKey] = true
	return s
}

// drop removes an empty directory, or a file, that a driver has left. A mount point or a directory that is not empty
// stays, and is an error: it may contain data.
func drop(path string) error {
	if securepath.IsMounted(path) {
		return fmt.Errorf("%s is still mounted", path)
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove what a driver left: %w", err)
	}
	return nil
}

// dropRecord removes a record and its directory.
func dropRecord(dir string) error {
	if err := os.Remove(filepath.Join(dir, recordName)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove the record of a volume: %w", err)
	}
	names, err := entries(dir)
	if err != nil {
		return err
	}
	for _, n := range names {
		if strings.HasPrefix(n, "."+recordName+".") { // a crash came while it was written
			if err := os.Remove(filepath.Join(dir, n)); err != nil && !errors.Is(err, fs.ErrNotExist) {
				return fmt.Errorf("remove a part of the record of a volume: %w", err)
			}
		}
	}
	if err := os.Remove(dir); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove the directory of a volume: %w", err)
	}
	return nil
}

// tidy removes directories if they are empty, the inner ones first.
func tidy(dirs ...string) {
	for _, d := range dirs {
		if os.Remove(d) != nil {
			return
		}
	}
}
