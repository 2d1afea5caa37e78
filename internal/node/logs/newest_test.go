package logs

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"carob/internal/node/spec"
)

// L3.88: the names of log files contain the restart count of a container.
func TestNewest(t *testing.T) {
	root := t.TempDir()
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web", UID: "u"}}
	if _, ok, err := Newest(root, pod, "c"); ok || err != nil {
		t.Errorf("a pod without logs: %v %v", ok, err)
	}
	dir := filepath.Join(spec.PodLogDir(root, pod), "c")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"note.txt", "x.log", "-7.log", "99999999999999999999.log"} {
		if err := os.WriteFile(filepath.Join(dir, name), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if n, ok, err := Newest(root, pod, "c"); ok || err != nil {
		t.Errorf("other files: %d %v %v", n, ok, err)
	}
	for _, name := range []string{"0.log", "9.log", "10.log.20260101-000000.gz"} {
		if err := os.WriteFile(filepath.Join(dir, name), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if n, ok, err := Newest(root, pod, "c"); n != 10 || !ok || err != nil {
		t.Errorf("%d %v %v", n, ok, err)
	}

	pod.Name = strings.Repeat("a", 253) // the API allows it
	if _, ok, err := Newest(root, pod, "c"); ok || err != nil {
		t.Errorf("a pod whose log directory has too long a name: %v %v", ok, err)
	}
}
