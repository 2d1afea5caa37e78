package cli

import (
	"fmt"
	"io"

	"github.com/spf13/cobra"
)

func (r *root) versionCommand() *cobra.Command {
	var output string
	cmd := &cobra.Command{
		Use:     "version",
		Short:   "Print the version of carob and of the Kubernetes API it serves",
		Example: "  carob version\n  carob version -o json",
		Args:    cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			return printObject(r.out, output, r.version, func(w io.Writer) error {
				v := r.version
				_, err := fmt.Fprintf(w, "carob %s (Kubernetes %s, %s, %s)\n", v.Carob, v.Kubernetes, v.Go, v.Platform)
				return err
			})
		},
	}
	addOutputFlag(cmd, &output)
	return cmd
}
