package sim

import (
	_ "embed"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"carob/internal/runtime/runtimetest"
)

//go:embed testdata/reports.txt
var differs string

// The simulated runtime keeps the contract of every runtime, as far as that is possible without
// processes.
func TestContract(t *testing.T) {
	runtimetest.Run(t, func(t testing.TB) runtimetest.Harness {
		const image = "docker.io/library/busybox:1.36"
		return runtimetest.Harness{
			Runtime: New(Config{Images: []string{image},
				Behaviour: func(c *cri.ContainerConfig) Behaviour { return play(t, c) }}),
			Image: image, LogRoot: t.TempDir(), Events: true, Network: true, Scripted: true, Differs: differs,
		}
	})
}

var (
	exits   = regexp.MustCompile(`^(?:echo \d+; )?exit (\d+)$`)
	handler = regexp.MustCompile(`^trap '(?:echo bye; )?(?:exit (\d+))?' \w+;`)
)

// play simulates the effect of the suite's scripts on a container; an unknown script is an error.
func play(t testing.TB, c *cri.ContainerConfig) Behaviour {
	if len(c.Command) == 1 { // programs that cannot be started, with the messages of real runtimes
		why := map[string]string{
			"no-such-program":  "executable file not found in $PATH",
			"/no/such/program": "stat /no/such/program: no such file or directory",
			"/etc/passwd":      "permission denied",
		}[c.Command[0]]
		return Behaviour{StartErr: "exec: " + strconv.Quote(c.Command[0]) + ": " + why}
	}
	if len(c.Args) == 0 {
		return Behaviour{} // never started
	}
	script := c.Args[0]
	end := func(code int32) Behaviour { return Behaviour{Exit: time.Millisecond, Code: code} }
	switch script {
	case "kill -15 $$; sleep 1; exit 1":
		return end(1)
	case "trap 'exit 5' TERM; kill -15 $$; sleep 9":
		return end(5)
	case "sh -c 'kill -11 $$'; exit $?":
		return end(139)
	}
	if m := exits.FindStringSubmatch(script); m != nil {
		code, err := strconv.Atoi(m[1])
		if err != nil {
			t.Fatal(err)
		}
		return end(int32(code))
	}
	if m := handler.FindStringSubmatch(script); m != nil && m[1] != "" {
		code, err := strconv.Atoi(m[1])
		if err != nil {
			t.Fatal(err)
		}
		return Behaviour{TermCode: int32(code)}
	} else if m != nil || strings.HasSuffix(script, "exec sleep 1000") {
		return Behaviour{IgnoreTerm: true} // PID 1 of a container has no default handlers
	}
	t.Errorf("no behaviour is known for %q", script)
	return Behaviour{}
}
