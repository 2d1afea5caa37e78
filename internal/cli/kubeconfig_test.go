package cli

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// The output usually goes to the file that $KUBECONFIG names, so the variable does not select the
// cluster.
func TestKubeconfigIgnoresEnvironment(t *testing.T) {
	empty := filepath.Join(t.TempDir(), "config")
	if err := os.WriteFile(empty, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv("KUBECONFIG", empty)
	var out, errs bytes.Buffer
	cmd := New(nil, Version{}, strings.NewReader(""), &out, &errs)
	cmd.SetArgs([]string{"kubeconfig"})
	// A machine with a cluster shows the kubeconfig of that cluster.
	if err := cmd.Execute(); err == nil && !strings.Contains(out.String(), "kind: Config") || err != nil &&
		!strings.Contains(err.Error(), "no cluster in") {
		t.Errorf("%q, %v", out.String(), err)
	}
}

// A kubeconfig that never ends is not read: /dev/zero filled the memory. An empty one and a pipe are.
func TestKubeconfigIsNoDevice(t *testing.T) {
	for _, args := range [][]string{{"status"}, {"kubectl", "get", "pods"},
		{"kubeconfig"}, {"image", "ls"}} {
		for _, device := range []string{"/dev/zero", "/dev/full", "/dev/urandom"} {
			_, err := carob(t, append([]string{"--kubeconfig", device}, args...)...)
			if want := device + " is a device: name a file with --kubeconfig"; err == nil || message(err) != want {
				t.Errorf("carob --kubeconfig %s %q: %v", device, args, err)
			}
		}
	}
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	defer w.Close()
	for _, path := range []string{os.DevNull, fmt.Sprintf("/proc/self/fd/%d", r.Fd()), t.TempDir() + "/missing"} {
		if err := checkFile(path); err != nil {
			t.Errorf("%s is refused: %v", path, err)
		}
	}
}
