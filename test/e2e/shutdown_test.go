package e2e

import (
	"os"
	"strings"
	"testing"

	"github.com/godbus/dbus/v5"
	"github.com/godbus/dbus/v5/prop"

	testbus "carob/test/dbus"
)

const (
	loginPath    = "/org/freedesktop/login1"
	loginManager = "org.freedesktop.login1.Manager"
)

// login is a logind that never shuts anything down.
type login struct {
	conn     *dbus.Conn
	inhibits chan struct{}
	locks    []*os.File // open as long as the test: a finalizer would close them
}

// Inhibit is the call of org.freedesktop.login1.Manager.
func (l *login) Inhibit(_, _, _, _ string) (dbus.UnixFD, *dbus.Error) {
	ours, theirs, err := os.Pipe()
	if err != nil {
		return 0, dbus.MakeFailedError(err)
	}
	l.locks = append(l.locks, ours, theirs)
	l.inhibits <- struct{}{}
	return dbus.UnixFD(theirs.Fd()), nil
}

// startLogin is a bus of its own with a logind on it, which carob takes for the machine's.
func startLogin(t *testing.T) *login {
	t.Helper()
	address, _ := testbus.Start(t, tempDir(t))
	conn, err := dbus.Connect(address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	l := &login{conn: conn, inhibits: make(chan struct{}, 4)}
	if err := conn.Export(l, loginPath, loginManager); err != nil {
		t.Fatal(err)
	}
	if _, err := prop.Export(conn, loginPath,
		prop.Map{loginManager: {"InhibitDelayMaxUSec": {Value: uint64(600_000_000)},
			"PreparingForShutdown": {Value: false}}}); err != nil {
		t.Fatal(err)
	}
	if _, err := conn.RequestName("org.freedesktop.login1", dbus.NameFlagDoNotQueue); err != nil {
		t.Fatal(err)
	}
	return l
}

func (l *login) emitShutdown(t *testing.T, down bool) {
	t.Helper()
	if err := l.conn.Emit(loginPath, loginManager+".PrepareForShutdown", down); err != nil {
		t.Fatal(err)
	}
}

// TestShutdownOfTheMachine: pods end with the reason in their status, no new pod is admitted, and pods run again when
// the shutdown is cancelled (L7.156, L3.35).
func TestShutdownOfTheMachine(t *testing.T) {
	logind := startLogin(t)
	c := startCluster(t, "--registry-config", mirrors.dir, "--shutdown-grace-period", "20s",
		"--shutdown-grace-period-critical-pods", "5s")
	c.kubectl(t, "run", "web", "--image=busybox:1.32.0", "--", "sh", "-c",
		`trap "exit 0" TERM; while :; do sleep 3600 & wait; done`)
	c.wait(t, "pod/web", "condition=Ready")
	<-logind.inhibits // carob holds the shutdown back

	logind.emitShutdown(t, true)
	c.wait(t, "node/e2e-node", "condition=Ready=False")
	c.wait(t, "pod/web", "jsonpath={.status.reason}=Terminated")
	if p := c.pod(t, "web"); p.Status.Message != "Pod was terminated in response to imminent node shutdown." {
		t.Errorf("%s: %q", p.Status.Phase, p.Status.Message)
	}
	contains(t, "why it is not ready",
		c.kubectl(t, "get", "node", "e2e-node", "-o", `jsonpath={.status.conditions[?(@.type=="Ready")].message}`),
		"node is shutting down")
	c.kubectlIn(t, `apiVersion: v1
kind: Pod
metadata: {name: late}
spec:
  nodeName: e2e-node
  tolerations: [{operator: Exists}]
  containers: [{name: c, image: 'busybox:1.32.0', command: [sleep, '3600']}]
`, "apply", "-f", "-")
	c.wait(t, "pod/late", "jsonpath={.status.phase}=Failed")
	if p := c.pod(t, "late"); p.Status.Reason != "NodeShutdown" ||
		!strings.HasSuffix(p.Status.Message, "Pod was rejected as the node is shutting down.") {
		t.Errorf("%s: %q", p.Status.Reason, p.Status.Message)
	}

	logind.emitShutdown(t, false)
	<-logind.inhibits
	c.wait(t, "node/e2e-node", "condition=Ready")
	c.hasEvents(t, "e2e-node", "Normal Shutdown Shutdown manager detected shutdown event",
		"Normal Shutdown Shutdown manager detected shutdown cancellation")
}
