package wire

import (
	"encoding/binary"
	"testing"

	"pgregory.net/rapid"
)

func TestMessagesAreRead(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		r := Message{Code: rapid.Uint32().Draw(t, "code"), Flags: rapid.Uint32().Draw(t, "flags"),
			Seq: rapid.Uint32().Draw(t, "seq")}
		for i := range r.N {
			r.N[i] = rapid.Int64().Draw(t, "n")
			r.S[i] = string(rapid.SliceOf(rapid.Byte()).Draw(t, "s"))
		}
		b := r.Append(nil)
		if len(b)%8 != 0 || int(binary.LittleEndian.Uint32(b[4:])) != len(b) {
			t.Fatalf("size %d of %d", binary.LittleEndian.Uint32(b[4:]), len(b))
		}
		back, err := Parse(b)
		if err != nil || back != r {
			t.Fatalf("%+v came back as %+v, %v", r, back, err)
		}
	})
}

func FuzzParse(f *testing.F) {
	r := Message{Code: 32, S: [4]string{"text"}}
	f.Add(r.Append(nil))
	f.Fuzz(func(t *testing.T, b []byte) { Parse(b) })
}
