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
		Short:   "Print the versions of carob and of the Kubernetes API it serves",
		Example: "  carob version\n  carob version -o json",
		Args:    noArgs,
		RunE: func(*cobra.Command, []string) error {
			return printObject(r.out, output, r.version, func(w io.Writer) error {
				_, err := io.WriteString(w, r.version.line())
				return err
			})
		},
	}
	addOutputFlag(cmd, &output)
	return cmd
}

func (v Version) line() string {
	return fmt.Sprintf("carob %s (Kubernetes %s, %s, %s)\n", v.Carob, v.Kubernetes, v.Go, v.Platform)
}
