package archtest

import (
	"bytes"
	"go/scanner"
	"go/token"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"unicode/utf8"
)

// A tab counts four columns.
func width(line string) int { return utf8.RuneCountInString(line) + 3*strings.Count(line, "\t") }

// Code is narrow, too. Strings and drawings stay whole: a message that is broken cannot be searched for.
func TestCodeIsNarrow(t *testing.T) {
	for _, name := range tracked(t, "*.go") {
		text, err := os.ReadFile(filepath.Join(top, name))
		if err != nil || bytes.Contains(text, []byte("// Code generated ")) {
			continue // removed and not committed yet, or nobody reads it
		}
		for _, n := range wideLines(text) {
			t.Errorf("%s:%d has more than %d columns", name, n, columns)
		}
	}
}

// The programs in C are as narrow; nothing in them stays whole.
func TestCIsNarrow(t *testing.T) {
	files := append(tracked(t, "*.c"), tracked(t, "*.h")...)
	if len(files) < 5 {
		t.Fatalf("only %d files of C: %v", len(files), files)
	}
	for _, name := range files {
		text, err := os.ReadFile(filepath.Join(top, name))
		if err != nil {
			continue // removed and not committed yet
		}
		for i, line := range strings.Split(string(text), "\n") {
			if width(line) > columns {
				t.Errorf("%s:%d has more than %d columns", name, i+1, columns)
			}
		}
	}
}

// wideLines returns the numbers of the lines that are too wide and could be wrapped.
func wideLines(text []byte) (wide []int) {
	var whole map[int]bool
	for i, line := range strings.Split(string(text), "\n") {
		if width(line) <= columns {
			continue
		}
		if whole == nil {
			whole = linesOfStrings(text)
		}
		if !whole[i+1] && !strings.ContainsAny(line, "─│└┌▶") {
			wide = append(wide, i+1)
		}
	}
	return wide
}

// longString is how wide the strings of a line have to be together for it to stay whole.
const longString = 40

// linesOfStrings are the lines of a Go file with long strings, or within one, and those
// with a directive for a tool.
func linesOfStrings(text []byte) map[int]bool {
	fset := token.NewFileSet()
	file := fset.AddFile("", fset.Base(), len(text))
	var s scanner.Scanner
	s.Init(file, text, nil, scanner.ScanComments)
	out, strung := map[int]bool{}, map[int]int{}
	for {
		pos, kind, lit := s.Scan()
		switch {
		case kind == token.EOF:
			return out
		case kind == token.COMMENT && (strings.HasPrefix(lit, "//go:") || strings.HasPrefix(lit, "//nolint")):
			out[file.Line(pos)] = true
		case kind == token.STRING:
			first, more := file.Line(pos), strings.Count(lit, "\n")
			strung[first] += utf8.RuneCountInString(lit)
			for n := range more + 1 {
				out[first+n] = out[first+n] || more > 0 || strung[first] >= longString
			}
		}
	}
}
