package criu

import (
	"archive/tar"
	"context"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// program is a script in place of CRIU. It gets CRIU's arguments; $work is the directory of the log.
func program(t *testing.T, script string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "criu")
	text := "#!/bin/sh\nprintf '%s\\n' \"$@\" > arguments\n" + script + "\n"
	if err := os.WriteFile(path, []byte(text), 0o700); err != nil {
		t.Fatal(err)
	}
	return path
}

// world is a container, which is this process, and an archive.
func world(t *testing.T) (c Container, req *cri.CheckpointContainerRequest) {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "c1")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	return Container{Dir: dir, PID: os.Getpid(), StartedAt: 1e18, ImageID: "sha256:x",
			Config: &cri.ContainerConfig{Metadata: &cri.ContainerMetadata{Name: "web"},
				Image: &cri.ImageSpec{Image: "nginx"}}},
		&cri.CheckpointContainerRequest{Location: filepath.Join(t.TempDir(), "a.tar")}
}

func read(t *testing.T, path string) map[string]string {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	files := map[string]string{}
	for r := tar.NewReader(f); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return files
		}
		if err != nil {
			t.Fatal(err)
		}
		text, err := io.ReadAll(r)
		if err != nil {
			t.Fatal(err)
		}
		files[h.Name] = string(text)
	}
}

// left are the files in the container's directory and beside the archive.
func left(t *testing.T, c Container, req *cri.CheckpointContainerRequest) (names []string) {
	t.Helper()
	for _, dir := range []string{c.Dir, filepath.Dir(req.Location)} {
		entries, err := os.ReadDir(dir)
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range entries {
			names = append(names, e.Name())
		}
	}
	return names
}

