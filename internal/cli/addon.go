package cli

import (
	"context"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"
	"k8s.io/client-go/dynamic"

	"carob/internal/base/addons"
	"carob/internal/cli/addoninstall"
)

func (r *root) addonCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:     "addon",
		Aliases: []string{"addons"},
		Short:   "List, enable, and disable parts of carob that are off by default",
		Long: `List, enable, and disable parts of carob that are off by default. The cluster must
be running; its data directory records which add-ons are enabled.`,
		Example: `  carob addon list
  carob addon enable vpa
  carob addon disable vpa`,
	}
	cmd.AddCommand(r.addonListCommand(), r.addonEnableCommand(), r.addonDisableCommand())
	return cmd
}

func addonNames() (names []string) {
	for _, a := range addons.All() {
		names = append(names, a.Name)
	}
	return names
}

func completeAddons(_ *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
	if len(args) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	return addonNames(), cobra.ShellCompDirectiveNoFileComp
}

func findAddon(name string) (addons.Addon, error) {
	a, ok := addons.Find(name)
	if !ok {
		return a, usagef("there is no add-on %q: use %s", name, strings.Join(addonNames(), ", "))
	}
	return a, nil
}

// addon finds an add-on by its name, and the client for its objects.
func (r *root) addon(name string) (addons.Addon, dynamic.Interface, error) {
	a, err := findAddon(name)
	if err != nil {
		return addons.Addon{}, nil, err
	}
	c, err := r.addonClient()
	return a, c, err
}

func (r *root) addonClient() (dynamic.Interface, error) {
	cfg, err := r.restConfig()
	if err != nil {
		return nil, err
	}
	c, err := dynamic.NewForConfig(cfg)
	if err != nil {
		return nil, fmt.Errorf("create client: %w", err)
	}
	return c, nil
}

// addonStatus is what `carob addon list` prints of one add-on.
type addonStatus struct {
	Name        string `json:"name"`
	State       string `json:"state"`
	Description string `json:"description"`
}

func (r *root) addonListCommand() *cobra.Command {
	var t table
	cmd := &cobra.Command{
		Use:     "list",
		Aliases: []string{"ls"},
		Short:   "List add-ons and whether they are enabled",
		Example: "  carob addon list\n  carob addon list -o json",
		Args:    noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := r.addonClient()
			if err != nil {
				return err
			}
			var list []addonStatus
			var names []string
			for _, a := range addons.All() {
				state, err := addoninstall.State(cmd.Context(), c, a)
				if err != nil {
					return err
				}
				list, names = append(list, addonStatus{a.Name, state, a.Description}), append(names, a.Name)
			}
			return t.print(r.out, list, names, func(w io.Writer) error {
				tw := t.rows(w, "NAME", "STATE", "DESCRIPTION")
				for _, a := range list {
					fmt.Fprintf(tw, "%s\t%s\t%s\n", a.Name, a.State, a.Description)
				}
				return tw.Flush()
			})
		},
	}
	addTableFlags(cmd, &t)
	return cmd
}

func (r *root) addonEnableCommand() *cobra.Command {
	var overwrite bool
	cmd := &cobra.Command{
		Use:   "enable NAME",
		Short: "Enable an add-on, or bring its objects up to date",
		Long: `Enable an add-on, or bring its objects up to date after an upgrade of carob.
It stays enabled when carob is restarted. Enabling it twice changes nothing.`,
		Example:           "  carob addon enable vpa",
		Args:              exactArgs(1),
		ValidArgsFunction: completeAddons,
		RunE: func(cmd *cobra.Command, args []string) error {
			a, c, err := r.addon(args[0])
			if err != nil {
				return err
			}
			state, err := addoninstall.State(cmd.Context(), c, a)
			if err != nil {
				return err
			}
			if state == addoninstall.Foreign && !overwrite {
				return fmt.Errorf("the cluster has a %s that carob did not install: remove the controllers of it, "+
					"then repeat the command with --overwrite", a.Switch)
			}
			changed, err := addoninstall.Apply(cmd.Context(), c, a)
			if err != nil {
				return fmt.Errorf("enable add-on %s: %w", a.Name, err)
			}
			switch {
			case state != addons.Enabled:
				fmt.Fprintf(r.out, "addon/%s enabled\n", a.Name)
			case changed:
				fmt.Fprintf(r.out, "addon/%s configured\n", a.Name)
			default:
				fmt.Fprintf(r.out, "addon/%s unchanged\n", a.Name)
			}
			return nil
		},
	}
	cmd.Flags().BoolVar(&overwrite, "overwrite", false, "take over definitions that carob did not install")
	return cmd
}

func (r *root) addonDisableCommand() *cobra.Command {
	var purge bool
	cmd := &cobra.Command{
		Use:   "disable NAME",
		Short: "Disable an add-on",
		Long: `Disable an add-on: carob stops acting on its objects, and keeps them. With --purge,
they are deleted, with all objects of their kinds.`,
		Example:           "  carob addon disable vpa\n  carob addon disable vpa --purge",
		Args:              exactArgs(1),
		ValidArgsFunction: completeAddons,
		RunE: func(cmd *cobra.Command, args []string) error {
			a, c, err := r.addon(args[0])
			if err != nil {
				return err
			}
			return r.disableAddon(cmd.Context(), c, a, purge)
		},
	}
	cmd.Flags().BoolVar(&purge, "purge", false, "delete the add-on's objects, and all objects of its kinds")
	return cmd
}

func (r *root) disableAddon(ctx context.Context, c dynamic.Interface, a addons.Addon, purge bool) error {
	state, err := addoninstall.State(ctx, c, a)
	if err != nil {
		return err
	}
	if state == addoninstall.Foreign {
		return fmt.Errorf("the cluster's %s is not carob's: nothing was changed", a.Switch)
	}
	left := addoninstall.Count(ctx, c, a)
	if purge {
		if err := addoninstall.Purge(ctx, c, a); err != nil {
			return fmt.Errorf("purge add-on %s: %w", a.Name, err)
		}
		fmt.Fprintf(r.out, "addon/%s purged\n", a.Name)
		if len(left) > 0 {
			fmt.Fprintf(r.out, "deleted: %s; %s\n", strings.Join(left, ", "), a.Kept)
		}
		return nil
	}
	if state == addons.Enabled {
		if err := addoninstall.Disable(ctx, c, a); err != nil {
			return fmt.Errorf("disable add-on %s: %w", a.Name, err)
		}
		fmt.Fprintf(r.out, "addon/%s disabled\n", a.Name)
	} else {
		fmt.Fprintf(r.out, "addon/%s unchanged: it is not enabled\n", a.Name)
	}
	if len(left) > 0 {
		fmt.Fprintf(r.out, "kept: %s; %s. `%s` deletes them.\n", strings.Join(left, ", "), a.Kept,
			r.try("addon disable "+a.Name+" --purge"))
	}
	return nil
}
