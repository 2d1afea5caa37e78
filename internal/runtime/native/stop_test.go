package native

import (
	"encoding/binary"
	"os"
	"path/filepath"
	"runtime"
	"testing"
	"time"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// sigwaiter is a program that blocks SIGTERM and receives it with rt_sigtimedwait, as tini and
// pause programs do; it then exits with 0.
func sigwaiter() []byte {
	const base, header = 0x400000, 64 + 56
	code := []byte{
		0x48, 0x83, 0xec, 0x10, // sub rsp, 16
		0x48, 0xc7, 0x04, 0x24, 0x00, 0x40, 0x00, 0x00, // mov qword [rsp], 1<<14
		0x31, 0xff, 0x48, 0x89, 0xe6, 0x31, 0xd2, 0x41, 0xba, 8, 0, 0, 0, // edi=SIG_BLOCK rsi=rsp edx=0 r10=8
		0xb8, 14, 0, 0, 0, 0x0f, 0x05, // rt_sigprocmask
		0x48, 0x89, 0xe7, 0x31, 0xf6, 0x31, 0xd2, 0x41, 0xba, 8, 0, 0, 0, // rdi=rsp esi=0 edx=0 r10=8
		0xb8, 128, 0, 0, 0, 0x0f, 0x05, // rt_sigtimedwait
		0x89, 0xc7, 0x83, 0xef, 15, // edi=eax-SIGTERM
		0xb8, 231, 0, 0, 0, 0x0f, 0x05, // exit_group
	}
	size := uint64(header + len(code))
	le := binary.LittleEndian
	b := append([]byte("\x7fELF\x02\x01\x01"), make([]byte, 9)...)
	b = le.AppendUint16(b, 2)  // executable
	b = le.AppendUint16(b, 62) // x86-64
	b = le.AppendUint32(b, 1)
	for _, v := range []uint64{base + header, 64, 0} { // entry, program headers, no sections
		b = le.AppendUint64(b, v)
	}
	b = le.AppendUint32(b, 0)
	for _, v := range []uint16{64, 56, 1, 0, 0, 0} {
		b = le.AppendUint16(b, v)
	}
	b = le.AppendUint32(b, 1) // load
	b = le.AppendUint32(b, 5) // read, execute
	for _, v := range []uint64{0, base, base, size, size, 0x1000} {
		b = le.AppendUint64(b, v)
	}
	return append(b, code...)
}

// A first process that waits for its signals receives the stop signal.
func TestStopOfSigwait(t *testing.T) {
	if runtime.GOARCH != "amd64" {
		t.Skip("the program is for amd64")
	}
	w := newWorld(t)
	if err := os.WriteFile(filepath.Join(w.cfg.Images.(*dirImages).root, "sigwaiter"), sigwaiter(), 0o755); err != nil {
		t.Fatal(err)
	}
	sb, sbc := w.sandbox("sigwait")
	id := w.run(sb, sbc, "c", func(c *cri.ContainerConfig) { c.Command, c.Args = []string{"/sigwaiter"}, nil })
	begin := time.Now()
	w.stop(id, 20)
	if st := w.wait(id); st.ExitCode != 0 {
		t.Errorf("killed after %v: %v", time.Since(begin), st)
	}
}
