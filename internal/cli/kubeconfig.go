package cli

import (
	"fmt"
	"os"

	"github.com/spf13/cobra"
)

func (r *root) kubeconfigCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "kubeconfig",
		Short: "Print the admin kubeconfig of a cluster",
		Example: `  carob kubeconfig > ~/.kube/config
  export KUBECONFIG=$(mktemp) && carob kubeconfig > $KUBECONFIG
  carob kubeconfig --data-dir /srv/carob2`,
		Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			// $KUBECONFIG does not count: it is, as a rule, the file that this is written to.
			path, err := r.kubeconfig, error(nil)
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
			_, err = r.out.Write(b)
			return err
		},
	}
}
