package main

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
)

// The Kubernetes version that the suite reports; versions of its parts are in go.mod.
const (
	kubernetes = "v1.37.1"
	stamps     = "-s -w -X k8s.io/component-base/version.gitVersion=" + kubernetes +
		" -X k8s.io/component-base/version.gitMajor=1 -X k8s.io/component-base/version.gitMinor=37"
)

// suite is the built test program with its runner.
type suite struct {
	test, ginkgo, kubectl string
	sources               string // of Kubernetes, which tests read files from
}

// buildSuite builds what is missing or made from another go.mod.
func buildSuite(ctx context.Context, cache string) (*suite, error) {
	bin := filepath.Join(cache, "bin")
	if err := os.MkdirAll(bin, 0o755); err != nil {
		return nil, err
	}
	s := &suite{test: filepath.Join(bin, "e2e.test"), ginkgo: filepath.Join(bin, "ginkgo"),
		kubectl: filepath.Join(bin, "kubectl")}
	out, err := output(ctx, "", "go", "list", "-m", "-f", "{{.Dir}}", "k8s.io/kubernetes")
	if err != nil {
		return nil, err
	}
	s.sources = strings.TrimSpace(out)
	sums, err := os.ReadFile("go.sum")
	if err != nil {
		return nil, err
	}
	stamp, want := filepath.Join(bin, ".made-of"),
		fmt.Sprintf("%x %s %s", sha256.Sum256(sums), runtime.Version(), kubernetes)
	if have, _ := os.ReadFile(stamp); string(have) == want {
		return s, nil
	}
	fmt.Println("building the suite (ten minutes the first time)")
	for _, args := range [][]string{
		{"test", "-c", "-ldflags", stamps, "-o", s.test, "k8s.io/kubernetes/test/e2e"},
		{"build", "-ldflags", stamps, "-o", s.kubectl, "k8s.io/kubernetes/cmd/kubectl"},
		{"build", "-ldflags", "-s -w", "-o", s.ginkgo, "github.com/onsi/ginkgo/v2/ginkgo"},
	} {
		if _, err := output(ctx, "", "go", args...); err != nil {
			return nil, err
		}
	}
	return s, os.WriteFile(stamp, []byte(want), 0o644)
}

