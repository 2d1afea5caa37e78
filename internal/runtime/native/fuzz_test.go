package native

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"carob/internal/runtime/native/wire"
)

// sanitised compiles C with the address and the undefined-behaviour sanitizer;
// what they find goes to the log file that it answers.
func sanitised(tb testing.TB, dir, name string, sources ...string) (program, log string) {
	tb.Helper()
	gcc, err := exec.LookPath("gcc")
	if err != nil {
		tb.Skip("no gcc")
	}
	program, log = filepath.Join(dir, name), filepath.Join(dir, "sanitizer.log")
	args := []string{
		"-std=gnu11", "-g", "-O1", "-w", "-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-fno-omit-frame-pointer",
		"-DSANITIZER_LOG=\"" + log + "\"", "-o", program, "csrc/fuzz/sanitizer.c",
	}
	out, err := exec.Command(gcc, append(args, sources...)...).CombinedOutput()
	if err != nil && bytes.Contains(out, []byte("cannot find")) {
		tb.Skipf("gcc has no sanitizers here: %s", out)
	}
	if err != nil {
		tb.Fatalf("%v\n%s", err, out)
	}
	return program, log
}

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
	h.program, h.log = sanitised(tb, tb.TempDir(), name, "csrc/fuzz/"+name+".c")
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

// run fails the test when the script breaks the memory of the program.
func (h *harness) run(t *testing.T, script []byte) {
	t.Helper()
	h.ask(t, script, 0)
}

// ask is run for a harness that writes size bytes before the answer.
func (h *harness) ask(t *testing.T, script []byte, size int) []byte {
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

// FuzzStrings: what C reads of a record is what Go wrote, to the last byte; a string that
// it would read otherwise is refused in Go, and by C when Go would not.
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
		// Each string with its length, then the list; all zeros for what C refuses.
		var want []byte
		for _, s := range append([]string{a, b, c}, list...) {
			want = append(binary.LittleEndian.AppendUint32(want, uint32(len(s))), s...)
		}
		got := h.ask(t, r.Append(nil), len(want))
		if err != nil {
			want = make([]byte, len(want))
		}
		if !bytes.Equal(got, want) {
			t.Fatalf("C reads %q, Go wrote %q", got, want)
		}
	})
}

