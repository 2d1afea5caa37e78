package cli

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"carob/internal/cli/userconfig"
)

func (r *root) kubeconfigCommand() *cobra.Command {
	var (
		merge bool
		file  string
	)
	cmd := &cobra.Command{
		Use:   "kubeconfig",
		Short: "Print the admin kubeconfig of a cluster, or merge it into your own",
		Long: `Print the admin kubeconfig of a cluster. With --merge, add it to your own
kubeconfig as a context and make it the current one; everything else in that file
stays unchanged. The context has the name of the cluster that 'carob ls' shows.`,
		Example: `  carob kubeconfig --merge && kubectl get nodes
  export KUBECONFIG=$(mktemp) && carob kubeconfig > $KUBECONFIG
  carob kubeconfig --merge --data-dir /srv/carob2`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if file != "" && !merge {
				return usagef("--file requires --merge")
			}
			// $KUBECONFIG is ignored: it is usually the file that this output is written to.
			path, err := r.kubeconfig, checkFile(r.kubeconfig)
			if path == "" {
				path, err = r.adminKubeconfig()
			}
			if err != nil {
				return err
			}
			b, err := os.ReadFile(path)
			if err != nil {
				return fmt.Errorf("read kubeconfig: %w", err)
			}
			if !merge {
				_, err = r.out.Write(b)
				return err
			}
			return r.mergeKubeconfig(b, file)
		},
	}
	cmd.Flags().BoolVar(&merge, "merge", false, "add a context to your kubeconfig and make it the current one")
	cmd.Flags().StringVar(&file, "file", "",
		"with --merge: the kubeconfig to change (default the first of $KUBECONFIG, then ~/.kube/config)")
	_ = cmd.MarkFlagFilename("file")
	return cmd
}

// mergeKubeconfig adds the only context of a kubeconfig to the user's file.
func (r *root) mergeKubeconfig(admin []byte, file string) error {
	in, err := r.instance()
	if err != nil {
		return err
	}
	if file == "" {
		if file, err = ownKubeconfig(); err != nil {
			return err
		}
	}
	if file, err = userconfig.FollowLinks(file); err != nil {
		return fmt.Errorf("merge kubeconfig: %w", err)
	}
	if err := userconfig.MakeOwned(filepath.Dir(file)); err != nil {
		return fmt.Errorf("merge kubeconfig: %w", err)
	}
	unlock, err := userconfig.Lock(file)
	if err != nil {
		return err
	}
	defer unlock()
	old, err := os.ReadFile(file)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("merge kubeconfig: %w", err)
	}
	merged, err := userconfig.AddContext(old, admin, in.ID)
	if err != nil {
		return fmt.Errorf("merge into %s: %w", file, err)
	}
	if err := userconfig.ReplaceOwned(file, merged); err != nil {
		return fmt.Errorf("merge kubeconfig: %w", err)
	}
	fmt.Fprintf(r.out, "added context %s to %s and made it the current one\n", in.ID, file)
	return nil
}

// ownKubeconfig is the file that kubectl would write to.
func ownKubeconfig() (string, error) {
	for _, f := range filepath.SplitList(os.Getenv("KUBECONFIG")) {
		if f != "" {
			return f, nil
		}
	}
	home, err := os.UserHomeDir()
	if err != nil {
		return "", fmt.Errorf("find your kubeconfig: %w; name a file with --file", err)
	}
	return filepath.Join(home, ".kube", "config"), nil
}
