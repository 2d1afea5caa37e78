package remotedisk

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"k8s.io/klog/v2"

	"carob/internal/base/atomicfile"
	"carob/internal/base/keylock"
)

// Config is what a Manager works with.
type Config struct {
	// Dirs are the directories with the records of all pods; each may be missing. Dir is that of one pod.
	Dirs func() ([]string, error)
	// Run runs a program of the machine and returns the beginning of its output. An error has the exit status
	// (*exec.ExitError), but never the arguments: they may be secrets.
	Run    func(ctx context.Context, name string, args ...string) (string, error)
	Root   string // of the files of the kernel and of udev; empty: /
	Logger klog.Logger
}

// Manager attaches and detaches disks. It is safe for concurrent use.
type Manager struct {
	cfg     Config
	machine machine
	locks   keylock.Locks // by Disk.key
}

// New returns a Manager.
func New(cfg Config) *Manager {
	if cfg.Root == "" {
		cfg.Root = "/"
	}
	return &Manager{cfg: cfg, machine: machine{cfg.Root}}
}

// Attach makes a disk a block device, and returns its path. The record of the disk is stored first, as name in the
// directory of the pod's records. It may be repeated.
func (m *Manager) Attach(ctx context.Context, dir, name string, d Disk, s Secrets) (device string, err error) {
	if err := errors.Join(d.Check(), s.check()); err != nil {
		return "", err
	}
	unlock, err := m.locks.Acquire(ctx, d.key())
	if err != nil {
		return "", err
	}
	defer unlock()
	text, err := json.Marshal(d)
	if err != nil {
		return "", fmt.Errorf("record a disk: %w", err)
	}
	if err := os.MkdirAll(dir, 0o750); err != nil {
		return "", fmt.Errorf("record a disk: %w", err)
	}
	if err := atomicfile.Write(filepath.Join(dir, name), text, 0o600); err != nil {
		return "", fmt.Errorf("record a disk: %w", err)
	}
	var devices []string
	if d.ISCSI != nil {
		devices, err = m.attachISCSI(ctx, d.ISCSI, s)
	} else {
		devices, err = m.attachFC(d.FC)
	}
	if err != nil {
		return "", err
	}
	wait := time.Duration(0) // with one path, multipathd need not make a device
	if d.ISCSI != nil && len(d.ISCSI.Portals) > 1 {
		wait = multipathWait
	}
	above := ""
	// Udev and multipathd do not announce when they are done.
	if _, err := poll(ctx, wait, func() (bool, error) {
		above, err = m.machine.multipath(devices)
		return above != "", err
	}); err != nil {
		return "", err
	}
	if above == "" {
		above = devices[0]
	}
	return m.machine.path("dev", above), nil
}

// Detach removes all disks that have records in the directory of a pod, unless other pods have them, too. Nothing of
// the pod may use them any more. It may be repeated.
func (m *Manager) Detach(ctx context.Context, dir string) error {
	records, err := names(dir)
	if err != nil {
		return fmt.Errorf("find the disks of a pod: %w", err)
	}
	var errs []error
	for _, name := range records {
		if err := m.detach(ctx, dir, name); err != nil {
			errs = append(errs, fmt.Errorf("detach the disk of volume %s: %w", name, err))
		}
	}
	return errors.Join(errs...)
}

func (m *Manager) detach(ctx context.Context, dir, name string) error {
	path := filepath.Join(dir, name)
	d, err := read(path)
	if errors.Is(err, errDamaged) {
		// It was written by others, or is damaged: which disk it is cannot be known.
		m.cfg.Logger.Error(err, "A record of a disk cannot be used, and the disk stays attached", "record", path)
		return os.Remove(path)
	}
	if err != nil {
		return err
	}
	unlock, err := m.locks.Acquire(ctx, d.key())
	if err != nil {
		return err
	}
	defer unlock()
	used, target, err := m.users(path, d)
	if err != nil {
		return err
	}
	if !used {
		if err := m.remove(ctx, d); err != nil {
			return err
		}
	}
	if d.ISCSI != nil && !target {
		if err := m.logout(ctx, d.ISCSI); err != nil {
			return err
		}
	}
	return os.Remove(path)
}

