package storage

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/fnv"
	"io/fs"

	"carob/internal/base/errkind"
)

// The file format of bbolt, version 2: pages of a tree of buckets, found through the newer one of
// two meta pages.
const (
	boltMagic, boltVersion = 0xED0CDAED, 2

	pageHeader = 16 // number 8, flags 2, count 2, pages that follow 4
	// in a branch: position 4, size of the key 4, page 8; in a leaf: flags 4, position 4, size of the key 4, of the
	// value 4
	pageElement = 16
	// magic 4, version 4, page size 4, flags 4, root 16, free list 8, pages 8, transaction 8, checksum 8
	metaSize = 64
	metaSum  = metaSize - 8

	branchPage, leafPage = 1, 2
	bucketFlag           = 1 // of an element in a leaf
	maxDepth             = 64
)

// database is a mapped file of bbolt.
type database struct {
	b     []byte
	page  uint64 // size of one
	pages uint64 // in use
	entry uint64 // the newest log entry that was applied
}

// checkDatabase walks through the structure of the database and returns the number of its last log
// entry: zero if there is none. bbolt itself checks it on goroutines of its own, where it panics.
func checkDatabase(path string) (entry uint64, err error) {
	b, unmap, err := mapFile(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return 0, nil // it is created again
	case err != nil:
		return 0, err
	}
	defer unmap()
	if len(b) == 0 {
		return 0, nil
	}
	d := &database{b: b}
	root, err := d.open()
	if err == nil {
		err = d.walk(root, nil, maxDepth)
	}
	if err != nil {
		return 0, errkind.Errorf(errkind.Corrupt, "the database %s is damaged: %w", path, err)
	}
	return d.entry, nil
}

// open finds the root.
func (d *database) open() (root uint64, err error) {
	var newest uint64
	try := func(at uint64) {
		if at+pageHeader+metaSize > uint64(len(d.b)) {
			return
		}
		m := d.b[at+pageHeader:][:metaSize]
		sum := fnv.New64a()
		_, _ = sum.Write(m[:metaSum]) // it never fails
		if le32(m) != boltMagic || le32(m[4:]) != boltVersion || le64(m[metaSum:]) != sum.Sum64() {
			return
		}
		if tx := le64(m[48:]); d.pages == 0 || tx > newest {
			newest, root, d.pages, d.page = tx, le64(m[16:]), le64(m[40:]), uint64(le32(m[8:]))
		}
	}
	try(0)
	for size := uint64(1 << 10); size <= 64<<10; size *= 2 {
		if d.page == 0 || d.page == size {
			try(size)
		}
	}
	switch {
	case d.page == 0:
		return 0, errors.New("neither of its two meta pages can be read")
	case d.page < pageHeader+metaSize || d.pages > uint64(len(d.b))/d.page:
		return 0, fmt.Errorf("it is cut off: %d bytes are there of %d pages of %d bytes", len(d.b), d.pages, d.page)
	}
	return root, nil
}

// walk checks a page and everything below; bucket is the path of names to it.
func (d *database) walk(number uint64, bucket []byte, depth int) error {
	if number < 2 || number >= d.pages || depth == 0 {
		return fmt.Errorf("page %d is not in the file", number)
	}
	p := d.b[number*d.page:]
	if is := le64(p); is != number {
		return fmt.Errorf("page %d has the number %d", number, is)
	}
	size := (uint64(le32(p[12:])) + 1) * d.page
	if size > uint64(len(p)) {
		return fmt.Errorf("page %d is cut off", number)
	}
	if err := d.look(p[:size], bucket, depth); err != nil {
		return fmt.Errorf("page %d: %w", number, err)
	}
	return nil
}

// look checks the elements of a page.
func (d *database) look(p, bucket []byte, depth int) error {
	flags, count := binary.LittleEndian.Uint16(p[8:]), int(binary.LittleEndian.Uint16(p[10:]))
	if flags != branchPage && flags != leafPage || pageHeader+count*pageElement > len(p) {
		return errors.New("it is not a page of the database")
	}
	for i := range count {
		e := p[pageHeader+i*pageElement:]
		if flags == branchPage {
			if uint64(le32(e))+uint64(le32(e[4:])) > uint64(len(e)) {
				return fmt.Errorf("element %d is too long", i)
			}
			if err := d.walk(le64(e[8:]), bucket, depth-1); err != nil {
				return err
			}
			continue
		}
		at, key, value := uint64(le32(e[4:])), uint64(le32(e[8:])), uint64(le32(e[12:]))
		if at+key+value > uint64(len(e)) {
			return fmt.Errorf("element %d is too long", i)
		}
		name, content := e[at:at+key], e[at+key:at+key+value]
		switch {
		case le32(e)&bucketFlag != 0:
			if err := d.within(content, append(bytes.Clone(bucket), name...), depth-1); err != nil {
				return err
			}
		case string(bucket) == "meta" && string(name) == "consistent_index" && len(content) == 8:
			d.entry = binary.BigEndian.Uint64(content)
		}
	}
	return nil
}

// within checks a bucket: the number of its first page and a sequence, or a small page right after
// them.
func (d *database) within(header, name []byte, depth int) error {
	if len(header) < 16 {
		return fmt.Errorf("bucket %q is cut off", name)
	}
	if root := le64(header); root != 0 {
		return d.walk(root, name, depth)
	}
	if len(header) < 16+pageHeader || depth == 0 {
		return fmt.Errorf("bucket %q is cut off", name)
	}
	return d.look(header[16:], name, depth)
}

func le32(b []byte) uint32 { return binary.LittleEndian.Uint32(b) }
func le64(b []byte) uint64 { return binary.LittleEndian.Uint64(b) }
