package cli

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"carob/internal/base/flagfile"
	"carob/internal/base/instance"
	"carob/internal/base/kubeletconfig"
)

// detachedEnv marks a child process whose standard output is the parent's pipe.
const detachedEnv = "CAROB_DETACHED"

func (r *root) upCommand() *cobra.Command {
	var f upOptions
	cmd := &cobra.Command{
		Use:   "up",
		Short: "Start a cluster on this machine",
		Long: `Start a cluster on this machine, in one process: API server with etcd, scheduler,
controllers, node agent, container runtime, and pod network.

Pods that kept running while carob was stopped are taken over.`,
		Example: `  # Start in the foreground; Ctrl-C stops it
  carob up

  # Start in the background; return when the cluster accepts pods
  carob up --detach

  # Start a second, independent cluster
  carob up --detach --data-dir /srv/carob2

  # Read the flags from a file, such as "max-pods: 500"; the command line takes precedence
  carob up --config /etc/carob.yaml

  # Use an installed containerd
  carob up --runtime-endpoint unix:///run/containerd/containerd.sock

  # Run the pods of RuntimeClasses with the handler gvisor in containerd's runtime runsc
  carob up --runtime-handler gvisor=unix:///run/containerd/containerd.sock#runsc`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return r.up(cmd, &f) },
	}
	f.add(cmd)
	return cmd
}

// up starts a cluster, in this process or in a detached one.
func (r *root) up(cmd *cobra.Command, f *upOptions) error {
	if f.config != "" {
		if err := flagfile.Read(f.config, fileFlags(cmd)); err != nil {
			return err
		}
		if err := r.checkDataDir(cmd, nil); err != nil {
			return err
		}
	}
	f.Hardening.SeccompUnconfined, f.Hardening.NoNetRaw = !f.seccomp, !f.netRaw
	if err := r.kubeletConfig(&f.Flags, f.kubeletConfig, f.kubeletDropIns, cmd.Flags().Changed); err != nil {
		return err
	}
	in, err := r.instanceOf(f.Flags)
	if err != nil {
		return err
	}
	in.FlagValues = flagValues(cmd)
	if f.detach && os.Getenv(detachedEnv) == "" {
		return r.upDetached(cmd.Context(), in)
	}
	p := newProgress(r.out)
	p.hint = r.try("kubectl get nodes")
	if in.Standalone {
		p.hint = r.try("status")
	}
	if os.Getenv(detachedEnv) != "" {
		p.onReady = leaveTerminal
	}
	err = r.engine.Up(cmd.Context(), in, p)
	if err != nil && p.onReady != nil {
		fmt.Fprintln(r.out, "error: "+message(err))
	}
	return err
}

// flagValues are the values of all flags of a command, without passwords in URLs.
func flagValues(cmd *cobra.Command) map[string]string {
	values := map[string]string{}
	cmd.Flags().VisitAll(func(f *pflag.Flag) {
		list, ok := f.Value.(pflag.SliceValue)
		if !ok {
			values[f.Name] = f.Value.String()
			return
		}
		shown := list.GetSlice()
		for i, s := range shown {
			if u, err := url.Parse(s); (err != nil || u.User != nil) && f.Name != "runtime-handler" {
				shown[i] = "REDACTED"
			}
		}
		values[f.Name] = strings.Join(shown, ",")
	})
	return values
}

// fileFlags are the flags of a command that a file can set.
func fileFlags(cmd *cobra.Command) flagfile.Flags {
	return flagfile.Flags{FlagSet: cmd.Flags(), Except: []string{"config", "help", "kubeconfig"}, KindOf: kindOf}
}

