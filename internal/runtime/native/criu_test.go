package native

import (
	"archive/tar"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// CRIU dumps a container while it runs, and the container goes on. CAROB_TEST_CRIU names a CRIU that is not installed.
func TestCheckpointContainer(t *testing.T) {
	w := newWorld(t)
	sb, sbc := w.sandbox("ck")
	id := w.run(sb, sbc, "c", shell("echo $$ > /tmp/pid; while true; do sleep 0.1; done"))
	to := filepath.Join(t.TempDir(), "a.tar")
	w.r.checkpoints.Program = filepath.Join(t.TempDir(), "criu")
	_, err := w.r.CheckpointContainer(t.Context(), &cri.CheckpointContainerRequest{ContainerId: id, Location: to})
	if status.Code(err) != codes.Unimplemented {
		t.Errorf("without criu: %v", err)
	}
	created := w.create(sb, sbc, "d", shell("true"))
	for id, want := range map[string]codes.Code{created: codes.FailedPrecondition, "nobody": codes.NotFound} {
		_, err = w.r.CheckpointContainer(t.Context(), &cri.CheckpointContainerRequest{ContainerId: id, Location: to})
		if status.Code(err) != want {
			t.Errorf("%s: %v", id, err)
		}
	}
	program := os.Getenv("CAROB_TEST_CRIU")
	if program == "" {
		program = "criu"
	}
	if err := exec.CommandContext(t.Context(), program, "check").Run(); err != nil {
		t.Skipf("CRIU does not work here: %v", err)
	}
	w.r.checkpoints.Program = program
	if _, err = w.r.CheckpointContainer(t.Context(),
		&cri.CheckpointContainerRequest{ContainerId: id, Location: to}); err != nil {
		t.Fatal(err)
	}
	f, err := os.Open(to)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	var names []string
	for r := tar.NewReader(f); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		names = append(names, h.Name)
	}
	if all := strings.Join(names, " "); !strings.Contains(all, "checkpoint/pages-1.img") ||
		!strings.Contains(all, "checkpoint/core-1.img") || !strings.Contains(all, "config.dump") {
		t.Errorf("archive: %s", all)
	}
	if out, err := w.exec(id, "cat", "/tmp/pid"); err != nil || strings.TrimSpace(string(out.GetStdout())) != "1" {
		t.Errorf("after the checkpoint: %v, %v", out, err)
	}
}
