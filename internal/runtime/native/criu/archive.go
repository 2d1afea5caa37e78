package criu

import (
	"archive/tar"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

// description is the file config.dump, as other runtimes write it.
type description struct {
	ID             string    `json:"id"`
	Name           string    `json:"name"`
	RootfsImage    string    `json:"rootfsImage,omitempty"`
	RootfsImageRef string    `json:"rootfsImageRef,omitempty"`
	Runtime        string    `json:"runtime,omitempty"`
	CreatedAt      time.Time `json:"createdTime"`
	CheckpointedAt time.Time `json:"checkpointedTime"`
}

// describe writes config.dump.
func describe(c Container, work string) error {
	text, err := json.Marshal(description{ID: filepath.Base(c.Dir), Name: c.Config.GetMetadata().GetName(),
		RootfsImage: c.Config.GetImage().GetImage(), RootfsImageRef: c.ImageID, Runtime: "carob",
		CreatedAt: time.Unix(0, c.StartedAt).UTC(), CheckpointedAt: time.Now().UTC()})
	if err != nil {
		return fmt.Errorf("describe a checkpoint: %w", err)
	}
	if err := os.WriteFile(filepath.Join(work, configFile), text, 0o600); err != nil {
		return fmt.Errorf("describe a checkpoint: %w", err)
	}
	return nil
}

// pack writes the files below work to a new archive. It has no name until it is complete and on disk, so that nothing
// is left of it if carob ends before.
func pack(work, to string) error {
	fd, err := unix.Open(filepath.Dir(to), unix.O_TMPFILE|unix.O_WRONLY|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return &os.PathError{Op: "create a file in", Path: filepath.Dir(to), Err: err}
	}
	f := os.NewFile(uintptr(fd), to)
	defer func() { _ = f.Close() }()
	t := tar.NewWriter(f)
	if err := errors.Join(t.AddFS(os.DirFS(work)), t.Close()); err != nil {
		return err
	}
	if err := f.Sync(); err != nil {
		return err
	}
	err = unix.Linkat(unix.AT_FDCWD, "/proc/self/fd/"+strconv.Itoa(fd), unix.AT_FDCWD, to, unix.AT_SYMLINK_FOLLOW)
	if err != nil {
		return &os.PathError{Op: "link", Path: to, Err: err}
	}
	return nil
}
