package archtest

import (
	"bufio"
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"unicode/utf8"
)

// most lines of hand-written code in one package, without tests.
const most = 5000

func TestPackagesAreSmall(t *testing.T) {
	for _, p := range list(t) {
		lines := 0
		for _, name := range p.GoFiles {
			text, err := os.ReadFile(filepath.Join(p.Dir, name))
			if err != nil {
				t.Fatal(err)
			}
			if !bytes.Contains(text, []byte("\n// Code generated ")) &&
				!bytes.HasPrefix(text, []byte("// Code generated ")) {
				lines += bytes.Count(text, []byte("\n"))
			}
		}
		if lines > most {
			t.Errorf("%s has %d lines, at most %d: split it by what its parts are for", p.ImportPath, lines, most)
		}
	}
}

// columns that a line may have, so that a change can be read.
const columns = 120

// top is the root of the checkout.
const top = "../.."

// tracked are the files of a pattern that git knows; without a checkout the test is skipped.
func tracked(t *testing.T, pattern string) []string {
	out, err := exec.Command("git", "-C", top, "ls-files", pattern).Output()
	if err != nil {
		t.Skipf("not a checkout: %v", err)
	}
	return strings.Fields(string(out))
}

// Rows of tables and indented examples cannot be wrapped, and headings and links stay whole.
func TestDocumentsAreNarrow(t *testing.T) {
	for _, name := range tracked(t, "*.md") {
		f, err := os.Open(filepath.Join(top, name))
		if err != nil {
			continue // removed and not committed yet
		}
		fenced := false
		scanner := bufio.NewScanner(f)
		for n := 1; scanner.Scan(); n++ {
			line := scanner.Text()
			if strings.HasPrefix(strings.TrimSpace(line), "```") && strings.Count(line, "```") == 1 {
				fenced = !fenced
			}
			trimmed := strings.TrimSpace(line)
			whole := fenced || strings.HasPrefix(line, "    ") || strings.HasPrefix(trimmed, "|") ||
				strings.HasPrefix(line, "#") || !strings.Contains(trimmed, " ")
			if !whole && utf8.RuneCountInString(line) > columns && breakable(line) {
				t.Errorf("%s:%d has %d columns, at most %d", name, n, utf8.RuneCountInString(line), columns)
			}
		}
		f.Close()
	}
}

// breakable reports whether a line has a space outside of code and links before the last column.
func breakable(line string) bool {
	if strings.Contains(line, "``") {
		return false // code with backquotes in it
	}
	code, n := false, 0
	indent := len(line) - len(strings.TrimLeft(line, " -*+>"))
	for i, r := range line {
		if r == '`' {
			code = !code
		}
		if n++; r == ' ' && !code && i > indent && n <= columns {
			return true
		}
	}
	return false
}
