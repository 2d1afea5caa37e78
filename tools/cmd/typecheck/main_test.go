package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// module writes a module with one package, whose files are given, and returns its directory.
func module(t *testing.T, files map[string]string) string {
	t.Helper()
	t.Setenv("GOWORK", "off")
	dir := t.TempDir()
	files["go.mod"] = "module example.com/fixture\n\ngo 1.26\n"
	for name, text := range files {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// What is wrong for one architecture only is reported for that one only, in tests too, with its place.
func TestErrorsOfOneArchitecture(t *testing.T) {
	const wrong = "package fixture\n\nvar size int32 = \"four\"\n"
	for _, name := range []string{"size_arm64.go", "size_arm64_test.go"} {
		dir := module(t, map[string]string{"fixture.go": "package fixture\n", name: wrong})
		var out bytes.Buffer
		if err := check(&out, dir, "amd64", []string{"./..."}); err != nil {
			t.Errorf("%s is not part of amd64: %v\n%s", name, err, &out)
		}
		out.Reset()
		if err := check(&out, dir, "arm64", []string{"./..."}); err == nil {
			t.Errorf("the error in %s was not found:\n%s", name, &out)
		}
		if want := name + ":3:"; !strings.Contains(out.String(), want) {
			t.Errorf("no %q in the output:\n%s", want, &out)
		}
	}
}

// A constant that fits an int of 64 bits only, and a call that the other architecture does not have: both need the
// sizes and the files of the architecture that is asked for, not of the one that checks.
func TestSizesAndFilesOfTheArchitecture(t *testing.T) {
	dir := module(t, map[string]string{
		"fixture.go":    "package fixture\n\nconst large int = 1 << 40\n\nfunc use() { only() }\n",
		"only_amd64.go": "package fixture\n\nfunc only() { _ = large; use() }\n",
	})
	var out bytes.Buffer
	if err := check(&out, dir, "amd64", []string{"."}); err != nil {
		t.Errorf("amd64: %v\n%s", err, &out)
	}
	for arch, want := range map[string]string{"arm64": "undefined: only", "386": "overflows"} {
		out.Reset()
		if err := check(&out, dir, arch, []string{"."}); err == nil || !strings.Contains(out.String(), want) {
			t.Errorf("%s: %v, want %q in:\n%s", arch, err, want, &out)
		}
	}
}

// Unused imports of packages outside the module are no errors: their functions have no bodies here. In the module they
// are, and the standard library with what it imports is read without an error.
func TestImportsOfOthers(t *testing.T) {
	dir := module(t, map[string]string{"fixture.go": "package fixture\n\nimport \"os\"\n\nvar Args = os.Args\n"})
	var out bytes.Buffer
	if err := check(&out, dir, "arm64", []string{"."}); err != nil {
		t.Errorf("%v\n%s", err, &out)
	}
	dir = module(t, map[string]string{"fixture.go": "package fixture\n\nimport \"os\"\n"})
	err := check(&out, dir, "arm64", []string{"."})
	if err == nil || !strings.Contains(out.String(), "imported and not used") {
		t.Errorf("an unused import of the module: %v\n%s", err, &out)
	}
	if err := check(&out, dir, "arm64", []string{"./missing"}); err == nil {
		t.Error("a pattern that matches nothing is an error")
	}
}
