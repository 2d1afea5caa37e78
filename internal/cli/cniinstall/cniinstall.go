// Package cniinstall sets up carob as the CNI plugin of another container runtime, and removes it: a configuration, and
// a link to this program under the plugin's name.
package cniinstall

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"carob/internal/base/atomicfile"
	"carob/internal/base/instance"
	"carob/internal/cli/cniplugin"
)

// Directories where container runtimes look for CNI configurations and plugins.
const (
	DefaultConf = "/etc/cni/net.d"
	DefaultBin  = "/opt/cni/bin"
)

// Dirs are the directories of one container runtime.
type Dirs struct {
	Conf string // of configurations
	Bin  string // of plugins
}

// check checks that directories that the user chose exist; the default ones are created.
func (d Dirs) check() error {
	for _, d := range []struct{ flag, dir, preset string }{{"conf-dir", d.Conf, DefaultConf},
		{"bin-dir", d.Bin, DefaultBin}} {
		if st, err := os.Stat(d.dir); d.dir != d.preset && (err != nil || !st.IsDir()) {
			return fmt.Errorf("%w --%s: %s is not a directory", instance.ErrFlag, d.flag, d.dir)
		}
	}
	return nil
}

func conflistFile(in instance.Instance, dir string) string {
	return filepath.Join(dir, "10-"+in.ID+".conflist")
}

// conflists are the CNI configurations in a directory whose names contain a text, in their order.
func conflists(dir, text string) ([]string, error) {
	entries, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("list CNI configurations: %w", err)
	}
	var names []string
	for _, e := range entries {
		if ext := filepath.Ext(e.Name()); slices.Contains([]string{".conflist", ".conf", ".json"}, ext) &&
			strings.Contains(e.Name(), text) {
			names = append(names, e.Name())
		}
	}
	return names, nil
}

// Uninstall removes the configuration of an instance, and the link if no other instance uses it.
func (d Dirs) Uninstall(in instance.Instance) error {
	if err := d.check(); err != nil {
		return err
	}
	if err := os.Remove(conflistFile(in, d.Conf)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove the CNI configuration: %w", err)
	}
	if others, err := conflists(d.Conf, "carob"); err != nil || len(others) > 0 {
		return err // another cluster uses the link
	}
	if err := os.Remove(filepath.Join(d.Bin, cniplugin.Type)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove the CNI plugin: %w", err)
	}
	return nil
}

// Install writes the configuration of an instance last: with it, the container runtime begins to call the plugin.
func (d Dirs) Install(in instance.Instance, out, errOut io.Writer) error {
	if err := d.check(); err != nil {
		return err
	}
	for _, dir := range []string{d.Conf, d.Bin} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return fmt.Errorf("create a directory for CNI: %w", err)
		}
	}
	exe, err := os.Executable()
	if err != nil {
		return fmt.Errorf("find the path of the carob program: %w", err)
	}
	link := filepath.Join(d.Bin, cniplugin.Type)
	if old, err := os.Lstat(link); err == nil && old.Mode()&fs.ModeSymlink == 0 {
		return fmt.Errorf("%s exists and is not a link: remove it first", link)
	}
	fresh := link + ".new"
	_ = os.Remove(fresh)
	err = os.Symlink(exe, fresh)
	if err == nil {
		err = os.Rename(fresh, link)
	}
	if err != nil {
		return fmt.Errorf("link the CNI plugin: %w", err)
	}
	text, err := conflist(in)
	if err != nil {
		return err
	}
	file := conflistFile(in, d.Conf)
	if err := atomicfile.Write(file, text, 0o644); err != nil {
		return fmt.Errorf("write the CNI configuration: %w", err)
	}
	fmt.Fprintf(out, "wrote %s and %s\n", file, link)
	names, err := conflists(d.Conf, "")
	if err == nil && len(names) > 0 && names[0] != filepath.Base(file) {
		fmt.Fprintf(errOut,
			"warning: container runtimes use the first configuration, which is %s: remove it, or rename one of them\n",
			filepath.Join(d.Conf, names[0]))
	}
	return nil
}

// conflist is the configuration of carob's network. Old versions of libcni read cniVersion only; new ones choose
// from cniVersions.
func conflist(in instance.Instance) ([]byte, error) {
	type plugin struct {
		Type         string          `json:"type"`
		Socket       string          `json:"socket"`
		Capabilities map[string]bool `json:"capabilities"`
	}
	text, err := json.MarshalIndent(struct {
		CNIVersion  string   `json:"cniVersion"`
		CNIVersions []string `json:"cniVersions"`
		Name        string   `json:"name"`
		Plugins     []plugin `json:"plugins"`
	}{"1.0.0", []string{"1.0.0", "1.1.0"}, in.ID, []plugin{{cniplugin.Type, in.SocketCNI,
		map[string]bool{"portMappings": true, "bandwidth": true}}}}, "", "  ")
	if err != nil {
		return nil, fmt.Errorf("encode the CNI configuration: %w", err)
	}
	return append(text, '\n'), nil
}
