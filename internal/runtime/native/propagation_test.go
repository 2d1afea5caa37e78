package native

import (
	"strings"
	"testing"
)

// TestPropagationOf: a mount is found behind an overlay of many layers, whose line is over 64 KiB.
func TestPropagationOf(t *testing.T) {
	mountinfo := []byte("40 23 0:40 / /merged rw - overlay overlay rw" +
		strings.Repeat(",lowerdir+=/var/lib/layers/0123456789abcdef", 2000) + "\n" +
		"41 23 8:1 / /mnt/a rw shared:7 - ext4 /dev/a rw\n" +
		"42 23 8:2 / /mnt/b rw master:7 - ext4 /dev/b rw,shared:1\n" +
		"43 23 8:3 / /mnt/c rw - ext4 shared:1 rw")
	for id, want := range map[uint64]struct {
		point         string
		shared, slave bool
	}{40: {point: "/merged"}, 41: {"/mnt/a", true, false}, 42: {"/mnt/b", false, true}, 43: {point: "/mnt/c"}, 4: {}} {
		point, shared, slave := propagationOf(mountinfo, id)
		if point != want.point || shared != want.shared || slave != want.slave {
			t.Errorf("mount %d: %q, shared %v, slave %v; expected %+v", id, point, shared, slave, want)
		}
	}
}
