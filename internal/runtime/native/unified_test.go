package native

import (
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"carob/internal/runtime/native/cgroups"
)

// TestUnified runs containers on cgroup v2: on a host with only v2, or in the unified tree of a
// hybrid host, which has no controllers but everything else (CLONE_INTO_CGROUP, the device program,
// cgroup.kill, cgroup namespaces).
func TestUnified(t *testing.T) {
	w := newWorld(t)
	mountinfo, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	var lines []string
	for l := range strings.SplitSeq(string(mountinfo), "\n") {
		if strings.Contains(l, " - cgroup2 ") {
			lines = append(lines, l)
		}
	}
	v2, err := cgroups.Find([]byte(strings.Join(lines, "\n")))
	if err != nil {
		t.Skip("no cgroup v2 here")
	}
	defer w.withoutPool()() // monitors that wait keep the cgroups that they are in
	old := w.r.groups
	w.r.groups = v2
	defer func() {
		if err := v2.Remove(w.cfg.CgroupRoot); err != nil {
			t.Error(err)
		}
		w.r.groups = old
	}()
	sb, sbc := w.sandbox("unified")
	got := w.output(sb, sbc,
		"c", `cat /proc/self/cgroup | grep ^0; grep 'sys/fs/cgroup' /proc/mounts | awk '{print $1, $3}'
head -c 3 /dev/zero | wc -c; mknod /tmp/m b 1 0 && cat /tmp/m 2>&1 | head -c 100`)
	if want := "0::/\ncgroup cgroup2\n3\ncat: can't open '/tmp/m': Operation not permitted"; got != want {
		t.Errorf("got  %q\nwant %q", got, want)
	}
	id := w.run(sb, sbc, "k", shell("sleep 1000 & sleep 1000"))
	pids := v2.PIDs(w.cfg.CgroupRoot + "/unified/" + id)
	if len(pids) == 0 {
		t.Error("the container is not in its cgroup")
	}
	x, err := w.exec(id, "cat", "/proc/self/cgroup")
	if err != nil || !strings.Contains(string(x.Stdout), "0::/\n") {
		t.Errorf("exec: %v, %v", x, err)
	}
	v2.KillAll(w.cfg.CgroupRoot + "/unified/" + id)
	if st := w.wait(id); st.ExitCode != 137 {
		t.Errorf("code %d", st.ExitCode)
	}
	w.r.RemovePodSandbox(Bg, &cri.RemovePodSandboxRequest{PodSandboxId: sb})
}

func TestSignals(t *testing.T) {
	for s, want := range map[string]unix.Signal{"15": 15, "SIGTERM": 15, "term": 15, "SIGRTMIN+3": 37,
		"SIGRTMINPLUS3": 37, "SIGRTMAXMINUS1": 63, "SIGRTMIN": 34, "KILL": 9, "": 0, "SIGNOPE": 0, "99": 0} {
		got, err := parseSignal(s)
		if err != nil {
			got = 0
		}
		if got != want {
			t.Errorf("%q: %d, want %d", s, got, want)
		}
	}
	for value, name := range cri.Signal_name {
		sig, err := parseSignal(strings.TrimPrefix(name, "SIGNAL_"))
		if err != nil {
			continue // not specific to Linux
		}
		// Some have two names.
		if back := signalOf(sig); back != cri.Signal(value) && name != "SIGNAL_SIGCLD" && name != "SIGNAL_SIGIOT" &&
			name != "SIGNAL_SIGPOLL" && name != "SIGNAL_SIGUNUSED" {
			t.Errorf("%s is %d, which is %s", name, sig, back)
		}
	}
}
