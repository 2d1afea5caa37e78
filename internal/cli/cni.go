package cli

import (
	"os"

	"github.com/spf13/cobra"

	"carob/internal/cli/cniinstall"
	"carob/internal/cli/cniplugin"
)

func (r *root) cniCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "cni",
		Short: "Connect pods of another container runtime to carob's pod network",
		Long: `Connect pods of another container runtime, such as containerd, to carob's pod
network. Called with the environment variables of a CNI plugin, it acts as one.
Container runtimes call it as ` + cniplugin.Type + `, which ` + "`carob cni install`" + ` sets up.`,
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
func cniDirs(cmd *cobra.Command, to *cniinstall.Dirs) {
	cmd.Flags().StringVar(&to.Conf, "conf-dir", cniinstall.DefaultConf, "directory with CNI configurations")
	cmd.Flags().StringVar(&to.Bin, "bin-dir", cniinstall.DefaultBin, "directory with CNI plugins")
	_ = cmd.MarkFlagDirname("conf-dir")
	_ = cmd.MarkFlagDirname("bin-dir")
}

func (r *root) cniInstallCommand() *cobra.Command {
	var dirs cniinstall.Dirs
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
			return dirs.Install(in, r.out, r.errOut)
		},
	}
	cniDirs(cmd, &dirs)
	return cmd
}

func (r *root) cniUninstallCommand() *cobra.Command {
	var dirs cniinstall.Dirs
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
			return dirs.Uninstall(in)
		},
	}
	cniDirs(cmd, &dirs)
	return cmd
}
