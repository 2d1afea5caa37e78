// Package cli is carob's command line, one file for each command. Commands that need a running
// cluster use the Kubernetes API like any other client; only `up` and `down --pods` call the
// product itself, through Engine. Package cli must never import a part.
package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"carob/internal/base/filelimit"
	"carob/internal/base/instance"
	"carob/internal/cli/cniplugin"
)

// Engine is the product, as far as the command line needs it.
type Engine interface {
	// Up runs all parts until ctx is done. It calls ready once, when the cluster accepts pods.
	Up(ctx context.Context, in instance.Instance, p Progress) error
	// RemovePods ends all pods of an instance that is not running and removes everything they left
	// on the host.
	RemovePods(ctx context.Context, in instance.Instance) error
	// Simulate runs the pod decisions against a simulated world. It returns false if an invariant
	// was violated, which it has reported to out.
	Simulate(ctx context.Context, s Simulation, out, progress io.Writer) (ok bool, err error)
}

// Progress receives the progress of the start.
type Progress interface {
	// Step reports that a step has ended; detail may be empty.
	Step(name, detail string)
	// Ready reports that the cluster accepts pods.
	Ready(url string)
}

// Version is what `carob version` prints.
type Version struct {
	Carob      string `json:"carob"`
	Kubernetes string `json:"kubernetes"`
	Commit     string `json:"commit,omitempty"`
	Go         string `json:"go"`
	Platform   string `json:"platform"`
}

// Exit is an error that has been reported already and only carries an exit code.
type Exit struct{ Code int }

func (e Exit) Error() string { return fmt.Sprintf("exit code %d", e.Code) }

type root struct {
	engine  Engine
	version Version
	in      io.Reader
	out     io.Writer
	errOut  io.Writer

	dataDir    string
	kubeconfig string
	registry   string // lists the instances on this machine
}

// New creates the command tree.
func New(engine Engine, version Version, in io.Reader, out, errOut io.Writer) *cobra.Command {
	r := &root{engine: engine, version: version, in: in, out: out, errOut: errOut, registry: instance.RegistryDir}
	cmd := &cobra.Command{
		Use:   "carob",
		Short: "Run a Kubernetes cluster on this machine from a single binary",
		Long: `carob runs a Kubernetes cluster on this machine and starts it in a fraction of a
second: API server, etcd, scheduler, controllers, node agent, container runtime,
and pod network in one process. Use it with unmodified kubectl, client-go, and Helm.`,
		Example: `  # Start a cluster in the background, list its nodes, run a pod
  carob up --detach
  carob kubectl get nodes
  carob kubectl run web --image=nginx

  # Show what happened to a pod, and when
  carob timeline pod/web

Exit codes: 0 success; 1 failure, or a negative result; 2 an invalid command,
argument, or flag. ` + "`carob kubectl`" + ` has the exit codes of kubectl.`,
		SilenceUsage:      true,
		SilenceErrors:     true,
		Version:           version.Carob,
		PersistentPreRunE: r.checkDataDir,
	}
	cmd.SetVersionTemplate(version.line())
	cmd.SetIn(in)
	cmd.SetOut(out)
	cmd.SetErr(errOut)
	cmd.SetFlagErrorFunc(flagError)
	pf := cmd.PersistentFlags()
	pf.StringVar(&r.dataDir, "data-dir", "", "directory with the whole state of a cluster (default $"+dataDirEnv+
		", then "+instance.DefaultDataDir+")")
	pf.StringVar(&r.kubeconfig, "kubeconfig", "",
		"kubeconfig of the cluster to use (default the one of --data-dir, then $KUBECONFIG)")
	_ = cmd.RegisterFlagCompletionFunc("data-dir", r.completeDataDirs)
	_ = cmd.MarkPersistentFlagFilename("kubeconfig")
	cmd.AddCommand(
		r.upCommand(), r.downCommand(), r.statusCommand(), r.lsCommand(),
		r.kubectlCommand(), r.kubeconfigCommand(),
		r.imageCommand(), r.demoCommand(), r.timelineCommand(), r.dashboardCommand(), r.bundleCommand(),
		r.addonCommand(), r.routesCommand(), r.explainCommand(), r.cniCommand(), r.simCommand(), r.versionCommand(),
	)
	cmd.SetHelpCommand(helpCommand())
	cmd.InitDefaultHelpCmd()
	cmd.InitDefaultCompletionCmd()
	completionExamples(cmd)
	finish(cmd)
	return cmd
}

