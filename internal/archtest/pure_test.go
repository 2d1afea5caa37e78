package archtest

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"strings"
	"testing"
)

// impure lists what a decision must not import, with the reason.
var impure = map[string]string{
	"os": "no I/O", "net": "no I/O", "net/http": "no I/O", "io/ioutil": "no I/O", "os/exec": "no I/O", "syscall": "no I/O",
	"log": "a decision returns what it has to say", "log/slog": "a decision returns what it has to say", "k8s.io/klog/v2": "a decision returns what it has to say",
	"sync": "nothing to share", "sync/atomic": "nothing to share", "context": "nothing to cancel",
	"math/rand": "randomness is a hash of the input", "math/rand/v2": "randomness is a hash of the input", "crypto/rand": "randomness is a hash of the input",
}

// clock is what of package time reads or waits for the real clock.
var clock = map[string]bool{"Now": true, "Since": true, "Until": true, "After": true, "AfterFunc": true, "Sleep": true, "Tick": true, "NewTimer": true, "NewTicker": true}

func TestCoreIsPure(t *testing.T) {
	for _, p := range list(t) {
		if !under(p.ImportPath, "carob/internal/core") {
			continue
		}
		for _, name := range p.GoFiles {
			file := filepath.Join(p.Dir, name)
			fset := token.NewFileSet()
			f, err := parser.ParseFile(fset, file, nil, parser.SkipObjectResolution)
			if err != nil {
				t.Fatal(err)
			}
			for _, bad := range impurities(f) {
				t.Errorf("%s: %s", fset.Position(bad.at), bad.what)
			}
		}
	}
}

type impurity struct {
	at   token.Pos
	what string
}

// impurities finds what a pure file must not contain.
func impurities(f *ast.File) []impurity {
	var found []impurity
	say := func(n ast.Node, what string) { found = append(found, impurity{n.Pos(), what}) }
	for _, i := range f.Imports {
		if why, ok := impure[strings.Trim(i.Path.Value, `"`)]; ok {
			say(i, "imports "+i.Path.Value+": "+why)
		}
	}
	for _, d := range f.Decls {
		g, ok := d.(*ast.GenDecl)
		if !ok || g.Tok != token.VAR {
			continue
		}
		for _, s := range g.Specs {
			for _, n := range s.(*ast.ValueSpec).Names {
				if n.Name != "_" && !constantTable(s.(*ast.ValueSpec)) {
					say(n, "package variable "+n.Name+": state lives in the argument (a literal table that is never assigned is fine)")
				}
			}
		}
	}
	ast.Inspect(f, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.GoStmt:
			say(n, "starts a goroutine")
		case *ast.ChanType:
			say(n, "uses a channel")
		case *ast.SelectorExpr:
			if x, ok := n.X.(*ast.Ident); ok && x.Name == "time" && clock[n.Sel.Name] {
				say(n, "time."+n.Sel.Name+" reads the clock: take now as an argument")
			}
		}
		return true
	})
	return found
}

// constantTable says whether a variable is a literal or a call without effect, as tables and error values are.
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
import ("os"; "time")
var count int
func f(c chan int) { go f(nil); _ = time.Now(); os.Exit(1) }`
	f, err := parser.ParseFile(token.NewFileSet(), "x.go", src, 0)
	if err != nil {
		t.Fatal(err)
	}
	if got := len(impurities(f)); got != 5 {
		t.Errorf("found %d impurities, want 5: %v", got, impurities(f))
	}
}
