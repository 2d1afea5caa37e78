package cli

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"carob/internal/base/routeapi"
	"carob/internal/cli/terminal"
)

func (r *root) routesCommand() *cobra.Command {
	var namespace, node string
	var all bool
	var t table
	cmd := &cobra.Command{
		Use:     "routes",
		Aliases: []string{"route"},
		Short:   "Show what Ingresses and the Gateway API serve where",
		Long: `Show what Ingresses and the Gateway API serve where: for each address, host, and
path the backends and their ready endpoints. Objects that are not served as they
are written are listed after that.`,
		Example: `  carob routes
  carob routes -A -o wide
  carob routes -n shop -o json`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if all {
				namespace = metav1.NamespaceAll
			}
			c, err := r.client()
			if err != nil {
				return err
			}
			if node, err = oneNode(cmd.Context(), c, node); err != nil {
				return err
			}
			body, err := agentPath(c, "GET", node, routeapi.Path).Param("namespace", namespace).DoRaw(cmd.Context())
			if apierrors.IsNotFound(err) {
				return errors.New("nothing is served: carob was started without a gateway; start it with --gateway-http, " +
					"--gateway-https, or --gateway-addresses")
			}
			if err != nil {
				return fmt.Errorf("get the routes of node %s: %w", node, plain(err))
			}
			var list routeapi.List
			if err := json.Unmarshal(body, &list); err != nil {
				return fmt.Errorf("read the routes of node %s: %w", node, err)
			}
			human := func(w io.Writer) error { return printRoutes(w, &t, &list, all) }
			return printObject(r.out, t.output, &list, human)
		},
	}
	addOutputFlag(cmd, &t.output)
	addNoHeaders(cmd, &t)
	cmd.Flags().StringVarP(&namespace, "namespace", "n", metav1.NamespaceDefault, "namespace of the routes")
	cmd.Flags().BoolVarP(&all, "all-namespaces", "A", false, "routes of all namespaces")
	cmd.Flags().StringVar(&node, "node", "", "node to query (default: the only one)")
	_ = cmd.RegisterFlagCompletionFunc("node", r.completeNodes)
	_ = cmd.RegisterFlagCompletionFunc("namespace", r.completeNamespaces)
	return cmd
}

func printRoutes(w io.Writer, t *table, list *routeapi.List, namespaces bool) error {
	if len(list.Routes) == 0 && len(list.Problems) == 0 {
		_, err := fmt.Fprintln(w, "no route is served in this namespace (-A: all namespaces)")
		return err
	}
	var namespace []string // the first column of lists of all namespaces
	if namespaces {
		namespace = []string{"NAMESPACE"}
	}
	if len(list.Routes) > 0 {
		headers := append(namespace, "ADDRESS", "PROTOCOL", "HOST", "PATH", "ROUTE", "BACKENDS", "READY")
		if t.wide() {
			headers = append(headers, "MATCH", "FILTERS", "ENDPOINTS")
		}
		tw := t.rows(w, headers...)
		for i := range list.Routes {
			fmt.Fprintln(tw, routeLine(&list.Routes[i], namespaces, t.wide()))
		}
		if err := tw.Flush(); err != nil {
			return err
		}
		if len(list.Problems) > 0 {
			fmt.Fprintln(w)
		}
	}
	if len(list.Problems) == 0 {
		return nil
	}
	tw := t.rows(w, append(namespace, "PROBLEM OF", "REASON", "MESSAGE")...)
	for _, p := range list.Problems {
		if namespaces {
			fmt.Fprint(tw, dash(terminal.Printable(p.Namespace)), "\t")
		}
		fmt.Fprintf(tw, "%s\t%s\t%s\n", terminal.Printable(strings.ToLower(p.Kind)+"/"+p.Name),
			terminal.Printable(p.Reason), terminal.Printable(p.Message))
	}
	return tw.Flush()
}

func routeLine(r *routeapi.Route, namespaces, wide bool) string {
	of := strings.ToLower(r.Kind) + "/" + r.Name
	if r.Rule != "" {
		of += " (" + r.Rule + ")"
	}
	var backends, endpoints []string
	ready := 0
	for _, b := range r.Backends {
		text := b.Service
		if !namespaces {
			text = strings.TrimPrefix(text, r.Namespace+"/")
		}
		switch {
		case text == "":
			text = b.Problem
		case len(b.Endpoints) == 0 && b.Problem != "":
			text += " (" + b.Problem + ")"
		}
		if len(r.Backends) > 1 {
			text = fmt.Sprintf("%s ×%d", text, b.Weight)
		}
		backends = append(backends, text)
		endpoints = append(endpoints, b.Endpoints...)
		ready += len(b.Endpoints)
	}
	served, count := strings.Join(backends, ", "), fmt.Sprint(ready)
	if r.Answer != "" {
		served, count = "answers "+r.Answer, "-"
	}
	fields := []string{r.Address, r.Protocol, r.Host, dash(r.Path), of, dash(served), count}
	if wide {
		fields = append(fields, dash(strings.Join(r.Match, ", ")), dash(strings.Join(r.Filters, ", ")),
			dash(strings.Join(endpoints, ", ")))
	}
	if namespaces {
		fields = append([]string{r.Namespace}, fields...)
	}
	for i := range fields {
		fields[i] = terminal.Printable(fields[i])
	}
	return strings.Join(fields, "\t")
}
