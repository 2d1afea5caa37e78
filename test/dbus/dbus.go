// Package dbus starts a private message bus, on which a test simulates systemd or logind. Tests of the runtime, of the
// node agent, and of a complete carob drive it. It never touches the machine's own bus.
package dbus

import (
	"bufio"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
)

// Start starts a bus with its socket in dir and makes it the system's bus for
// this process and those it starts. The bus ends with the test, or by stop; a
// machine without dbus-daemon skips the test.
func Start(t *testing.T, dir string) (address string, stop func()) {
	t.Helper()
	daemon, err := exec.LookPath("dbus-daemon")
	if err != nil {
		t.Skip("dbus-daemon is not installed")
	}
	address = "unix:path=" + filepath.Join(dir, "bus")
	cmd := exec.Command(daemon, "--session", "--nofork", "--nopidfile", "--print-address", "--address="+address)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	stop = sync.OnceFunc(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	t.Cleanup(stop)
	if _, err := bufio.NewReader(out).ReadString('\n'); err != nil {
		t.Fatal(err)
	}
	t.Setenv("DBUS_SYSTEM_BUS_ADDRESS", address)
	return address, stop
}
