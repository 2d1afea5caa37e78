package monitor

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"

	"carob/internal/runtime/native/monitor/csrctest"
	"carob/internal/runtime/native/wire"
)

// harness is a process that runs scripts through the C code (csrc/fuzz).
type harness struct {
	program, log string
	mu           sync.Mutex
	cmd          *exec.Cmd
	in           io.WriteCloser
	out          io.Reader
}

func newHarness(tb testing.TB, name string) *harness {
	h := &harness{}
	h.program, h.log = csrctest.Sanitised(tb, tb.TempDir(), name, "fuzz/"+name+".c")
	tb.Cleanup(h.stop)
	return h
}

func (h *harness) stop() {
	if h.cmd != nil {
		h.in.Close()
		_ = h.cmd.Process.Kill()
		_ = h.cmd.Wait() // killed
		h.cmd = nil
	}
}

// run fails the test if the script corrupts the memory of the program.
func (h *harness) run(t *testing.T, script []byte) {
	t.Helper()
	h.feed(t, script, 0)
}

// feed is run for a harness that writes a size before its response.
func (h *harness) feed(t *testing.T, script []byte, size int) []byte {
	t.Helper()
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.cmd == nil {
		h.cmd = exec.Command(h.program)
		var err error
		if h.in, err = h.cmd.StdinPipe(); err != nil {
			t.Fatal(err)
		}
		if h.out, err = h.cmd.StdoutPipe(); err != nil {
			t.Fatal(err)
		}
		if err := h.cmd.Start(); err != nil {
			t.Fatal(err)
		}
	}
	_, werr := h.in.Write(append(binary.LittleEndian.AppendUint32(nil, uint32(len(script))), script...))
	answer := make([]byte, size+1)
	_, rerr := io.ReadFull(h.out, answer)
	if err := errors.Join(werr, rerr); err != nil {
		state := h.cmd.Wait()
		h.cmd = nil
		report, _ := os.ReadFile(h.log)
		os.Remove(h.log)
		t.Fatalf("%v: %v\n%s", err, state, report)
	}
	return answer[:size]
}

// FuzzStrings: C reads exactly the bytes that Go wrote; a string that it would read differently is
// rejected by Go, and by C if Go does not.
func FuzzStrings(f *testing.F) {
	h := newHarness(f, "strings")
	f.Add("kernel/shm_rmid_forced", "1\x00/etc/passwd\x00text", "a", "b", true)
	f.Add("", "", "", "", false)
	f.Add("/proc/sys/net", "0 2147483647", "A=b", "C=\xff\n\"", false)
	f.Add("\x00", "\x01\x00\x00\x00", "\x05\x00\x00\x00x", "", true)
	f.Fuzz(func(t *testing.T, a, b, c, d string, force bool) {
		if len(a)+len(b)+len(c)+len(d) > 60000 {
			t.Skip("longer than a message")
		}
		list := []string{c, d, a}
		text, lerr := wire.Pack(list)
		r := wire.Message{Code: 7, Flags: wire.Bytes << 3, S: [4]string{a, b, c, text}}
		err := errors.Join(lerr, r.Check())
		if whole := !strings.Contains(a+b+c+d, "\x00"); whole != (err == nil) {
			t.Fatalf("%q %q %q %q: %v", a, b, c, d, err)
		}
		if err != nil && !force {
			return
		}
		if lerr != nil {
			var raw []byte
			for _, s := range list {
				raw = append(append(binary.LittleEndian.AppendUint32(raw, uint32(len(s))), s...), 0)
			}
			r.S[3] = string(raw)
		}
		// Each string with its length, then the list; all zeros for what C rejects.
		var want []byte
		for _, s := range append([]string{a, b, c}, list...) {
			want = append(binary.LittleEndian.AppendUint32(want, uint32(len(s))), s...)
		}
		got := h.feed(t, r.Append(nil), len(want))
		if err != nil {
			want = make([]byte, len(want))
		}
		if !bytes.Equal(got, want) {
			t.Fatalf("C reads %q, Go wrote %q", got, want)
		}
	})
}

