// Package criu writes checkpoints of containers with CRIU, if that is installed. It handles processes and files, not
// containers; the native runtime calls it. CRIU stops all processes of a container while it reads their memory, and
// lets them continue. A checkpoint has secrets: whatever a process has in its memory.
package criu

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"carob/internal/base/keylock"
)

// Limits of one checkpoint.
const (
	patience   = 4 * time.Minute // without a time limit in the request
	maxReason  = 400             // bytes of CRIU's log in an error
	maxReasons = 3               // lines of it: the last one often says only that another step failed
	maxLog     = 64 << 10        // bytes at the end of the log that are searched for the reason
)

// Container is what is checkpointed.
type Container struct {
	Dir       string // of the container, in which images are written; it is removed with the container
	PID       int    // of its first process
	StartedAt int64  // in nanoseconds since 1970
	Config    *cri.ContainerConfig
	ImageID   string
}

// Dumper writes checkpoints, one at a time for each container. Its zero value is ready for use.
type Dumper struct {
	Program string // path or name of CRIU; "": criu

	locks keylock.Locks
}

// Checkpoint writes the state of a running container to the archive that the request names, which must not exist. The
// archive appears when it is complete. After the time limit of the request CRIU is killed; the caller's disconnect does
// not end it, because a dump that is cut off may harm the processes. Without CRIU the code is Unimplemented.
func (d *Dumper) Checkpoint(ctx context.Context, c Container, req *cri.CheckpointContainerRequest) (
	*cri.CheckpointContainerResponse, error) {
	to := req.GetLocation()
	if !filepath.IsAbs(to) || filepath.Clean(to) != to {
		return nil, fmt.Errorf("%q is not the absolute path of an archive", to)
	}
	if c.PID <= 1 {
		return nil, fmt.Errorf("the container has no process: ID %d", c.PID)
	}
	program := d.Program
	if program == "" {
		program = "criu"
	}
	program, err := exec.LookPath(program)
	if err != nil {
		return nil, status.Errorf(codes.Unimplemented, "criu is not installed on this node: %v", err)
	}
	limit := patience
	if s := req.GetTimeout(); s > 0 && s < int64(24*time.Hour/time.Second) {
		limit = time.Duration(s) * time.Second
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), limit)
	defer cancel()
	if err := d.locks.Lock(ctx, c.Dir); err != nil {
		return nil, fmt.Errorf("another checkpoint of the container has not ended: %w", err)
	}
	defer d.locks.Unlock(c.Dir)
	work := filepath.Join(c.Dir, "checkpoint")
	if err := os.RemoveAll(work); err != nil { // of a carob that was killed
		return nil, fmt.Errorf("remove an incomplete checkpoint: %w", err)
	}
	defer func() { _ = os.RemoveAll(work) }() // else with the next checkpoint, or with the container
	if err := dump(ctx, program, c, work); err != nil {
		return nil, err
	}
	if err := describe(c, work); err != nil {
		return nil, err
	}
	if err := pack(work, to); err != nil {
		return nil, fmt.Errorf("write the archive of a checkpoint: %w", err)
	}
	return &cri.CheckpointContainerResponse{}, nil
}

// dump has CRIU write its images below work.
func dump(ctx context.Context, program string, c Container, work string) error {
	images := filepath.Join(work, imagesDir)
	if err := os.MkdirAll(images, 0o700); err != nil {
		return fmt.Errorf("make the directory of a checkpoint: %w", err)
	}
	arguments, err := arguments(c, work)
	if err != nil {
		return err
	}
	output, err := os.Create(filepath.Join(work, errorsFile))
	if err != nil {
		return fmt.Errorf("make the file for CRIU's errors: %w", err)
	}
	defer func() { _ = output.Close() }()
	cmd := exec.CommandContext(ctx, program, arguments...)
	cmd.Dir, cmd.Stderr, cmd.WaitDelay = work, output, time.Second
	err = cmd.Run()
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil:
		return fmt.Errorf("criu did not finish in time: %w", ctx.Err())
	}
	for _, file := range []string{logFile, errorsFile} { // the second one if CRIU rejects its arguments
		if reason := reasonIn(filepath.Join(work, file), file == errorsFile); reason != "" {
			return fmt.Errorf("criu dump: %w: %s", err, reason)
		}
	}
	return fmt.Errorf("criu dump: %w", err)
}