// users reports whether other records are of the same disk, and whether others are of the same iSCSI target.
func (m *Manager) users(own string, d *Disk) (disk, target bool, err error) {
	dirs, err := m.cfg.Dirs()
	if err != nil {
		return false, false, err
	}
	for _, dir := range dirs {
		records, err := names(dir)
		if err != nil {
			return false, false, err
		}
		for _, name := range records {
			path := filepath.Join(dir, name)
			if path == own {
				continue
			}
			other, err := read(path)
			if errors.Is(err, fs.ErrNotExist) || errors.Is(err, errDamaged) {
				continue // it went meanwhile, or is of no use to its own pod
			}
			if err != nil {
				return false, false, err // it may be of the same disk
			}
			disk = disk || d.same(other)
			target = target || d.ISCSI != nil && other.ISCSI != nil && other.ISCSI.Target == d.ISCSI.Target
		}
	}
	return disk, target, nil
}

// errDamaged is the error for a record whose content is not that of a disk.
var errDamaged = errors.New("the record of a disk is damaged")

func read(path string) (*Disk, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	d := &Disk{}
	err = json.Unmarshal(text, d)
	if err == nil {
		err = d.Check()
	}
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errDamaged, err)
	}
	return d, nil
}

// remove removes the devices of a disk from the kernel, after the multipath device above them.
func (m *Manager) remove(ctx context.Context, d *Disk) error {
	var devices []string
	var err error
	if d.ISCSI != nil {
		devices, err = m.machine.lunDevices(d.ISCSI.Target, d.ISCSI.LUN)
	} else {
		devices, err = m.machine.fcDevices(d.FC)
	}
	if err != nil {
		return err
	}
	above, err := m.machine.multipath(devices)
	if err != nil {
		return err
	}
	if above != "" {
		slaves, err := names(m.machine.path("sys/block", above, "slaves"))
		if err != nil {
			return err
		}
		if d.FC != nil { // the disk by all its paths
			devices = slaves
		}
		if err := m.machine.free(above); err != nil {
			return err
		}
		if out, err := m.cfg.Run(ctx, "multipath", "-f", m.machine.path("dev", above)); err != nil {
			return fmt.Errorf("flush multipath device %s: %w: %s", above, err, out)
		}
	}
	for _, name := range devices {
		if !blockDevice.MatchString(name) {
			continue
		}
		if err := m.machine.free(name); err != nil {
			return err
		}
		err := m.machine.write("1", "sys/block", name, "device/delete")
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("remove device %s: %w", name, err)
		}
	}
	return nil
}

// attachFC finds the devices of a disk; if there is no multipath device, the hosts look for new disks first.
func (m *Manager) attachFC(d *FC) ([]string, error) {
	devices, err := m.machine.fcDevices(d)
	if err != nil {
		return nil, err
	}
	if above, err := m.machine.multipath(devices); err != nil || above != "" {
		return devices, err
	}
	hosts, err := names(m.machine.path("sys/class/scsi_host"))
	if err != nil {
		return nil, err
	}
	for _, host := range hosts {
		if !scsiHost.MatchString(host) {
			continue
		}
		if err := m.machine.write("- - -", "sys/class/scsi_host", host, "scan"); err != nil {
			m.cfg.Logger.V(2).Info("A host does not look for new disks", "host", host, "err", err)
		}
	}
	if devices, err = m.machine.fcDevices(d); err == nil && len(devices) == 0 {
		err = errors.New("no fc disk found")
	}
	return devices, err
}

const pollPeriod = 100 * time.Millisecond

// poll calls a function until it is true, at most for a time.
func poll(ctx context.Context, most time.Duration, done func() (bool, error)) (bool, error) {
	until := time.Now().Add(most)
	for {
		ok, err := done()
		if ok || err != nil || !time.Now().Before(until) {
			return ok, err
		}
		select {
		case <-time.After(pollPeriod):
		case <-ctx.Done():
			return false, ctx.Err()
		}
	}
}
