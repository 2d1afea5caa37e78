package cli

import (
	"bytes"
	"strings"
	"testing"
)

// TestKubectlFlags: the built-in kubectl has the flags that upstream's main function adds: those of logging, and
// underscores in names of flags.
func TestKubectlFlags(t *testing.T) {
	for _, args := range [][]string{
		{"version", "--client", "-v=0"},
		{"version", "--client", "--v", "0", "--vmodule=none=1"},
		{"version", "--client", "--request_timeout=1s"},
	} {
		var out bytes.Buffer
		r := &root{in: strings.NewReader("")}
		k := r.kubectl(args, &out, &out)
		k.SetArgs(args)
		if err := k.ExecuteContext(t.Context()); err != nil {
			t.Errorf("kubectl %s: %v", strings.Join(args, " "), err)
		}
		if !strings.Contains(out.String(), "Client Version") {
			t.Errorf("kubectl %s: %s", strings.Join(args, " "), out.String())
		}
	}
}
