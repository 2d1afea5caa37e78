package logs

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func podOf(namespace, name string) *corev1.Pod {
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}
}

// logAt makes an empty log and returns its path.
func logAt(t *testing.T, path ...string) string {
	t.Helper()
	log := filepath.Join(path...)
	if err := os.MkdirAll(filepath.Dir(log), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(log, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	return log
}

func namesIn(t *testing.T, dir string) []string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}

// A container's link is named after pod, namespace, container and id, made once, and
// goes with the container (L3.98).
func TestLinkOfAContainer(t *testing.T) {
	root := t.TempDir()
	l := &Links{Dir: filepath.Join(root, "containers"), Logs: filepath.Join(root, "pods")}
	if err := os.Mkdir(l.Dir, 0o755); err != nil {
		t.Fatal(err)
	}
	pod, log := podOf("shop", "web"), logAt(t, l.Logs, "shop_web_u", "c", "0.log")
	for range 2 {
		if err := l.Make(pod, "c", "0123", log); err != nil {
			t.Fatal(err)
		}
	}
	if to, err := os.Readlink(filepath.Join(l.Dir, "web_shop_c-0123.log")); err != nil || to != log {
		t.Fatalf("the link leads to %q, %v", to, err)
	}
	for range 2 {
		if err := l.Remove(pod, "c", "0123", log); err != nil {
			t.Fatal(err)
		}
	}
	if got := namesIn(t, l.Dir); len(got) != 0 {
		t.Errorf("left: %v", got)
	}
	if err := l.Make(pod, "c", "0123", filepath.Join(l.Logs, "shop_web_u", "c", "1.log")); err != nil ||
		len(namesIn(t, l.Dir)) != 0 {
		t.Errorf("a log that is not there has a link: %v, %v", namesIn(t, l.Dir), err)
	}
}

// Of a long name the end is cut, the container's id with it: the newest instance has
// the link, and the end of an older one does not take it away.
func TestLinkWithALongName(t *testing.T) {
	root := t.TempDir()
	l := &Links{Dir: root, Logs: filepath.Join(root, "pods")}
	pod := podOf("shop", strings.Repeat("p", 253))
	first, second := logAt(t, l.Logs, "a", "c", "0.log"), logAt(t, l.Logs, "a", "c", "1.log")
	for id, log := range map[string]string{"01": first, "02": second} {
		if err := l.Make(pod, "c", id, log); err != nil {
			t.Fatal(err)
		}
	}
	if err := l.Make(pod, "c", "02", second); err != nil {
		t.Fatal(err)
	}
	if err := l.Remove(pod, "c", "01", first); err != nil {
		t.Fatal(err)
	}
	name := strings.Repeat("p", 251) + ".log"
	if to, err := os.Readlink(filepath.Join(root, name)); err != nil || to != second {
		t.Errorf("the link leads to %q, %v", to, err)
	}
}

// Links whose log is gone go: with their pod, and those of an earlier agent at the
// start. A log that is being rotated keeps its link, and what others have stays.
func TestDanglingLinks(t *testing.T) {
	root := t.TempDir()
	dir, logs := filepath.Join(root, "containers"), filepath.Join(root, "pods")
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	earlier := &Links{Dir: dir, Logs: logs}
	kept, rotating, gone := logAt(t, logs, "a_kept_u", "c", "0.log"), logAt(t, logs, "a_rotating_u", "c", "0.log"),
		logAt(t, logs, "a_gone_u", "c", "0.log")
	for name, log := range map[string]string{"kept": kept, "rotating": rotating, "gone": gone} {
		if err := earlier.Make(podOf("a", name), "c", "01", log); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Rename(rotating, rotating+".20261122-112233"); err != nil {
		t.Fatal(err)
	}
	if err := os.RemoveAll(filepath.Join(logs, "a_gone_u")); err != nil {
		t.Fatal(err)
	}
	// Of others: a link elsewhere, one that climbs out of our directory, and a file.
	for name, to := range map[string]string{"x_y_c-01.log": "/not/there",
		"z_y_c-01.log": logs + "/../elsewhere/0.log"} {
		if err := os.Symlink(to, filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	logAt(t, dir, "file_y_c-01.log")

	l := &Links{Dir: dir, Logs: logs}
	l.Sweep()
	want := []string{"file_y_c-01.log", "kept_a_c-01.log", "rotating_a_c-01.log", "x_y_c-01.log", "z_y_c-01.log"}
	if got := namesIn(t, dir); !slices.Equal(got, want) {
		t.Errorf("after the sweep: %v, want %v", got, want)
	}
	if err := os.RemoveAll(filepath.Join(logs, "a_kept_u")); err != nil {
		t.Fatal(err)
	}
	l.Forget(podOf("a", "kept"))
	if _, err := os.Lstat(filepath.Join(dir, "kept_a_c-01.log")); !os.IsNotExist(err) {
		t.Errorf("the link of a pod that is gone: %v", err)
	}
}

// Names that would lead out of the directory make no link and remove nothing: the names of pods come from labels in the
// runtime, which any client can set.
func TestHostileLinkNames(t *testing.T) {
	root := t.TempDir()
	l := &Links{Dir: filepath.Join(root, "containers"), Logs: filepath.Join(root, "pods")}
	if err := os.Mkdir(l.Dir, 0o755); err != nil {
		t.Fatal(err)
	}
	log := logAt(t, l.Logs, "a", "c", "0.log")
	victim := filepath.Join(root, "x_a_c-01.log")
	if err := os.Symlink(log, victim); err != nil {
		t.Fatal(err)
	}
	for _, bad := range []struct {
		pod           *corev1.Pod
		container, id string
	}{
		{podOf("a", "../x"), "c", "01"},
		{podOf("a/b", "x"), "c", "01"},
		{podOf("a", "x"), "c/../../d", "01"}, // the cleaned path lies beside the directory
		{podOf("a", "x"), "../../c", "01"},
		{podOf("a", "x"), "c", "0/1"},
		{podOf("a", "x\x00"), "c", "01"},
		{podOf("a", "x_b"), "c", "01"},
		{podOf("a", ".."), "c", "01"},
		{podOf("", "x"), "c", "01"},
	} {
		if err := l.Make(bad.pod, bad.container, bad.id, log); err == nil {
			t.Errorf("%q/%q/%q/%q: a link was made", bad.pod.Namespace, bad.pod.Name, bad.container, bad.id)
		}
		if err := l.Remove(bad.pod, bad.container, bad.id, log); err != nil {
			t.Errorf("%q/%q: %v", bad.pod.Namespace, bad.pod.Name, err)
		}
	}
	if _, err := os.Lstat(victim); err != nil {
		t.Errorf("a link outside of the directory was removed: %v", err)
	}
	if got := namesIn(t, l.Dir); len(got) != 0 {
		t.Errorf("made: %v", got)
	}
}
