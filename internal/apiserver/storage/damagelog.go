package storage

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"path/filepath"
	"slices"

	"google.golang.org/protobuf/encoding/protowire"

	"carob/internal/base/errkind"
)

// logged is the content of a log.
type logged struct {
	first, last uint64 // number of the last entry; zero if there is none
	settled     uint64 // the last entry that was known to be committed
}

// Kinds of records in the log of etcd 3.
const (
	recordEntry = 2
	recordState = 3
	recordSum   = 4
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// record is one record of the log.
type record struct {
	kind uint64
	sum  uint32 // checksum of the data of all records up to this one
	data []byte
	size int // bytes it takes in the file
}

// number returns an entry's number, and for a state that of the last committed entry at that time.
func (r record) number() uint64 { return varint(r.data, 3) }

// parseRecord parses the record at the beginning of b; false if there is none.
func parseRecord(b []byte) (r record, ok bool) {
	const frame = 8
	if len(b) < frame {
		return r, false
	}
	l := binary.LittleEndian.Uint64(b)
	n, pad := l&(1<<56-1), 0
	if l>>63 != 0 {
		pad = int(l >> 56 & 7)
	}
	size := frame + n + uint64(pad)
	if n == 0 || size > uint64(len(b)) {
		return r, false
	}
	r.size = int(size)
	for text := b[frame : frame+n]; len(text) > 0; {
		field, kind, n := protowire.ConsumeTag(text)
		if n < 0 {
			return r, false
		}
		text = text[n:]
		switch {
		case field == 3 && kind == protowire.BytesType:
			r.data, n = protowire.ConsumeBytes(text)
		case field <= 2 && kind == protowire.VarintType:
			var v uint64
			v, n = protowire.ConsumeVarint(text)
			if field == 1 {
				r.kind = v
			} else {
				r.sum = uint32(v)
			}
		default:
			return r, false
		}
		if n < 0 {
			return r, false
		}
		text = text[n:]
	}
	return r, r.kind > 0 && r.kind <= 5
}

// varint returns a number in a message, zero if it is missing.
func varint(b []byte, number protowire.Number) uint64 {
	for len(b) > 0 {
		field, kind, n := protowire.ConsumeTag(b)
		if n < 0 {
			return 0
		}
		b = b[n:]
		if field == number && kind == protowire.VarintType {
			v, _ := protowire.ConsumeVarint(b)
			return v
		}
		if n = protowire.ConsumeFieldValue(field, kind, b); n < 0 {
			return 0
		}
		b = b[n:]
	}
	return 0
}

// readLog reads the newest file of a log: it may end in the middle of a write that was never
// acknowledged; anything else that cannot be read is damage. etcd itself reports damage of older
// files.
func readLog(dir string) (l logged, err error) {
	files, err := filepath.Glob(filepath.Join(dir, "*.wal"))
	if err != nil || len(files) == 0 {
		return l, err
	}
	slices.Sort(files) // their names begin with their number
	for _, file := range slices.Backward(files) {
		var sequence uint64
		if _, err := fmt.Sscanf(filepath.Base(file), "%016x-%016x.wal", &sequence, &l.first); err != nil {
			return l, errkind.Errorf(errkind.Corrupt, "the log has a file that etcd did not write: %s", file)
		}
		if l.last == 0 {
			l.last = max(l.first, 1) - 1 // number of the first entry in the newest file, in case it is empty
		}
	}
	return l, l.read(files[len(files)-1])
}

// read reads a file.
func (l *logged) read(file string) error {
	b, unmap, err := mapFile(file)
	if err != nil {
		return err
	}
	defer unmap()
	var sum uint32
	at := 0
	for at < len(b) {
		r, ok := parseRecord(b[at:])
		if ok && r.kind != recordSum {
			next := crc32.Update(sum, castagnoli, r.data)
			ok, sum = next == r.sum, next
		} else if ok {
			ok, sum = sum == 0 || sum == r.sum, r.sum
		}
		if !ok {
			break
		}
		switch r.kind {
		case recordEntry:
			l.last = r.number()
		case recordState:
			l.settled = r.number()
		}
		at += r.size
	}
	behind := newestState(b[at:])
	l.settled = max(l.settled, behind)
	switch {
	case at == 0:
		return errkind.Errorf(errkind.Corrupt, "the log %s is damaged at its beginning", file)
	case behind > l.last:
		return errkind.Errorf(errkind.Corrupt, "the log %s is damaged at byte %d: entries %d to %d cannot be read", file,
			at, l.last+1, behind)
	}
	return nil
}

// newestState searches after an unreadable place in a log for later records, and returns what their
// newest state says was committed. A state is written when the entries before it are on disk.
func newestState(b []byte) (settled uint64) {
	for at := 0; at+8 <= len(b); at += 8 { // records begin at multiples of eight
		first, ok := parseRecord(b[at:])
		if !ok {
			continue
		}
		// A record is valid if the next checksum continues its own.
		for next := at + first.size; ; next += first.size {
			second, ok := parseRecord(b[min(next, len(b)):])
			if !ok || crc32.Update(first.sum, castagnoli, second.data) != second.sum {
				break
			}
			for _, r := range []record{first, second} {
				if r.kind == recordState {
					settled = max(settled, r.number())
				}
			}
			at, first = next, second
		}
	}
	return settled
}
