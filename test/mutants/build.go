package main

import (
	"context"
	"encoding/json"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
)

// variable holds the number of the mutant that a test binary is to be.
const variable = "CAROB_MUTANT"

// selector returns a file that is added to a package: which mutant this process is.
func selector(pkg string) []byte {
	return []byte("package " + pkg + `

import (
	"os"
	"strconv"
)

var mutant, _ = strconv.Atoi(os.Getenv("` + variable + `"))
`)
}

// bench holds the test binaries that have all mutants in them.
type bench struct {
	root, dir string
	seeds     int
	overlay   string
	built     sync.Map // of *built, by folder of the package
}

type built struct {
	once sync.Once
	err  error
}

// prepare writes the overlay.
func (b *bench) prepare(mutants []mutant) error {
	replace := map[string]string{}
	add := func(name string, text []byte) error {
		path := filepath.Join(b.dir, strings.NewReplacer("/", "_", "..", "up").Replace(name))
		replace[filepath.Join(b.root, folder, name)] = path
		return os.WriteFile(path, text, 0o600)
	}
	files, folders := map[string][]mutant{}, map[string]bool{}
	for _, m := range mutants {
		files[m.file] = append(files[m.file], m)
		folders[filepath.Dir(m.file)] = true
	}
	for dir := range folders {
		pkg := filepath.Base(filepath.Join(folder, dir)) // each package has the name of its folder
		if err := add(filepath.Join(dir, "zz_mutant.go"), selector(pkg)); err != nil {
			return err
		}
	}
	for name, list := range files {
		source, err := os.ReadFile(filepath.Join(b.root, folder, name))
		if err != nil {
			return err
		}
		text, err := weave(name, source, list)
		if err != nil {
			return err
		}
		if err := add(name, text); err != nil {
			return err
		}
	}
	text, err := json.Marshal(map[string]any{"Replace": replace})
	if err != nil {
		return err
	}
	b.overlay = filepath.Join(b.dir, "overlay.json")
	return os.WriteFile(b.overlay, text, 0o600)
}

// weave puts mutants into their file: each function begins with a choice between
// the bodies that it would have.
func weave(name string, source []byte, mutants []mutant) ([]byte, error) {
	fset := token.NewFileSet()
	file, err := parser.ParseFile(fset, name, source, parser.SkipObjectResolution)
	if err != nil {
		return nil, err
	}
	offset := func(p token.Pos) int { return fset.Position(p).Offset }
	bodies := map[*ast.FuncDecl][]string{}
	for _, m := range mutants {
		broken, err := m.mutate(source)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", m.what, err)
		}
		at := strings.Index(string(source), m.from)
		i := slices.IndexFunc(file.Decls, func(d ast.Decl) bool {
			f, ok := d.(*ast.FuncDecl)
			return ok && f.Body != nil && offset(f.Body.Lbrace) < at && at+len(m.from) <= offset(f.Body.Rbrace)
		})
		if i < 0 {
			return nil, fmt.Errorf("%s: its text is not inside of one function of %s", m.what, name)
		}
		f := file.Decls[i].(*ast.FuncDecl)
		body := string(broken[offset(f.Body.Lbrace)+1 : offset(f.Body.Rbrace)+len(broken)-len(source)])
		if f.Type.Results == nil {
			body += "\n\treturn\n"
		}
		bodies[f] = append(bodies[f], fmt.Sprintf("\tcase %d:\n%s\n", m.number, body))
	}
	var out strings.Builder
	last := 0
	for _, d := range file.Decls {
		f, ok := d.(*ast.FuncDecl)
		if !ok || bodies[f] == nil {
			continue
		}
		at := offset(f.Body.Lbrace) + 1
		out.Write(source[last:at])
		out.WriteString("\n\tswitch mutant {\n" + strings.Join(bodies[f], "") + "\t}\n")
		last = at
	}
	out.Write(source[last:])
	return []byte(out.String()), nil
}

// binary builds the tests of a package once.
func (b *bench) binary(ctx context.Context, pkg string) (string, error) {
	path := filepath.Join(b.dir, filepath.Base(pkg)+".test")
	entry, _ := b.built.LoadOrStore(pkg, &built{})
	state := entry.(*built)
	state.once.Do(func() {
		cmd := exec.CommandContext(ctx, "go", "test", "-c", "-vet=off", "-ldflags=-s -w", "-overlay", b.overlay, "-o",
			path, "./"+pkg)
		cmd.Dir = b.root
		if out, err := cmd.CombinedOutput(); err != nil {
			state.err = fmt.Errorf("build %s with its mutants: %w: %.1500s", pkg, err, out)
		}
	})
	return path, state.err
}
