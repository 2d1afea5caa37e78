package archtest

import (
	"bytes"
	"go/ast"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// pure lists all that a decision may import beside other decisions, with the reason;
// what is not listed is refused. A path that ends in /... stands for all below it.
var pure = map[string]string{
	"cmp": "values", "errors": "values", "fmt": "texts", "hash/fnv": "a hash of the input stands for randomness",
	"maps": "values", "math": "numbers", "math/big": "numbers", "math/bits": "numbers",
	"net/netip":                    "addresses as values",
	"github.com/cespare/xxhash/v2": "a hash of the input",
	"regexp":                       "texts", "slices": "values", "sort": "values", "strconv": "texts", "strings": "texts",
	"time":                                          "durations and instants; reading the clock is refused below",
	"unicode":                                       "texts",
	"unicode/utf8":                                  "texts",
	"encoding/binary":                               "values from and to bytes",
	"encoding/json":                                 "values from and to texts",
	"bytes":                                         "values",
	"encoding/base64":                               "values from and to texts",
	"crypto/sha256":                                 "a hash of the input",
	"container/heap":                                "values",
	"iter":                                          "values",
	"path":                                          "patterns of hosts",
	"k8s.io/api/...":                                "Kubernetes' types",
	"k8s.io/utils/cpuset":                           "sets of CPUs",
	"k8s.io/utils/dump":                             "a value as text, for its hash",
	"k8s.io/utils/ptr":                              "values",
	"k8s.io/utils/set":                              "values",
	"k8s.io/component-helpers/...":                  "upstream's pure helpers on its types",
	"k8s.io/apimachinery/pkg/api/equality":          "compares values",
	"k8s.io/apimachinery/pkg/api/resource":          "quantities",
	"k8s.io/apimachinery/pkg/apis/meta/v1":          "Kubernetes' types",
	"k8s.io/apimachinery/pkg/fields":                "selectors",
	"k8s.io/apimachinery/pkg/labels":                "selectors",
	"k8s.io/apimachinery/pkg/runtime":               "the interface of all objects",
	"k8s.io/apimachinery/pkg/runtime/schema":        "names of kinds",
	"k8s.io/apimachinery/pkg/selection":             "operators of selectors",
	"k8s.io/apimachinery/pkg/types":                 "names",
	"k8s.io/apimachinery/pkg/util/intstr":           "numbers and percentages",
	"k8s.io/apimachinery/pkg/util/sets":             "values",
	"k8s.io/apimachinery/pkg/util/strategicpatch":   "applies a patch to a value",
	"k8s.io/apimachinery/pkg/util/version":          "a version as a value",
	"k8s.io/apimachinery/pkg/util/validation":       "forms of names",
	"k8s.io/apimachinery/pkg/util/validation/field": "paths of fields",
	"sigs.k8s.io/gateway-api/apis/v1":               "the Gateway API's types",
	"k8s.io/kubelet/config/v1":                      "the types of a configuration",
	"k8s.io/kubelet/pkg/apis/credentialprovider/v1": "the types of a protocol",
	"carob/internal/base/errkind":                   "kinds of errors",
	"carob/internal/base/seconds":                   "multiplies a number",
}

// clock is what of package time reads or waits for the real clock.
var clock = map[string]bool{"Now": true, "Since": true, "Until": true, "After": true, "AfterFunc": true, "Sleep": true,
	"Tick": true, "NewTimer": true, "NewTicker": true}

func TestCoreIsPure(t *testing.T) {
	exports := exported(t)
	for _, p := range list(t) {
		if !under(p.ImportPath, "carob/internal/core") {
			continue
		}
		fset := token.NewFileSet()
		var files []*ast.File
		for _, name := range p.GoFiles {
			f, err := parser.ParseFile(fset, filepath.Join(p.Dir, name), nil,
				parser.ParseComments|parser.SkipObjectResolution)
			if err != nil {
				t.Fatal(err)
			}
			files = append(files, f)
		}
		for _, bad := range impurities(t, fset, p.ImportPath, files, exports) {
			t.Errorf("%s: %s", fset.Position(bad.at), bad.what)
		}
	}
}

// exported returns how the compiler's export data of a dependency of core is read.
func exported(t *testing.T) importer.Lookup {
	t.Helper()
	out, err := exec.Command("go", "list", "-export", "-deps", "-f", "{{.ImportPath}}={{.Export}}",
		"carob/internal/core/...").Output()
	if err != nil {
		t.Fatalf("go list -export: %v", err)
	}
	files := map[string]string{}
	for line := range strings.Lines(string(out)) {
		if name, file, ok := strings.Cut(strings.TrimSpace(line), "="); ok {
			files[name] = file
		}
	}
	return func(name string) (io.ReadCloser, error) { return os.Open(files[name]) }
}

type impurity struct {
	at   token.Pos
	what string
}

// impurities finds what the files of a pure package must not contain.
func impurities(t *testing.T, fset *token.FileSet, name string, files []*ast.File, exports importer.Lookup) []impurity {
	t.Helper()
	info := &types.Info{Types: map[ast.Expr]types.TypeAndValue{}}
	conf := types.Config{Importer: importer.ForCompiler(fset, "gc", exports)}
	if _, err := conf.Check(name, fset, files, info); err != nil {
		t.Fatalf("check the types of %s: %v", name, err)
	}
	var found []impurity
	for _, f := range files {
		found = append(found, imports(f)...)
		found = append(found, variables(f)...)
		found = append(found, statements(fset, f, info)...)
	}
	return found
}

func imports(f *ast.File) (found []impurity) {
	for _, i := range f.Imports {
		name := strings.Trim(i.Path.Value, `"`)
		if _, ok := pure[name]; ok || under(name, "carob/internal/core") || belowPure(name) {
			continue
		}
		found = append(found,
			impurity{i.Pos(), "imports " + name + ", which is not on the list of what a decision may use"})
	}
	return found
}

func belowPure(name string) bool {
	for p := range pure {
		if root, all := strings.CutSuffix(p, "/..."); all && under(name, root) {
			return true
		}
	}
	return false
}

func variables(f *ast.File) (found []impurity) {
	for _, d := range f.Decls {
		g, ok := d.(*ast.GenDecl)
		if !ok || g.Tok != token.VAR {
			continue
		}
		for _, s := range g.Specs {
			for _, n := range s.(*ast.ValueSpec).Names {
				if n.Name != "_" && !constantTable(s.(*ast.ValueSpec)) {
					found = append(found, impurity{n.Pos(), "package variable " + n.Name +
						": state lives in the argument (a literal table that is never assigned is fine)"})
				}
			}
		}
	}
	return found
}

// anyOrder, in a comment on the line of a range over a map or above it, says why the order does not matter.
const anyOrder = "any order:"

func statements(fset *token.FileSet, f *ast.File, info *types.Info) (found []impurity) {
	add := func(n ast.Node, what string) { found = append(found, impurity{n.Pos(), what}) }
	reasons := map[int]bool{}
	for _, g := range f.Comments {
		for _, c := range g.List {
			if strings.Contains(c.Text, anyOrder) {
				line := fset.Position(g.End()).Line
				reasons[line], reasons[line+1] = true, true
			}
		}
	}
	sorted := map[ast.Node]bool{}
	ast.Inspect(f, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.CallExpr:
			if name := called(n); strings.HasPrefix(name, "slices.Sorted") {
				sorted[n.Args[0]] = true
			} else if (name == "maps.Keys" || name == "maps.Values" || name == "maps.All") && !sorted[n] &&
				!reasons[fset.Position(n.Pos()).Line] {
				add(n, name+" comes in random order: sort it, or say why it does not matter: // "+anyOrder+" …")
			}
		case *ast.GoStmt:
			add(n, "starts a goroutine")
		case *ast.ChanType:
			add(n, "uses a channel")
		case *ast.RangeStmt:
			if _, isMap := info.Types[n.X].Type.Underlying().(*types.Map); isMap &&
				!reasons[fset.Position(n.Pos()).Line] {
				add(
					n,
					"ranges over a map, whose order is random: use slices.Sorted(maps.Keys(m)), or say why it does not matter: // "+anyOrder+" …")
			}
		case *ast.SelectorExpr:
			if x, ok := n.X.(*ast.Ident); ok && x.Name == "time" && clock[n.Sel.Name] {
				add(n, "time."+n.Sel.Name+" reads the clock: take now as an argument")
			}
		}
		return true
	})
	return found
}

