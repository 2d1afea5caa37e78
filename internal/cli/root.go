// Package cli is carob's command line, one file for each command. A command
// that works on a running carob speaks the Kubernetes API like any client; only
// `up` and `down --pods` reach the product itself, through Engine. It must never
// import a part.
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

	"carob/internal/base/instance"
)

// Engine is the product as the command line needs it.
type Engine interface {
	// Up runs all parts until ctx ends. It calls ready once, when the cluster takes pods.
	Up(ctx context.Context, in instance.Instance, p Progress) error
	// RemovePods ends every pod of an instance that does not run, and all that it left on the host.
	RemovePods(ctx context.Context, in instance.Instance) error
	// Simulate runs the decisions about pods against a simulated world; false means
	// that one of their promises broke, which has been told to out.
	Simulate(ctx context.Context, s Simulation, out, progress io.Writer) (ok bool, err error)
}

// Progress is told how the start goes on.
type Progress interface {
	// Step says that a step ended; detail may be empty.
	Step(name, detail string)
	// Ready says that the cluster takes pods.
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

// Exit is an error that has been told already and only carries an exit code.
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
	registry   string // of the carobs of this machine
}

// New makes the command tree.
func New(engine Engine, version Version, in io.Reader, out, errOut io.Writer) *cobra.Command {
	r := &root{engine: engine, version: version, in: in, out: out, errOut: errOut, registry: instance.RegistryDir}
	cmd := &cobra.Command{
		Use:   "carob",
		Short: "A Kubernetes-compatible pod engine in one binary",
		Long: `carob turns this machine into a Kubernetes cluster in a fraction of a second:
API server, store, scheduler, node agent, container runtime and pod network in
one process. Unmodified kubectl, client-go and Helm work against it.`,
		Example: `  # start a cluster in the background, look at it, run a pod
  carob up --detach
  carob kubectl get nodes
  carob kubectl run web --image=nginx

  # what happened to a pod, and when
  carob timeline pod/web

Exit codes: 0 done; 1 it failed, or the answer is no; 2 a wrong command, argument
or flag. ` + "`carob kubectl`" + ` ends as kubectl does.`,
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
	pf.StringVar(&r.dataDir, "data-dir", "", "directory with all state of one carob (default $"+dataDirEnv+", then "+instance.DefaultDataDir+")")
	pf.StringVar(&r.kubeconfig, "kubeconfig", "", "kubeconfig of the cluster to speak to (default the one of --data-dir, then $KUBECONFIG)")
	_ = cmd.RegisterFlagCompletionFunc("data-dir", r.completeDataDirs)
	_ = cmd.MarkPersistentFlagFilename("kubeconfig")
	cmd.AddCommand(
		r.upCommand(), r.downCommand(), r.statusCommand(), r.lsCommand(),
		r.kubectlCommand(), r.kubeconfigCommand(),
		r.imageCommand(), r.demoCommand(), r.timelineCommand(), r.bundleCommand(),
		r.simCommand(), r.versionCommand(),
	)
	cmd.SetHelpCommand(helpCommand())
	cmd.InitDefaultHelpCmd()
	cmd.InitDefaultCompletionCmd()
	completionExamples(cmd)
	finish(cmd)
	return cmd
}

// dataDirEnv names the data directory where --data-dir is not given.
const dataDirEnv = "CAROB_DATA_DIR"

// checkDataDir refuses a data directory that is named by an empty variable of a
// script, as a rule: it is not the default one.
func (r *root) checkDataDir(cmd *cobra.Command, _ []string) error {
	if f := cmd.Flags().Lookup("data-dir"); f != nil && f.Changed && f.Value.String() == "" {
		return errEmptyDataDir
	}
	return nil
}

var errEmptyDataDir = fmt.Errorf("%w --data-dir: it is empty; leave it out for %s", instance.ErrFlag, instance.DefaultDataDir)

// chosenDataDir is what the user said; empty: nothing.
func (r *root) chosenDataDir() string {
	if r.dataDir != "" {
		return r.dataDir
	}
	return os.Getenv(dataDirEnv)
}

// try is a command line for this cluster, to be typed after what was given before.
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

// quote makes a word one for a shell.
func quote(s string) string {
	if s != "" && strings.IndexFunc(s, func(c rune) bool {
		return !(c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || strings.ContainsRune("/._-+:,@%=", c))
	}) < 0 {
		return s
	}
	return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'"
}

// completionExamples completes cobra's own commands.
func completionExamples(cmd *cobra.Command) {
	completion, _, err := cmd.Find([]string{"completion"})
	if err != nil {
		return
	}
	completion.Example = "  source <(carob completion bash)\n  carob completion bash > /etc/bash_completion.d/carob"
	for _, c := range completion.Commands() {
		c.Args = noArgs
		c.Example = map[string]string{
			"bash":       "  source <(carob completion bash)",
			"zsh":        `  carob completion zsh > "${fpath[1]}/_carob"`,
			"fish":       "  carob completion fish > ~/.config/fish/completions/carob.fish",
			"powershell": "  carob completion powershell | Out-String | Invoke-Expression",
		}[c.Name()]
	}
}

// Main runs the command line and gives the exit code. As "kubectl" it is kubectl.
func Main(ctx context.Context, engine Engine, version Version) int {
	cmd := New(engine, version, os.Stdin, os.Stdout, os.Stderr)
	args := os.Args[1:]
	if filepath.Base(os.Args[0]) == "kubectl" {
		args = append([]string{"kubectl"}, args...)
	}
	cmd.SetArgs(args)
	err := cmd.ExecuteContext(ctx)
	if err != nil && !errors.As(err, new(Exit)) {
		fmt.Fprintln(os.Stderr, "error: "+message(err))
	}
	return exitCode(err)
}

// instance derives the names of the carob that --data-dir means.
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
