package seccomp

import (
	"fmt"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
)

// Offsets in struct seccomp_data.
const (
	offNumber = 0
	offArch   = 4
	offArgs   = 16
)

// Special labels.
const (
	next = -1 // the instruction that follows
	none = -2
)

// assembler writes classic BPF with labels instead of distances.
type assembler struct {
	// narrow: calls have arguments of 32 bits. The upper half is not compared: in 64-bit code that makes a call of the
	// 32-bit ABI it may hold anything, which the kernel ignores.
	narrow bool
	code   []unix.SockFilter
	jumps  []jumpTo
	places []int
}

type jumpTo struct {
	at     int
	jt, jf int // labels
	far    bool
}

func (a *assembler) label() int {
	a.places = append(a.places, -1)
	return len(a.places) - 1
}

func (a *assembler) place(label int) { a.places[label] = len(a.code) }

func (a *assembler) load(offset uint32) {
	a.code = append(a.code, unix.SockFilter{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: offset})
}

func (a *assembler) ret(action uint32) {
	a.code = append(a.code, unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: action})
}

func (a *assembler) jump(op uint16, k uint32, jt, jf int) {
	a.jumps = append(a.jumps, jumpTo{at: len(a.code), jt: jt, jf: jf})
	a.code = append(a.code, unix.SockFilter{Code: unix.BPF_JMP | op | unix.BPF_K, K: k})
}

// far jumps to label if the loaded value is at least k, at any distance.
func (a *assembler) far(k uint32, label int) {
	a.code = append(a.code, unix.SockFilter{Code: unix.BPF_JMP | unix.BPF_JGE | unix.BPF_K, K: k, Jt: 0, Jf: 1})
	a.jumps = append(a.jumps, jumpTo{at: len(a.code), jt: label, far: true})
	a.code = append(a.code, unix.SockFilter{Code: unix.BPF_JMP | unix.BPF_JA})
}

// skipUnless puts a test of the loaded value before a finished block.
func (a *assembler) skipUnless(k uint32, block []unix.SockFilter) {
	a.code = append(a.code,
		unix.SockFilter{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: k, Jt: 1, Jf: 0},
		unix.SockFilter{Code: unix.BPF_JMP | unix.BPF_JA, K: uint32(len(block))})
	a.code = append(a.code, block...)
}

func (a *assembler) and(mask uint32) {
	a.code = append(a.code, unix.SockFilter{Code: unix.BPF_ALU | unix.BPF_AND | unix.BPF_K, K: mask})
}

// test jumps to miss unless an argument meets its condition. Arguments have 64 bits, BPF 32: the
// upper half comes first.
func (a *assembler) test(arg specs.LinuxSeccompArg, miss int) {
	offset := uint32(offArgs + 8*arg.Index)
	hit, lower := a.label(), a.label()
	if !a.narrow {
		a.load(offset + 4)
		a.testUpper(arg, hit, lower, miss)
	}
	a.place(lower)
	a.load(offset)
	switch lo := uint32(arg.Value); arg.Op {
	case specs.OpEqualTo:
		a.jump(unix.BPF_JEQ, lo, hit, miss)
	case specs.OpNotEqual:
		a.jump(unix.BPF_JEQ, lo, miss, hit)
	case specs.OpGreaterThan:
		a.jump(unix.BPF_JGT, lo, hit, miss)
	case specs.OpGreaterEqual:
		a.jump(unix.BPF_JGE, lo, hit, miss)
	case specs.OpLessThan:
		a.jump(unix.BPF_JGE, lo, miss, hit)
	case specs.OpLessEqual:
		a.jump(unix.BPF_JGT, lo, miss, hit)
	case specs.OpMaskedEqual:
		// Value is the mask, ValueTwo what must be left: of its bits only those in the mask count.
		a.and(lo)
		a.jump(unix.BPF_JEQ, uint32(arg.ValueTwo)&lo, hit, miss)
	}
	a.place(hit)
}

// testUpper compares the upper half: it jumps to lower if the other half decides.
func (a *assembler) testUpper(arg specs.LinuxSeccompArg, hit, lower, miss int) {
	switch hi := uint32(arg.Value >> 32); arg.Op {
	case specs.OpEqualTo:
		a.jump(unix.BPF_JEQ, hi, lower, miss)
	case specs.OpNotEqual:
		a.jump(unix.BPF_JEQ, hi, lower, hit)
	case specs.OpGreaterThan, specs.OpGreaterEqual:
		a.jump(unix.BPF_JGT, hi, hit, next)
		a.jump(unix.BPF_JEQ, hi, lower, miss)
	case specs.OpLessThan, specs.OpLessEqual:
		a.jump(unix.BPF_JGT, hi, miss, next)
		a.jump(unix.BPF_JEQ, hi, lower, hit)
	case specs.OpMaskedEqual:
		a.and(hi)
		a.jump(unix.BPF_JEQ, uint32(arg.ValueTwo>>32)&hi, lower, miss)
	}
}

// assemble replaces labels by distances.
func (a *assembler) assemble() ([]unix.SockFilter, error) {
	distance := func(at, label int) int {
		if label == next {
			return 0
		}
		return a.places[label] - at - 1
	}
	for _, j := range a.jumps {
		if j.far {
			a.code[j.at].K = uint32(distance(j.at, j.jt))
			continue
		}
		jt, jf := distance(j.at, j.jt), distance(j.at, j.jf)
		if jt > 255 || jf > 255 || jt < 0 || jf < 0 {
			return nil, fmt.Errorf("seccomp: a rule has too many conditions")
		}
		a.code[j.at].Jt, a.code[j.at].Jf = uint8(jt), uint8(jf)
	}
	return a.code, nil
}
