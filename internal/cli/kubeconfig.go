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
  KUBECONFIG=$(mktemp) && carob kubeconfig --data-dir /srv/carob2 > $KUBECONFIG`,
		Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			path, err := r.kubeconfigPath()
			if err != nil {
				return err
			}
			if path == "" {
				path = os.Getenv("KUBECONFIG")
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
