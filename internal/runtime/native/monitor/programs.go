package monitor

import (
	"errors"
	"fmt"
	"os"
	"sync"

	"golang.org/x/sys/unix"
	"k8s.io/klog/v2"
)

// Programs are the two C programs as sealed files in memory: a container that
// gets hold of one can't write to it (CVE-2019-5736).
type Programs struct {
	mu              sync.Mutex
	monitor, helper *os.File

	monitorText, helperText []byte
}

// Load seals the programs of csrc. Tests give some that were built elsewhere: of an earlier
// release, or with a sanitizer.
func Load(monitor, helper []byte) (*Programs, error) {
	m, err := sealed("carob-monitor", monitor, sealsOfPrograms)
	if err != nil {
		return nil, err
	}
	h, err := sealed("carob-init", helper, sealsOfPrograms)
	if err != nil {
		return nil, errors.Join(err, m.Close())
	}
	return &Programs{monitor: m, helper: h, monitorText: monitor, helperText: helper}, nil
}

// Close lets go of the programs; who runs them goes on.
func (p *Programs) Close() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return errors.Join(p.monitor.Close(), p.helper.Close())
}

// Helper is the helper to execute. It is a container's to be seen while it runs there,
// and belongs to root, so that the container's root can change its mode. Where the
// kernel can't seal that (before Linux 6.3), one that nobody could execute any more is
// replaced. Who uses the old one goes on with it; its memory is freed with the last of them.
func (p *Programs) Helper() (*os.File, error) {
	return p.executable(&p.helper, "carob-init", p.helperText)
}

// theMonitor is the same for the monitor, which a container sees in the moment before it
// becomes the helper.
func (p *Programs) theMonitor() (*os.File, error) {
	return p.executable(&p.monitor, "carob-monitor", p.monitorText)
}

// UseHelper has the next starts use another helper.
func (p *Programs) UseHelper(f *os.File) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.helper = f
}

func (p *Programs) executable(f **os.File, name string, content []byte) (*os.File, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	var st unix.Stat_t
	if err := unix.Fstat(RawFD(*f), &st); err != nil {
		return nil, fmt.Errorf("looking at %s: %w", name, err)
	}
	if st.Mode&0o111 == 0o111 {
		return *f, nil
	}
	klog.Background().Info("A container has changed the mode of a program of ours; it is made anew", "program", name,
		"mode", fmt.Sprintf("%#o", st.Mode&0o7777))
	anew, err := sealed(name, content, sealsOfPrograms)
	if err != nil {
		return nil, err
	}
	*f = anew
	return anew, nil
}

const (
	memfdNoExec = 0x8  // MFD_NOEXEC_SEAL and MFD_EXEC, Linux 6.3: one of them is required
	memfdExec   = 0x10 // where vm.memfd_noexec is set
	sealExec    = 0x20 // F_SEAL_EXEC, of the same release: no chmod changes who may execute it

	sealsOfPrograms = unix.F_SEAL_SHRINK | unix.F_SEAL_GROW | unix.F_SEAL_WRITE | unix.F_SEAL_SEAL | sealExec
)

func sealed(name string, content []byte, seals int) (*os.File, error) {
	fd, err := newMemory(name, unix.MFD_ALLOW_SEALING, memfdExec)
	if err != nil {
		return nil, err
	}
	w := os.NewFile(uintptr(fd), name)
	defer w.Close()
	if _, err := w.Write(content); err != nil {
		return nil, fmt.Errorf("writing %s to memory: %w", name, err)
	}
	_, err = unix.FcntlInt(w.Fd(), unix.F_ADD_SEALS, seals)
	if errors.Is(err, unix.EINVAL) {
		_, err = unix.FcntlInt(w.Fd(), unix.F_ADD_SEALS, seals&^sealExec)
	}
	if err != nil {
		return nil, fmt.Errorf("sealing %s: %w", name, err)
	}
	// A file that is open for writing can't be executed; keep a reading one.
	r, err := os.OpenFile(fmt.Sprintf("/proc/self/fd/%d", w.Fd()), os.O_RDONLY, 0)
	if err != nil {
		return nil, fmt.Errorf("opening %s: %w", name, err)
	}
	return r, nil
}

// newMemory makes an unnamed file, with a flag that kernels before 6.3 don't know.
func newMemory(name string, flags, flag int) (int, error) {
	fd, err := unix.MemfdCreate(name, unix.MFD_CLOEXEC|flags|flag)
	if errors.Is(err, unix.EINVAL) {
		fd, err = unix.MemfdCreate(name, unix.MFD_CLOEXEC|flags)
	}
	if err != nil {
		return -1, fmt.Errorf("making %s in memory: %w", name, err)
	}
	return fd, nil
}

// MemoryFile is an unnamed file with the given content, read from its start.
func MemoryFile(name string, content []byte) (*os.File, error) {
	fd, err := newMemory(name, 0, memfdNoExec)
	if err != nil {
		return nil, err
	}
	f := os.NewFile(uintptr(fd), name)
	if _, err := f.Write(content); err != nil {
		f.Close()
		return nil, fmt.Errorf("writing %s to memory: %w", name, err)
	}
	return f, nil
}
