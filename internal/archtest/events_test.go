package archtest

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

// neverRecorded are the reasons of L10's tables that are not recorded here, and why.
var neverRecorded = map[string]string{
	"FailedValidation":        "a manifest that can't be used is logged (docs/differences.md)",
	"FailedPodSandBoxStatus":  "a sandbox's status is read with the next look; when that fails, FailedSync says so",
	"HostIPsIPFamilyMismatch": "upstream's code never gets there (docs/differences.md)",
	"ContainerGCFailed":       "dead containers are removed one by one (docs/differences.md)",
	"InvalidImageID":          "its feature is off upstream, too (docs/differences.md)",
	"KubeletSetupFailed":      "carob ends and says why (docs/differences.md)",
}

// composed are the reasons that are put together from a part and the reason of a condition.
var composed = map[string]string{"ResizeDeferred": "Resize", "ResizeInfeasible": "Resize"}

// Each event of the specification's tables (L10) is recorded by somebody, or has a
// reason not to be: its name stands as a string in the product's source.
func TestEventsOfTheSpecification(t *testing.T) {
	root := filepath.Join("..", "..")
	spec, err := os.ReadFile(filepath.Join(root, "docs", "spec", "pod-lifecycle.md"))
	if err != nil {
		t.Fatal(err)
	}
	written := stringsIn(t, filepath.Join(root, "internal"))
	name := regexp.MustCompile(`^[A-Z][A-Za-z]{3,}$`)
	aside := regexp.MustCompile("\\(.*?\\)|`.*?`")
	seen := 0
	for line := range strings.Lines(strings.ReplaceAll(string(spec), "\n  ", " ")) { // a row is one line
		clause, row, ok := strings.Cut(strings.TrimPrefix(line, "- "), ": ")
		cells := strings.Split(aside.ReplaceAllString(row, ""), " · ") // type, reason, message
		if !ok || !strings.HasPrefix(clause, "L10.") || len(cells) < 2 {
			continue
		}
		for _, reason := range strings.FieldsFunc(cells[1],
			func(r rune) bool { return r == ',' || r == '/' || r == ';' || r == ' ' }) {
			if !name.MatchString(reason) {
				continue
			}
			seen++
			if part, ok := composed[reason]; ok && written[part] {
				continue
			}
			switch why := neverRecorded[reason]; {
			case written[reason] && why != "":
				t.Errorf("%s %s is recorded, and has a reason not to be: %s", clause, reason, why)
			case !written[reason] && why == "":
				t.Errorf("%s %s is recorded nowhere", clause, reason)
			}
		}
	}
	if seen < 80 {
		t.Errorf("only %d reasons were found in the tables", seen)
	}
}

// stringsIn are the string literals of the source below dir, tests and generated files apart.
func stringsIn(t *testing.T, dir string) map[string]bool {
	t.Helper()
	all := map[string]bool{}
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") ||
			strings.HasPrefix(d.Name(), "zz_") {
			return err
		}
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		ast.Inspect(file, func(n ast.Node) bool {
			if lit, ok := n.(*ast.BasicLit); ok && lit.Kind == token.STRING {
				if s, err := strconv.Unquote(lit.Value); err == nil {
					all[s] = true
				}
			}
			return true
		})
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}