// dataDirEnv names the data directory if --data-dir is not set.
const dataDirEnv = "CAROB_DATA_DIR"

// checkDataDir rejects an empty name, which usually comes from an empty variable in a script and
// does not mean the default.
func (r *root) checkDataDir(cmd *cobra.Command, _ []string) error {
	if f := cmd.Flags().Lookup("data-dir"); f != nil && f.Changed && f.Value.String() == "" {
		return errEmptyDataDir
	}
	return nil
}

var errEmptyDataDir = fmt.Errorf("%w --data-dir: it is empty; omit it to use %s", instance.ErrFlag,
	instance.DefaultDataDir)

// chosenDataDir is the data directory that the user chose, or empty.
func (r *root) chosenDataDir() string {
	if r.dataDir != "" {
		return r.dataDir
	}
	return os.Getenv(dataDirEnv)
}

// try returns a command line for this cluster, with the flags of the current command.
func (r *root) try(command string) string {
	name, rest, _ := strings.Cut(command, " ")
	words := []string{"carob", name}
	if r.dataDir != "" {
		words = append(words, "--data-dir", quote(r.dataDir))
	} else if r.kubeconfig != "" && name != "up" && name != "down" {
		words = append(words, "--kubeconfig", quote(r.kubeconfig))
	}
	if rest != "" {
		words = append(words, rest)
	}
	return strings.Join(words, " ")
}

// quote quotes a word for a shell.
func quote(s string) string {
	if s != "" && strings.IndexFunc(s, func(c rune) bool {
		return !(c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' ||
			strings.ContainsRune("/._-+:,@%=", c))
	}) < 0 {
		return s
	}
	return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'"
}

// completionExamples adds examples to cobra's own commands.
func completionExamples(cmd *cobra.Command) {
	completion, _, err := cmd.Find([]string{"completion"})
	if err != nil {
		return
	}
	completion.Long = `Print the script that completes carob's commands, flags, and arguments in a shell.`
	completion.Short = "Print the completion script of a shell"
	completion.Example = "  source <(carob completion bash)\n  carob completion bash > /etc/bash_completion.d/carob"
	for _, c := range completion.Commands() {
		c.Args = noArgs
		c.Short = "Print the completion script of " + c.Name()
		c.Long = c.Short + map[string]string{
			"bash": `. It needs the package bash-completion.

The first example completes in the current shell; to complete in every new one,
write the script to /etc/bash_completion.d/carob.`,
			"zsh": `. If completion is not enabled in your shell, add
"autoload -U compinit; compinit" to ~/.zshrc. New shells complete.`,
			"fish":       ". New shells complete.",
			"powershell": ". Add the command to your profile to complete in every new shell.",
		}[c.Name()]
		c.Example = map[string]string{
			"bash":       "  source <(carob completion bash)",
			"zsh":        `  carob completion zsh > "${fpath[1]}/_carob"`,
			"fish":       "  carob completion fish > ~/.config/fish/completions/carob.fish",
			"powershell": "  carob completion powershell | Out-String | Invoke-Expression",
		}[c.Name()]
	}
}

// Main runs the command line and returns the exit code. Called as "kubectl", it is kubectl.
func Main(ctx context.Context, engine Engine, version Version) int {
	_ = filelimit.Fit(filelimit.Most) // a failure leaves the limits that there are
	cmd := New(engine, version, os.Stdin, os.Stdout, os.Stderr)
	args := os.Args[1:]
	switch filepath.Base(os.Args[0]) {
	case "kubectl":
		args = append([]string{"kubectl"}, args...)
	case cniplugin.Type:
		args = append([]string{"cni"}, args...)
	}
	cmd.SetArgs(args)
	err := cmd.ExecuteContext(ctx)
	if err != nil && !errors.As(err, new(Exit)) {
		fmt.Fprintln(os.Stderr, "error: "+message(err))
	}
	return exitCode(err)
}

// instance derives the names of the instance that --data-dir selects.
func (r *root) instance() (instance.Instance, error) {
	return r.instanceOf(instance.Flags{})
}

func (r *root) instanceOf(f instance.Flags) (instance.Instance, error) {
	host, err := os.Hostname()
	if err != nil {
		host = "node"
	}
	f.DataDir = r.chosenDataDir()
	return instance.Derive(f, host)
}
