package rules

import (
	"bytes"
	"encoding/json"

	"k8s.io/apimachinery/pkg/util/diff"
)

// maxDiffLines bounds the time of Diff, which grows with more than the square of the number of lines: a user could
// keep a processor busy for hours with one update of a large object.
const maxDiffLines = 2000

// Diff shows the difference between two objects for an error, unless one has too many lines.
func Diff(a, b any) string {
	for _, o := range []any{a, b} {
		text, err := json.MarshalIndent(o, "", " ")
		if err != nil || bytes.Count(text, []byte("\n")) >= maxDiffLines {
			return "(the objects are too large to show their difference)"
		}
	}
	return diff.Diff(a, b)
}