// FuzzHelper: a damaged program of operations ends in an error, without an access to foreign
// memory.
func FuzzHelper(f *testing.F) {
	h := newHarness(f, "helper")
	for _, p := range samplePrograms(f) {
		b, err := p.Encode()
		if err != nil {
			f.Fatal(err)
		}
		script := append(binary.LittleEndian.AppendUint32(nil, uint32(len(b))), b...)
		f.Add(script)
		if p.RequestsFiles() { // what the helper does with the answer to its question
			rest, _, err := p.Answer([][]byte{[]byte("root:x:0:0:root:/root:/bin/sh\n"), nil})
			if err != nil {
				f.Fatal(err)
			}
			f.Add(append(script, append(make([]byte, 96), rest...)...))
			f.Add(append(binary.LittleEndian.AppendUint32(nil, uint32(len(rest)-4)), rest[4:]...))
		}
	}
	f.Fuzz(func(t *testing.T, script []byte) { h.run(t, script) })
}

// FuzzMonitor: no client of its socket can corrupt a monitor's memory, in any order of
// messages, lost connections, and exits.
func FuzzMonitor(f *testing.F) {
	h := newHarness(f, "monitor")
	id := strings.Repeat("a", 64)
	send := func(conn, files byte, r wire.Message) []byte {
		b := r.Append(nil)
		return append(append([]byte{2, conn, files}, byte(len(b)), byte(len(b)>>8)), b...)
	}
	frame := func(conn byte, b string) []byte {
		return append([]byte{2, conn, 0, byte(len(b)), byte(len(b) >> 8)}, b...)
	}
	ends := func(child byte) []byte { return []byte{0, child, 7} }
	sysctls, err := EncodeSysctls(map[string]string{"net/a": "1", "b": "2"})
	if err != nil {
		f.Fatal(err)
	}
	setup := send(0, 3, wire.Message{Code: msgSetup, Flags: wire.Bytes << 1,
		N: [4]int64{flagListen | flagNetNS | flagPodPID, 0x0c000000}, S: [4]string{"host", sysctls}})
	start := send(0, 6, wire.Message{Code: msgStart, Seq: 2,
		N: [4]int64{FlagStdin | flagOOMFile | flagCgroupFD, PIDNew},
		S: [4]string{id, "/var/log/x", ""}})
	tty := send(0, 4, wire.Message{Code: msgStart, Seq: 2, N: [4]int64{FlagTTY | FlagStdin, PIDPod},
		S: [4]string{id, "", ""}})
	attach := send(1, 0, wire.Message{Code: msgAttach, Seq: 3, S: [4]string{id}})
	script := func(parts ...[]byte) []byte { return bytes.Join(parts, nil) }
	f.Add(script(setup, start, send(0, 0, wire.Message{Code: msgList}), ends(0),
		send(0, 0, wire.Message{Code: msgList})))
	f.Add(script(setup, start, attach, frame(1, "\x00input"), frame(1, "\x01\x18\x00\x00\x00\x50\x00\x00\x00"),
		frame(1, "\x02"), ends(0)))
	f.Add(script(setup, start, send(0, 0, wire.Message{Code: msgShown, S: [4]string{id}}), ends(0),
		send(0, 0, wire.Message{Code: msgShown, S: [4]string{id}}), attach))
	f.Add(script(setup, tty, attach, frame(1, "\x00x"), []byte{1, 1}, ends(0)))
	f.Add(script(setup, start,
		send(0, 7, wire.Message{Code: msgExec, Seq: 9, N: [4]int64{flagCgroupFD}, S: [4]string{id}}),
		send(0, 0, wire.Message{Code: msgKill, N: [4]int64{9, 9}}),
		send(0, 0, wire.Message{Code: msgKill, N: [4]int64{9}, S: [4]string{id}}), ends(1), []byte{1, 0}, ends(0)))
	f.Add(script(start, start, send(0, 1, wire.Message{Code: msgStart}),
		send(0, 0, wire.Message{Code: msgReopen, S: [4]string{id}}), send(0, 2, wire.Message{Code: 99}),
		send(0, 0, wire.Message{Code: msgQuit})))
	prepare := send(0, 2, wire.Message{Code: msgPrepare})
	adopt := send(0, 3, wire.Message{Code: msgStart, Seq: 2,
		N: [4]int64{flagPrepared | flagOOMFile | flagLogFD, PIDNew},
		S: [4]string{id, "/var/log/x", ""}})
	f.Add(script(prepare, prepare, setup, adopt, attach, ends(0), adopt))
	f.Add(script(prepare, ends(0), setup, adopt, start))
	f.Fuzz(func(t *testing.T, script []byte) { h.run(t, script) })
}
