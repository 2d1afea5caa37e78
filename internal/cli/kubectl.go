package cli

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"github.com/spf13/cobra"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	"k8s.io/cli-runtime/pkg/genericiooptions"
	cliflag "k8s.io/component-base/cli/flag"
	"k8s.io/component-base/logs"
	kubectl "k8s.io/kubectl/pkg/cmd"

	_ "carob/internal/cli/language" // must be initialized before kubectl's packages look up their texts
)

// kubectlCommand embeds upstream's kubectl and points it at this cluster.
func (r *root) kubectlCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "kubectl [--data-dir DIR] COMMAND …",
		Short: "Run kubectl, which is built in, against this cluster",
		Example: `  carob kubectl get pods -A -o wide
  carob kubectl run web --image=nginx
  carob kubectl exec -it web -- sh`,
		DisableFlagParsing: true,
		ValidArgsFunction:  r.completeKubectl,
		RunE: func(cmd *cobra.Command, args []string) error {
			args, err := r.takeOwnFlags(args)
			if err != nil {
				return err
			}
			// kubectl handles signals itself; port-forward, proxy, and attach ignore the context.
			signal.Reset(os.Interrupt, syscall.SIGTERM)
			if err := r.pointKubectl(args); err != nil {
				return err
			}
			k := r.kubectl(args, r.out, r.errOut)
			k.SetArgs(args)
			return k.ExecuteContext(context.WithoutCancel(cmd.Context()))
		},
	}
}

// pointKubectl makes kubectl use this cluster, unless its arguments name another.
func (r *root) pointKubectl(args []string) error {
	if file, given := flagValue(args, "--kubeconfig"); given {
		return checkFile(file)
	}
	path, err := r.clusterPath()
	if err != nil && !worksOffline(args) {
		return err
	}
	if path == "" {
		return nil
	}
	// Plugins and `kubectl config` read the variable, not the flag.
	if err := os.Setenv("KUBECONFIG", path); err != nil {
		return fmt.Errorf("set KUBECONFIG: %w", err)
	}
	return nil
}

// kubectl is upstream's command tree, with the flags that upstream's main function adds: those of logging, such
// as -v, and underscores in names of flags.
func (r *root) kubectl(args []string, out, errOut io.Writer) *cobra.Command {
	k := kubectl.NewDefaultKubectlCommandWithArgs(kubectl.KubectlOptions{
		PluginHandler: kubectl.NewDefaultPluginHandler([]string{"kubectl"}),
		Arguments:     append([]string{"kubectl"}, args...),
		ConfigFlags: genericclioptions.NewConfigFlags(true).WithDeprecatedPasswordFlag().WithDiscoveryBurst(
			300).WithDiscoveryQPS(50),
		IOStreams: genericiooptions.IOStreams{In: r.in, Out: out, ErrOut: errOut},
	})
	k.SetGlobalNormalizationFunc(cliflag.WordSepNormalizeFunc)
	logs.AddFlags(k.PersistentFlags())
	k.SetIn(r.in)
	k.SetOut(out)
	k.SetErr(errOut)
	k.SilenceErrors = true // the caller prints the error, once
	return k
}

// completeKubectl gets completions from kubectl.
func (r *root) completeKubectl(cmd *cobra.Command, args []string, toComplete string) ([]string,
	cobra.ShellCompDirective) {
	args, err := r.takeOwnFlags(args)
	if err != nil {
		return nil, cobra.ShellCompDirectiveError
	}
	if r.pointKubectl(args) != nil {
		// Commands and flags need no cluster, and objects of another cluster would be misleading.
		if err := os.Setenv("KUBECONFIG", os.DevNull); err != nil {
			return nil, cobra.ShellCompDirectiveError
		}
	}
	args = append(append([]string{cobra.ShellCompRequestCmd}, args...), toComplete)
	var out bytes.Buffer
	k := r.kubectl(args, &out, io.Discard)
	k.SetArgs(args)
	if err := k.ExecuteContext(cmd.Context()); err != nil {
		return nil, cobra.ShellCompDirectiveError
	}
	return completions(out.String())
}

// completions parses the output of a cobra program: one completion per line, then ":" and a
// directive.
func completions(answer string) ([]string, cobra.ShellCompDirective) {
	lines := strings.Split(strings.TrimRight(answer, "\n"), "\n")
	for i, l := range slices.Backward(lines) {
		if n, ok := strings.CutPrefix(l, ":"); ok {
			directive, err := strconv.Atoi(n)
			if err != nil {
				break
			}
			return lines[:i], cobra.ShellCompDirective(directive)
		}
	}
	return nil, cobra.ShellCompDirectiveError
}

// takeOwnFlags removes --data-dir from kubectl's arguments, up to the first "--".
func (r *root) takeOwnFlags(args []string) ([]string, error) {
	rest := make([]string, 0, len(args))
	for i := 0; i < len(args); i++ {
		dir, given := strings.CutPrefix(args[i], "--data-dir=")
		switch {
		case args[i] == "--":
			return append(rest, args[i:]...), nil
		case args[i] == "--data-dir" && i+1 < len(args):
			i++
			dir, given = args[i], true
		case !given:
			rest = append(rest, args[i])
		}
		if given && dir == "" {
			return nil, errEmptyDataDir
		}
		if given {
			r.dataDir = dir
		}
	}
	return rest, nil
}

func hasFlag(args []string, name string) bool {
	_, given := flagValue(args, name)
	return given
}

// flagValue returns the value of a flag that stands before a "--", and whether it is there.
func flagValue(args []string, name string) (value string, given bool) {
	for i, a := range args {
		if a == "--" {
			return "", false
		}
		if a == name {
			return strings.Join(args[i+1:min(i+2, len(args))], ""), true
		}
		if value, given = strings.CutPrefix(a, name+"="); given {
			return value, true
		}
	}
	return "", false
}

// worksOffline reports whether a kubectl command works without a cluster.
func worksOffline(args []string) bool {
	if len(args) == 0 || hasFlag(args, "--help") || hasFlag(args, "-h") || hasFlag(args, "--client") {
		return true
	}
	switch args[0] {
	case "help", "completion", "config", "kuberc", "kustomize", "options", "plugin", "__complete", "__completeNoDesc":
		return true
	}
	return false
}
