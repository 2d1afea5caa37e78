package reconciler

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"
)

// A controller that panics ends the process, with a trace; other controllers do not continue without it. The test runs
// itself: the other process succeeds only if a second key is reconciled after the panic.
func TestPanicEndsTheProcess(t *testing.T) {
	const variable = "LOOP_TEST_PANICS"
	if os.Getenv(variable) != "" {
		l := New("test", 1, func(_ context.Context, key string) (time.Duration, error) {
			if key == "first" {
				panic("a controller has a bug")
			}
			os.Exit(0)
			return 0, nil
		})
		l.Add("first")
		l.Add("second")
		l.Run(t.Context())
		return
	}
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^"+t.Name()+"$")
	cmd.Env = append(os.Environ(), variable+"=1")
	out, err := cmd.CombinedOutput()
	var ended *exec.ExitError
	if !errors.As(err, &ended) || ended.ExitCode() == 0 {
		t.Fatalf("the process did not fail: %v\n%s", err, out)
	}
	for _, want := range []string{"panic: a controller has a bug", "TestPanicEndsTheProcess.func1"} {
		if !strings.Contains(string(out), want) {
			t.Errorf("%q is missing in:\n%s", want, out)
		}
	}
}
