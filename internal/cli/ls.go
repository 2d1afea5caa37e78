package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"

	"github.com/spf13/cobra"

	"carob/internal/base/instance"
)

// machineCluster is one line of `carob ls`.
type machineCluster struct {
	Name    string `json:"name"` // also the name of its context in a kubeconfig
	DataDir string `json:"dataDir"`
	State   string `json:"state"` // ready, not ready, stopped or unknown
	Version string `json:"version,omitempty"`
	URL     string `json:"url,omitempty"`
	PID     int    `json:"pid,omitempty"`
	Pods    *int   `json:"pods,omitempty"` // pods in the API; only of a running cluster
	Problem string `json:"problem,omitempty"`
}

func (r *root) lsCommand() *cobra.Command {
	var t table
	cmd := &cobra.Command{
		Use:     "ls",
		Aliases: []string{"list"},
		Short:   "List the clusters on this machine, running or not",
		Long: `List the clusters on this machine, running or not. A cluster is listed from its
first start until its data directory is removed.`,
		Example: `  carob ls
  carob ls -o json
  for d in $(carob ls -o name); do carob down --data-dir "$d"; done`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			dirs, err := instance.List(r.registry)
			if err != nil {
				return err
			}
			if t.output == "name" {
				return t.print(r.out, nil, dirs, nil)
			}
			all := make([]machineCluster, len(dirs))
			var pending sync.WaitGroup
			for i, d := range dirs {
				pending.Go(func() { all[i] = r.clusterState(cmd.Context(), d) })
			}
			pending.Wait()
			human := func(w io.Writer) error { return printClusters(w, &t, all) }
			if err := t.print(r.out, all, dirs, human); err != nil {
				return err
			}
			for _, c := range all {
				if c.Problem != "" && (t.output == "" || t.wide()) {
					fmt.Fprintf(r.errOut, "%s: %s\n", c.DataDir, c.Problem)
				}
			}
			return nil
		},
	}
	addTableFlags(cmd, &t)
	return cmd
}

// clusterState returns the state of the cluster of a data directory.
func (r *root) clusterState(ctx context.Context, dataDir string) machineCluster {
	of := &root{dataDir: dataDir}
	c := machineCluster{DataDir: dataDir, State: "unknown"}
	in, err := of.instance()
	if err != nil {
		c.Problem = message(err)
		return c
	}
	c.Name = in.ID
	owner, running, err := instance.Running(in.LockFile)
	switch {
	case errors.Is(err, os.ErrPermission):
		c.Problem = "belongs to root: use sudo"
		return c
	case err != nil:
		c.Problem = message(err)
		return c
	case !running:
		c.State = "stopped"
		return c
	}
	c.Version, c.URL, c.PID = owner.Version, owner.URL, owner.PID
	st := clusterStatus{Standalone: owner.Standalone}
	of.kubeconfig = in.Kubeconfig
	of.readCluster(ctx, &st)
	c.State, c.Problem = "not ready", st.Problem
	if st.Ready {
		c.State = "ready"
	}
	if st.Problem == "" {
		c.Pods = &st.Pods.Total
	}
	return c
}

func printClusters(w io.Writer, t *table, all []machineCluster) error {
	if len(all) == 0 {
		_, err := fmt.Fprintln(w, "no cluster on this machine: start one with `carob up`")
		return err
	}
	tw := t.rows(w, "NAME", "STATE", "PODS", "VERSION", "ADDRESS", "DATA")
	for _, c := range all {
		pods := "-"
		if c.Pods != nil {
			pods = fmt.Sprint(*c.Pods)
		}
		fmt.Fprintf(tw, "%s\t%s\t%s\t%s\t%s\t%s\n", dash(c.Name), c.State, pods, dash(c.Version), dash(c.URL),
			c.DataDir)
	}
	return tw.Flush()
}

func dash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}

// completeDataDirs completes the data directories on this machine, and any other.
func (r *root) completeDataDirs(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
	dirs, err := instance.List(r.registry)
	if err != nil || len(dirs) == 0 {
		return nil, cobra.ShellCompDirectiveFilterDirs
	}
	return dirs, cobra.ShellCompDirectiveDefault
}
