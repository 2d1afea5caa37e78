package e2e

import (
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	testbus "carob/test/dbus"
)

// booted makes carob believe, in a mount namespace of its own, that systemd booted this host.
func booted(t *testing.T) {
	t.Helper()
	hold := exec.Command("unshare", "--mount", "--propagation", "slave", "sh", "-c",
		"mkdir -p /run/systemd && mount -t tmpfs tmpfs /run/systemd && mkdir /run/systemd/system && echo ready && exec cat")
	in, err := hold.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := hold.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := hold.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = in.Close(); _ = hold.Wait() })
	if n, err := out.Read(make([]byte, 6)); n != 6 || err != nil {
		t.Fatalf("the mount namespace was not made: %v", err)
	}
	inside, outside := filepath.Join(tempDir(t), "carob"), carobBin
	script := fmt.Sprintf("#!/bin/sh\nexec nsenter --mount=/proc/%d/ns/mnt -- %s \"$@\"\n", hold.Process.Pid, outside)
	if err := os.WriteFile(inside, []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	carobBin = inside
	t.Cleanup(func() { carobBin = outside })
}

// TestSystemdDriver: systemd makes the slices of pods and the scopes of containers;
// `down` leaves them, the next `up` takes them over, a pod's go with it, and `down --pods` leaves none.
func TestSystemdDriver(t *testing.T) {
	nativeOnly(t, "--cgroup-driver")
	systemd, _ := testbus.StartUnits(t, tempDir(t))
	booted(t)
	c := startCluster(t, "--registry-config", mirrors.dir, "--cgroup-driver", "systemd")
	top := strings.ReplaceAll(c.ID, "-", "_")
	for _, name := range []string{"stays", "goes"} {
		c.kubectlIn(t, fmt.Sprintf(`apiVersion: v1
kind: Pod
metadata: {name: %s}
spec:
  terminationGracePeriodSeconds: 1
  containers:
  - name: c
    image: busybox:1.32.0
    command: [sleep, '3600']
    resources: {requests: {cpu: 10m}, limits: {memory: 64Mi}}
`, name), "apply", "-f", "-")
	}
	c.wait(t, "pod/stays", "condition=Ready")
	c.wait(t, "pod/goes", "condition=Ready")
	unitsOf := func(pod corev1.Pod) (slice, scope string) {
		slice = top + "-kubepods-burstable-pod" + strings.ReplaceAll(string(pod.UID), "-", "_") + ".slice"
		return slice, "cri-carob-" + strings.TrimPrefix(pod.Status.ContainerStatuses[0].ContainerID, "carob://") +
			".scope"
	}
	stays, goes := c.pod(t, "stays"), c.pod(t, "goes")
	slice, scope := unitsOf(stays)
	gone, goneToo := unitsOf(goes)
	contains(t, "systemd's units", strings.Join(systemd.Names(), "\n"), top+"-kubepods.slice",
		top+"-kubepods-burstable.slice", slice, scope, gone, goneToo)
	if got := systemd.Property(scope, "Slice"); got != slice {
		t.Errorf("the scope is in %v, want %s", got, slice)
	}
	c.kubectl(t, "exec", "stays", "--", "true")
	c.kubectl(t, "delete", "pod", "goes")

	c.carob(t, "down")
	if names := strings.Join(systemd.Names(), "\n"); !strings.Contains(names, scope) ||
		!strings.Contains(names, slice) || strings.Contains(names, gone) || strings.Contains(names, goneToo) {
		t.Errorf("after a pod was deleted and carob stopped:\n%s\nwant %s, %s, but none of\n%s, %s", names, slice,
			scope, gone, goneToo)
	}
	if err := c.up(); err != nil {
		t.Fatal(err)
	}
	c.wait(t, "pod/stays", "condition=Ready")
	c.kubectl(t, "exec", "stays", "--", "true")
	if again := c.pod(t,
		"stays"); again.Status.ContainerStatuses[0].ContainerID != stays.Status.ContainerStatuses[0].ContainerID ||
		again.Status.ContainerStatuses[0].RestartCount != 0 {
		t.Errorf("taken over: %+v", again.Status.ContainerStatuses)
	}

	c.carob(t, "down", "--pods")
	if names := systemd.Names(); len(names) > 0 {
		t.Errorf("systemd still has %q", names)
	}
	_ = filepath.WalkDir("/sys/fs/cgroup", func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.IsDir() && (strings.Contains(d.Name(), top) || strings.HasPrefix(d.Name(), c.ID)) {
			t.Errorf("%s is left", path)
		}
		return nil
	})
}
