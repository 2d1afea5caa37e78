package cli

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// The output goes, as a rule, to where $KUBECONFIG points: that file says nothing
// about which cluster is meant.
func TestKubeconfigIsOfTheCluster(t *testing.T) {
	empty := filepath.Join(t.TempDir(), "config")
	if err := os.WriteFile(empty, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv("KUBECONFIG", empty)
	var out, errs bytes.Buffer
	cmd := New(nil, Version{}, strings.NewReader(""), &out, &errs)
	cmd.SetArgs([]string{"kubeconfig"})
	// A machine with a cluster shows that one's.
	if err := cmd.Execute(); err == nil && !strings.Contains(out.String(), "kind: Config") || err != nil && !strings.Contains(err.Error(), "no cluster in") {
		t.Errorf("%q, %v", out.String(), err)
	}
}
