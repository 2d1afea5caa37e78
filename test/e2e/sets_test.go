package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"carob/internal/base/testwait"
)

// story is what the pods of testdata/sets.yaml wrote, line by line.
type story struct {
	file string
	read int // lines that were checked
}

func (s *story) lines(t *testing.T) []string {
	t.Helper()
	b, err := os.ReadFile(s.file)
	if err != nil && !os.IsNotExist(err) {
		t.Fatal(err)
	}
	return strings.Fields(strings.ReplaceAll(string(b), " ", "-"))[s.read:]
}

// want compares what happened since the last call. It waits until as much was written: the last line comes a moment
// after the status, and a line too many is found by the next call.
func (s *story) want(t *testing.T, what string, lines ...string) {
	t.Helper()
	got := s.next(t, len(lines))
	if !slices.Equal(got, lines) {
		t.Errorf("%s: the pods wrote\n%s\nwant\n%s", what, strings.Join(got, "\n"), strings.Join(lines, "\n"))
	}
}

// wait waits until a pod has written something.
func (s *story) wait(t *testing.T, line string) {
	t.Helper()
	testwait.For(t, "the pods wrote "+line, func() bool { return slices.Contains(s.lines(t), line) })
}

// each is a line for each ordinal from high to low, or the other way round, for each word.
func each(from, to int, words ...string) []string {
	var lines []string
	for i, step := from, min(max(to-from, -1), 1); ; i += step {
		for _, w := range words {
			lines = append(lines, fmt.Sprintf("web-%d-%s", i, w))
		}
		if i == to || step == 0 {
			return lines
		}
	}
}

// A StatefulSet through kubectl, on real containers: the order of its pods when they come, change and go, revisions,
// and kill -9 of carob in the middle of an update and of a scale-down. Each pod ends once and starts once, one after
// the other (W3.42, W3.45, W3.62, W13.20–W13.22).
func TestStatefulSet(t *testing.T) {
	t.Parallel()
	c := startCluster(t, "--registry-config", mirrors.dir)
	dir := t.TempDir()
	s := &story{file: filepath.Join(dir, "log")}
	b, err := os.ReadFile(manifest("sets"))
	if err != nil {
		t.Fatal(err)
	}
	status := func(what string) { c.kubectl(t, "rollout", "status", what, "--timeout="+patience.String()) }

	c.kubectlIn(t, strings.ReplaceAll(string(b), "STORY", dir), "apply", "-f", "-")
	status("sts/web")
	s.want(t, "creation", each(0, 3, "start")...)
	first := c.kubectl(t, "get", "sts", "web", "-o", "jsonpath={.status.currentRevision}")

	c.kubectl(t, "set", "env", "sts/web", "A=two")
	status("sts/web")
	s.want(t, "update", each(3, 0, "term", "end", "start")...)
	contains(t, "history", c.kubectl(t, "rollout", "history", "sts/web"), "\n1 ", "\n2 ")
	contains(t, "revision 1", c.kubectl(t, "rollout", "history", "sts/web", "--revision=1"), "busybox:1.32.0")

	c.kubectl(t, "rollout", "undo", "sts/web")
	s.wait(t, "web-2-term")
	c.kill(t)
	if err := c.up(); err != nil {
		t.Fatal(err)
	}
	status("sts/web")
	s.want(t, "rollback with a crash", each(3, 0, "term", "end", "start")...)
	if now := c.kubectl(t, "get", "sts", "web", "-o",
		"jsonpath={.status.currentRevision} {.status.updateRevision}"); now != first+" "+first {
		t.Errorf("revisions after the rollback: %s, want %s", now, first)
	}
	// W3.101, by carob's own kubectl: older ones write templates in another way than they are stored.
	contains(t, "undo to where it is", c.carob(t, "kubectl", "rollout", "undo", "sts/web", "--to-revision=3"),
		"skipped rollback (current template already matches revision 3)")

	c.kubectl(t, "scale", "sts/web", "--replicas=1")
	s.wait(t, "web-2-term")
	c.kill(t)
	if err := c.up(); err != nil {
		t.Fatal(err)
	}
	c.wait(t, "sts/web", "jsonpath={.status.replicas}=1")
	s.want(t, "scale-down with a crash", each(3, 1, "term", "end")...)

	c.kubectl(t, "scale", "sts/web", "--replicas=3")
	status("sts/web")
	s.want(t, "scale-up", each(1, 2, "start")...)
	c.hasEvents(t, "web", "Normal SuccessfulCreate Create Pod web-3 in StatefulSet web successful",
		"Normal SuccessfulDelete Delete Pod web-3 in StatefulSet web successful")
	if out := c.kubectl(t, "get", "sts", "web"); !strings.Contains(out, "3/3") {
		t.Errorf("kubectl get: %s", out)
	}
	c.kubectl(t, "delete", "sts", "web", "--cascade=foreground")
	if left := c.kubectl(t, "get", "pods,controllerrevisions", "-l", "app=web", "-o", "name"); left != "" {
		t.Errorf("left are %s", left)
	}
}

// A DaemonSet through kubectl (W4.69: the text at the end, W10.33: the history): its pod, an update, the way back, and
// a node that does not fit any more (W13.31, W13.33).
func TestDaemonSet(t *testing.T) {
	b, err := os.ReadFile(manifest("sets"))
	if err != nil {
		t.Fatal(err)
	}
	c := shared
	t.Cleanup(func() { c.kubectl(t, "delete", "ns", "daemons") })
	c.kubectl(t, "create", "ns", "daemons")
	_, daemon, _ := strings.Cut(string(b), "\n---\n")
	in := func(args ...string) string { return c.kubectl(t, append([]string{"-n", "daemons"}, args...)...) }
	c.kubectlIn(t, daemon, "-n", "daemons", "apply", "-f", "-")
	status := func() {
		contains(t, "rollout", in("rollout", "status", "ds/every", "--timeout="+patience.String()),
			`daemon set "every" successfully rolled out`)
	}
	pod := func() string { return in("get", "pods", "-l", "app=every", "-o", "jsonpath={.items[*].metadata.uid}") }
	status()
	one := pod()
	in("set", "env", "ds/every", "A=two")
	status()
	c.wait(t, "ds/every", "jsonpath={.status.observedGeneration}=2", "-n", "daemons")
	two := pod()
	if one == two || strings.Contains(two, " ") {
		t.Errorf("the pod was %s, and is %s", one, two)
	}
	in("rollout", "undo", "ds/every")
	status()
	contains(t, "history", in("rollout", "history", "ds/every"), "\n2 ", "\n3 ")
	contains(t, "columns", in("get", "ds"), "DESIRED", "UP-TO-DATE")
	in("patch", "ds", "every", "-p", `{"spec":{"template":{"spec":{"nodeSelector":{"no":"node"}}}}}`)
	c.wait(t, "ds/every", "jsonpath={.status.desiredNumberScheduled}=0", "-n", "daemons")
	c.gone(t, "pods", "-n", "daemons", "-l", "app=every")
}
