// Command mutants breaks podlife in many small ways, one at a time, and shows that
// something notices: a transcript, a property, or a seed of the simulator. The
// mutants stand in mutants.txt; the sources stay as they are. All mutants are in one
// build, an overlay of the sources, in which a variable of the environment chooses
// one. A mutant that survives, or whose text is not in its file any more, is an error.
package main

import (
	"bytes"
	"context"
	_ "embed"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

//go:embed mutants.txt
var list string

// folder holds the sources that are mutated.
const folder = "internal/core/podlife"

// simulator runs if the tests of podlife do not detect a mutant.
const simulator = "internal/sim"

// mutant is one replacement in one file.
type mutant struct {
	number   int // from 1
	file     string
	what     string
	from, to string
}

// verdict is what became of a mutant.
type verdict struct {
	by   string // what noticed it; empty: nothing did
	took time.Duration
	err  error // it could not be tried
}

func main() {
	only := flag.String("only", "", "numbers of mutants to try, separated by commas (default all)")
	workers := flag.Int("workers", runtime.GOMAXPROCS(0), "mutants tried side by side")
	seeds := flag.Int("seeds", 150, "seeds of the simulator for a mutant that the tests of podlife do not notice")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, *only, *workers, *seeds); err != nil {
		fmt.Fprintln(os.Stderr, "error:", err)
		stop()
		os.Exit(1)
	}
}

func run(ctx context.Context, only string, workers, seeds int) error {
	mutants, err := parse(list)
	if err != nil {
		return err
	}
	if mutants, err = choose(mutants, only); err != nil {
		return err
	}
	root, err := os.Getwd()
	if err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "mutants")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	begin := time.Now()
	b := &bench{root: root, dir: dir, seeds: seeds}
	if err := b.prepare(mutants); err != nil {
		return err
	}
	if _, err := b.binary(ctx, folder); err != nil {
		return err
	}
	verdicts := make([]verdict, len(mutants))
	work := make(chan int)
	var group sync.WaitGroup
	for range workers {
		group.Go(func() {
			for i := range work {
				verdicts[i] = b.try(ctx, mutants[i])
				fmt.Printf("%3d  %-24s %5.1fs  %s: %s\n", mutants[i].number, verdicts[i], verdicts[i].took.Seconds(),
					mutants[i].file, mutants[i].what)
			}
		})
	}
	for i := range mutants {
		if ctx.Err() == nil {
			work <- i
		}
	}
	close(work)
	group.Wait()
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	killed := 0
	for _, v := range verdicts {
		if v.by != "" && v.err == nil {
			killed++
		}
	}
	fmt.Printf("%d of %d mutants killed in %v\n", killed, len(mutants), time.Since(begin).Round(time.Second))
	if killed < len(mutants) {
		return errors.New("some mutants live")
	}
	return nil
}

func (v verdict) String() string {
	switch {
	case v.err != nil:
		return "ERROR " + v.err.Error()
	case v.by == "":
		return "SURVIVED"
	}
	return "killed by " + v.by
}

// parse reads the list of mutants.
func parse(text string) ([]mutant, error) {
	var all []mutant
	blocks := strings.Split("\n"+text, "\n== ")
	for _, b := range blocks[1:] {
		head, body, _ := strings.Cut(b, "\n")
		file, what, ok := strings.Cut(head, ": ")
		from, to, arrow := strings.Cut(body, "\n->\n")
		if !ok || !arrow || from == "" {
			return nil, fmt.Errorf("mutants.txt: %q is not FILE: WHAT, text, ->, text", head)
		}
		all = append(all, mutant{number: len(all) + 1, file: file, what: what, from: from,
			to: strings.TrimSuffix(to, "\n")})
	}
	return all, nil
}

func choose(all []mutant, only string) ([]mutant, error) {
	if only == "" {
		return all, nil
	}
	var some []mutant
	for s := range strings.SplitSeq(only, ",") {
		n, err := strconv.Atoi(s)
		if err != nil || n < 1 || n > len(all) {
			return nil, fmt.Errorf("there is no mutant %q: they go from 1 to %d", s, len(all))
		}
		some = append(some, all[n-1])
	}
	return some, nil
}

// mutate makes the broken file of a mutant.
func (m *mutant) mutate(source []byte) ([]byte, error) {
	if n := bytes.Count(source, []byte(m.from)); n != 1 {
		return nil, fmt.Errorf("its text stands %d times in %s, not once", n, m.file)
	}
	return bytes.Replace(source, []byte(m.from), []byte(m.to), 1), nil
}

// killer is a set of tests that may notice a mutant.
type killer struct {
	pkg  string
	args []string
}

// killers returns the tests to try on a mutant, from the fastest to the slowest.
func (m *mutant) killers() []killer {
	all := []killer{
		{folder, []string{"-test.run=^TestTranscripts$"}},
		{folder, []string{"-test.run=^Test", "-test.skip=^TestTranscripts$", "-rapid.nofailfile"}},
	}
	if own := filepath.Join(folder, filepath.Dir(m.file)); own != folder {
		all = append(all, killer{own, []string{"-test.run=^Test"}})
	}
	return append(all, killer{simulator, []string{"-test.run=^TestSeeds$"}})
}

// try finds out which tests notice a mutant.
func (b *bench) try(ctx context.Context, m mutant) (v verdict) {
	begin := time.Now()
	defer func() { v.took = time.Since(begin) }()
	for _, step := range m.killers() {
		binary, err := b.binary(ctx, step.pkg)
		if err != nil {
			return verdict{err: err}
		}
		args := append([]string{"-test.failfast", "-test.timeout=10m"}, step.args...)
		cmd := exec.CommandContext(ctx, binary, args...)
		cmd.Dir = filepath.Join(b.root, step.pkg)
		cmd.Env = append(os.Environ(), variable+"="+strconv.Itoa(m.number), "SIM_SEEDS="+strconv.Itoa(b.seeds))
		cmd.WaitDelay = 5 * time.Second
		cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
		out, err := cmd.CombinedOutput()
		switch {
		case ctx.Err() != nil:
			return verdict{err: ctx.Err()}
		case err != nil:
			return verdict{by: killedBy(out)}
		}
	}
	return verdict{}
}

var (
	failed    = regexp.MustCompile(`(?m)^\s*--- FAIL: (\S+)`)
	violation = regexp.MustCompile(`([a-z-]+): [^\n]*\n\s*seed \d+ at `)
)

// killedBy names the test or the invariant that noticed.
func killedBy(out []byte) string {
	if v := violation.FindSubmatch(out); v != nil {
		return "sim " + string(v[1])
	}
	name := "a test"
	if bytes.Contains(out, []byte("panic: test timed out")) {
		name = "a timeout"
	}
	for _, f := range failed.FindAllSubmatch(out, -1) {
		name = string(f[1]) // the innermost comes last
	}
	return strings.TrimPrefix(name, "TestTranscripts/")
}
