package testwait

import (
	"crypto/sha256"
	"testing"
)

func TestProcessor(t *testing.T) {
	text := make([]byte, 1<<20)
	one := Processor(t, func() { sha256.Sum256(text) })
	many := Processor(t, func() {
		for range 100 {
			sha256.Sum256(text)
		}
	})
	if one < 0 || many <= one {
		t.Errorf("%v for one sum, %v for 100", one, many)
	}
}
