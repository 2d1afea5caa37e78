package archtest

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// ARCHITECTURE.md is the map of the tree: it names each package down to the second level below
// internal, so that a reader finds what a folder is for.
func TestArchitectureNamesEveryFolder(t *testing.T) {
	text, err := os.ReadFile(filepath.Join(top, "ARCHITECTURE.md"))
	if err != nil {
		t.Fatal(err)
	}
	seen := map[string]bool{}
	for _, name := range tracked(t, "internal/*.go") {
		parts := strings.Split(filepath.Dir(name), "/")
		if len(parts) < 2 || parts[len(parts)-1] == "testdata" {
			continue
		}
		folder := strings.Join(parts[:min(len(parts), 3)], "/")
		if seen[folder] {
			continue
		}
		seen[folder] = true
		if !isNamed(string(text), filepath.Base(folder)) {
			t.Errorf("ARCHITECTURE.md does not name %s", folder)
		}
	}
	if len(seen) < 50 {
		t.Errorf("only %d folders were found", len(seen))
	}
	if isNamed("`one` and `two/three`", "four") || !isNamed("`one` and `two/three`", "three") {
		t.Error("the rule cannot fail")
	}
}

// isNamed reports whether a text has a name between backquotes, alone or as a part of a path.
func isNamed(text, name string) bool {
	for _, before := range []string{"`", "/", "  "} {
		for _, after := range []string{"`", "/", ":"} {
			if strings.Contains(text, before+name+after) {
				return true
			}
		}
	}
	return false
}