// Names in an archive: those that checkpointctl reads.
const (
	imagesDir  = "checkpoint"
	logFile    = "dump.log"
	configFile = "config.dump"
	errorsFile = "stderr"
)

// arguments is CRIU's command line. Mounts and the network come from outside the container: the checkpoint refers to
// them. The processes stay in their cgroups and continue to run.
func arguments(c Container, work string) ([]string, error) {
	pid := strconv.Itoa(c.PID)
	list := []string{"dump", "--tree", pid, "--images-dir", filepath.Join(work, imagesDir), "--work-dir", work,
		"--log-file", logFile, "-v2", "--leave-running", "--manage-cgroups=ignore", "--external", "mnt[]:ms",
		"--tcp-established", "--file-locks", "--ext-unix-sk", "--shell-job"}
	for _, n := range []struct{ kind, name string }{{"net", "extRootNetNS"}, {"pid", "extRootPidNS"}} {
		var of, own unix.Stat_t
		path := filepath.Join("/proc", pid, "ns", n.kind)
		if err := unix.Stat(path, &of); err != nil {
			return nil, &os.PathError{Op: "find the namespace", Path: path, Err: err}
		}
		if n.kind == "pid" { // the container's own is dumped; a pod's shared one, or the node's, is not
			init, err := isInit(c.PID)
			if err != nil {
				return nil, err
			}
			if init {
				continue
			}
			if err := unix.Stat("/proc/self/ns/pid", &own); err == nil && own.Ino == of.Ino {
				continue
			}
		}
		list = append(list, "--external", fmt.Sprintf("%s[%d]:%s", n.kind, of.Ino, n.name))
	}
	return list, nil
}

// isInit reports whether a process is the first of a PID namespace.
func isInit(pid int) (bool, error) {
	path := filepath.Join("/proc", strconv.Itoa(pid), "status")
	text, err := os.ReadFile(path)
	if err != nil {
		return false, fmt.Errorf("find the PID namespace of a container: %w", err)
	}
	for line := range strings.Lines(string(text)) {
		if ids, ok := strings.CutPrefix(line, "NSpid:"); ok {
			f := strings.Fields(ids)
			return len(f) > 1 && f[len(f)-1] == "1", nil
		}
	}
	return false, fmt.Errorf("find the PID namespace of a container: %s has no NSpid", path)
}

// reasonIn are the last errors in CRIU's log, or the first line of a file; printable and short. It may quote names of
// files in the container.
func reasonIn(path string, first bool) string {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return ""
	}
	defer func() { _ = f.Close() }()
	info, err := f.Stat()
	if err != nil || !info.Mode().IsRegular() {
		return ""
	}
	text := make([]byte, min(info.Size(), maxLog))
	n, _ := f.ReadAt(text, info.Size()-int64(len(text)))
	var reasons []string
	for line := range strings.Lines(string(text[:n])) {
		if first && strings.TrimSpace(line) != "" {
			reasons = []string{strings.TrimSpace(line)}
			break
		}
		if i := strings.Index(line, "Error ("); i >= 0 && !strings.Contains(line, "Dumping FAILED") {
			reasons = append(reasons, strings.TrimSpace(line[i:]))
		}
	}
	reason := strings.Join(reasons[max(0, len(reasons)-maxReasons):], "; ")
	reason = strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f {
			return -1
		}
		return r
	}, strings.ToValidUTF8(reason, "?"))
	reason = strings.TrimSpace(reason)
	if len(reason) > maxReason {
		reason = strings.ToValidUTF8(reason[:maxReason], "") + "…"
	}
	return reason
}
