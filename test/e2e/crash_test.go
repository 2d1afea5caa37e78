package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"carob/internal/base/testwait"
)

// TestKilledCarobKeepsContainers: kill -9 while pods run, start again: no
// container restarted, logs complete, an exit that happened meanwhile has its right code.
func TestKilledCarobKeepsContainers(t *testing.T) {
	t.Parallel()
	c := startCluster(t, "--registry-config", mirrors.dir)
	gate := t.TempDir()
	b, err := os.ReadFile(manifest("keep"))
	if err != nil {
		t.Fatal(err)
	}
	c.kubectlIn(t, strings.ReplaceAll(string(b), "GATE", gate), "apply", "-f", "-")
	c.wait(t, "pod/steady", "condition=Ready")
	c.wait(t, "pod/ends", "condition=Ready")
	before := c.pod(t, "steady").Status.ContainerStatuses[0]

	c.kill(t)
	// The exit happens while carob does not run: only the monitor notices it.
	if err := os.WriteFile(filepath.Join(gate, "open"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	waitNoProcess(t, "/gate/open")
	if err := c.up(); err != nil {
		t.Fatal(err)
	}
	c.wait(t, "pod/ends", "jsonpath={.status.phase}=Failed")
	if s := c.pod(t, "ends").Status.ContainerStatuses[0].State.Terminated; s == nil || s.ExitCode != 7 ||
		s.Reason != "Error" {
		t.Errorf("the exit that nobody saw: %+v", s)
	}
	contains(t, "its log", c.kubectl(t, "logs", "ends"), "ended")

	after := c.pod(t, "steady").Status.ContainerStatuses[0]
	if after.ContainerID != before.ContainerID || after.RestartCount != 0 || after.State.Running == nil ||
		!after.State.Running.StartedAt.Equal(&before.State.Running.StartedAt) {
		t.Errorf("the container changed:\nbefore %+v\nafter  %+v", before, after)
	}
	lines := strings.Split(strings.TrimSpace(c.kubectl(t, "logs", "steady")), "\n")
	for i, l := range lines {
		if l != "line "+strconv.Itoa(i+1) {
			t.Fatalf("log line %d is %q", i+1, l)
		}
	}
	c.kubectl(t, "exec", "steady", "--", "true")
	c.kubectl(t, "delete", "pod", "steady", "ends")
}

// kill ends carob as a crash would and waits until it is gone.
func (c *cluster) kill(t *testing.T) {
	t.Helper()
	pid := c.owner(t).PID
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	pollIn(t, fd)
}

// waitNoProcess waits until no process has text in its command line.
func waitNoProcess(t *testing.T, text string) {
	t.Helper()
	testwait.For(t, "no process has "+text, func() bool { return findProcess(t, text) == 0 })
}

func findProcess(t *testing.T, text string) int {
	t.Helper()
	entries, err := os.ReadDir("/proc")
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil || pid == os.Getpid() {
			continue
		}
		cmd, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
		if err == nil && strings.Contains(string(cmd), text) {
			return pid
		}
	}
	return 0
}

func pollIn(t *testing.T, fd int) {
	t.Helper()
	for {
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, int(patience.Milliseconds()))
		if err == unix.EINTR {
			continue
		}
		if err != nil || n == 0 {
			t.Fatalf("the process does not end: %v", err)
		}
		return
	}
}

// TestTwoHundredPods: all at once, all Running, all removed; TestMain's look at
// the host proves that nothing is left.
func TestTwoHundredPods(t *testing.T) {
	c := startCluster(t, "--registry-config", mirrors.dir, "--max-pods", "250")
	c.kubectl(t, "create", "namespace", "many")
	var all strings.Builder
	for i := range 200 {
		fmt.Fprintf(&all,
			"---\napiVersion: v1\nkind: Pod\nmetadata: {name: p%d, namespace: many, labels: {part: \"%d\"}}\nspec:\n  terminationGracePeriodSeconds: 1\n"+
				"  containers: [{name: c, image: 'busybox:1.32.0', command: [sh, -c, 'trap \"exit 0\" TERM; while :; do sleep 3600 & wait; done']}]\n", i, i/50)
	}
	c.kubectlIn(t, all.String(), "create", "-f", "-")
	for part := range 4 { // a busy machine needs its time for each
		c.wait(t, "pod", "condition=Ready", "-l", fmt.Sprint("part=", part), "-n", "many")
	}
	contains(t, "running pods",
		fmt.Sprint(strings.Count(c.kubectl(t, "get", "pods", "-n", "many", "--field-selector=status.phase=Running",
			"-o", "name"), "\n")), "200")
	c.kubectl(t, "delete", "pods", "--all", "-n", "many")
	if got := c.kubectl(t, "get", "pods", "-n", "many", "-o", "name"); got != "" {
		t.Errorf("left: %s", got)
	}
	c.kubectl(t, "delete", "namespace", "many")
}
