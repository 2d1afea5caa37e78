package cli

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"carob/internal/base/instance"
)

// noEngine does nothing.
type noEngine struct{}

func (noEngine) Up(context.Context, instance.Instance, Progress) error { return nil }
func (noEngine) RemovePods(context.Context, instance.Instance) error   { return nil }
func (noEngine) Simulate(_ context.Context, s Simulation, out, _ io.Writer) (bool, error) {
	if s.List {
		fmt.Fprintln(out, "an-invariant   holds")
	}
	return true, nil
}

// carob runs a command line on a machine without a cluster.
func carob(t *testing.T, args ...string) (out string, err error) {
	t.Helper()
	t.Setenv("KUBECONFIG", "")
	t.Setenv(dataDirEnv, t.TempDir())
	var o, e bytes.Buffer
	cmd := New(noEngine{}, Version{Carob: "1.2.3"}, strings.NewReader(""), &o, &e)
	cmd.SetArgs(args)
	err = cmd.ExecuteContext(t.Context())
	return o.String(), err
}

// walk calls f for each command of the tree except kubectl's own.
func walk(cmd *cobra.Command, f func(*cobra.Command)) {
	f(cmd)
	for _, c := range cmd.Commands() {
		walk(c, f)
	}
}

func words(cmd *cobra.Command) []string { return strings.Fields(cmd.CommandPath())[1:] }

// Each command has a description and examples, and each flag a text.
func TestEveryCommandHasHelp(t *testing.T) {
	walk(New(noEngine{}, Version{}, nil, io.Discard, io.Discard), func(cmd *cobra.Command) {
		if cmd.Short == "" || !strings.Contains(cmd.Example, "carob") {
			t.Errorf("%s: short %q, example %q", cmd.CommandPath(), cmd.Short, cmd.Example)
		}
		if cmd.DisableFlagParsing {
			return
		}
		out, err := carob(t, append(words(cmd), "--help")...)
		if err != nil || !strings.Contains(out, "Usage:") ||
			!strings.Contains(out, strings.TrimSpace(firstLine([]byte(cmd.Example)))) {
			t.Errorf("%s --help: %v\n%s", cmd.CommandPath(), err, out)
		}
		if again, err := carob(t, append([]string{"help"}, words(cmd)...)...); err != nil || again != out {
			t.Errorf("help %s is not %s --help: %v", cmd.CommandPath(), cmd.CommandPath(), err)
		}
		cmd.Flags().VisitAll(func(f *pflag.Flag) {
			if f.Usage == "" {
				t.Errorf("%s --%s: no help text", cmd.CommandPath(), f.Name)
			}
		})
	})
}

