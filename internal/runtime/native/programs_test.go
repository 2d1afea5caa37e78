package native

import (
	"errors"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"carob/internal/runtime/native/monitor"
	"carob/internal/runtime/native/monitor/csrctest"
)

// TestSanitised runs many of this package's tests on builds of both programs with sanitizers. They
// are linked dynamically, as sanitizers require: the helper is loaded before it leaves the host's
// files.
func TestSanitised(t *testing.T) {
	if os.Getenv("CAROB_NATIVE_PROGRAMS") != "" {
		t.Skip("this is the inner run")
	}
	if os.Geteuid() != 0 {
		t.Skip("containers need root")
	}
	dir, err := os.MkdirTemp("", "carob-sanitised") // other users' namespaces read it
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	os.Chmod(dir, 0o755)
	csrctest.Sanitised(t, dir, "helper", "helper.c")
	_, log := csrctest.Sanitised(t, dir, "monitor", "monitor.c", "process.c", "log.c")
	os.WriteFile(log, nil, 0o666)
	os.Chmod(log, 0o666)
	const tests = "^(TestContainerLife|TestExitCodes|TestStop|TestLostLine|TestSharedProcesses|TestSysctls|TestLogs|TestUserNamespace|TestImageVolume|" +
		"TestWhatAContainerSees|TestMounts|TestStartErrors|TestExecSync|TestStreamExec|TestAttach|TestAttachLate|TestAttachAfterLog|TestKilledDuringStart|TestStatusOfUser|TestMountsOverTheKernel|TestSwappedMountPoint)$"
	innerRun(t, dir, tests)
	if report, err := os.ReadFile(log); err != nil || len(report) > 0 {
		t.Errorf("%v\n%s", err, report)
	}
}

// innerRun runs tests of this package with the programs in dir.
func innerRun(t *testing.T, dir, tests string, flags ...string) {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(self, append([]string{"-test.timeout", "4m", "-test.run", tests}, flags...)...)
	cmd.Env = append(os.Environ(), "CAROB_NATIVE_PROGRAMS="+dir)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}

// firstRelease is the commit whose monitors must be supported (csrc/README.md).
const firstRelease = "7b1d284"

// buildOldMonitor builds the monitor of the first release, and the current helper, which is passed
// with each start.
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
	if out, err := exec.Command(gcc,
		append([]string{"-std=gnu11", "-Os", "-static", "-o", filepath.Join(dir, "monitor")},
			sources...)...).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	if err := os.WriteFile(filepath.Join(dir, "helper"), helperProgram, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, firstRelease), nil, 0o644); err != nil {
		t.Fatal(err)
	}
}

// oldSysctls is how the first release encoded sysctls: it set up the pods of its monitors; the
// current runtime never does.
func oldSysctls(sysctls map[string]string) (string, error) {
	var b strings.Builder
	for _, name := range slices.Sorted(maps.Keys(sysctls)) {
		b.WriteString("/proc/sys/" + name + "\x00" + sysctls[name] + "\x00")
	}
	return b.String(), nil
}

// usePrograms replaces the embedded programs by those in a directory.
func usePrograms(dir string) error {
	var err1, err2 error
	monitorProgram, err1 = os.ReadFile(filepath.Join(dir, "monitor"))
	helperProgram, err2 = os.ReadFile(filepath.Join(dir, "helper"))
	if exists(filepath.Join(dir, firstRelease)) {
		monitor.EncodeSysctls = oldSysctls
	}
	return errors.Join(err1, err2)
}
