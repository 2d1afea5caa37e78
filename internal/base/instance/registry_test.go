package instance

import (
	"os"
	"path/filepath"
	"slices"
	"testing"
)

func TestRegistry(t *testing.T) {
	dir, data := filepath.Join(t.TempDir(), "registry"), t.TempDir()
	want := func(names ...string) {
		t.Helper()
		for i, n := range names {
			names[i] = filepath.Join(data, n)
		}
		if got, err := List(dir); err != nil || !slices.Equal(got, names) {
			t.Errorf("listed %v, %v, want %v", got, err, names)
		}
	}
	register := func(name string) {
		t.Helper()
		in, err := Derive(Flags{DataDir: filepath.Join(data, name)}, "host")
		if err != nil {
			t.Fatal(err)
		}
		if err := os.MkdirAll(in.DataDir, 0o700); err != nil {
			t.Fatal(err)
		}
		if err := Register(dir, in); err != nil {
			t.Fatal(err)
		}
	}
	want()
	register("b")
	register("a")
	register("a")
	want("a", "b")
	if err := os.RemoveAll(filepath.Join(data, "a")); err != nil {
		t.Fatal(err)
	}
	want("b")
	// Files without an owner have no effect.
	for name, text := range map[string]string{"half.json": `{"dataDir":"/`, "relative.json": `{"dataDir":"x"}`,
		"note": "x"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	want("b")
	register("c")
	want("b", "c")
	files, err := os.ReadDir(dir)
	if err != nil || len(files) != 5 { // b, c, and the three: a is removed
		t.Errorf("%v, %v", files, err)
	}
}
