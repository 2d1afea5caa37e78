// Package state keeps what the native runtime must know after a restart: a record of each sandbox and
// container, how containers ended, and the work that has to be tried again.
//
// The runtime drives it. It must never be synced to disk (after a power cut the processes are gone
// as well), and writing the next version of a record must never need more room: what happens on a
// full disk is recorded. Secrets are not kept here.
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

// Sandbox is what is kept of a sandbox on disk.
type Sandbox struct {
	ID        string   `json:"id"`
	Config    []byte   `json:"config"` // cri.PodSandboxConfig, protobuf
	Handler   string   `json:"handler,omitempty"`
	CreatedAt int64    `json:"createdAt"` // ns since 1970
	StoppedAt int64    `json:"stoppedAt,omitempty"`
	NetNS     string   `json:"netns,omitempty"` // empty: the host's
	IPs       []string `json:"ips,omitempty"`
	Monitor   int      `json:"monitor,omitempty"` // pid, for whoever looks
	UserNS    string   `json:"userns,omitempty"`
	Protocol  int      `json:"protocol,omitempty"` // its monitor's
}

// Container is what is kept of a container on disk, beside the file
// "exit" that its monitor writes.
type Container struct {
	ID        string          `json:"id"`
	SandboxID string          `json:"sandboxId"`
	Config    []byte          `json:"config"` // cri.ContainerConfig without its secrets, protobuf
	ImageID   string          `json:"imageId"`
	ImageName string          `json:"imageName,omitempty"` // as status tells it: a tag when there is one
	ImageRef  string          `json:"imageRef"`
	Image     imagespec.Image `json:"image"` // what of it a start needs
	LogPath   string          `json:"logPath,omitempty"`
	Cgroup    string          `json:"cgroup"`
	Hostname  string          `json:"hostname,omitempty"`
	CreatedAt int64           `json:"createdAt"`
	// when its helper was let go on; whether it began, the monitor knows
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

// A record has a twin of its size. The next version is written over the twin, and the
// two change places: that takes no room, so what happens on a full disk is recorded.
const (
	recordFile = "state.json"
	twinFile   = "state.twin"
	recordRoom = 2048 // by which a record may grow: times, user, reason, message, limits
)

// Create writes the record of something new with its twin. One that is cut off
// is swept away by the next start.
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

// Save replaces a record; one at a time. It is not synced: after a power cut the processes
// are gone as well, and a record that is lost or cut off is swept away.
func Save(dir string, v any) error {
	b, err := encodeRecord(dir, v)
	if err != nil {
		return err
	}
	if exchange(dir, b) == nil {
		return nil
	}
	// Too large for its twin, of an earlier release that made none, or on a file system that can't exchange.
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

// Unreadable tells an error of the disk or of this process, which may pass, from a
// record that is missing or cut off: what that belongs to was never finished.
func Unreadable(err error) bool {
	var path *fs.PathError
	return errors.As(err, &path) && !errors.Is(err, fs.ErrNotExist)
}

// Encode is a message of CRI as it is kept.
func Encode(m proto.Message) []byte {
	b, err := proto.Marshal(m)
	if err != nil {
		panic("state: a message of CRI can't be encoded: " + err.Error())
	}
	return b
}

// Decoded is the configuration of the sandbox.
func (r *Sandbox) Decoded() (*cri.PodSandboxConfig, error) {
	c := &cri.PodSandboxConfig{}
	if err := proto.Unmarshal(r.Config, c); err != nil {
		return nil, fmt.Errorf("record of sandbox %s: %w", r.ID, err)
	}
	return c, nil
}

// Decoded is the configuration of the container, without its secrets.
func (r *Container) Decoded() (*cri.ContainerConfig, error) {
	c := &cri.ContainerConfig{}
	if err := proto.Unmarshal(r.Config, c); err != nil {
		return nil, fmt.Errorf("record of container %s: %w", r.ID, err)
	}
	return c, nil
}
