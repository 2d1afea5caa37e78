package native

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/proto"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"carob/internal/runtime/native/state"
)

// A container's environment, command, and arguments can contain secrets: values of Secrets, also by
// $(NAME). They are kept in memory, in files below secretDir. A reboot removes them together with
// the container; the files on disk then still name it.
//
//	secretDir(id)/config        cri.ContainerConfig, protobuf, as requested
//	secretDir(id)/config.json   the bundle of hooks
const secretFile = "config"

func (r *Runtime) secretDir(id string) string {
	return filepath.Join(r.cfg.StateDir, "containers", id)
}

// withoutSecrets returns what may be stored on disk of a configuration.
func withoutSecrets(c *cri.ContainerConfig) *cri.ContainerConfig {
	kept, _ := proto.Clone(c).(*cri.ContainerConfig)
	kept.Envs, kept.Command, kept.Args = nil, nil, nil
	return kept
}

func hasSecrets(c *cri.ContainerConfig) bool {
	return len(c.GetEnvs())+len(c.GetCommand())+len(c.GetArgs()) > 0
}

// keepSecrets stores a container's configuration in memory, before its record is written, by which
// it is found again.
func (r *Runtime) keepSecrets(id string, c *cri.ContainerConfig) error {
	r.secrets.Lock()
	defer r.secrets.Unlock()
	if err := r.mountSecrets(); err != nil {
		return err
	}
	if err := os.Mkdir(r.secretDir(id), 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("keeping the container's environment: %w", err)
	}
	if err := os.WriteFile(filepath.Join(r.secretDir(id), secretFile), state.Encode(c), 0o600); err != nil {
		return fmt.Errorf("keeping the container's environment: %w", err)
	}
	return nil
}

// configOf returns the configuration of a container of an earlier process. If the part in memory is
// missing, it is what the disk has: the container ended with the machine, or an earlier release
// created it, which stored everything on disk.
func (r *Runtime) configOf(rec *state.Container) (*cri.ContainerConfig, error) {
	b, err := os.ReadFile(filepath.Join(r.secretDir(rec.ID), secretFile))
	if errors.Is(err, fs.ErrNotExist) {
		return rec.Decoded()
	}
	if err != nil {
		return nil, err
	}
	c := &cri.ContainerConfig{}
	if err := proto.Unmarshal(b, c); err != nil {
		return nil, fmt.Errorf("environment of container %s: %w", rec.ID, err)
	}
	return c, nil
}

// hideSecrets moves what an earlier release stored on disk into memory. Both copies of the record
// are overwritten.
func (r *Runtime) hideSecrets(c *container) error {
	old, err := c.rec.Decoded()
	if err != nil || !hasSecrets(old) {
		return err
	}
	if err := r.keepSecrets(c.rec.ID, old); err != nil {
		return err
	}
	bundle := filepath.Join(r.containerDir(c.rec.ID), "config.json")
	if b, err := os.ReadFile(bundle); err == nil {
		if err := os.WriteFile(filepath.Join(r.secretDir(c.rec.ID), "config.json"), b, 0o600); err != nil {
			return fmt.Errorf("keeping the container's environment: %w", err)
		}
		if err := os.Remove(bundle); err != nil {
			return fmt.Errorf("keeping the container's environment: %w", err)
		}
	}
	c.rec.Config = state.Encode(withoutSecrets(old))
	return errors.Join(r.saveContainer(c), r.saveContainer(c))
}

// forgetSecrets removes the secrets of containers that do not exist any more.
func (r *Runtime) forgetSecrets() error {
	names, err := dirNames(r.secretDir(""))
	if err != nil {
		return err
	}
	for _, id := range names {
		if r.containers[id] == nil {
			if err := r.dropSecrets(id); err != nil {
				return err
			}
		}
	}
	return r.dropSecrets("none")
}

// dropSecrets removes the secrets of a container. With the last one, the tmpfs is unmounted, so
// that a host without containers is as before.
func (r *Runtime) dropSecrets(id string) error {
	r.secrets.Lock()
	defer r.secrets.Unlock()
	dir := r.secretDir("")
	if err := removeDir(r.secretDir(id)); err != nil {
		return err
	}
	names, err := dirNames(dir)
	if err != nil || len(names) > 0 {
		return err
	}
	mounted, err := isMount(dir)
	if err != nil || !mounted {
		return err
	}
	if err := unix.Unmount(dir, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW); err != nil {
		return fmt.Errorf("unmounting %s: %w", dir, err)
	}
	return nil
}

// mountSecrets mounts a tmpfs on the directory of secrets, without swap if the kernel supports
// that.
func (r *Runtime) mountSecrets() error {
	dir := r.secretDir("")
	if mounted, err := isMount(dir); err != nil || mounted {
		return err
	}
	const flags = unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC
	err := unix.Mount("carob", dir, "tmpfs", flags, "mode=0700,noswap")
	if errors.Is(err, unix.EINVAL) { // before Linux 6.4
		err = unix.Mount("carob", dir, "tmpfs", flags, "mode=0700")
	}
	if err != nil {
		return fmt.Errorf("mounting memory for environments at %s: %w", dir, err)
	}
	return nil
}

func isMount(dir string) (bool, error) {
	var own, above unix.Stat_t
	if err := errors.Join(unix.Lstat(dir, &own), unix.Lstat(filepath.Dir(dir), &above)); err != nil {
		return false, fmt.Errorf("looking at %s: %w", dir, err)
	}
	return own.Dev != above.Dev, nil
}
