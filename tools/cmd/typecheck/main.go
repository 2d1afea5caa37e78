// Command typecheck checks that carob's packages, with their tests, are correct Go for another architecture. It reads
// the sources of all that they import, too, but without the bodies of functions, and compiles nothing: this takes a
// tenth of the processor time of a build.
//
// Run it in the tools directory: go run ./cmd/typecheck -goarch arm64 ./cmd/... ./internal/...
package main

import (
	"flag"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/tools/go/packages"
)

func main() {
	arch := flag.String("goarch", "arm64", "architecture")
	flag.Parse()
	top, err := filepath.Abs("..")
	if err == nil {
		err = check(os.Stderr, top, *arch, flag.Args())
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "typecheck:", err)
		os.Exit(1)
	}
}

// check prints all errors of the packages that match the patterns, in the module whose directory is top.
func check(out io.Writer, top, arch string, patterns []string) error {
	config := &packages.Config{
		Mode: packages.NeedName | packages.NeedModule | packages.NeedFiles | packages.NeedCompiledGoFiles |
			packages.NeedImports | packages.NeedDeps | packages.NeedTypes | packages.NeedTypesSizes |
			packages.NeedSyntax,
		Dir:   top,
		Env:   append(os.Environ(), "GOARCH="+arch, "CGO_ENABLED=0"),
		Tests: true,
		ParseFile: func(set *token.FileSet, name string, text []byte) (*ast.File, error) {
			f, err := parser.ParseFile(set, name, text, parser.SkipObjectResolution)
			if f != nil && !strings.HasPrefix(name, top+string(filepath.Separator)) {
				dropBodies(f)
			}
			return f, err
		},
	}
	list, err := packages.Load(config, patterns...)
	if err != nil {
		return fmt.Errorf("load the packages: %w", err)
	}
	failed, count := 0, 0
	packages.Visit(list, nil, func(p *packages.Package) {
		count++
		for _, e := range p.Errors {
			own := p.Module != nil && p.Module.Main && !strings.HasSuffix(p.PkgPath, ".test") // go test makes those
			if own || e.Kind != packages.TypeError {
				fmt.Fprintln(out, e)
				failed++
			}
		}
	})
	if failed > 0 || len(list) == 0 {
		return fmt.Errorf("%d errors in %d packages for %s", failed, len(list), arch)
	}
	fmt.Fprintf(out, "%d packages, %d with what they import, are correct for %s\n", len(list), count, arch)
	return nil
}

// dropBodies removes the bodies of a file's functions. Without them, imports are unused: the type checker reports that
// for packages of others, and check ignores it.
func dropBodies(f *ast.File) {
	for _, d := range f.Decls {
		if d, ok := d.(*ast.FuncDecl); ok {
			d.Body = nil
		}
	}
}
