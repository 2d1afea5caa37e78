package pinning

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/go-logr/logr/funcr"
)

// A disk that takes no state file does not keep the node from starting; the problem is logged once, and the file is
// written when that is possible.
func TestStateThatCannotBeWritten(t *testing.T) {
	dir := filepath.Join(memory(t), "missing")
	cfg := config(t, dir)
	logged := 0
	cfg.Logger = funcr.New(func(string, string) { logged++ }, funcr.Options{})
	m := open(t, cfg)
	if r := m.Admit(pod("a", "2")); r != nil {
		t.Fatal(r)
	}
	for range 3 {
		m.reconcile(t.Context(), nil)
	}
	if logged != 1 {
		t.Errorf("%d messages", logged)
	}
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	m.reconcile(t.Context(), nil)
	if m = open(t, cfg); !m.Held("a") {
		t.Error("what the pod has was not stored")
	}
}
