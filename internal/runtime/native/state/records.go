// Package state keeps what the native runtime must know after a restart: a record of each sandbox
// and container, how containers exited, and the work to retry.
//
// The runtime drives it. It must never be synced to disk (after a power failure the processes are
// gone as well), and writing the next version of a record must never need more space: events on a
// full disk are recorded. Secrets are not stored here.
package state

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	imagespec "github.com/opencontainers/image-spec/specs-go/v1"
	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/proto"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"carob/internal/base/atomicfile"
	"carob/internal/runtime/native/plan"
)

// Sandbox is the record of a sandbox on disk.
type Sandbox struct {
	ID        string   `json:"id"`
	Config    []byte   `json:"config"` // cri.PodSandboxConfig, protobuf
	Handler   string   `json:"handler,omitempty"`
	CreatedAt int64    `json:"createdAt"` // ns since 1970
	StoppedAt int64    `json:"stoppedAt,omitempty"`
	NetNS     string   `json:"netns,omitempty"` // empty: the host's
	IPs       []string `json:"ips,omitempty"`
	Monitor   int      `json:"monitor,omitempty"` // of the monitor, for information
	UserNS    string   `json:"userns,omitempty"`
	Protocol  int      `json:"protocol,omitempty"` // its monitor's
}

// Container is the record of a container on disk, beside the file "exit" that its monitor writes.
type Container struct {
	ID        string          `json:"id"`
	SandboxID string          `json:"sandboxId"`
	Config    []byte          `json:"config"` // cri.ContainerConfig without its secrets, protobuf
	ImageID   string          `json:"imageId"`
	ImageName string          `json:"imageName,omitempty"` // as in the status: a tag if there is one
	ImageRef  string          `json:"imageRef"`
	Image     imagespec.Image `json:"image"` // the part of it that a start needs
	LogPath   string          `json:"logPath,omitempty"`
	Cgroup    string          `json:"cgroup"`
	Hostname  string          `json:"hostname,omitempty"`
	CreatedAt int64           `json:"createdAt"`
	// when its helper got the message to continue; only the monitor has the state of the process
	LaunchedAt int64          `json:"launchedAt,omitempty"`
	StartedAt  int64          `json:"startedAt,omitempty"`
	FinishedAt int64          `json:"finishedAt,omitempty"`
	ExitCode   int32          `json:"exitCode,omitempty"`
	Reason     string         `json:"reason,omitempty"`
	Message    string         `json:"message,omitempty"`
	Pid        int            `json:"pid,omitempty"`
	User       *plan.Identity `json:"user,omitempty"`
	Poststop   []specs.Hook   `json:"poststop,omitempty"`  // hooks of its CDI devices
	Resources  []byte         `json:"resources,omitempty"` // cri.LinuxContainerResources after an update
}

// A record has a second file of its size. The next version is written over the second file, and the
// two are exchanged: this takes no space, so events on a full disk are recorded.
const (
	recordFile = "state.json"
	twinFile   = "state.twin"
	recordRoom = 2048 // by how much a record may grow: times, user, reason, message, limits
)

// Create writes a new record with its second file. An incomplete one is removed by the next start.
func Create(dir string, v any) error {
	b, err := encodeRecord(dir, v)
	if err != nil {
		return err
	}
	b = padded(b, (len(b)+recordRoom+4095)&^4095)
	for _, name := range []string{twinFile, recordFile} {
		if err := os.WriteFile(filepath.Join(dir, name), b, 0o600); err != nil {
			return fmt.Errorf("writing the record: %w", err)
		}
	}
	return nil
}

// Save replaces a record; one call at a time. The file is not synced: after a power failure the
// processes are gone as well, and a missing or incomplete record is removed.
func Save(dir string, v any) error {
	b, err := encodeRecord(dir, v)
	if err != nil {
		return err
	}
	if exchange(dir, b) == nil {
		return nil
	}
	// Too large for the second file, which an earlier release did not create, or the file system
	// cannot exchange files.
	return atomicfile.WriteUnsynced(filepath.Join(dir, recordFile), b, 0o600)
}

func exchange(dir string, b []byte) error {
	twin := filepath.Join(dir, twinFile)
	f, err := os.OpenFile(twin, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		return err
	}
	if st.Size() < int64(len(b)) {
		return unix.EFBIG
	}
	if _, err := f.Write(padded(b, int(st.Size()))); err != nil {
		return err
	}
	return unix.Renameat2(unix.AT_FDCWD, twin, unix.AT_FDCWD, filepath.Join(dir, recordFile), unix.RENAME_EXCHANGE)
}

func encodeRecord(dir string, v any) ([]byte, error) {
	b, err := json.Marshal(v)
	if err != nil {
		return nil, fmt.Errorf("encoding the record of %s: %w", filepath.Base(dir), err)
	}
	return b, nil
}

func padded(b []byte, size int) []byte {
	return append(b, bytes.Repeat([]byte{' '}, size-len(b))...)
}

// Load reads a record; see unreadable for its errors.
func Load(dir string, v any) error {
	b, err := os.ReadFile(filepath.Join(dir, recordFile))
	if err != nil {
		return err
	}
	return json.Unmarshal(b, v)
}

// Unreadable distinguishes an error of the disk or of this process, which may pass, from a record
// that is missing or incomplete: that one's object was never finished.
func Unreadable(err error) bool {
	var path *fs.PathError
	return errors.As(err, &path) && !errors.Is(err, fs.ErrNotExist)
}

// Encode returns a message of CRI in its stored form.
func Encode(m proto.Message) []byte {
	b, err := proto.Marshal(m)
	if err != nil {
		panic("state: a message of CRI cannot be encoded: " + err.Error())
	}
	return b
}

// Decoded returns the configuration of the sandbox.
func (r *Sandbox) Decoded() (*cri.PodSandboxConfig, error) {
	c := &cri.PodSandboxConfig{}
	if err := proto.Unmarshal(r.Config, c); err != nil {
		return nil, fmt.Errorf("record of sandbox %s: %w", r.ID, err)
	}
	return c, nil
}

// Decoded returns the configuration of the container, without its secrets.
func (r *Container) Decoded() (*cri.ContainerConfig, error) {
	c := &cri.ContainerConfig{}
	if err := proto.Unmarshal(r.Config, c); err != nil {
		return nil, fmt.Errorf("record of container %s: %w", r.ID, err)
	}
	return c, nil
}
