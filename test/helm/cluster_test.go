// Package helm runs Helm, as a library and unchanged, against a carob cluster: a
// chart with a little of everything is installed, upgraded, rolled back, tested
// and uninstalled, and after each step the objects in the API are checked.
//
// It is a module of its own because Helm's dependencies are none of carob's, and
// it knows carob by its command line only.
package helm

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// kubeconfig is that of the cluster all tests use; each has a namespace of its own.
var kubeconfig string

func TestMain(m *testing.M) {
	code, err := runAll(m)
	if err != nil {
		fmt.Fprintln(os.Stderr, "helm:", err)
		code = 1
	}
	os.Exit(code)
}

// runAll starts a cluster of CAROB. Without that it uses the one of KUBECONFIG,
// which must have the image carob.local/demo:1.
func runAll(m *testing.M) (code int, err error) {
	carob := os.Getenv("CAROB")
	if carob == "" {
		if kubeconfig = os.Getenv("KUBECONFIG"); kubeconfig == "" {
			return 1, errors.New("neither CAROB (the binary) nor KUBECONFIG is set: use `make helm`")
		}
		return m.Run(), nil
	}
	if os.Getuid() != 0 {
		return 1, errors.New("a cluster runs real containers and needs root")
	}
	dir, err := os.MkdirTemp("", "carob-helm-")
	if err != nil {
		return 1, err
	}
	kubeconfig = filepath.Join(dir, "admin.kubeconfig")
	pods := fmt.Sprintf("10.%d.0.0/16", 225+os.Getpid()%28) // beside whatever else runs on this machine
	for _, args := range [][]string{
		{"up", "--detach", "--node-name", "helm-node", "--pod-cidr", pods},
		{"image", "import", "../../internal/cli/dist/demo.tar"},
	} {
		if err = run(carob, append(args, "--data-dir", dir)...); err != nil {
			break
		}
	}
	if err == nil {
		code = m.Run()
	}
	if code != 0 || err != nil {
		if log, err := os.ReadFile(filepath.Join(dir, "carob.log")); err == nil {
			fmt.Fprintf(os.Stderr, "carob's log:\n%s", log[max(0, len(log)-8000):])
		}
	}
	if down := run(carob, "down", "--pods", "--data-dir", dir); down != nil {
		return 1, errors.Join(err, down)
	}
	return code, errors.Join(err, os.RemoveAll(dir))
}

func run(program string, args ...string) error {
	if out, err := exec.Command(program, args...).CombinedOutput(); err != nil {
		return fmt.Errorf("%s %q: %w\n%s", filepath.Base(program), args, err, bytes.TrimSpace(out))
	}
	return nil
}
