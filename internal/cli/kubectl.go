package cli

import (
	"fmt"
	"os"
	"strings"

	"github.com/spf13/cobra"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	"k8s.io/cli-runtime/pkg/genericiooptions"
	kubectl "k8s.io/kubectl/pkg/cmd"

	_ "carob/internal/cli/language" // before kubectl's packages ask for their texts
)

// kubectlCommand embeds upstream's kubectl whole, pointed at this carob.
func (r *root) kubectlCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "kubectl [--data-dir DIR] COMMAND …",
		Short: "kubectl, built in and pointed at this cluster",
		Example: `  carob kubectl get pods -A -o wide
  carob kubectl run web --image=nginx
  carob kubectl exec -it web -- sh`,
		DisableFlagParsing: true,
		RunE: func(cmd *cobra.Command, args []string) error {
			args = r.takeOwnFlags(args)
			flags := genericclioptions.NewConfigFlags(true).WithDeprecatedPasswordFlag().WithDiscoveryBurst(300).WithDiscoveryQPS(50)
			if !hasFlag(args, "--kubeconfig") {
				path, err := r.clusterPath()
				if err != nil && !worksOffline(args) {
					return err
				}
				if path != "" {
					// Plugins and `kubectl config` read the variable, not the flag.
					if err := os.Setenv("KUBECONFIG", path); err != nil {
						return fmt.Errorf("set KUBECONFIG: %w", err)
					}
				}
			}
			k := kubectl.NewDefaultKubectlCommandWithArgs(kubectl.KubectlOptions{
				PluginHandler: kubectl.NewDefaultPluginHandler([]string{"kubectl"}),
				Arguments:     append([]string{"kubectl"}, args...),
				ConfigFlags:   flags,
				IOStreams:     genericiooptions.IOStreams{In: r.in, Out: r.out, ErrOut: r.errOut},
			})
			k.SetArgs(args)
			k.SetIn(r.in)
			k.SetOut(r.out)
			k.SetErr(r.errOut)
			return k.ExecuteContext(cmd.Context())
		},
	}
}

// takeOwnFlags removes --data-dir from kubectl's arguments, before the first "--".
func (r *root) takeOwnFlags(args []string) []string {
	rest := make([]string, 0, len(args))
	for i := 0; i < len(args); i++ {
		switch a := args[i]; {
		case a == "--":
			return append(rest, args[i:]...)
		case a == "--data-dir" && i+1 < len(args):
			i++
			r.dataDir = args[i]
		case strings.HasPrefix(a, "--data-dir="):
			r.dataDir = strings.TrimPrefix(a, "--data-dir=")
		default:
			rest = append(rest, a)
		}
	}
	return rest
}

func hasFlag(args []string, name string) bool {
	for _, a := range args {
		if a == "--" {
			return false
		}
		if a == name || strings.HasPrefix(a, name+"=") {
			return true
		}
	}
	return false
}

// worksOffline says whether a kubectl command makes sense without a cluster.
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
