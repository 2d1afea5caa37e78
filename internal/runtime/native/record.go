package native

import (
	"encoding/binary"
	"fmt"
	"strings"
)

// record is one operation of a helper's program and one message to or from a
// monitor; the layout is that of struct record in csrc/common.h.
type record struct {
	code, flags, seq uint32
	n                [4]int64
	s                [4]string
}

const recordHeader = 16 + 4*8 + 4*4

// flagBytes<<i says that string i may hold any byte. C reads any other one to its first
// zero, so it must not hold one: csrc/common.h refuses the record.
const flagBytes = 16

// check refuses a record with a string that C would read otherwise than it was written.
func (r *record) check() error {
	for i, s := range r.s {
		if r.flags&(flagBytes<<i) == 0 && strings.IndexByte(s, 0) >= 0 {
			return errNUL(s)
		}
	}
	return nil
}

func errNUL(s string) error {
	return fmt.Errorf("%w: %.100q", errHasNUL, s)
}

// packed is a list of strings as C reads it (next_string of csrc/common.h): each with
// its length before and a zero byte behind.
func packed(list []string) (string, error) {
	var b []byte
	for _, s := range list {
		if strings.IndexByte(s, 0) >= 0 {
			return "", errNUL(s)
		}
		b = binary.LittleEndian.AppendUint32(b, uint32(len(s)))
		b = append(append(b, s...), 0)
	}
	return string(b), nil
}

// append encodes r at the end of b.
func (r *record) append(b []byte) []byte {
	size := recordHeader
	for _, s := range r.s {
		size += len(s) + 1
	}
	size = (size + 7) &^ 7
	end := len(b) + size
	le := binary.LittleEndian
	b = le.AppendUint32(b, r.code)
	b = le.AppendUint32(b, uint32(size))
	b = le.AppendUint32(b, r.flags)
	b = le.AppendUint32(b, r.seq)
	for _, n := range r.n {
		b = le.AppendUint64(b, uint64(n))
	}
	for _, s := range r.s {
		b = le.AppendUint32(b, uint32(len(s)))
	}
	for _, s := range r.s {
		b = append(b, s...)
		b = append(b, 0)
	}
	for len(b) < end {
		b = append(b, 0)
	}
	return b
}

// parseRecord decodes a message of a monitor.
func parseRecord(b []byte) (record, error) {
	if len(b) < recordHeader {
		return record{}, fmt.Errorf("message of %d bytes is shorter than its header", len(b))
	}
	le := binary.LittleEndian
	r := record{code: le.Uint32(b), flags: le.Uint32(b[8:]), seq: le.Uint32(b[12:])}
	for i := range r.n {
		r.n[i] = int64(le.Uint64(b[16+8*i:]))
	}
	at := recordHeader
	for i := range r.s {
		n := int(le.Uint32(b[48+4*i:]))
		if n < 0 || at+n+1 > len(b) {
			return record{}, fmt.Errorf("message of %d bytes is cut off", len(b))
		}
		r.s[i] = string(b[at : at+n])
		at += n + 1
	}
	return r, nil
}
