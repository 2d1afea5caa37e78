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
}

// New makes the command tree.
func New(engine Engine, version Version, in io.Reader, out, errOut io.Writer) *cobra.Command {
	r := &root{engine: engine, version: version, in: in, out: out, errOut: errOut}
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
  carob timeline pod/web`,
		SilenceUsage:  true,
		SilenceErrors: true,
	}
	cmd.SetIn(in)
	cmd.SetOut(out)
	cmd.SetErr(errOut)
	cmd.SetFlagErrorFunc(func(c *cobra.Command, err error) error {
		return fmt.Errorf("%w\nSee '%s --help'", err, c.CommandPath())
	})
	pf := cmd.PersistentFlags()
	pf.StringVar(&r.dataDir, "data-dir", "", "directory with all state of one carob (default "+instance.DefaultDataDir+")")
	pf.StringVar(&r.kubeconfig, "kubeconfig", "", "kubeconfig of the cluster to speak to (default the one of --data-dir, then $KUBECONFIG)")
	_ = cmd.MarkPersistentFlagDirname("data-dir")
	_ = cmd.MarkPersistentFlagFilename("kubeconfig")
	cmd.AddCommand(
		r.upCommand(), r.downCommand(), r.statusCommand(),
		r.kubectlCommand(), r.kubeconfigCommand(),
		r.imageCommand(), r.demoCommand(), r.timelineCommand(),
		r.simCommand(), r.versionCommand(),
	)
	return cmd
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
	var exit Exit
	switch {
	case err == nil:
		return 0
	case errors.As(err, &exit):
		return exit.Code
	}
	fmt.Fprintf(os.Stderr, "error: %v\n", err)
	if errors.Is(err, instance.ErrFlag) {
		return 2
	}
	return 1
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
	f.DataDir = r.dataDir
	return instance.Derive(f, host)
}
