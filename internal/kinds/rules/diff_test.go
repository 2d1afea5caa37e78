package rules

import (
	"strconv"
	"strings"
	"testing"
)

func TestDiff(t *testing.T) {
	if got := Diff([]string{"a", "b"}, []string{"a", "c"}); !strings.Contains(got, "- \"b\"") ||
		!strings.Contains(got, "+ \"c\"") {
		t.Errorf("%q", got)
	}
	// Lines that are repeated are the worst case: without the limit this test would not end.
	list := make([]string, 400_000)
	for i := range list {
		list[i] = strconv.Itoa(i * i % 1009)
	}
	for _, other := range [][]string{list[1:], {"a"}} {
		for _, got := range []string{Diff(list, other), Diff(other, list)} {
			if !strings.Contains(got, "too large") || len(got) > 100 {
				t.Errorf("%d bytes", len(got))
			}
		}
	}
	if got := Diff(list[:maxDiffLines-3], list[1:maxDiffLines-2]); strings.Contains(got, "too large") {
		t.Errorf("%q", got)
	}
}
