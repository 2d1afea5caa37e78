package native

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// schedule gives all threads of the test a scheduling policy.
func schedule(t *testing.T, policy, priority uint32) {
	t.Helper()
	for range 2 { // threads that were made in the meantime
		threads, err := os.ReadDir("/proc/self/task")
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range threads {
			id, err := strconv.Atoi(e.Name())
			if err != nil {
				t.Fatal(err)
			}
			err = unix.SchedSetAttr(id,
				&unix.SchedAttr{Size: unix.SizeofSchedAttr, Policy: policy, Priority: priority}, 0)
			if errors.Is(err, unix.EPERM) || errors.Is(err, unix.EINVAL) {
				t.Skip("this process may have no real-time policy here:", err)
			}
			if err != nil && !errors.Is(err, unix.ESRCH) {
				t.Fatal(err)
			}
		}
	}
}

// policyOf returns the scheduling policy in the content of /proc/PID/stat.
func policyOf(t *testing.T, stat string) int {
	t.Helper()
	fields := strings.Fields(stat[strings.LastIndexByte(stat, ')')+1:]) // from the third one on
	if len(fields) < 39 {
		t.Fatalf("%d fields in %q", len(fields), stat)
	}
	policy, err := strconv.Atoi(fields[41-3])
	if err != nil {
		t.Fatal(err)
	}
	return policy
}

// A carob with a real-time policy starts pods, whose processes have the normal policy.
func TestRealTimePolicyIsNotInherited(t *testing.T) {
	dir := t.TempDir()
	w := unopened(t, dir, fmt.Sprintf("/carob-native-test-%d-realtime", os.Getpid()))
	schedule(t, unix.SCHED_RR, 1)
	t.Cleanup(func() { schedule(t, unix.SCHED_NORMAL, 0) })
	own, err := os.ReadFile("/proc/self/stat")
	if err != nil {
		t.Fatal(err)
	}
	if p := policyOf(t, string(own)); p != unix.SCHED_RR {
		t.Fatal("the test has the policy", p)
	}
	w.open()
	defer w.close()
	sb, sbc := w.sandbox("a")
	if p := policyOf(t, w.output(sb, sbc, "c", "cat /proc/self/stat")); p != unix.SCHED_NORMAL {
		t.Error("the container's process has the policy", p)
	}
}
