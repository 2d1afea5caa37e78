// Command validations makes the functions of internal/kinds/declarative from the
// rules in the comments of k8s.io/api. Run it in the tools directory:
// go run ./cmd/validations. It works in a scratch module, because upstream's
// generator writes beside the packages that it reads.
package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

const (
	generator = "k8s.io/code-generator/cmd/validation-gen"
	output    = "zz_generated.validations.go"
	// meta holds rules that the others refer to; the generator would make them, too.
	meta = "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
)

// readOnly are packages whose types are used and have no rules of their own to make.
var readOnly = []string{"k8s.io/apimachinery/pkg/api/resource", "k8s.io/apimachinery/pkg/runtime",
	"k8s.io/apimachinery/pkg/types", "k8s.io/apimachinery/pkg/util/intstr",
	"time", "k8s.io/api/scheduling/v1alpha3"}

func main() {
	if err := run("../internal/kinds/declarative"); err != nil {
		fmt.Fprintln(os.Stderr, "validations:", err)
		os.Exit(1)
	}
}

func run(folder string) error {
	scratch, err := os.MkdirTemp("", "carob-validations-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(scratch)
	version, err := outputOf("go", "list", "-m", "-f", "{{.Version}}", "k8s.io/apimachinery")
	if err != nil {
		return err
	}
	source, err := outputOf("go", "list", "-m", "-f", "{{.Dir}}", "k8s.io/apimachinery")
	if err != nil {
		return err
	}
	machinery := filepath.Join(scratch, "apimachinery")
	if err := os.CopyFS(machinery, os.DirFS(source)); err != nil {
		return err
	}
	if err := writable(machinery); err != nil {
		return err
	}
	module := filepath.Join(scratch, "module")
	if err := os.MkdirAll(module, 0o755); err != nil {
		return err
	}
	for name, text := range map[string]string{
		"go.mod": fmt.Sprintf(
			"module carob\n\ngo 1.26.6\n\nrequire (\n\tk8s.io/api %[1]s\n\tk8s.io/apimachinery %[1]s\n\tk8s.io/code-generator %[1]s\n)\n\nreplace k8s.io/apimachinery => %[2]s\n", version, machinery),
		"tools.go": "//go:build tools\n\npackage tools\n\nimport _ \"" + generator + "\"\n",
	} {
		if err := os.WriteFile(filepath.Join(module, name), []byte(text), 0o644); err != nil {
			return err
		}
	}
	target := filepath.Join(module, "internal/kinds/declarative")
	if err := os.CopyFS(target, os.DirFS(folder)); err != nil {
		return err
	}
	packages, err := folders(target)
	if err != nil {
		return err
	}
	if err := os.Remove(filepath.Join(target, "declarative.go")); err != nil {
		return err
	}
	args := []string{"run", generator, "--go-header-file", os.DevNull, "--output-file", output}
	for _, p := range readOnly {
		args = append(args, "--readonly-pkg", p)
	}
	args = append(args, meta)
	for _, p := range packages {
		args = append(args, "./internal/kinds/declarative/"+p)
	}
	for _, command := range [][]string{{"mod", "tidy"}, args} {
		c := exec.Command("go", command...)
		c.Dir, c.Env, c.Stderr = module, append(os.Environ(), "GOFLAGS=-mod=mod"), os.Stderr
		if err := c.Run(); err != nil {
			return fmt.Errorf("go %s: %w", command[0], err)
		}
	}
	for _, p := range packages {
		text, err := os.ReadFile(filepath.Join(target, p, output))
		if err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(folder, p, output), text, 0o644); err != nil {
			return err
		}
	}
	return nil
}

func outputOf(name string, args ...string) (string, error) {
	out, err := exec.Command(name, args...).Output()
	return strings.TrimSpace(string(out)), err
}

// folders returns the names of the folders in dir.
func folders(dir string) ([]string, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	var out []string
	for _, e := range entries {
		if e.IsDir() {
			out = append(out, e.Name())
		}
	}
	return out, nil
}

// writable lets files that came from the module cache be replaced.
func writable(dir string) error {
	return filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		mode := os.FileMode(0o644)
		if d.IsDir() {
			mode = 0o755
		}
		return os.Chmod(path, mode)
	})
}
