package archtest

import (
	"maps"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// notCited are documents that are not about today's tree, or name the files of other projects.
var notCited = map[string]string{
	"docs/style.md": "the files of other projects",
	"docs/spec/":    "upstream's files and resources",
}

// otherPaths are the first parts of paths that look like folders of the tree and are something else, with an example
// of where they are.
var otherPaths = map[string]string{
	"node/cluster":            "a file of the data directory",
	"node/pods/UID":           "a directory of the data directory",
	"node/volatile/UID":       "a directory of the data directory",
	"node/pulled":             "a directory of the data directory",
	"node/static-pods":        "a directory of the data directory",
	"node/static-pods-of-url": "a file of the data directory",
	"node/devices.json":       "a file of the data directory",
	"node/seccomp":            "a directory of the data directory",
	"runtime/containers/ID":   "a directory of the data directory",
	"runtime/sandboxes/ID":    "a directory of the data directory",
	"runtime/handlers/UID":    "a file of the data directory",
	"node/replaced-node.json": "a file of the data directory",
	"runtime/images":          "a directory of the data directory",
	"network/attachments":     "a file of the data directory",
	"kinds/GROUP":             "a pattern",
	"controllers/NAME":        "a pattern",
	"test/e2e_node":           "a folder of k8s.io/kubernetes",
	"core/membership":         "planned (docs/design.md)",
	"internal/cluster":        "planned (docs/design.md)",
	"testing/synctest":        "a package of Go",
	"net/http":                "a package of Go",
	"tools/reference":         "a folder of programs",
}

// A test or a file that a document names exists: a reader who follows the name finds it.
func TestDocumentsNameWhatExists(t *testing.T) {
	tree := readTree(t)
	cited := 0
	for _, name := range tracked(t, "*.md") {
		text, err := os.ReadFile(filepath.Join(top, name))
		if err != nil || isNotCited(name) {
			continue // removed and not committed yet, or about something else
		}
		for i, line := range strings.Split(string(text), "\n") {
			for _, c := range citations(line) {
				cited++
				if !tree.has(path.Dir(name), c) {
					t.Errorf("%s:%d names %s, which does not exist", name, i+1, c)
				}
			}
		}
	}
	if cited < 1000 {
		t.Errorf("only %d citations were found", cited)
	}
	for _, c := range []struct {
		line string
		want int // how many of its names do not exist
	}{
		{"`internal/archtest` `TestDocumentsNameWhatExists`, `archtest/documents_test.go`, [x](README.md)", 0},
		{"`TestDocuments…` and `FuzzNothing…`", 1},
		{"`TestNothingOfThisName`", 1},
		{"`internal/archtest/nothing.go`, `node/nothing`, `nothing.go`", 3},
		{"[x](docs/nothing.md#a), [y](https://example.com/nothing.md)", 1},
		{"`node/pods/UID/volumes`, `pods/exec`", 0},
	} {
		missing := 0
		for _, name := range citations(c.line) {
			if !tree.has(".", name) {
				missing++
			}
		}
		if missing != c.want {
			t.Errorf("%s: %d names do not exist, want %d", c.line, missing, c.want)
		}
	}
}

func isNotCited(name string) bool {
	for n := range notCited {
		if strings.HasPrefix(name, n) {
			return true
		}
	}
	return false
}

var (
	testName = regexp.MustCompile(`\b(?:Test|Fuzz|Benchmark)[A-Z]\w*…?`)
	linked   = regexp.MustCompile(`\]\(([^)\s]+)\)`)
	quoted   = regexp.MustCompile("`([^`\\s]+)`")
	isFile   = regexp.MustCompile(`^[\w.-]+(/[\w.-]+)*\.(go|c|h|md|txt|jsonl)$`)
	isPath   = regexp.MustCompile(`^[a-z][\w-]*(/[\w.-]+)+$`)
)

// citations are the names of tests, the targets of links, and the paths and files between backquotes in a line.
func citations(line string) []string {
	found := testName.FindAllString(line, -1)
	for _, m := range linked.FindAllStringSubmatch(line, -1) {
		if target, _, _ := strings.Cut(m[1], "#"); target != "" && !strings.Contains(target, ":") {
			found = append(found, "./"+target)
		}
	}
	for _, m := range quoted.FindAllStringSubmatch(line, -1) {
		if name := strings.TrimSuffix(m[1], "/"); isFile.MatchString(name) || isPath.MatchString(name) {
			found = append(found, name)
		}
	}
	return found
}

// tree is what a document may name.
type tree struct {
	paths map[string]bool // files and folders, each also without leading folders
	roots map[string]bool // first parts of paths: a path that begins with one is meant to be in the tree
	tests map[string]bool
}

func readTree(t *testing.T) tree {
	t.Helper()
	all := tree{paths: map[string]bool{}, roots: map[string]bool{}, tests: map[string]bool{}}
	declared := regexp.MustCompile(`(?m)^func ((?:Test|Fuzz|Benchmark)\w+)\(`)
	for _, name := range tracked(t, "*") {
		for p := name; p != "."; p = path.Dir(p) {
			for suffix := p; ; {
				all.paths[suffix] = true
				_, rest, ok := strings.Cut(suffix, "/")
				if !ok {
					break
				}
				suffix = rest
			}
		}
		if parts := strings.Split(name, "/"); len(parts) > 2 {
			all.roots[parts[0]] = true
			if parts[0] == "internal" {
				all.roots[parts[1]] = true
			}
		}
		if strings.HasSuffix(name, "_test.go") {
			text, err := os.ReadFile(filepath.Join(top, name))
			if err != nil {
				continue // removed and not committed yet
			}
			for _, m := range declared.FindAllStringSubmatch(string(text), -1) {
				all.tests[m[1]] = true
			}
		}
	}
	return all
}

// has reports whether the tree has what a document in a folder names.
func (all tree) has(folder, name string) bool {
	if testName.MatchString(name) && !strings.Contains(name, "/") {
		prefix, open := strings.CutSuffix(name, "…")
		if !open {
			return all.tests[name]
		}
		for n := range all.tests {
			if strings.HasPrefix(n, prefix) {
				return true
			}
		}
		return false
	}
	if target, ok := strings.CutPrefix(name, "./"); ok {
		return all.paths[path.Join(folder, target)]
	}
	first, _, ok := strings.Cut(name, "/")
	if all.paths[name] || ok && !all.roots[first] {
		return true
	}
	for other := range otherPaths {
		if strings.HasPrefix(name, other) {
			return true
		}
	}
	return all.paths[path.Join(folder, name)]
}

// Each document is linked from docs/README.md or from the list of its folder.
func TestDocumentsAreListed(t *testing.T) {
	list, err := os.ReadFile(filepath.Join(top, "docs", "README.md"))
	if err != nil {
		t.Fatal(err)
	}
	found := 0
	for _, name := range tracked(t, "docs/*") {
		folder, file := path.Split(strings.TrimPrefix(name, "docs/"))
		if found++; folder == "" && file != "README.md" && !strings.Contains(string(list), "]("+file+")") {
			t.Errorf("docs/README.md does not link %s", name)
		}
	}
	if found < 50 {
		t.Errorf("only %d documents were found", found)
	}
}

// A script that runs tests by name runs some: go test passes when a name matches none.
func TestScriptsRunTestsThatExist(t *testing.T) {
	runs := regexp.MustCompile(`-run ['"]?([\w|$]+)['"]?((?: \./[\w/]+)+)`)
	found := 0
	for _, name := range append(tracked(t, "hack/*"), "Makefile") {
		text, err := os.ReadFile(filepath.Join(top, name))
		if err != nil {
			continue // removed and not committed yet
		}
		for _, m := range runs.FindAllStringSubmatch(string(text), -1) {
			tests := testsIn(t, strings.Fields(m[2]))
			for wanted := range strings.SplitSeq(m[1], "|") {
				found++
				if !regexp.MustCompile(`(?m)` + wanted).MatchString(tests) {
					t.Errorf("%s runs %s of%s, which has no such test", name, wanted, m[2])
				}
			}
		}
	}
	if found < 15 {
		t.Errorf("only %d names were found", found)
	}
}

// testsIn are the names of the tests of some folders, one in a line.
func testsIn(t *testing.T, folders []string) string {
	t.Helper()
	declared := regexp.MustCompile(`(?m)^func (Test\w+)\(`)
	var all strings.Builder
	for _, folder := range folders {
		for _, name := range tracked(t, strings.TrimPrefix(folder, "./")+"/*_test.go") {
			text, err := os.ReadFile(filepath.Join(top, name))
			if err != nil {
				continue // removed and not committed yet
			}
			for _, m := range declared.FindAllStringSubmatch(string(text), -1) {
				all.WriteString(m[1] + "\n")
			}
		}
	}
	return all.String()
}

// An exclusion of the linters is for files that exist.
func TestExclusionsOfLintersAreUsed(t *testing.T) {
	text, err := os.ReadFile(filepath.Join(top, ".golangci.yml"))
	if err != nil {
		t.Fatal(err)
	}
	files := strings.Join(tracked(t, "*.go"), "\n")
	found := 0
	for _, m := range regexp.MustCompile(`(?m)^\s+- path: (.+)$`).FindAllStringSubmatch(string(text), -1) {
		if found++; !regexp.MustCompile(`(?m)` + m[1]).MatchString(files) {
			t.Errorf("no file matches %s", m[1])
		}
	}
	if found < 4 {
		t.Errorf("only %d exclusions were found", found)
	}
}

// A package that cites clauses of the specification names the document in its comment or its source.
func TestPackagesNameTheirContract(t *testing.T) {
	clause := regexp.MustCompile(`\b[LNSWM][0-9]+\.[0-9]+[a-z]?\b`)
	cites, names := map[string]bool{}, map[string]bool{}
	for _, name := range tracked(t, "internal/*.go") {
		text, err := os.ReadFile(filepath.Join(top, name))
		if err != nil || strings.HasSuffix(name, "_test.go") {
			continue // removed and not committed yet, or about its package
		}
		if clause.Match(text) {
			cites[path.Dir(name)] = true
		}
		if strings.Contains(string(text), "docs/spec/") {
			names[path.Dir(name)] = true
		}
	}
	for _, folder := range slices.Sorted(maps.Keys(cites)) {
		if !names[folder] {
			t.Errorf("%s cites clauses and does not name their document: // Contract: docs/spec/….md", folder)
		}
	}
	if len(cites) < 80 {
		t.Errorf("only %d packages that cite clauses were found", len(cites))
	}
}
