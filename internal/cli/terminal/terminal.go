// Package terminal prepares text for a terminal. Commands use it for what others wrote: names, messages, reasons.
package terminal

import "strings"

// MinWidth is the least number of columns that a text is wrapped to.
const MinWidth = 20

// Wrap breaks a text into lines of at most width runes (not less than MinWidth), at spaces if there are any.
func Wrap(s string, width int) []string {
	width = max(width, MinWidth)
	var lines []string
	rest := []rune(strings.ReplaceAll(s, "\n", " "))
	for len(rest) > width {
		at := width
		for i := width; i > width/2; i-- {
			if rest[i] == ' ' {
				at = i
				break
			}
		}
		lines = append(lines, string(rest[:at]))
		rest = []rune(strings.TrimLeft(string(rest[at:]), " "))
	}
	return append(lines, string(rest))
}

// PrintableLines is Printable for a text of several lines.
func PrintableLines(text string) string {
	lines := strings.Split(text, "\n")
	for i := range lines {
		lines[i] = Printable(strings.ReplaceAll(lines[i], "\t", "    "))
	}
	return strings.Join(lines, "\n")
}

// PrintableLine is Printable for a text that becomes one line.
func PrintableLine(text string) string { return Printable(strings.ReplaceAll(text, "\n", " ")) }

// Printable shows what a terminal would take for more than text, and what would break a table.
func Printable(text string) string {
	return strings.Map(func(c rune) rune {
		if c < ' ' || c == 0x7f || 0x80 <= c && c < 0xa0 {
			return '\uFFFD'
		}
		return c
	}, text)
}
