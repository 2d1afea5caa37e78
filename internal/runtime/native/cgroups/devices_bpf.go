package cgroups

import (
	"encoding/binary"
	"fmt"
	"runtime"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"
)

// deviceFilter is an eBPF program of type CGROUP_DEVICE that allows exactly
// rules. Its context is {u32 access<<16|type, u32 major, u32 minor}. Every instruction is reachable: older kernels
// (Linux 6.1) load no other program.
func deviceFilter(rules []DeviceRule) []byte {
	const (
		ldxw  = 0x61 // dst = *(u32 *)(src + off)
		movk  = 0xb7
		movx  = 0xbf
		andk  = 0x54 // 32 bit
		rshk  = 0x74
		jnek  = 0x56 // 32 bit: jump if dst != imm (BPF_JMP32)
		jnex  = 0x5e
		exit_ = 0x95
	)
	var out []byte
	emit := func(op, dst, src byte, off int16, imm int32) {
		out = append(out, op, dst|src<<4)
		out = binary.LittleEndian.AppendUint16(out, uint16(off))
		out = binary.LittleEndian.AppendUint32(out, uint32(imm))
	}
	emit(ldxw, 2, 1, 0, 0) // r2: type
	emit(movx, 3, 2, 0, 0) // r3: access
	emit(andk, 2, 0, 0, 0xffff)
	emit(rshk, 3, 0, 0, 16)
	emit(ldxw, 4, 1, 4, 0) // r4: major
	emit(ldxw, 5, 1, 8, 0) // r5: minor
	for _, r := range rules {
		// Instructions of this rule, each test jumping to the next rule.
		type ins struct {
			op, dst, src byte
			imm          int32
			jump         bool
		}
		var list []ins
		switch r.Kind {
		case 'b':
			list = append(list, ins{op: jnek, dst: 2, imm: 1, jump: true})
		case 'c':
			list = append(list, ins{op: jnek, dst: 2, imm: 2, jump: true})
		}
		var access int32
		for i, c := range "mrw" {
			if strings.ContainsRune(r.Access, c) {
				access |= 1 << i
			}
		}
		if access != 7 { // the requested access must be a part of the allowed one
			list = append(list,
				ins{op: movx, dst: 1, src: 3},
				ins{op: andk, dst: 1, imm: access},
				ins{op: jnex, dst: 1, src: 3, jump: true})
		}
		if r.Major >= 0 {
			list = append(list, ins{op: jnek, dst: 4, imm: int32(r.Major), jump: true})
		}
		if r.Minor >= 0 {
			list = append(list, ins{op: jnek, dst: 5, imm: int32(r.Minor), jump: true})
		}
		list = append(list, ins{op: movk, imm: 1}, ins{op: exit_})
		for i, x := range list {
			var off int16
			if x.jump {
				off = int16(len(list) - 1 - i)
			}
			emit(x.op, x.dst, x.src, off, x.imm)
		}
		if len(list) == 2 { // it allows everything
			return out
		}
	}
	emit(movk, 0, 0, 0, 0)
	emit(exit_, 0, 0, 0, 0)
	return out
}

// loadAttempts is how often a program is given to the kernel at most.
const loadAttempts = 30

// attachDeviceFilter loads the filter for rules and attaches it to a cgroup.
func attachDeviceFilter(dir string, rules []DeviceRule) error {
	prog := deviceFilter(rules)
	license := []byte("Apache-2.0\x00")
	var pins runtime.Pinner // the kernel gets their addresses as numbers
	defer pins.Unpin()
	pins.Pin(&prog[0])
	pins.Pin(&license[0])
	load := struct {
		kind, count  uint32
		insns        uint64
		license      uint64
		level, size  uint32
		log          uint64
		kern, flags  uint32
		name         [16]byte
		ifindex      uint32
		expectedType uint32
	}{
		kind: unix.BPF_PROG_TYPE_CGROUP_DEVICE, count: uint32(len(prog) / 8),
		insns: uint64(uintptr(unsafe.Pointer(&prog[0]))), license: uint64(uintptr(unsafe.Pointer(&license[0]))),
		expectedType: unix.BPF_CGROUP_DEVICE,
	}
	copy(load.name[:], "carob_devices")
	fd, errno := undisturbed(func() (uintptr, unix.Errno) {
		fd, _, errno := unix.Syscall(unix.SYS_BPF, unix.BPF_PROG_LOAD, uintptr(unsafe.Pointer(&load)),
			unsafe.Sizeof(load))
		return fd, errno
	})
	if errno != 0 {
		return fmt.Errorf("loading the device filter: %w", errno)
	}
	defer unix.Close(int(fd))
	group, err := unix.Open(dir, unix.O_DIRECTORY|unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("opening cgroup %s: %w", dir, err)
	}
	defer unix.Close(group)
	attach := struct{ target, prog, kind, flags, replace uint32 }{
		target: uint32(group), prog: uint32(fd), kind: unix.BPF_CGROUP_DEVICE, flags: unix.BPF_F_ALLOW_MULTI,
	}
	if _, _, errno := unix.Syscall(unix.SYS_BPF, unix.BPF_PROG_ATTACH, uintptr(unsafe.Pointer(&attach)),
		unsafe.Sizeof(attach)); errno != 0 {
		return fmt.Errorf("attaching the device filter to %s: %w", dir, errno)
	}
	return nil
}

// undisturbed loads a program: the kernel gives up with EAGAIN when a signal arrives while it verifies one, and Go
// signals its own threads, most on a slow or busy machine. Other loaders repeat the call, too.
func undisturbed(load func() (uintptr, unix.Errno)) (uintptr, unix.Errno) {
	for attempt := 1; ; attempt++ {
		fd, errno := load()
		if errno != unix.EAGAIN || attempt == loadAttempts {
			return fd, errno
		}
	}
}
