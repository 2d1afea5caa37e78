package streamguard

import (
	"bytes"
	"errors"
	"io"
	"testing"
	"testing/iotest"

	"github.com/moby/spdystream/spdy"
)

// frames are what a client sends: streams, and data after each.
func frames(t *testing.T, streams int) []byte {
	t.Helper()
	var b bytes.Buffer
	f, err := spdy.NewFramer(&b, &b)
	if err != nil {
		t.Fatal(err)
	}
	for i := range streams {
		id := spdy.StreamId(2*i + 1) //nolint:gosec // small
		for _, frame := range []spdy.Frame{
			&spdy.SynStreamFrame{StreamId: id, Headers: map[string][]string{"Streamtype": {"stdin"}}},
			// data that looks like another stream
			&spdy.DataFrame{StreamId: id, Data: []byte{0x80, 3, 0, 1, 0, 0, 0, 0}},
			&spdy.PingFrame{Id: 1},
		} {
			if err := f.WriteFrame(frame); err != nil {
				t.Fatal(err)
			}
		}
	}
	return b.Bytes()
}

// Frames pass unchanged, however they are split, and no byte of the frame that opens one stream too many.
func TestStreamsAreCounted(t *testing.T) {
	for name, split := range map[string]func(io.Reader) io.Reader{
		"whole": func(r io.Reader) io.Reader { return r },
		"bytes": iotest.OneByteReader,
		"half":  iotest.HalfReader,
	} {
		sent := frames(t, 3)
		got, err := io.ReadAll(&conn{in: split(bytes.NewReader(sent)), left: 3})
		if err != nil || !bytes.Equal(got, sent) {
			t.Errorf("%s: %d of %d bytes of three streams, %v", name, len(got), len(sent), err)
		}
		got, err = io.ReadAll(&conn{in: split(bytes.NewReader(sent)), left: 2})
		if !errors.Is(err, ErrTooMany) || !bytes.HasPrefix(sent, got) {
			t.Errorf("%s: one stream too many: %d bytes, %v", name, len(got), err)
		}
	}
}

// FuzzFrames: whatever a client sends, and however it is split, the same is allowed.
func FuzzFrames(f *testing.F) {
	f.Add([]byte{0x80, 3, 0, 1, 0, 0, 0, 2, 1, 2, 0x80, 3, 0, 1, 0, 0xff, 0xff, 0xff}, 3)
	f.Fuzz(func(t *testing.T, sent []byte, at int) {
		whole, split := conn{left: 2}, conn{left: 2}
		at = min(max(at, 0), len(sent))
		if whole.allows(sent) != (split.allows(sent[:at]) && split.allows(sent[at:])) {
			t.Errorf("%x split at %d", sent, at)
		}
	})
}