// names lists the tests that match, with the suite's names.
func (s *suite) names(ctx context.Context, among string) ([]string, error) {
	dir, err := os.MkdirTemp("", "conformance-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	file := filepath.Join(dir, "specs.json")
	if _, err := output(ctx, dir, s.test, "--ginkgo.dry-run", "--ginkgo.focus", among,
		"--ginkgo.json-report", file, "--kubeconfig", "/nonexistent", "--provider", "skeleton"); err != nil {
		return nil, fmt.Errorf("list the tests: %w", err)
	}
	specs, err := readSpecs(file)
	if err != nil {
		return nil, err
	}
	var names []string
	for _, sp := range specs {
		if sp.State == "passed" {
			names = append(names, sp.name())
		}
	}
	slices.Sort(names)
	return names, nil
}

// choose applies the options to all names.
func choose(all []string, o options) ([]string, error) {
	if o.list != "" {
		body, err := os.ReadFile(o.list)
		if err != nil {
			return nil, err
		}
		var want []string
		for _, l := range strings.Split(string(body), "\n") {
			l = strings.Join(strings.Fields(l), " ")
			if l == "" || strings.HasPrefix(l, "#") {
				continue
			}
			i := slices.IndexFunc(all, func(n string) bool { return n == l || strings.HasPrefix(n, l+" ") })
			if i < 0 {
				return nil, fmt.Errorf("%s: there is no test %q", o.list, l)
			}
			want = append(want, all[i])
		}
		all = want
	}
	focus, err := regexp.Compile(o.focus)
	if err != nil {
		return nil, fmt.Errorf("-focus: %w", err)
	}
	skip, err := regexp.Compile(o.skip)
	if err != nil {
		return nil, fmt.Errorf("-skip: %w", err)
	}
	want := slices.DeleteFunc(slices.Clone(all),
		func(n string) bool { return !focus.MatchString(n) || o.skip != "" && skip.MatchString(n) })
	if len(want) == 0 {
		return nil, errors.New("no test matches")
	}
	return want, nil
}

// spec is one test in a report of Ginkgo's.
type spec struct {
	ContainerHierarchyTexts []string
	LeafNodeType            string
	LeafNodeText            string
	State                   string
	RunTime                 int64 // ns
	Failure                 struct {
		Message  string
		Location location
	}
}

// location is a line of the suite.
type location struct {
	FileName   string
	LineNumber int
}

func (l location) String() string {
	if l.FileName == "" {
		return ""
	}
	_, file, found := strings.Cut(l.FileName, "/test/e2e/")
	if !found {
		file = l.FileName
	}
	return fmt.Sprintf("%s:%d: ", file, l.LineNumber)
}

func (s spec) name() string {
	return strings.Join(strings.Fields(strings.Join(append(s.ContainerHierarchyTexts, s.LeafNodeText), " ")), " ")
}

func readSpecs(file string) ([]spec, error) {
	body, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	var reports []struct{ SpecReports []spec }
	if err := json.Unmarshal(body, &reports); err != nil {
		return nil, fmt.Errorf("read %s: %w", file, err)
	}
	var specs []spec
	for _, r := range reports {
		for _, s := range r.SpecReports {
			if s.LeafNodeType == "It" {
				specs = append(specs, s)
			}
		}
	}
	return specs, nil
}

func serial(name string) bool {
	return strings.Contains(name, "[Serial]") || strings.Contains(name, "[Disruptive]")
}

// run runs the tests, first those that stand others beside them.
func (s *suite) run(ctx context.Context, kubeconfig string, names []string, o options) (map[string]spec, error) {
	results := map[string]spec{}
	for _, part := range []struct {
		name   string
		serial bool
		procs  int
	}{{"parallel", false, o.procs}, {"serial", true, 1}} {
		var focus []string
		for _, n := range names {
			if serial(n) == part.serial {
				focus = append(focus, "(?:^| )"+regexp.QuoteMeta(n)+"(?: |$)")
			}
		}
		if len(focus) == 0 {
			continue
		}
		fmt.Printf("running %d tests, %d at a time; log in %s\n", len(focus), part.procs,
			filepath.Join(o.out, part.name+".log"))
		report := filepath.Join(o.out, part.name+".json")
		log, err := os.Create(filepath.Join(o.out, part.name+".log"))
		if err != nil {
			return nil, err
		}
		cmd := exec.CommandContext(ctx, s.ginkgo, "run", fmt.Sprintf("--procs=%d", part.procs), "--timeout=3h",
			"--no-color", "--silence-skips", "--keep-going",
			"--focus="+strings.Join(focus, "|"), "--json-report="+part.name+".json", "--output-dir="+o.out, s.test,
			"--",
			"--kubeconfig="+kubeconfig, "--provider=skeleton", "--num-nodes=1", "--disable-log-dump",
			"--dump-logs-on-failure=false", "--allowed-not-ready-nodes=0",
			"--minStartupPods=0", "--system-pods-startup-timeout=10s", "--node-schedulable-timeout=30s",
			"--kubectl-path="+s.kubectl, "--repo-root="+s.sources,
			"--report-dir=", "--prepull-images=false")
		cmd.Dir, cmd.Stdout, cmd.Stderr = o.out, log, log
		cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
		runErr := cmd.Run()
		if err := log.Close(); err != nil {
			return nil, err
		}
		specs, err := readSpecs(report)
		if err != nil {
			return nil, errors.Join(runErr, err)
		}
		for _, sp := range specs {
			if _, ok := results[sp.name()]; !ok || sp.State != "skipped" {
				results[sp.name()] = sp
			}
		}
	}
	return results, ctx.Err()
}

func output(ctx context.Context, dir, name string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	var errs strings.Builder
	cmd.Stderr = &errs
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("%s %s: %w: %s", name, strings.Join(args, " "), err,
			strings.TrimSpace(errs.String()+string(out)))
	}
	return string(out), nil
}
