package archtest

import (
	"go/ast"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// acting are the functions of core/podlife that return something and change the state or the output
// as well, with what they do. Every other function that returns something only answers a question.
var acting = map[string]string{
	"awaitDeadline":         "wakes the pod at the deadline",
	"awaitDrain":            "notes when the data plane let go of the pod, and the wait for it",
	"containerStatus":       "fills in the status of the output",
	"endSandboxes":          "stops and removes sandboxes",
	"getImage":              "begins or cancels a pull",
	"getVolumeImages":       "begins pulls",
	"initialize":            "starts init containers",
	"land":                  "takes an action out of those in flight",
	"record":                "adds a record for a container that has none",
	"recordAt":              "adds a record for a container that has none",
	"recoverAllocation":     "fills in a new allocation",
	"recoverResize":         "fills in a new state",
	"removeResetContainers": "removes containers",
	"resizeContainers":      "begins resizes",
	"restartAll":            "stops and removes containers",
	"runPreStop":            "begins or cancels the hook",
	"start":                 "creates and starts a container",
	"status":                "fills in the status of the output",
	"stopAll":               "begins stops",
	"stopSandboxes":         "begins stops",
	"try":                   "begins an action",
}

// copying are functions that return a copy, which whoever called them may change.
var copying = map[string]bool{"Apply": true, "Clone": true, "DeepCopy": true, "Effective": true}

// A reader of podlife must be able to ask (crashWait, imageBackoff, restarts) in any place, twice or
// never, without a change of what the machine does.
func TestQuestionsOfPodlifeDoNotAct(t *testing.T) {
	changed := map[string]string{} // what a function changes
	calls := map[string][]string{}
	answers := map[string]token.Position{}
	exports := exported(t)
	for _, p := range list(t) {
		if !under(p.ImportPath, "carob/internal/core/podlife") {
			continue
		}
		fset := token.NewFileSet()
		var files []*ast.File
		for _, name := range p.GoFiles {
			f, err := parser.ParseFile(fset, filepath.Join(p.Dir, name), nil, parser.SkipObjectResolution)
			if err != nil {
				t.Fatal(err)
			}
			files = append(files, f)
		}
		examine(t, fset, p.ImportPath, files, exports, func(name string, fn *ast.FuncDecl, e *effects) {
			if e.change != "" {
				changed[name] = e.change
			}
			calls[name] = e.called
			if fn.Type.Results != nil && !fn.Name.IsExported() {
				answers[name] = fset.Position(fn.Pos())
			}
		})
	}
	spread(changed, calls)
	used := 0
	for _, name := range slices.Sorted(maps.Keys(answers)) {
		short := name[strings.LastIndex(name, ".")+1:]
		what, acts := changed[name]
		_, allowed := acting[short]
		switch {
		case acts && !allowed:
			t.Errorf("%s: %s answers a question and changes something: %s", answers[name], short, what)
		case acts:
			used++
		}
	}
	if used != len(acting) {
		t.Errorf("%d of %d functions in the list of acting ones change something: shorten the list", used, len(acting))
	}
	if len(answers) < 50 {
		t.Errorf("only %d functions that answer were found", len(answers))
	}
}

func TestActingQuestionsAreFound(t *testing.T) {
	src := `package x
type state struct{ n int; list []int; of map[string]int }
type lookups struct{ of map[string]int }
type machine struct{ s state; find lookups }
func (m *machine) note() { m.s.n++ }
func (m *machine) direct() bool { m.s.n = 1; return true }
func (m *machine) element() bool { m.s.list[0] = 1; return true }
func (m *machine) key() bool { delete(m.s.of, "a"); return true }
func (m *machine) indirect() bool { m.note(); return true }
func (m *machine) alias() bool { s := &m.s; s.n = 1; return true }
func (m *machine) caches() bool { m.find.of = map[string]int{}; m.find.of["a"] = 1; return true }
func (m *machine) asks() bool { local := state{}; local.n = 1; fresh := &state{}; fresh.n = 2; return m.s.n == 0 }
func (m *machine) copies() state { s := m.s; s.n = 1; return s }`
	fset := token.NewFileSet()
	f, err := parser.ParseFile(fset, "x.go", src, parser.SkipObjectResolution)
	if err != nil {
		t.Fatal(err)
	}
	changed, calls := map[string]string{}, map[string][]string{}
	examine(t, fset, "x", []*ast.File{f}, exported(t), func(name string, _ *ast.FuncDecl, e *effects) {
		if e.change != "" {
			changed[name] = e.change
		}
		calls[name] = e.called
	})
	spread(changed, calls)
	for name, want := range map[string]bool{"direct": true, "element": true, "key": true, "indirect": true,
		"alias": true, "caches": false, "asks": false, "copies": false} {
		if _, got := changed["(*x.machine)."+name]; got != want {
			t.Errorf("%s: changes something: %v, want %v", name, got, want)
		}
	}
}

// spread marks whoever calls a function that changes something.
func spread(changed map[string]string, calls map[string][]string) {
	for more := true; more; {
		more = false
		for name, called := range calls {
			if changed[name] != "" {
				continue
			}
			for _, c := range called {
				if changed[c] != "" {
					changed[name], more = "it calls "+c, true
					break
				}
			}
		}
	}
}

// examine reports what each function of a package changes beyond its own variables, and what it calls.
func examine(t *testing.T, fset *token.FileSet, path string, files []*ast.File, exports importer.Lookup,
	report func(name string, fn *ast.FuncDecl, e *effects)) {
	t.Helper()
	info := &types.Info{Types: map[ast.Expr]types.TypeAndValue{}, Uses: map[*ast.Ident]types.Object{},
		Defs: map[*ast.Ident]types.Object{}}
	conf := types.Config{Importer: importer.ForCompiler(fset, "gc", exports)}
	if _, err := conf.Check(path, fset, files, info); err != nil {
		t.Fatalf("check the types of %s: %v", path, err)
	}
	for _, f := range files {
		for _, d := range f.Decls {
			fn, ok := d.(*ast.FuncDecl)
			if !ok || fn.Body == nil {
				continue
			}
			e := &effects{fset: fset, info: info, fresh: map[types.Object]bool{}}
			ast.Inspect(fn.Body, e.visit)
			report(info.Defs[fn.Name].(*types.Func).FullName(), fn, e)
		}
	}
}

// effects is what one function does to what it did not make.
type effects struct {
	fset   *token.FileSet
	info   *types.Info
	fresh  map[types.Object]bool // variables whose value the function has made itself
	change string
	called []string
}

func (e *effects) visit(n ast.Node) bool {
	switch n := n.(type) {
	case *ast.AssignStmt:
		for i, left := range n.Lhs {
			if id, ok := left.(*ast.Ident); ok {
				if len(n.Rhs) == len(n.Lhs) && e.makes(n.Rhs[i]) {
					e.fresh[e.object(id)] = true
				}
				continue
			}
			e.writes(left)
		}
	case *ast.ValueSpec:
		for _, id := range n.Names {
			if len(n.Values) == 0 {
				e.fresh[e.object(id)] = true
			}
		}
	case *ast.IncDecStmt:
		if _, ok := n.X.(*ast.Ident); !ok {
			e.writes(n.X)
		}
	case *ast.CallExpr:
		e.calls(n)
	}
	return true
}

func (e *effects) object(id *ast.Ident) types.Object {
	if o := e.info.Defs[id]; o != nil {
		return o
	}
	return e.info.Uses[id]
}

// makes reports whether an expression is a new value: a literal, its address, or a call.
func (e *effects) makes(x ast.Expr) bool {
	switch x := x.(type) {
	case *ast.CompositeLit:
		return true
	case *ast.UnaryExpr:
		_, ok := x.X.(*ast.CompositeLit)
		return ok && x.Op == token.AND
	case *ast.CallExpr:
		if id, ok := x.Fun.(*ast.Ident); ok {
			return id.Name == "make" || id.Name == "new"
		}
		s, ok := x.Fun.(*ast.SelectorExpr)
		return ok && copying[s.Sel.Name]
	}
	return false
}

// writes notes an assignment that reaches through a pointer, a slice, or a map.
func (e *effects) writes(x ast.Expr) {
	through := false
	for at := x; ; {
		switch y := at.(type) {
		case *ast.SelectorExpr:
			at = y.X
		case *ast.IndexExpr:
			at = y.X
		case *ast.StarExpr:
			at = y.X
		case *ast.ParenExpr:
			at = y.X
			continue
		case *ast.Ident:
			if through && !e.fresh[e.object(y)] {
				e.notes(x)
			}
			return
		default:
			e.notes(x)
			return
		}
		if isCache(e.info.Types[at].Type) {
			return
		}
		switch e.info.Types[at].Type.Underlying().(type) {
		case *types.Pointer, *types.Slice, *types.Map:
			through = true
		}
	}
}

// isCache reports whether a type only makes lookups faster: an entry in it changes no answer.
func isCache(t types.Type) bool {
	if p, ok := t.(*types.Pointer); ok {
		t = p.Elem()
	}
	n, ok := t.(*types.Named)
	return ok && n.Obj().Name() == "lookups"
}

func (e *effects) notes(n ast.Node) {
	if e.change == "" {
		e.change = "line " + strings.TrimPrefix(e.fset.Position(n.Pos()).String(), top)
	}
}

// calls notes whom a function calls, and what delete and clear do.
func (e *effects) calls(c *ast.CallExpr) {
	var id *ast.Ident
	switch f := c.Fun.(type) {
	case *ast.Ident:
		id = f
	case *ast.SelectorExpr:
		id = f.Sel
	default:
		return
	}
	switch o := e.info.Uses[id].(type) {
	case *types.Builtin:
		if o.Name() == "delete" || o.Name() == "clear" {
			e.writes(&ast.IndexExpr{X: c.Args[0]})
		}
	case *types.Func:
		if !copying[o.Name()] {
			e.called = append(e.called, o.FullName())
		}
	}
}
