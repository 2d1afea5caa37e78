// Package transcript is for tests only: it runs the stories in testdata/transcripts of a package. A
// story is a text file of commands, each followed by ---- and what the command printed. Each story begins with a new
// world, which the package defines, with its commands.
//
//	go test -run TestTranscripts -rewrite .     # writes what the commands print now
package transcript

import (
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"
)

// Run runs the stories. begin makes the world of one, and command performs a command in it and
// returns what to print. It fails if there are fewer than least stories: they may have been lost.
func Run[W any](t *testing.T, least int, begin func(t *testing.T) W,
	command func(t *testing.T, w W, d *datadriven.TestData) string) {
	stories := 0
	datadriven.Walk(t, "testdata/transcripts", func(t *testing.T, path string) {
		stories++
		w := begin(t)
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string { return command(t, w, d) })
	})
	if stories < least {
		t.Fatalf("only %d stories were found, want %d", stories, least)
	}
}

// Lines is the text of lines; a command that printed none did "nothing".
func Lines(lines []string) string {
	if len(lines) == 0 {
		return "nothing\n"
	}
	return strings.Join(lines, "\n") + "\n"
}

// Arg returns the values of an argument KEY=VALUE of a command, separated by blanks; empty without it.
func Arg(d *datadriven.TestData, key string) string {
	if d == nil {
		return ""
	}
	for _, a := range d.CmdArgs {
		if a.Key == key {
			return strings.Join(a.Vals, " ")
		}
	}
	return ""
}
