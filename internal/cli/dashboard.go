package cli

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"

	"carob/internal/cli/gantt"
	"carob/internal/core/explain"
	"carob/internal/webui"
)

// How many requests the dashboard sends per second: it watches, and reads details on demand.
const (
	dashboardQPS   = 50
	dashboardBurst = 100
)

func (r *root) dashboardCommand() *cobra.Command {
	var namespace string
	var port uint16
	cmd := &cobra.Command{
		Use:     "dashboard",
		Aliases: []string{"ui"},
		Short:   "Show the cluster live in a browser",
		Long: `Show the cluster live in a browser: what pods wait for, their timelines,
workloads, Services, nodes, and the queues and caches of model servers.

The page is served on 127.0.0.1 while the command runs, and shows what your
kubeconfig may read. Open the whole address that is printed: the part behind #
is a secret, and whoever has it can read what you can read.`,
		Example: `  carob dashboard
  carob dashboard --namespace shop     # enough with rights in one namespace only
  carob dashboard --port 8001          # for ssh -L 8001:127.0.0.1:8001 MACHINE`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if r.standalone() {
				return errors.New("carob runs in standalone mode, without an API server to watch: use " +
					"`carob timeline pod/NAME` and `carob status`")
			}
			server, err := r.dashboard(namespace)
			if err != nil {
				return err
			}
			address := net.JoinHostPort("127.0.0.1", strconv.Itoa(int(port)))
			l, err := new(net.ListenConfig).Listen(cmd.Context(), "tcp", address)
			if err != nil {
				return fmt.Errorf("listen: %w; choose another --port, or none", err)
			}
			if _, err := fmt.Fprintf(r.out, "%s\n", server.URL(l)); err != nil {
				l.Close()
				return err
			}
			fmt.Fprintln(r.errOut, "Open this address in a browser on this machine. Ctrl-C ends it.")
			return server.Run(cmd.Context(), l)
		},
	}
	cmd.Flags().StringVarP(&namespace, "namespace", "n", "", "show only this namespace (default: all)")
	cmd.Flags().Uint16Var(&port, "port", 0, "port on 127.0.0.1 (default: a free one)")
	_ = cmd.RegisterFlagCompletionFunc("namespace", r.completeNamespaces)
	_ = cmd.RegisterFlagCompletionFunc("port", cobra.NoFileCompletions)
	return cmd
}

func (r *root) dashboard(namespace string) (*webui.Server, error) {
	config, err := r.restConfig()
	if err != nil {
		return nil, err
	}
	config.QPS, config.Burst = dashboardQPS, dashboardBurst
	c, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("create client: %w", err)
	}
	objects, err := dynamic.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("create client: %w", err)
	}
	return webui.New(webui.Config{Client: c, Dynamic: objects, Namespace: namespace, Cluster: config.Host,
		Version: r.version.Carob,
		Explain: func(ctx context.Context, kind, namespace, name string) (explain.Lines, error) {
			k, ok := kindNamed(kind)
			if !ok {
				return nil, fmt.Errorf("objects of kind %q cannot be explained", kind)
			}
			return k.explain(&explainer{c: c, namespace: namespace, name: name}, ctx)
		},
		Chart: func(ctx context.Context, namespace, name string) (any, error) {
			entries, err := podEntries(ctx, c, namespace, name, "")
			if err != nil {
				return nil, err
			}
			return gantt.Model(entries, time.Now()), nil
		}}), nil
}
