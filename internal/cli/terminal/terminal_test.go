package terminal

import (
	"strings"
	"testing"
)

func TestWrap(t *testing.T) {
	for text, want := range map[string]string{
		"":                      "",
		"short":                 "short",
		"twenty runes in a row": "twenty runes in a|row",
		"0123456789012345678901234567890123456789012": "01234567890123456789|01234567890123456789|012",
		"a\nb": "a b",
	} {
		if got := strings.Join(Wrap(text, 20), "|"); got != want {
			t.Errorf("%q: %q, want %q", text, got, want)
		}
	}
}

// TestPrintable: nothing of a stranger's text moves the cursor, sets colors, or ends a line.
func TestPrintable(t *testing.T) {
	for text, want := range map[string]string{"web, größer": "web, größer", "a\x1b[2Jb\nc": "a\uFFFD[2Jb\uFFFDc",
		"\x00\x7f\u009b": "\uFFFD\uFFFD\uFFFD"} {
		if got := Printable(text); got != want {
			t.Errorf("%q: %q, want %q", text, got, want)
		}
	}
}

func TestPrintableLines(t *testing.T) {
	if got, want := PrintableLines("a\x1b[2J\n\tb\r\n"), "a\uFFFD[2J\n    b\uFFFD\n"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
}
