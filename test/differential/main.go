// Command differential sends the same requests to a carob and to upstream's API server and prints where the
// answers differ: status, headers and every field of the body, for watches every event. The requests are in
// cases/*.http (script.go says how they are written); what is made up by a server (identities, times, versions) is
// paired (same.go), so that a value that should be the same as before still has to be.
//
//	hack/reference-apiserver /tmp/upstream &
//	bin/carob up --detach --data-dir /tmp/differential
//	go run ./test/differential -carob /tmp/differential/admin.kubeconfig -upstream /tmp/upstream/kubeconfig
//
// With -manifests, it sends what other projects deploy instead, read from their folders (manifests.go).
//
// A difference that docs/differences.md explains is marked in the case with `# differs: why`; such a request must
// differ. The exit code is 1 when anything else came out.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"sort"
	"strings"
	"sync"
	"time"
)

func main() {
	carob := flag.String("carob", "", "kubeconfig of the carob")
	upstream := flag.String("upstream", "", "kubeconfig of the reference")
	run := flag.String("run", "",
		"only the requests whose name or line match; what they need from the others is sent, too")
	most := flag.Int("most", 12, "how many differences of one answer are printed")
	show := flag.Bool("show", false, "print the answers of both, also where they are the same")
	folders := flag.String("manifests", "", "folders of manifests, instead of cases: A,B,…")
	dir := flag.String("cases", "test/differential/cases", "folder of the cases")
	flag.Usage = func() {
		fmt.Fprintln(os.Stderr, "differential -carob KUBECONFIG -upstream KUBECONFIG [FILE-OF-CASES...]")
		flag.PrintDefaults()
	}
	flag.Parse()
	files := flag.Args()
	if len(files) == 0 {
		files, _ = filepath.Glob(filepath.Join(*dir, "*.http"))
		sort.Strings(files)
	}
	only, err := regexp.Compile(*run)
	if err != nil {
		fail("-run: %v", err)
	}
	left, err := dial(*carob)
	if err != nil {
		fail("-carob: %v", err)
	}
	right, err := dial(*upstream)
	if err != nil {
		fail("-upstream: %v", err)
	}
	t := tester{sides: [2]*side{left, right}, only: only, most: *most, show: *show}
	if *folders != "" {
		files = nil
		t.inNamespace(context.Background(), "manifests", func(ctx context.Context) {
			if err := t.manifests(ctx, strings.Split(*folders, ",")); err != nil {
				fail("-manifests: %v", err)
			}
		})
	}
	for _, file := range files {
		requests, err := parse(file)
		if err != nil {
			fail("%v", err)
		}
		t.file(context.Background(), file, requests)
	}
	fmt.Printf("%d requests: %d differ, %d on purpose\n", t.sent, t.differ, t.meant)
	if t.differ > 0 {
		os.Exit(1)
	}
}

func fail(format string, args ...any) {
	fmt.Fprintf(os.Stderr, format+"\n", args...)
	os.Exit(2)
}

type tester struct {
	sides               [2]*side
	only                *regexp.Regexp
	most                int
	show                bool
	sent, differ, meant int
	of                  string // the file whose requests are sent
	known               *pairs
}

// file sends the requests of one file, each to both sides at once.
func (t *tester) file(ctx context.Context, file string, requests []request) {
	t.inNamespace(ctx, filepath.Base(file), func(ctx context.Context) {
		for _, r := range requests {
			t.request(ctx, r)
		}
	})
}

// inNamespace runs f with a namespace and a suffix of its own on both sides.
func (t *tester) inNamespace(ctx context.Context, file string, f func(context.Context)) {
	suffix := fmt.Sprintf("%x", time.Now().UnixNano()%0xffffff)
	for _, s := range t.sides {
		s.begin("differential-"+suffix, suffix)
	}
	t.of, t.known = file, newPairs()
	f(ctx)
	for _, s := range t.sides {
		s.end(ctx)
	}
}

// request sends a request to both sides, and prints how their answers differ.
func (t *tester) request(ctx context.Context, r request) {
	var answers [2]answer
	var both sync.WaitGroup
	for i, s := range t.sides {
		both.Go(func() { answers[i] = s.send(ctx, r) })
	}
	both.Wait()
	found := t.known.compare(r, answers[0], answers[1])
	if !t.only.MatchString(r.name) && !t.only.MatchString(r.method+" "+r.path) {
		return
	}
	t.sent++
	switch {
	case len(found) == 0 && r.differs == "":
		if t.show {
			fmt.Printf("%s:%d %s %s\n  %s\n", t.of, r.line, r.method, r.path,
				strings.ReplaceAll(answers[0].String(), "\n", "\n  "))
		}
		return
	case len(found) > 0 && r.differs != "":
		t.meant++
		if !t.show {
			return
		}
	case r.differs != "":
		found = []string{"the same, but marked: " + r.differs}
		fallthrough
	default:
		t.differ++
	}
	fmt.Printf("%s:%d %s\n  %s %s\n", t.of, r.line, r.name, r.method, r.path)
	for i, line := range found {
		if i == t.most {
			fmt.Printf("    … and %d more\n", len(found)-i)
			break
		}
		fmt.Printf("    %s\n", line)
	}
	if t.show {
		for i, s := range []string{"carob", "upstream"} {
			fmt.Printf("  %s: %s\n", s, strings.ReplaceAll(answers[i].String(), "\n", "\n  "))
		}
	}
}
