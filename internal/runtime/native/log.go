package native

import (
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"carob/internal/base/beneath"
)

// logPlace is where the container's log lies: a directory of the host, and the path below
// it that pods might reach (one that mounts the host's /var/log, say).
func (c *container) logPlace() (root, name string) {
	dir := c.sandbox.config.GetLogDirectory()
	if dir == "" {
		return "/", c.rec.LogPath
	}
	return filepath.Dir(dir), filepath.Join(filepath.Base(dir), c.config.GetLogPath())
}

func (c *container) makeLogDir() error {
	if c.rec.LogPath == "" {
		return nil
	}
	root, name := c.logPlace()
	if err := os.MkdirAll(root, 0o755); err != nil {
		return err
	}
	return beneath.MkdirAll(root, filepath.Dir(name), 0o755)
}

// openLog opens the log to be written at its end, made when missing; nil for a container
// without one. The monitor gets it open, so that it opens nothing by a name.
func (c *container) openLog() (*os.File, error) {
	if c.rec.LogPath == "" {
		return nil, nil
	}
	root, name := c.logPlace()
	return beneath.Open(root, name, unix.O_WRONLY|unix.O_APPEND|unix.O_CREAT, 0o640)
}
