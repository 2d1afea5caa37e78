package seccomp

import (
	"encoding/binary"
	"errors"

	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"
)

// call is what a filter sees of a system call.
type call struct {
	arch, number uint32
	args         [6]uint64
}

// Allows reports whether the program allows a system call of the native architecture with the given
// first arguments; the others are zero.
func (p *Program) Allows(number int, args ...uint64) bool {
	run, err := p.machine()
	if err != nil {
		return false
	}
	c := call{arch: nativeAudit, number: uint32(number)}
	copy(c.args[:], args)
	action, err := run(c)
	return err == nil && (action == unix.SECCOMP_RET_ALLOW || action == unix.SECCOMP_RET_LOG)
}

// machine runs the program.
func (p *Program) machine() (func(call) (uint32, error), error) {
	var raw []bpf.RawInstruction
	for b := p.BPF; len(b) >= 8; b = b[8:] {
		raw = append(raw, bpf.RawInstruction{Op: binary.LittleEndian.Uint16(b), Jt: b[2], Jf: b[3],
			K: binary.LittleEndian.Uint32(b[4:])})
	}
	ins, ok := bpf.Disassemble(raw)
	if !ok {
		return nil, errors.New("program holds unknown instructions")
	}
	vm, err := bpf.NewVM(ins)
	if err != nil {
		return nil, err
	}
	return func(c call) (uint32, error) {
		// The interpreter reads words in network order; the kernel's struct has the host's, so each
		// word is written in the other order.
		d := make([]byte, 64)
		be := binary.BigEndian
		be.PutUint32(d[offNumber:], c.number)
		be.PutUint32(d[offArch:], c.arch)
		for i, a := range c.args {
			be.PutUint32(d[offArgs+8*i:], uint32(a))
			be.PutUint32(d[offArgs+8*i+4:], uint32(a>>32))
		}
		n, err := vm.Run(d)
		return uint32(n), err
	}, nil
}
