package native

import (
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"carob/internal/base/securepath"
)

// logPlace is the location of the container's log: a directory of the host, and the path below it,
// which pods may be able to reach (for example one that mounts the host's /var/log).
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
	return securepath.MkdirAll(root, filepath.Dir(name), 0o755)
}

// openLog opens the log for appending and creates it if it is missing; it returns nil for a
// container without a log. The monitor gets the open file, so that it opens nothing by name.
func (c *container) openLog() (*os.File, error) {
	if c.rec.LogPath == "" {
		return nil, nil
	}
	root, name := c.logPlace()
	return securepath.Open(root, name, unix.O_WRONLY|unix.O_APPEND|unix.O_CREAT, 0o640)
}