// called returns the package and name of a function that is called as package.Name.
func called(c *ast.CallExpr) string {
	if s, ok := c.Fun.(*ast.SelectorExpr); ok {
		if x, ok := s.X.(*ast.Ident); ok {
			return x.Name + "." + s.Sel.Name
		}
	}
	return ""
}

// constantTable reports whether a variable is a literal or a call without effect, as tables and error values are.
func constantTable(s *ast.ValueSpec) bool {
	if len(s.Values) == 0 {
		return false
	}
	for _, v := range s.Values {
		switch v := v.(type) {
		case *ast.CompositeLit, *ast.BasicLit, *ast.FuncLit:
		case *ast.CallExpr:
			sel, ok := v.Fun.(*ast.SelectorExpr)
			if !ok {
				return false
			}
			switch sel.Sel.Name {
			case "New", "MustParse", "MustCompile", "NewString", "NewReplacer", "Errorf":
			default:
				return false
			}
		default:
			return false
		}
	}
	return true
}

func TestImpuritiesAreFound(t *testing.T) {
	src := `package x
import ("k8s.io/apimachinery/pkg/runtime"; "maps"; "os"; "slices"; "time")
var count int
func f(c chan int, m map[string]int) {
	go f(nil, nil)
	_, _, _ = time.Now(), os.Args, runtime.Object(nil)
	for range m {
	}
	for range m { // any order: nothing is done
	}
	for range maps.Keys(m) {
	}
	for range slices.Sorted(maps.Keys(m)) {
	}
}`
	fset := token.NewFileSet()
	f, err := parser.ParseFile(fset, "x.go", bytes.NewBufferString(src), parser.ParseComments)
	if err != nil {
		t.Fatal(err)
	}
	if got := impurities(t, fset, "x", []*ast.File{f}, exported(t)); len(got) != 7 {
		t.Errorf("found %d impurities instead of 7: %v", len(got), got)
	}
}
