package cni

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"carob/internal/base/testwait"
	"carob/internal/network"
)

// script writes a plugin, and returns its path.
func script(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "plugin")
	if err := os.WriteFile(path, []byte("#!/bin/sh\n"+text+"\n"), 0o700); err != nil { //nolint:gosec // a program
		t.Fatal(err)
	}
	return path
}

// What a plugin writes is limited, and what it reports is the error.
func TestProgramOutput(t *testing.T) {
	long := strings.Repeat("x", maxMessage)
	for _, c := range []struct{ name, text, out, err string }{
		{"a result", `echo '{"cniVersion":"1.1.0"}'; echo note >&2`, `{"cniVersion":"1.1.0"}` + "\n", ""},
		{"its error", `echo '{"code":11,"msg":"no address left"}'; exit 1`, "", "no address left"},
		{"no error in JSON", "echo broken; exit 1", "", `the plugin failed: "broken\n": exit status 1`},
		{"a message", "echo why >&2; exit 1", "", `the plugin failed: "why\n": exit status 1`},
		{"JSON that is no error", `echo '{"cniVersion":"1.0.0"}'; echo why >&2; exit 1`, "",
			`the plugin failed: "why\n": exit status 1`},
		{"nothing", "exit 1", "", "the plugin failed without a message: exit status 1"},
		{"a long message", "yes | head -c 50000000 | tr 'y\\n' 'xx' >&2; exit 1", "",
			`the plugin failed: "` + long + `": exit status 1`},
		{"a long result", "head -c 50000000 /dev/zero", "", "has more than 1048576 bytes"},
		{"a process that holds its output", `sleep 1000 & echo $! >"$PIDFILE"; echo '{}'`, "{}\n", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			pidfile := filepath.Join(t.TempDir(), "pid")
			out, err := (&programs{timeout: testwait.Limit}).ExecPlugin(t.Context(), script(t, c.text), []byte("{}"),
				append(os.Environ(), "PIDFILE="+pidfile))
			got := ""
			if err != nil {
				got = err.Error()
			}
			if string(out) != c.out || (err == nil) != (c.err == "") || !strings.Contains(got, c.err) {
				t.Errorf("%.100q, %.200s", out, got)
			}
			if text, err := os.ReadFile(pidfile); err == nil {
				pid, err := strconv.Atoi(strings.TrimSpace(string(text)))
				if err != nil || syscall.Kill(pid, syscall.SIGKILL) != nil {
					t.Errorf("the process that was left behind: %q, %v", text, err)
				}
			}
		})
	}
	if _, err := (&programs{timeout: time.Minute}).ExecPlugin(t.Context(), "/nonexistent", nil, nil); !errors.Is(err,
		os.ErrNotExist) && (err == nil || !strings.Contains(err.Error(), "no such file")) {
		t.Errorf("a missing program: %v", err)
	}
}

// A plugin that never ends is ended with its context, together with the processes that hold its output, and the pod can
// be attached and detached later.
func TestHangingPlugin(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("network namespaces need root")
	}
	dir := t.TempDir()
	text := `case $CNI_COMMAND in
VERSION) echo '{"cniVersion":"1.0.0","supportedVersions":["1.0.0"]}' ;;
DEL) [ ! -e ` + dir + `/hang ] || sleep 1000 ;;
ADD) if [ -e ` + dir + `/hang ]; then echo begun >` + dir + `/begun; sleep 1000; fi
  echo '{"cniVersion":"1.0.0","ips":[{"address":"198.18.200.9/24"}]}' ;;
esac`
	for name, text := range map[string]string{"hanger": "#!/bin/sh\n" + text, "hang": "",
		"10.conflist": `{"cniVersion":"1.0.0","name":"net","plugins":[{"type":"hanger"}]}`} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o700); err != nil { //nolint:gosec // a program
			t.Fatal(err)
		}
	}
	n := open(t, Config{ConfDir: dir, BinDirs: []string{dir}, StateDir: filepath.Join(dir, "state"),
		RunDir: filepath.Join(dir, "run")})
	n.cni = newCNI(n.cfg, &programs{timeout: time.Second})
	pod := network.Pod{UID: "u", SandboxID: "s", Namespace: "ns", Name: "web"}
	ctx, cancel := context.WithCancel(t.Context())
	attached := make(chan error, 1)
	go func() {
		_, err := n.Attach(ctx, pod)
		attached <- err
	}()
	testwait.For(t, "the plugin", func() bool { _, err := os.Stat(filepath.Join(dir, "begun")); return err == nil })
	cancel()
	if err := <-attached; err == nil || !strings.Contains(err.Error(), "has not ended") {
		t.Errorf("a plugin that hangs: %v", err)
	}
	if err := os.Remove(filepath.Join(dir, "hang")); err != nil {
		t.Fatal(err)
	}
	if _, err := n.Attach(t.Context(), pod); err != nil {
		t.Errorf("once it does not hang: %v", err)
	}
	if err := n.Detach(t.Context(), pod.SandboxID); err != nil {
		t.Error(err)
	}
}