// An invalid command line exits with 2, and the message lists what is valid.
func TestInvalidUseExitsWith2(t *testing.T) {
	refused := func(t *testing.T, args []string, texts ...string) {
		t.Helper()
		_, err := carob(t, args...)
		if exitCode(err) != exitUsage {
			t.Errorf("carob %q: exit code %d, want %d: %v", args, exitCode(err), exitUsage, err)
			return
		}
		for _, s := range texts {
			if !strings.Contains(message(err), s) {
				t.Errorf("carob %q: %q lacks %q", args, message(err), s)
			}
		}
		for _, raw := range []string{"strconv.", "netip.", "time: ", "arg(s)", "stat /", "%!", "invalid syntax"} {
			if strings.Contains(message(err), raw) {
				t.Errorf("carob %q: %q is Go's wording", args, message(err))
			}
		}
	}
	// Flags that take any text: names of objects in the cluster, files that are created.
	anyText := []string{"namespace", "node", "kubeconfig", "data-dir", "file", "break", "audit-log-path",
		"container-log-dir", "kubelet-dir", "output-file", "model",
		// package app checks these
		"eviction-hard", "eviction-soft", "eviction-soft-grace-period", "eviction-minimum-reclaim",
		"load-balancer-pool",
		"etcd-certfile", "etcd-keyfile"} // one without the other is rejected first
	walk(New(noEngine{}, Version{}, nil, io.Discard, io.Discard), func(cmd *cobra.Command) {
		if cmd.DisableFlagParsing || cmd.Name() == "help" {
			return
		}
		refused(t, append(words(cmd), "--no-such-flag"), "--no-such-flag", "--help")
		if cmd.HasSubCommands() {
			refused(t, append(words(cmd), "nosuch"), `"nosuch"`, "--help")
		} else if cmd.Args != nil && cmd.Args(cmd, nil) == nil && cmd.Args(cmd, []string{"x"}) != nil {
			refused(t, append(words(cmd), "surplus"), `"surplus"`)
		} else if cmd.Args != nil && cmd.Args(cmd, nil) != nil {
			refused(t, words(cmd), "usage: "+cmd.CommandPath())
		}
		cmd.LocalFlags().VisitAll(func(f *pflag.Flag) {
			if f.Value.Type() == "string" && slices.Contains(anyText, f.Name) {
				return
			}
			args := append(words(cmd), "--"+f.Name+"=@wrong@")
			if cmd.Args != nil && cmd.Args(cmd, nil) != nil {
				args = append(args, "x", "y")
			}
			texts := []string{"--" + f.Name, "@wrong@"}
			if c, ok := f.Value.(*choice); ok {
				texts = append(texts, c.either())
			}
			refused(t, args, texts...)
		})
	})
	refused(t, []string{"stats"}, "did you mean status?")
	refused(t, []string{"help", "nosuch"}, "nosuch")
	refused(t, []string{"help", "image", "nosuch"}, "nosuch")
	refused(t, []string{"--data-dir", "", "status"}, "--data-dir", "empty")
	refused(t, []string{"kubectl", "--data-dir", "", "get", "pods"}, "--data-dir", "empty")
	refused(t, []string{"kubectl", "--data-dir=", "get", "pods"}, "--data-dir", "empty")
	refused(t, []string{"up", "--shutdown-grace-period", "-5s"}, "--shutdown-grace-period:", "less than 0")
	refused(t, []string{"timeline", "node/x"}, "pod/NAME")
	refused(t, []string{"dashboard", "--port", "70000"}, "--port", "from 0 to 65535")
	refused(t, []string{"sim", "--of", "nodes"}, "pods, cluster or autoscaler")
	for _, hours := range []string{"0", "NaN", "Inf", "-1", "1e300"} {
		refused(t, []string{"sim", "--hours", hours}, "--hours must be more than 0")
	}
	for _, args := range [][]string{{"pull", ""}, {"rm", "app", ""}, {"tag", "app", ""}} {
		refused(t, append([]string{"image"}, args...), "the name of an image is empty")
	}
	refused(t, []string{"kubeconfig", "--file", "x"}, "--merge")
}

// A valid command that fails exits with 1.
func TestFailuresExitWith1(t *testing.T) {
	for _, args := range [][]string{{"status"}, {"demo"}, {"image", "ls"}, {"kubeconfig"}, {"timeline", "web"},
		{"kubectl", "get", "pods"}} {
		if _, err := carob(t, args...); exitCode(err) != exitFailed {
			t.Errorf("carob %q: %v", args, err)
		}
	}
	for _, args := range [][]string{{"version"}, {"--version"}, {"help"}, {}, {"image"}, {"completion", "bash"},
		{"down"}} {
		if out, err := carob(t, args...); err != nil || out == "" {
			t.Errorf("carob %q: %q, %v", args, out, err)
		}
	}
	if out, _ := carob(t, "--version"); !strings.HasPrefix(out, "carob 1.2.3") {
		t.Errorf("--version: %q", out)
	}
	if got := message(errors.Join(context.DeadlineExceeded)); strings.Contains(got, "context") {
		t.Error(got)
	}
}

// Pods of a cluster whose data directory is not there are not said to have ended.
func TestDownOfAMissingDirectory(t *testing.T) {
	missing := filepath.Join(t.TempDir(), "missing")
	out, err := carob(t, "down", "--pods", "--data-dir", missing)
	if err != nil || !strings.Contains(out, missing+" does not exist") || strings.Contains(out, "all pods ended") {
		t.Errorf("%q, %v", out, err)
	}
	if out, err := carob(t, "down", "--pods"); err != nil || !strings.Contains(out, "all pods ended") {
		t.Errorf("%q, %v", out, err)
	}
}

// An error of kubectl is returned to be printed once; kubectl prints nothing of it.
func TestErrorsOfKubectlAppearOnce(t *testing.T) {
	for _, args := range [][]string{{"scale", "deployment", "web", "--replicas=x"}, {"get", "--nope"}, {"nonsense"}} {
		var out, errOut bytes.Buffer
		cmd := New(noEngine{}, Version{Carob: "1.2.3"}, strings.NewReader(""), &out, &errOut)
		cmd.SetArgs(append(append([]string{"kubectl"}, args...), "--kubeconfig", os.DevNull))
		if err := cmd.ExecuteContext(t.Context()); err == nil || out.String()+errOut.String() != "" {
			t.Errorf("kubectl %q: error %v, printed %q %q", args, err, &out, &errOut)
		}
	}
}

