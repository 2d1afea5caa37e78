package cli

import (
	"encoding/json"
	"fmt"
	"io"

	"github.com/spf13/cobra"
	"sigs.k8s.io/yaml"
)

// addOutputFlag adds -o; more are formats in addition to the usual ones.
func addOutputFlag(cmd *cobra.Command, output *string, more ...string) {
	addChoice(cmd, output, "output", "o", "output format", append([]string{"json", "yaml", "wide"}, more...)...)
}

// printObject writes v in the given format; human is used for the default and for wide.
func printObject(w io.Writer, format string, v any, human func(io.Writer) error) error {
	switch format {
	case "", "wide":
		return human(w)
	case "json":
		e := json.NewEncoder(w)
		e.SetIndent("", "    ")
		return e.Encode(v)
	case "yaml":
		b, err := yaml.Marshal(v)
		if err != nil {
			return fmt.Errorf("encode yaml: %w", err)
		}
		_, err = w.Write(b)
		return err
	}
	return fmt.Errorf("unknown output format %q: use json, yaml or wide", format)
}
