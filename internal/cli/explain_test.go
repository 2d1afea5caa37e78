package cli

import (
	"strings"
	"testing"

	"carob/internal/core/explain"
)

// In a terminal, a text that is longer than a line goes on below itself; for programs, each text is one line.
func TestExplainWraps(t *testing.T) {
	lines := explain.Lines{{Problem: true, Text: "container c waits: the registry did not answer\nin time"},
		{Text: "runs"}}
	for _, tt := range []struct {
		width int
		want  string
	}{
		{0, "! container c waits: the registry did not answer in time\n  runs\n"},
		{30, "! container c waits: the\n    registry did not answer in\n    time\n  runs\n"},
	} {
		var out strings.Builder
		if err := printLines(&out, lines, tt.width); err != nil || out.String() != tt.want {
			t.Errorf("%d: %v, got\n%swant\n%s", tt.width, err, out.String(), tt.want)
		}
	}
}
