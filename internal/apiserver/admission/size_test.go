package admission

import (
	"encoding/json"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// What the size of an object is taken for is never more than what it takes in JSON, and finds what is too long.
func TestSizeInJSON(t *testing.T) {
	value := rapid.Deferred(func() *rapid.Generator[any] { return anyValue(3) })
	rapid.Check(t, func(t *rapid.T) {
		v := value.Draw(t, "value")
		text, err := json.Marshal(v)
		if err != nil {
			t.Fatal(err)
		}
		if jsonLeft(v, int64(len(text))) < 0 {
			t.Errorf("%s is taken for longer than %d bytes", text, len(text))
		}
	})
	long := map[string]any{"l": []any{strings.Repeat("x", 10), strings.Repeat("y", 10)}}
	if jsonLeft(long, 20) >= 0 {
		t.Error("two strings of 10 bytes do not fit in 20")
	}
}

func anyValue(depth int) *rapid.Generator[any] {
	leaf := rapid.OneOf(rapid.Just[any](nil), rapid.Bool().AsAny(), rapid.Int64().AsAny(), rapid.String().AsAny())
	if depth == 0 {
		return leaf
	}
	below := anyValue(depth - 1)
	return rapid.OneOf(leaf, rapid.SliceOfN(below, 0, 4).AsAny(), rapid.MapOfN(rapid.String(), below, 0, 4).AsAny())
}
