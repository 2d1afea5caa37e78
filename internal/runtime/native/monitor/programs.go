package monitor

import (
	"errors"
	"fmt"
	"os"
	"sync"

	"golang.org/x/sys/unix"
	"k8s.io/klog/v2"

	"carob/internal/base/openfile"
)

// Programs are the two C programs as sealed files in memory: a container that gets access to one
// cannot write to it (CVE-2019-5736).
type Programs struct {
	mu              sync.Mutex
	monitor, helper *os.File

	monitorText, helperText []byte
}

// Load seals the programs of csrc. Tests pass other ones: of an earlier release, or built with a
// sanitizer.
func Load(monitor, helper []byte) (*Programs, error) {
	m, err := sealed("carob-monitor", monitor)
	if err != nil {
		return nil, err
	}
	h, err := sealed("carob-init", helper)
	if err != nil {
		return nil, errors.Join(err, m.Close())
	}
	return &Programs{monitor: m, helper: h, monitorText: monitor, helperText: helper}, nil
}

// Close closes the files; running programs are not affected.
func (p *Programs) Close() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return errors.Join(p.monitor.Close(), p.helper.Close())
}

// Helper returns the file of the helper. While the helper runs in a container, its processes can
// see the file, which belongs to root, so the container's root can change its mode. Where the
// kernel cannot seal the mode (before Linux 6.3), a file that no process could execute any more is
// replaced. Running helpers keep the old one; its memory is freed with the last of them.
func (p *Programs) Helper() (*os.File, error) {
	return p.executable(&p.helper, "carob-init", p.helperText)
}

// theMonitor returns the file of the monitor, which a container can see for a moment before it
// becomes the helper.
func (p *Programs) theMonitor() (*os.File, error) {
	return p.executable(&p.monitor, "carob-monitor", p.monitorText)
}

// UseHelper makes the next starts use another helper.
func (p *Programs) UseHelper(f *os.File) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.helper = f
}

func (p *Programs) executable(f **os.File, name string, content []byte) (*os.File, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	var st unix.Stat_t
	if err := unix.Fstat(openfile.FD(*f), &st); err != nil {
		return nil, fmt.Errorf("looking at %s: %w", name, err)
	}
	if st.Mode&0o111 == 0o111 {
		return *f, nil
	}
	klog.Background().Info("A container changed the mode of one of carob's programs; the program is created again",
		"program", name, "mode", fmt.Sprintf("%#o", st.Mode&0o7777))
	anew, err := sealed(name, content)
	if err != nil {
		return nil, err
	}
	*f = anew
	return anew, nil
}

const (
	memfdExec = 0x10 // MFD_EXEC, Linux 6.3: required where vm.memfd_noexec is set
	sealExec  = 0x20 // F_SEAL_EXEC, of the same release: no chmod changes the permission to execute it

	sealsOfPrograms = unix.F_SEAL_SHRINK | unix.F_SEAL_GROW | unix.F_SEAL_WRITE | unix.F_SEAL_SEAL | sealExec
)

func sealed(name string, content []byte) (*os.File, error) {
	fd, err := openfile.Memory(name, unix.MFD_ALLOW_SEALING, memfdExec)
	if err != nil {
		return nil, err
	}
	w := os.NewFile(uintptr(fd), name)
	defer w.Close()
	if _, err := w.Write(content); err != nil {
		return nil, fmt.Errorf("writing %s to memory: %w", name, err)
	}
	_, err = unix.FcntlInt(w.Fd(), unix.F_ADD_SEALS, sealsOfPrograms)
	if errors.Is(err, unix.EINVAL) {
		_, err = unix.FcntlInt(w.Fd(), unix.F_ADD_SEALS, sealsOfPrograms&^sealExec)
	}
	if err != nil {
		return nil, fmt.Errorf("sealing %s: %w", name, err)
	}
	// A file that is open for writing cannot be executed; keep one open for reading.
	r, err := os.OpenFile(fmt.Sprintf("/proc/self/fd/%d", w.Fd()), os.O_RDONLY, 0)
	if err != nil {
		return nil, fmt.Errorf("opening %s: %w", name, err)
	}
	return r, nil
}
