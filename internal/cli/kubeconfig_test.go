package cli

import (
	"bytes"
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
