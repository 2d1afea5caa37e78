package native

//go:generate make -C csrc

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// programs are the two C programs as sealed files in memory: a container that
// gets hold of one can't write to it (CVE-2019-5736).
type programs struct {
	monitor, helper *os.File
}

func loadPrograms() (*programs, error) {
	m, err := sealed("carob-monitor", monitorProgram)
	if err != nil {
		return nil, err
	}
	h, err := sealed("carob-init", helperProgram)
	if err != nil {
		return nil, errors.Join(err, m.Close())
	}
	return &programs{monitor: m, helper: h}, nil
}

func (p *programs) close() error {
	return errors.Join(p.monitor.Close(), p.helper.Close())
}

func sealed(name string, content []byte) (*os.File, error) {
	const mfdExec = 0x10 // Linux 6.3; required where vm.memfd_noexec is set
	fd, err := unix.MemfdCreate(name, unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING|mfdExec)
	if errors.Is(err, unix.EINVAL) {
		fd, err = unix.MemfdCreate(name, unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	}
	if err != nil {
		return nil, fmt.Errorf("making %s in memory: %w", name, err)
	}
	w := os.NewFile(uintptr(fd), name)
	defer w.Close()
	if _, err := w.Write(content); err != nil {
		return nil, fmt.Errorf("writing %s to memory: %w", name, err)
	}
	if _, err := unix.FcntlInt(w.Fd(), unix.F_ADD_SEALS, unix.F_SEAL_SHRINK|unix.F_SEAL_GROW|unix.F_SEAL_WRITE|unix.F_SEAL_SEAL); err != nil {
		return nil, fmt.Errorf("sealing %s: %w", name, err)
	}
	// A file that is open for writing can't be executed; keep a reading one.
	r, err := os.OpenFile(fmt.Sprintf("/proc/self/fd/%d", w.Fd()), os.O_RDONLY, 0)
	if err != nil {
		return nil, fmt.Errorf("opening %s: %w", name, err)
	}
	return r, nil
}

// memory is an unnamed file with the given content, read from its start.
func memory(name string, content []byte) (*os.File, error) {
	fd, err := unix.MemfdCreate(name, unix.MFD_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("making %s in memory: %w", name, err)
	}
	f := os.NewFile(uintptr(fd), name)
	if _, err := f.Write(content); err != nil {
		f.Close()
		return nil, fmt.Errorf("writing %s to memory: %w", name, err)
	}
	return f, nil
}
