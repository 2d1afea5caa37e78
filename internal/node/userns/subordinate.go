package userns

import (
	"errors"
	"fmt"
	"hash/fnv"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// subordinate are the files with the ids that users of the machine have for user namespaces (subuid(5), subgid(5)).
var subordinate = []string{"/etc/subuid", "/etc/subgid"}

// uidMap has the ids that this process has, if the node itself is in a user namespace.
var uidMap = "/proc/self/uid_map"

// ids is a range of user or group ids.
type ids struct{ first, last uint64 }

// overlaps reports whether a slot has any of the ids.
func (r ids) overlaps(slot uint32) bool {
	first := uint64(slot) * length
	return r.first < first+length && first <= r.last
}

// firstSlot is the slot with which a node begins: the lowest if the node has few ids itself.
func firstSlot(dir string) uint32 {
	if abs, err := filepath.Abs(dir); err == nil {
		dir = abs
	}
	h := fnv.New64a()
	_, _ = h.Write([]byte(dir)) // it never fails
	if text, err := os.ReadFile(uidMap); err != nil || endOfIDs(string(text)) < (highest+1)*length {
		return 1
	}
	return lowest + uint32(h.Sum64()%(highest-lowest+1))
}

// endOfIDs is the end of the last range in lines INSIDE OUTSIDE COUNT.
func endOfIDs(text string) uint64 {
	end := uint64(0)
	for line := range strings.Lines(text) {
		var inside, outside, count uint32
		if _, err := fmt.Sscan(line, &inside, &outside, &count); err == nil {
			end = max(end, uint64(inside)+uint64(count))
		}
	}
	return end
}

// subordinateIDs reads a file of lines USER:FIRST:COUNT. Without the file there are none; lines that are not of this
// form say nothing, as for the programs of the machine.
func subordinateIDs(file string) ([]ids, error) {
	text, err := os.ReadFile(file)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read the ids of users: %w", err)
	}
	var list []ids
	for line := range strings.Lines(string(text)) {
		f := strings.Split(strings.TrimSpace(line), ":")
		if len(f) != 3 {
			continue
		}
		first, err := strconv.ParseUint(f[1], 10, 32)
		count, err2 := strconv.ParseUint(f[2], 10, 64)
		if err != nil || err2 != nil || count == 0 {
			continue
		}
		list = append(list, ids{first, first + min(count, math.MaxUint32) - 1})
	}
	return list, nil
}
