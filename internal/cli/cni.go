package cli

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"carob/internal/base/atomicfile"
	"carob/internal/base/instance"
	"carob/internal/cli/cniplugin"
)

// Directories where container runtimes look for CNI configurations and plugins.
const (
	defaultCNIConf = "/etc/cni/net.d"
	defaultCNIBin  = "/opt/cni/bin"
)

func (r *root) cniCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "cni",
		Short: "Connect pods of another container runtime to carob's pod network",
		Long: `Connect pods of another container runtime, such as containerd, to carob's pod
network: with the environment of a CNI plugin, this command is one. Container
runtimes call it as ` + cniplugin.Type + `, which ` + "`carob cni install`" + ` sets up.`,
		Example: `  # Set up the plugin where containerd looks for it
  carob cni install

  # Remove it
  carob cni uninstall`,
		Args: cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			if os.Getenv("CNI_COMMAND") == "" {
				return group(cmd, args)
			}
			if !cniplugin.Run(cmd.Context(), os.Getenv, r.in, r.out) {
				return Exit{Code: 1}
			}
			return nil
		},
	}
	cmd.AddCommand(r.cniInstallCommand(), r.cniUninstallCommand())
	return cmd
}

// cniDirs adds the flags that both commands have.
func cniDirs(cmd *cobra.Command, conf, bin *string) {
	cmd.Flags().StringVar(conf, "conf-dir", defaultCNIConf, "directory with CNI configurations")
	cmd.Flags().StringVar(bin, "bin-dir", defaultCNIBin, "directory with CNI plugins")
	_ = cmd.MarkFlagDirname("conf-dir")
	_ = cmd.MarkFlagDirname("bin-dir")
}

func (r *root) cniInstallCommand() *cobra.Command {
	var conf, bin string
	cmd := &cobra.Command{
		Use:   "install",
		Short: "Set up carob as the CNI plugin of a container runtime",
		Long: `Set up carob as the CNI plugin of a container runtime: a configuration in
--conf-dir and a link to this program in --bin-dir. The container runtime uses the
first configuration in its directory, by name; it need not be restarted.`,
		Example: `  # Where containerd and CRI-O look by default
  carob cni install

  # For Debian's containerd, and another cluster on this machine
  carob cni install --bin-dir /usr/lib/cni --data-dir /srv/carob2`,
		Args: noArgs,
		RunE: func(*cobra.Command, []string) error {
			in, err := r.instance()
			if err != nil {
				return err
			}
			return r.installCNI(in, conf, bin)
		},
	}
	cniDirs(cmd, &conf, &bin)
	return cmd
}

func (r *root) cniUninstallCommand() *cobra.Command {
	var conf, bin string
	cmd := &cobra.Command{
		Use:   "uninstall",
		Short: "Remove what `carob cni install` set up",
		Example: `  carob cni uninstall
  carob cni uninstall --bin-dir /usr/lib/cni`,
		Args: noArgs,
		RunE: func(*cobra.Command, []string) error {
			in, err := r.instance()
			if err != nil {
				return err
			}
			if err := checkCNIDirs(conf, bin); err != nil {
				return err
			}
			if err := os.Remove(conflistFile(in, conf)); err != nil && !errors.Is(err, fs.ErrNotExist) {
				return fmt.Errorf("remove the CNI configuration: %w", err)
			}
			if others, err := conflists(conf, "carob"); err != nil || len(others) > 0 {
				return err // another cluster uses the link
			}
			if err := os.Remove(filepath.Join(bin, cniplugin.Type)); err != nil && !errors.Is(err, fs.ErrNotExist) {
				return fmt.Errorf("remove the CNI plugin: %w", err)
			}
			return nil
		},
	}
	cniDirs(cmd, &conf, &bin)
	return cmd
}

// checkCNIDirs checks that directories that the user chose exist; the default ones are created.
func checkCNIDirs(conf, bin string) error {
	for _, d := range []struct{ flag, dir, preset string }{{"conf-dir", conf, defaultCNIConf},
		{"bin-dir", bin, defaultCNIBin}} {
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

// installCNI writes the configuration last: with it, the container runtime begins to call the plugin.
func (r *root) installCNI(in instance.Instance, conf, bin string) error {
	if err := checkCNIDirs(conf, bin); err != nil {
		return err
	}
	for _, dir := range []string{conf, bin} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return fmt.Errorf("create a directory for CNI: %w", err)
		}
	}
	exe, err := os.Executable()
	if err != nil {
		return fmt.Errorf("find own program: %w", err)
	}
	link := filepath.Join(bin, cniplugin.Type)
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
	file := conflistFile(in, conf)
	if err := atomicfile.Write(file, text, 0o644); err != nil {
		return fmt.Errorf("write the CNI configuration: %w", err)
	}
	fmt.Fprintf(r.out, "wrote %s and %s\n", file, link)
	names, err := conflists(conf, "")
	if err == nil && len(names) > 0 && names[0] != filepath.Base(file) {
		fmt.Fprintf(r.errOut,
			"warning: container runtimes use the first configuration, which is %s: remove it, or rename one of them\n",
			filepath.Join(conf, names[0]))
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