// The archive has CRIU's images, its log, and the description of the container; only root can read it (S12.33).
func TestCheckpoint(t *testing.T) {
	c, req := world(t)
	stale := filepath.Join(c.Dir, "checkpoint", "checkpoint", "stale.img") // of a carob that was killed
	if err := os.MkdirAll(filepath.Dir(stale), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(stale, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	d := &Dumper{Program: program(t, "echo memory > checkpoint/pages-1.img; echo fine > dump.log")}
	if _, err := d.Checkpoint(t.Context(), c, req); err != nil {
		t.Fatal(err)
	}
	files := read(t, req.Location)
	if files["checkpoint/pages-1.img"] != "memory\n" || files["dump.log"] != "fine\n" ||
		files["checkpoint/stale.img"] != "" {
		t.Errorf("%q", files)
	}
	var about description
	if err := json.Unmarshal([]byte(files["config.dump"]), &about); err != nil || about.ID != "c1" ||
		about.Name != "web" || about.RootfsImage != "nginx" || about.RootfsImageRef != "sha256:x" ||
		about.CreatedAt.Unix() != 1e9 || about.CheckpointedAt.Before(about.CreatedAt) {
		t.Errorf("%+v, %v", about, err)
	}
	arguments := strings.Fields(files["arguments"])
	for _, want := range []string{"--leave-running", "--manage-cgroups=ignore", "mnt[]:ms"} {
		if !slices.Contains(arguments, want) {
			t.Errorf("arguments %q", arguments)
		}
	}
	info, err := os.Stat(req.Location)
	if err != nil || info.Mode() != 0o600 {
		t.Errorf("%v, %v", info.Mode(), err)
	}
	if names := left(t, c, req); !slices.Equal(names, []string{"a.tar"}) {
		t.Errorf("left: %q", names)
	}
	// An archive is never replaced.
	if _, err := d.Checkpoint(t.Context(), c, req); !errors.Is(err, os.ErrExist) {
		t.Errorf("second time: %v", err)
	}
}

// A failure has CRIU's reason, on one short line, and leaves nothing.
func TestCheckpointFails(t *testing.T) {
	for name, tc := range map[string]struct{ script, want string }{
		"reason": {"for i in 1 2 3; do echo \"(0.$i) Error (c:$i): no way\x01\x7f\" >> dump.log; done; " +
			"echo 'Error (d): files' >> dump.log; echo 'Error (criu/cr-dump.c:2): Dumping FAILED.' >> dump.log; exit 1",
			"criu dump: exit status 1: Error (c:2): no way; Error (c:3): no way; Error (d): files"},
		"arguments": {"echo 'criu: unrecognized option' >&2; echo Usage >&2; exit 1",
			"criu dump: exit status 1: criu: unrecognized option"},
		"no log": {"exit 3", "criu dump: exit status 3"},
		"link":   {"ln -s /etc/passwd dump.log; exit 1", "criu dump: exit status 1"},
		"fifo":   {"mkfifo dump.log; exit 1", "criu dump: exit status 1"},
		"killed": {"kill -9 $$", "criu dump: signal: killed"},
	} {
		c, req := world(t)
		_, err := (&Dumper{Program: program(t, tc.script)}).Checkpoint(t.Context(), c, req)
		if err == nil || err.Error() != tc.want {
			t.Errorf("%s: %v", name, err)
		}
		if names := left(t, c, req); len(names) > 0 {
			t.Errorf("%s: left: %q", name, names)
		}
	}
	c, req := world(t)
	long := program(t, "head -c 200000 /dev/zero | tr '\\0' x > dump.log; printf '\\nError (x): ' >> dump.log; "+
		"head -c 10000 /dev/zero | tr '\\0' y >> dump.log; exit 1")
	if _, err := (&Dumper{Program: long}).Checkpoint(t.Context(), c, req); err == nil || len(err.Error()) > 500 ||
		!strings.Contains(err.Error(), "yyy") {
		t.Errorf("long log: %.600v", err)
	}
}

// Without CRIU the error says so; requests that make no sense start nothing.
func TestCheckpointRefused(t *testing.T) {
	c, req := world(t)
	_, err := (&Dumper{Program: filepath.Join(t.TempDir(), "criu")}).Checkpoint(t.Context(), c, req)
	if status.Code(err) != codes.Unimplemented || !strings.Contains(err.Error(), "criu is not installed on this node") {
		t.Error(err)
	}
	d := &Dumper{Program: program(t, "touch "+filepath.Join(c.Dir, "started"))}
	for _, to := range []string{"", "a.tar", "/x/../a.tar", "/x//a.tar"} {
		if _, err := d.Checkpoint(t.Context(), c, &cri.CheckpointContainerRequest{Location: to}); err == nil {
			t.Errorf("%q is accepted", to)
		}
	}
	none := c
	none.PID = 0
	if _, err := d.Checkpoint(t.Context(), none, req); err == nil {
		t.Error("no process")
	}
	none.PID = 1 << 30
	if _, err := d.Checkpoint(t.Context(), none, req); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("process that has ended: %v", err)
	}
	if names := left(t, c, req); len(names) > 0 {
		t.Errorf("left: %q", names)
	}
}

// Two checkpoints of one container at the same time are written one after the other: CRIU never runs twice on the same
// processes, and each archive is complete. Those of two containers do not wait for each other.
func TestTwoCheckpointsAtOnce(t *testing.T) {
	c, req := world(t)
	other, otherReq := world(t)
	gate := t.TempDir()
	// The first dump of this container waits until the test saw that of the other. mkdir fails if two run at once.
	d := &Dumper{Program: program(t, `case "$PWD" in
`+other.Dir+`/*) echo other > checkpoint/a.img; exit 0;;
esac
mkdir `+gate+`/runs || exit 1
until [ -e `+gate+`/go ]; do sleep 0.01; done
echo dumped >> checkpoint/a.img
rmdir `+gate+`/runs`)}
	second := &cri.CheckpointContainerRequest{Location: filepath.Join(filepath.Dir(req.Location), "b.tar")}
	ended := make(chan error, 2)
	for _, r := range []*cri.CheckpointContainerRequest{req, second} {
		go func() {
			_, err := d.Checkpoint(t.Context(), c, r)
			ended <- err
		}()
	}
	if _, err := d.Checkpoint(t.Context(), other, otherReq); err != nil { // while one of the two waits
		t.Error(err)
	}
	if err := os.WriteFile(filepath.Join(gate, "go"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}
	for _, r := range []*cri.CheckpointContainerRequest{req, second} {
		if got := read(t, r.Location)["checkpoint/a.img"]; got != "dumped\n" {
			t.Errorf("%s has %q", r.Location, got)
		}
	}
	if names := left(t, c, req); !slices.Equal(names, []string{"a.tar", "b.tar"}) {
		t.Errorf("left: %q", names)
	}
}

// CRIU that never ends is killed after the time limit of the request.
func TestCheckpointHangs(t *testing.T) {
	c, req := world(t)
	req.Timeout = 1
	_, err := (&Dumper{Program: program(t, "exec sleep 1000")}).Checkpoint(t.Context(), c, req)
	if err == nil || !strings.Contains(err.Error(), "criu did not finish in time") {
		t.Error(err)
	}
	if names := left(t, c, req); len(names) > 0 {
		t.Errorf("left: %q", names)
	}
}

// The client's disconnect does not end a dump.
func TestCheckpointOfDisconnectedClient(t *testing.T) {
	c, req := world(t)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := (&Dumper{Program: program(t, "echo x > checkpoint/a.img")}).Checkpoint(ctx, c, req); err != nil {
		t.Error(err)
	}
	if read(t, req.Location)["checkpoint/a.img"] != "x\n" {
		t.Error("the archive is incomplete")
	}
}
