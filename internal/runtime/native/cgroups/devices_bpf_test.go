package cgroups

import (
	"encoding/binary"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
	"pgregory.net/rapid"
)

// TestDeviceFilter runs the eBPF program for rules in an interpreter and compares it with the
// rules.
func TestDeviceFilter(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		number := rapid.SampledFrom([]int64{-1, 0, 1, 3, 5, 136})
		rules := rapid.SliceOfN(rapid.Custom(func(t *rapid.T) DeviceRule {
			return DeviceRule{
				Kind: rapid.SampledFrom([]byte("abc")).Draw(t, "kind"), Major: number.Draw(t, "major"),
				Minor:  number.Draw(t, "minor"),
				Access: rapid.SampledFrom([]string{"r", "w", "m", "rw", "rwm"}).Draw(t, "access"),
			}
		}), 0, 6).Draw(t, "rules")
		prog := deviceFilter(rules)
		if i := unreachable(prog); i >= 0 {
			t.Fatalf("rules %v: nothing leads to instruction %d of %x", rules, i, prog)
		}
		for range 20 {
			kind, access := uint32(rapid.IntRange(1, 2).Draw(t, "type")), uint32(rapid.IntRange(1, 7).Draw(t, "asked"))
			major, minor := uint32(max(0, number.Draw(t, "a"))), uint32(max(0, number.Draw(t, "b")))
			want := uint64(0)
			for _, r := range rules {
				var have uint32
				for i, c := range "mrw" {
					if strings.ContainsRune(r.Access, c) {
						have |= 1 << i
					}
				}
				if (r.Kind == 'a' || r.Kind == 'b' && kind == 1 || r.Kind == 'c' && kind == 2) &&
					(r.Major < 0 || uint32(r.Major) == major) &&
					(r.Minor < 0 || uint32(r.Minor) == minor) && access&^have == 0 {
					want = 1
				}
			}
			if got := runEBPF(t, prog, [3]uint32{access<<16 | kind, major, minor}); got != want {
				t.Fatalf("rules %v, type %d, access %d, %d:%d: %d, want %d", rules, kind, access, major, minor, got,
					want)
			}
		}
	})
}

// unreachable returns the first instruction that no path leads to, or -1. Jumps lead forward.
func unreachable(prog []byte) int {
	reached := make([]bool, len(prog)/8+1)
	reached[0] = true
	for pc := range len(prog) / 8 {
		i := prog[8*pc:]
		switch {
		case !reached[pc]:
			return pc
		case i[0] == 0x95:
			continue
		case i[0] == 0x56 || i[0] == 0x5e:
			reached[pc+1+int(int16(binary.LittleEndian.Uint16(i[2:])))] = true
		}
		reached[pc+1] = true
	}
	return -1
}

func runEBPF(t *rapid.T, prog []byte, ctx [3]uint32) uint64 {
	var r [11]uint64
	for pc := 0; ; pc++ {
		if 8*pc+8 > len(prog) {
			t.Fatal("the program runs off its end")
		}
		i := prog[8*pc:]
		dst, src := i[1]&15, i[1]>>4
		off, imm := int16(binary.LittleEndian.Uint16(i[2:])), binary.LittleEndian.Uint32(i[4:])
		jump := false
		switch i[0] {
		case 0x61:
			r[dst] = uint64(ctx[off/4])
		case 0xb7:
			r[dst] = uint64(int64(int32(imm)))
		case 0xbf:
			r[dst] = r[src]
		case 0x54:
			r[dst] = uint64(uint32(r[dst]) & imm)
		case 0x74:
			r[dst] = uint64(uint32(r[dst]) >> imm)
		case 0x56:
			jump = uint32(r[dst]) != imm
		case 0x5e:
			jump = uint32(r[dst]) != uint32(r[src])
		case 0x95:
			return r[0]
		default:
			t.Fatalf("instruction %#x", i[0])
		}
		if jump {
			pc += int(off)
		}
	}
}

// A signal ends the verification of a program: never, twice, always; another error is final.
func TestLoadIsRepeated(t *testing.T) {
	for _, c := range []struct {
		name         string
		signals      int
		after, errno unix.Errno
		calls        int
	}{
		{"no signal", 0, 0, 0, 1},
		{"two signals", 2, 0, 0, 3},
		{"signals without end", 1000, 0, unix.EAGAIN, loadAttempts},
		{"refused", 0, unix.EPERM, unix.EPERM, 1},
		{"refused after a signal", 1, unix.EINVAL, unix.EINVAL, 2},
	} {
		calls := 0
		_, errno := undisturbed(func() (uintptr, unix.Errno) {
			if calls++; calls <= c.signals {
				return 0, unix.EAGAIN
			}
			return 7, c.after
		})
		if errno != c.errno || calls != c.calls {
			t.Errorf("%s: %v after %d calls, want %v after %d", c.name, errno, calls, c.errno, c.calls)
		}
	}
}
