// Package wire encodes the messages between Go and the C programs of the native runtime: requests
// to a monitor and its answers, and the operations of a helper's program.
//
// plan and monitor use it. A string must never have two interpretations: one that C would read only
// to its first zero byte is rejected here, and again in csrc/common.h.
package wire

import (
	"encoding/binary"
	"errors"
	"fmt"
	"strings"
)

// Message is one request, answer or event of a monitor, or one operation of a helper's
// program; the layout is that of struct message in csrc/common.h.
type Message struct {
	Code  uint32 // its kind; monitor and plan have the lists
	Flags uint32
	Seq   uint32    // of a request; its answer has the same
	N     [4]int64  // numbers
	S     [4]string // strings without zero bytes, except those that Flags names (Bytes)
}

const headerSize = 16 + 4*8 + 4*4

// Bytes is the flag of string 0; Bytes<<i means that string i may contain any byte. C reads any
// other string to its first zero byte, so it must not contain one: csrc/common.h rejects the
// message.
const Bytes = 16

// Check rejects a message with a string that C would read differently than it was written.
func (m *Message) Check() error {
	for i, s := range m.S {
		if m.Flags&(Bytes<<i) == 0 && strings.IndexByte(s, 0) >= 0 {
			return nulError(s)
		}
	}
	return nil
}

func nulError(s string) error {
	return fmt.Errorf("%w: %.100q", ErrNUL, s)
}

// Pack encodes a list of strings in C's format (next_string in csrc/common.h): each with its length
// before it and a zero byte after it.
func Pack(list []string) (string, error) {
	var b []byte
	for _, s := range list {
		if strings.IndexByte(s, 0) >= 0 {
			return "", nulError(s)
		}
		b = binary.LittleEndian.AppendUint32(b, uint32(len(s)))
		b = append(append(b, s...), 0)
	}
	return string(b), nil
}

// Append appends the encoded message to b.
func (m *Message) Append(b []byte) []byte {
	size := headerSize
	for _, s := range m.S {
		size += len(s) + 1
	}
	size = (size + 7) &^ 7
	end := len(b) + size
	le := binary.LittleEndian
	b = le.AppendUint32(b, m.Code)
	b = le.AppendUint32(b, uint32(size))
	b = le.AppendUint32(b, m.Flags)
	b = le.AppendUint32(b, m.Seq)
	for _, n := range m.N {
		b = le.AppendUint64(b, uint64(n))
	}
	for _, s := range m.S {
		b = le.AppendUint32(b, uint32(len(s)))
	}
	for _, s := range m.S {
		b = append(b, s...)
		b = append(b, 0)
	}
	for len(b) < end {
		b = append(b, 0)
	}
	return b
}

// Parse decodes a message of a monitor.
func Parse(b []byte) (Message, error) {
	if len(b) < headerSize {
		return Message{}, fmt.Errorf("message of %d bytes is shorter than its header", len(b))
	}
	le := binary.LittleEndian
	m := Message{Code: le.Uint32(b), Flags: le.Uint32(b[8:]), Seq: le.Uint32(b[12:])}
	for i := range m.N {
		m.N[i] = int64(le.Uint64(b[16+8*i:]))
	}
	at := headerSize
	for i := range m.S {
		n := int(le.Uint32(b[48+4*i:]))
		if n < 0 || at+n+1 > len(b) {
			return Message{}, fmt.Errorf("message of %d bytes is cut off", len(b))
		}
		m.S[i] = string(b[at : at+n])
		at += n + 1
	}
	return m, nil
}

// ErrNUL rejects a string that C and the kernel would read only to its first zero byte.
var ErrNUL = errors.New("it holds a NUL character")

// Encode returns messages one after the other, as a helper reads its program.
func Encode(ops []Message) []byte {
	n := 0
	for i := range ops {
		n += headerSize + 12
		for _, s := range ops[i].S {
			n += len(s)
		}
	}
	b := make([]byte, 0, n)
	for i := range ops {
		b = ops[i].Append(b)
	}
	return b
}
