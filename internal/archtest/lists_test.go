package archtest

import (
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

var (
	numbered = regexp.MustCompile(`^( *)(\d+)[.)] `)
	plus     = regexp.MustCompile(`^ *\+ `)
	merged   = regexp.MustCompile("[.;:] - (\\*\\*|[A-Z`])")
)

// Markdown makes a list of a line that begins with a number and a dot, or with a plus: a sentence that was wrapped
// before "11." is torn apart. A new wrap can also make one item of two.
func TestListsAreMeant(t *testing.T) {
	for _, name := range tracked(t, "*.md") {
		text, err := os.ReadFile(filepath.Join(top, name))
		if err != nil {
			continue // removed and not committed yet
		}
		for _, n := range accidentalLists(string(text)) {
			t.Errorf("%s:%d: wrap the line elsewhere, or begin a new item: Markdown shows another list than is meant", name, n)
		}
	}
	for text, want := range map[string]int{
		"Text:\n\n1. one\n   more\n2. two\n":           0,
		"Text:\n1. one\n\n   more\n\n2. two\n":         0,
		"- passed. Total:\n  11. Pass: 11.\n":          1,
		"- the old value\n  + 1 is written\n":          1,
		"The size is 3\n1. Then it grows\n":            1,
		"- one. - **two**: more\n":                     1,
		"- a range - or two - of addresses\n":          0,
		"    a. - B\n    1) code\n    3. code\n":       0,
		"```\n7. output\n```\n":                        0,
		"- item:\n  1. first\n  2. second\n- item\n":   0,
		"1. one\n2. two\n\nText\n\n1. one\n3. three\n": 1,
	} {
		if got := accidentalLists(text); len(got) != want {
			t.Errorf("%q: lines %v, want %d", text, got, want)
		}
	}
}

// accidentalLists returns the numbers of the lines that begin or hide a list item within a sentence.
func accidentalLists(text string) (lines []int) {
	code, indented, before := false, false, ""
	last := map[int]int{} // the last number of the list at each indentation
	for i, line := range strings.Split(text, "\n") {
		trimmed := strings.TrimSpace(line)
		if strings.HasPrefix(trimmed, "```") {
			code = !code
		}
		indented = strings.HasPrefix(line, "    ") && (indented || before == "")
		m := numbered.FindStringSubmatch(line)
		switch {
		case code, indented:
		case m != nil:
			n, _ := strconv.Atoi(m[2])
			begins := before == "" || before[0] == '#' || strings.HasSuffix(before, ":")
			if n == 1 && !begins || n > 1 && last[len(m[1])] != n-1 {
				lines = append(lines, i+1)
			}
			last[len(m[1])] = n
		case strings.HasPrefix(line, "#"):
			clear(last)
		case plus.MatchString(line), merged.MatchString(line):
			lines = append(lines, i+1)
		}
		before = trimmed
	}
	return lines
}
