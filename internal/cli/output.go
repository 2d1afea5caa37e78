package cli

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"
	"sigs.k8s.io/yaml"
)

// addOutputFlag adds -o; more are formats in addition to the usual ones.
func addOutputFlag(cmd *cobra.Command, output *string, more ...string) {
	addChoice(cmd, output, "output", "o", "output format", append([]string{"json", "yaml", "wide"}, more...)...)
}

// table is how a command prints a list.
type table struct {
	output    string
	noHeaders bool
}

// addTableFlags adds -o, with name, and --no-headers.
func addTableFlags(cmd *cobra.Command, t *table) {
	addOutputFlag(cmd, &t.output, "name")
	addNoHeaders(cmd, t)
}

func addNoHeaders(cmd *cobra.Command, t *table) {
	cmd.Flags().BoolVar(&t.noHeaders, "no-headers", false, "print no headers (default and wide output)")
}

func (t *table) wide() bool { return t.output == "wide" }

// rows returns a writer for lines of columns, which are separated by tabs, below their headers.
func (t *table) rows(w io.Writer, headers ...string) *tabwriter.Writer {
	tw := tabwriter.NewWriter(w, 0, 8, 3, ' ', 0)
	if !t.noHeaders {
		fmt.Fprintln(tw, strings.Join(headers, "\t"))
	}
	return tw
}

// print writes v in the chosen format. names are the lines of -o name.
func (t *table) print(w io.Writer, v any, names []string, human func(io.Writer) error) error {
	if t.output != "name" {
		return printObject(w, t.output, v, human)
	}
	for _, n := range names {
		if _, err := fmt.Fprintln(w, n); err != nil {
			return err
		}
	}
	return nil
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