// Commands suggested in messages have the flags that select the cluster.
func TestSuggestedCommands(t *testing.T) {
	t.Setenv(dataDirEnv, "")
	for want, r := range map[string]root{
		"carob kubectl get nodes":                        {},
		"carob kubectl --data-dir /a get nodes":          {dataDir: "/a"},
		`carob kubectl --data-dir '/a b'\''c' get nodes`: {dataDir: "/a b'c"},
		"carob kubectl --kubeconfig /k get nodes":        {kubeconfig: "/k"},
	} {
		if got := r.try("kubectl get nodes"); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
	if _, err := carob(t, "image", "ls", "--data-dir", "/no/such"); err == nil ||
		!strings.Contains(err.Error(), "carob up --data-dir /no/such") {
		t.Errorf("%v", err)
	}
}

// A server that cannot be reached is named once, with what to check.
func TestServerThatDoesNotAnswer(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := "https://" + l.Addr().String()
	l.Close()
	file := filepath.Join(t.TempDir(), "kubeconfig")
	text := fmt.Sprintf(`{"apiVersion": "v1", "kind": "Config", "current-context": "a",
"clusters": [{"name": "a", "cluster": {"server": %q}}], "users": [{"name": "a", "user": {"token": "x"}}],
"contexts": [{"name": "a", "context": {"cluster": "a", "user": "a"}}]}`, server)
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{{"explain", "pod/x"}, {"timeline", "x"}, {"image", "ls"}, {"routes"},
		{"addon", "list"}} {
		_, err := carob(t, append(args, "--kubeconfig", file)...)
		want := "cannot connect to the API server " + server + ": connect: connection refused; check that the cluster " +
			"runs (`carob ls`), and the kubeconfig"
		if exitCode(err) != exitFailed || message(err) != want {
			t.Errorf("carob %q: %q, want %q", args, message(err), want)
		}
	}
}

// The variable replaces the flag, and the flag takes precedence.
func TestDataDirFromEnvironment(t *testing.T) {
	t.Setenv(dataDirEnv, "/from/env")
	r := &root{}
	if in, err := r.instance(); err != nil || in.DataDir != "/from/env" {
		t.Errorf("%s, %v", in.DataDir, err)
	}
	r.dataDir = "/from/flag"
	if in, err := r.instance(); err != nil || in.DataDir != "/from/flag" {
		t.Errorf("%s, %v", in.DataDir, err)
	}
}

// TestCompletion: kubectl completes its own commands and flags.
func TestCompletion(t *testing.T) {
	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{"kubectl", "rollou"}, "rollout\t"},
		{[]string{"kubectl", "rollout", "hi"}, "history\t"},
		{[]string{"kubectl", "--data-dir", "/x", "config", "view", "--mini"}, "--minify\t"},
		{[]string{"imag"}, "image\t"},
		{[]string{"up", "--log-level", ""}, "debug\n"},
		{[]string{"ls", "-o", ""}, "name\n"},
		{[]string{"sim", "--of", ""}, "cluster\n"},
		{[]string{"sim", "--break", ""}, "an-invariant\n"},
		{[]string{"help", "im"}, "image\t"},
		{[]string{"explain", "dep"}, "deployment/\n"},
	} {
		out, err := carob(t, append([]string{cobra.ShellCompRequestCmd}, c.args...)...)
		if err != nil || !strings.Contains(out, c.want) {
			t.Errorf("%q: %v\n%s", c.args, err, out)
		}
	}
	for answer, n := range map[string]int{"a\nb\n:4\n": 2, ":4\n": 0, "a\nb": 0, "": 0} {
		if got, _ := completions(answer); len(got) != n {
			t.Errorf("%q: %q", answer, got)
		}
	}
}

// An error may have the words of a registry or of a server: they do not control the terminal.
func TestErrorsOfOthersArePrintable(t *testing.T) {
	err, want := errors.New("pull x: \x1b]0;owned\x07\nnext"), "pull x: \uFFFD]0;owned\uFFFD\nnext"
	if got := message(err); got != want {
		t.Errorf("%q, want %q", got, want)
	}
}
