package crds

import (
	"encoding/binary"
	"math/rand/v2"
	"testing"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
)

func TestDepth(t *testing.T) {
	nested := func(levels int, inner string) []byte {
		data := []byte(inner)
		for range levels {
			data = append(binary.AppendUvarint([]byte{0x0a}, uint64(len(data))), data...)
		}
		return data
	}
	for levels := range 50 {
		if got := depth(nested(levels, "\x08\x01"), 100); got != levels {
			t.Errorf("%d levels: %d", levels, got)
		}
		// A string that is not a message at the deepest level ends nothing early.
		if got := depth(append(nested(1, "\xff\xff"), nested(levels, "")...), 100); got != max(levels, 1) {
			t.Errorf("%d levels behind a text: %d", levels, got)
		}
	}
	if got := depth(nested(200, ""), 100); got != 101 {
		t.Errorf("more than the limit: %d", got)
	}
	schema := &apiextensionsv1.JSONSchemaProps{}
	for range 30 {
		schema = &apiextensionsv1.JSONSchemaProps{Type: "object", Description: "a text",
			Properties: map[string]apiextensionsv1.JSONSchemaProps{"a": *schema}}
	}
	data, err := schema.Marshal()
	if err != nil {
		t.Fatal(err)
	}
	if got := depth(data, 1000); got < 30 || got > 100 {
		t.Errorf("a schema of 30 levels: %d", got)
	}
}

// FuzzDepth parses any input in one pass.
func FuzzDepth(f *testing.F) {
	for range 20 {
		b := make([]byte, rand.IntN(200))
		for i := range b {
			b[i] = byte(rand.IntN(20))
		}
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		if d := depth(data, 50); d < 0 || d > 51 {
			t.Errorf("%x: %d", data, d)
		}
	})
}