// kubeletConfig reads a KubeletConfiguration into the flags that were not given. It prints a warning for each field
// that is unknown or has no effect.
func (r *root) kubeletConfig(f *instance.Flags, file, dir string, given func(flag string) bool) error {
	if file == "" && dir == "" {
		return nil
	}
	if dir != "" {
		if st, err := os.Stat(dir); err != nil || !st.IsDir() {
			return fmt.Errorf("%w --kubelet-config-dir: %s is not a directory", instance.ErrFlag, dir)
		}
	}
	c, warnings, err := kubeletconfig.Load(file, dir)
	if err != nil {
		return fmt.Errorf("%w --kubelet-config: %w", instance.ErrFlag, err)
	}
	more, err := kubeletconfig.Check(c)
	if err != nil {
		return fmt.Errorf("%w --kubelet-config: %w", instance.ErrFlag, err)
	}
	if os.Getenv(detachedEnv) == "" { // the parent process has already printed it
		for _, w := range append(warnings, more...) {
			fmt.Fprintln(r.errOut, "warning: kubelet configuration: "+w)
		}
	}
	kubeletconfig.Apply(c, f, given)
	return nil
}

// upDetached starts carob as a separate process and shows its progress until it is ready or fails.
func (r *root) upDetached(ctx context.Context, in instance.Instance) error {
	if err := instance.CheckRoot(); err != nil {
		return err
	}
	exe, err := os.Executable()
	if err != nil {
		return fmt.Errorf("find the path of the carob program: %w", err)
	}
	if err := os.MkdirAll(filepath.Dir(in.LogFile), 0o700); err != nil {
		return fmt.Errorf("create data directory: %w; choose another with --data-dir", err)
	}
	log, err := os.OpenFile(in.LogFile, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return fmt.Errorf("open log file: %w", err)
	}
	defer log.Close()
	pr, pw, err := os.Pipe()
	if err != nil {
		return fmt.Errorf("create pipe: %w", err)
	}
	defer pr.Close()
	args := []string{}
	for _, a := range os.Args[1:] {
		if a != "--detach" && a != "--detach=true" {
			args = append(args, a)
		}
	}
	child := exec.Command(exe, args...)
	child.Env = append(os.Environ(), detachedEnv+"=1")
	child.Stdout, child.Stderr = pw, log
	child.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := child.Start(); err != nil {
		pw.Close()
		return fmt.Errorf("start carob: %w", err)
	}
	pw.Close()
	stop := context.AfterFunc(ctx, func() { _ = child.Process.Signal(syscall.SIGTERM) })
	defer stop()
	failed := ""
	for lines := bufio.NewScanner(pr); lines.Scan(); {
		if msg, ok := strings.CutPrefix(lines.Text(), "error: "); ok {
			failed = msg
			continue
		}
		fmt.Fprintln(r.out, lines.Text())
	}
	if o, ok, err := instance.Running(in.LockFile); err == nil && ok && o.Ready && o.PID == child.Process.Pid {
		return child.Process.Release()
	}
	werr := child.Wait()
	if failed != "" {
		return errors.New(failed)
	}
	if werr != nil {
		return fmt.Errorf("carob ended before it was ready, see %s: %w", in.LogFile, werr)
	}
	return fmt.Errorf("carob ended before it was ready, see %s", in.LogFile)
}

// leaveTerminal closes the pipe to the parent; standard output is discarded from now on.
func leaveTerminal() {
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		return
	}
	_ = syscall.Dup3(int(null.Fd()), 1, 0)
	_ = syscall.Dup3(int(null.Fd()), 0, 0)
	_ = null.Close()
}

// progress prints a line for each step with the time since the start.
type progress struct {
	mu      sync.Mutex
	out     io.Writer
	start   time.Time
	hint    string // what to try next
	onReady func()
}

func newProgress(out io.Writer) *progress { return &progress{out: out, start: time.Now()} }

func (p *progress) Step(name, detail string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	line := fmt.Sprintf("%6d ms  %-12s %s", time.Since(p.start).Milliseconds(), name, detail)
	fmt.Fprintln(p.out, strings.TrimRight(line, " "))
}

func (p *progress) Ready(url string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	fmt.Fprintf(p.out, "carob is up at %s in %d ms. Try: %s\n", url, time.Since(p.start).Milliseconds(), p.hint)
	if p.onReady != nil {
		p.onReady()
		p.onReady = nil
	}
}