// FuzzHelper: a program of operations that is damaged ends in an error, not in
// memory that is not its own.
func FuzzHelper(f *testing.F) {
	h := newHarness(f, "helper")
	for _, p := range samplePrograms(f) {
		b, err := p.Encode()
		if err != nil {
			f.Fatal(err)
		}
		script := append(binary.LittleEndian.AppendUint32(nil, uint32(len(b))), b...)
		f.Add(script)
		if p.Asks() { // what the helper does with the answer to its question
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

// FuzzMonitor: whoever reaches its socket can't break a monitor's memory, in any
// order of messages, lost connections and ends of processes.
func FuzzMonitor(f *testing.F) {
	h := newHarness(f, "monitor")
	id := strings.Repeat("a", 64)
	say := func(conn, files byte, r wire.Message) []byte {
		b := r.Append(nil)
		return append(append([]byte{2, conn, files}, byte(len(b)), byte(len(b)>>8)), b...)
	}
	frame := func(conn byte, b string) []byte {
		return append([]byte{2, conn, 0, byte(len(b)), byte(len(b) >> 8)}, b...)
	}
	ends := func(child byte) []byte { return []byte{0, child, 7} }
	sysctls, err := encodeSysctls(map[string]string{"net/a": "1", "b": "2"})
	if err != nil {
		f.Fatal(err)
	}
	setup := say(0, 3, wire.Message{Code: msgSetup, Flags: wire.Bytes << 1, N: [4]int64{flagListen | flagNetNS | flagPodPID, 0x0c000000}, S: [4]string{"host", sysctls}})
	start := say(0, 6, wire.Message{Code: msgStart, Seq: 2, N: [4]int64{flagStdin | flagOOMFile | flagCgroupFD, pidNew}, S: [4]string{id, "/var/log/x", ""}})
	tty := say(0, 4, wire.Message{Code: msgStart, Seq: 2, N: [4]int64{flagTTY | flagStdin, pidPod}, S: [4]string{id, "", ""}})
	attach := say(1, 0, wire.Message{Code: msgAttach, Seq: 3, S: [4]string{id}})
	script := func(parts ...[]byte) []byte { return bytes.Join(parts, nil) }
	f.Add(script(setup, start, say(0, 0, wire.Message{Code: msgList}), ends(0), say(0, 0, wire.Message{Code: msgList})))
	f.Add(script(setup, start, attach, frame(1, "\x00input"), frame(1, "\x01\x18\x00\x00\x00\x50\x00\x00\x00"), frame(1, "\x02"), ends(0)))
	f.Add(script(setup, start, say(0, 0, wire.Message{Code: msgShown, S: [4]string{id}}), ends(0), say(0, 0, wire.Message{Code: msgShown, S: [4]string{id}}), attach))
	f.Add(script(setup, tty, attach, frame(1, "\x00x"), []byte{1, 1}, ends(0)))
	f.Add(script(setup, start, say(0, 7, wire.Message{Code: msgExec, Seq: 9, N: [4]int64{flagCgroupFD}, S: [4]string{id}}),
		say(0, 0, wire.Message{Code: msgKill, N: [4]int64{9, 9}}), say(0, 0, wire.Message{Code: msgKill, N: [4]int64{9}, S: [4]string{id}}), ends(1), []byte{1, 0}, ends(0)))
	f.Add(script(start, start, say(0, 1, wire.Message{Code: msgStart}), say(0, 0, wire.Message{Code: msgReopen, S: [4]string{id}}), say(0, 2, wire.Message{Code: 99}), say(0, 0, wire.Message{Code: msgQuit})))
	f.Fuzz(func(t *testing.T, script []byte) { h.run(t, script) })
}

// TestSanitised runs a good part of this package's tests on sanitised builds of
// both programs. They are linked dynamically, as sanitizers need: the helper is
// loaded before it leaves the host's files.
func TestSanitised(t *testing.T) {
	if os.Getenv("CAROB_NATIVE_PROGRAMS") != "" {
		t.Skip("this is the inner run")
	}
	if os.Geteuid() != 0 {
		t.Skip("containers need root")
	}
	dir, err := os.MkdirTemp("", "carob-sanitised") // namespaces of other users read it
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	os.Chmod(dir, 0o755)
	sanitised(t, dir, "helper", "csrc/helper.c")
	_, log := sanitised(t, dir, "monitor", "csrc/monitor.c", "csrc/process.c", "csrc/log.c")
	os.WriteFile(log, nil, 0o666)
	os.Chmod(log, 0o666)
	const tests = "^(TestContainerLife|TestExitCodes|TestStop|TestLostLine|TestSharedProcesses|TestSysctls|TestLogs|TestUserNamespace|TestImageVolume|" +
		"TestWhatAContainerSees|TestMounts|TestStartErrors|TestExecSync|TestStreamExec|TestAttach|TestAttachLate|TestAttachAfterLog|TestKilledDuringStart|TestStatusOfUser|TestMountsOverTheKernel|TestSwappedMountPoint)$"
	innerRun(t, dir, tests)
	if report, err := os.ReadFile(log); err != nil || len(report) > 0 {
		t.Errorf("%v\n%s", err, report)
	}
}

// innerRun runs tests of this package on the programs in dir.
func innerRun(t *testing.T, dir, tests string) {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(self, "-test.run", tests)
	cmd.Env = append(os.Environ(), "CAROB_NATIVE_PROGRAMS="+dir)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}

// firstRelease is the commit whose monitors must be served (csrc/README.md).
const firstRelease = "7b1d284"

// buildOldMonitor builds the first release's monitor, and today's helper, which
// comes with each start.
func buildOldMonitor(t *testing.T, dir string) {
	t.Helper()
	gcc, err := exec.LookPath("gcc")
	if err != nil {
		t.Skip("no gcc")
	}
	var sources []string
	for _, f := range []string{"monitor.c", "process.c", "log.c", "monitor.h", "common.h"} {
		b, err := exec.Command("git", "show", firstRelease+":./csrc/"+f).Output()
		if err != nil {
			t.Skipf("the history of this source tree does not reach back to %s", firstRelease)
		}
		if err := os.WriteFile(filepath.Join(dir, f), b, 0o644); err != nil {
			t.Fatal(err)
		}
		if strings.HasSuffix(f, ".c") {
			sources = append(sources, filepath.Join(dir, f))
		}
	}
	if out, err := exec.Command(gcc, append([]string{"-std=gnu11", "-Os", "-static", "-o", filepath.Join(dir, "monitor")}, sources...)...).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	if err := os.WriteFile(filepath.Join(dir, "helper"), helperProgram, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, firstRelease), nil, 0o644); err != nil {
		t.Fatal(err)
	}
}

// oldSysctls is how the first release wrote them: it set up the pods that its monitors
// hold, today's runtime never does.
func oldSysctls(sysctls map[string]string) (string, error) {
	var b strings.Builder
	for _, name := range slices.Sorted(maps.Keys(sysctls)) {
		b.WriteString("/proc/sys/" + name + "\x00" + sysctls[name] + "\x00")
	}
	return b.String(), nil
}

// usePrograms replaces the embedded programs by those of a directory.
func usePrograms(dir string) error {
	var err1, err2 error
	monitorProgram, err1 = os.ReadFile(filepath.Join(dir, "monitor"))
	helperProgram, err2 = os.ReadFile(filepath.Join(dir, "helper"))
	if exists(filepath.Join(dir, firstRelease)) {
		encodeSysctls = oldSysctls
	}
	return errors.Join(err1, err2)
}
