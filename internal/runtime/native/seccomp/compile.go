// Package seccomp compiles seccomp profiles (in OCI form) to BPF, with the semantics of libseccomp
// as runc uses it, in well under a millisecond. The native runtime drives it; it must never load a
// filter.
package seccomp

import (
	"encoding/binary"
	"fmt"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
)

//go:generate go run gen.go

// Program is a compiled profile: struct sock_filter, eight bytes each, and the flags to load it
// with.
type Program struct {
	BPF    []byte
	Flags  uint
	Notify bool // some calls are left to a listener; Flags request one
}

// abi is one calling convention of system calls.
type abi struct {
	arch    specs.Arch
	audit   uint32
	narrow  bool // arguments have 32 bits
	numbers func() map[string]uint32
	muxes   []mux
}

// Calls with this bit are x32's. Kernels with x32 are rare, and its second entry to every call is a
// risk: a profile that lists it gets ENOSYS, as on a kernel without x32; with one that does not,
// the caller is killed, as for every ABI that is not listed.
const x32Bit = 0x40000000

// skippedCall is the number that a tracer writes to skip a call. The filter sees it after the tracer: it is no call
// of x32, though it has the bit.
const skippedCall = 0xffffffff

func table(text string) func() map[string]uint32 {
	return sync.OnceValue(func() map[string]uint32 {
		m := map[string]uint32{}
		for line := range strings.SplitSeq(strings.TrimSpace(text), "\n") {
			name, number, _ := strings.Cut(line, " ")
			n, err := strconv.ParseUint(number, 10, 32)
			if err != nil {
				panic("seccomp: numbers.go is damaged: " + line)
			}
			m[name] = uint32(n)
		}
		return m
	})
}

var abis = map[string][]abi{
	"amd64": {
		{arch: specs.ArchX86_64, audit: unix.AUDIT_ARCH_X86_64, numbers: table(numbersAMD64)},
		{arch: specs.ArchX86, audit: unix.AUDIT_ARCH_I386, narrow: true, numbers: table(numbersI386), muxes: muxesI386},
	},
	"arm64": {
		{arch: specs.ArchAARCH64, audit: unix.AUDIT_ARCH_AARCH64, numbers: table(numbersARM64)},
		{arch: specs.ArchARM, audit: unix.AUDIT_ARCH_ARM, narrow: true, numbers: table(numbersARM)},
	},
}

// Compile compiles a profile for the architecture this process runs on.
func Compile(p *specs.LinuxSeccomp) (*Program, error) { return compile(p, runtime.GOARCH) }

func compile(p *specs.LinuxSeccomp, goarch string) (*Program, error) {
	list, ok := abis[goarch]
	if !ok {
		return nil, fmt.Errorf("seccomp: architecture %s is not supported", goarch)
	}
	rules, err := rulesOf(p)
	if err != nil {
		return nil, err
	}
	flags, err := flagsOf(p)
	if err != nil {
		return nil, err
	}
	notify, err := notifies(p)
	if err != nil {
		return nil, err
	}
	if notify {
		flags |= unix.SECCOMP_FILTER_FLAG_NEW_LISTENER
	}
	a := &assembler{}
	a.load(offArch)
	for i, abi := range list {
		if i > 0 && !listed(p, abi.arch) {
			continue // the native one is always included
		}
		body := &assembler{narrow: abi.narrow}
		body.load(offNumber)
		if abi.arch == specs.ArchX86_64 {
			x32, skipped := body.label(), body.label()
			body.jump(unix.BPF_JEQ, skippedCall, skipped, next)
			body.far(x32Bit, x32)
			body.place(skipped)
			rules.search(body, rules.spans(abi))
			body.place(x32)
			if listed(p, specs.ArchX32) {
				body.ret(unix.SECCOMP_RET_ERRNO | uint32(unix.ENOSYS))
			} else {
				body.ret(unix.SECCOMP_RET_KILL_PROCESS)
			}
		} else {
			rules.search(body, rules.spans(abi))
		}
		code, err := body.assemble()
		if err != nil {
			return nil, err
		}
		a.skipUnless(abi.audit, code)
	}
	a.ret(unix.SECCOMP_RET_KILL_PROCESS)
	code, err := a.assemble()
	if err != nil {
		return nil, err
	}
	if len(code) > unix.BPF_MAXINSNS {
		return nil, fmt.Errorf("seccomp: the profile needs %d instructions, the kernel takes %d", len(code),
			unix.BPF_MAXINSNS)
	}
	out := make([]byte, 0, 8*len(code))
	for _, c := range code {
		out = binary.LittleEndian.AppendUint16(out, c.Code)
		out = append(out, c.Jt, c.Jf)
		out = binary.LittleEndian.AppendUint32(out, c.K)
	}
	return &Program{BPF: out, Flags: flags, Notify: notify}, nil
}

// notifies reports whether calls are left to a listener. Calls that pass on the listener and report
// the start cannot wait for an agent that does not have it yet.
func notifies(p *specs.LinuxSeccomp) (bool, error) {
	if p.DefaultAction == specs.ActNotify {
		return false, fmt.Errorf("seccomp: %s cannot be the default action", specs.ActNotify)
	}
	found := false
	for _, s := range p.Syscalls {
		if s.Action != specs.ActNotify {
			continue
		}
		found = true
		for _, name := range []string{"write", "sendmsg"} {
			if slices.Contains(s.Names, name) {
				return false, fmt.Errorf("seccomp: %s cannot be used for %s", specs.ActNotify, name)
			}
		}
	}
	return found, nil
}

func listed(p *specs.LinuxSeccomp, arch specs.Arch) bool {
	return slices.Contains(p.Architectures, arch)
}

// flagsOf returns the flags for loading; without any, speculation stays as fast as without a
// filter, which is runc's default.
func flagsOf(p *specs.LinuxSeccomp) (uint, error) {
	if p.Flags == nil {
		return unix.SECCOMP_FILTER_FLAG_SPEC_ALLOW, nil
	}
	var flags uint
	for _, f := range p.Flags {
		switch f {
		case specs.LinuxSeccompFlagLog:
			flags |= unix.SECCOMP_FILTER_FLAG_LOG
		case specs.LinuxSeccompFlagSpecAllow:
			flags |= unix.SECCOMP_FILTER_FLAG_SPEC_ALLOW
		case specs.LinuxSeccompFlagWaitKillableRecv:
			flags |= unix.SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV
		case "SECCOMP_FILTER_FLAG_TSYNC": // the loading process has one thread
		default:
			return 0, fmt.Errorf("seccomp: flag %q is not supported", f)
		}
	}
	return flags, nil
}

// ruleSet is a profile by system call.
type ruleSet struct {
	byName map[string]*callRules
	rest   uint32 // action for calls without a rule
	newer  bool   // calls newer than every named one fail with ENOSYS
}

type callRules struct {
	always uint32 // action without conditions
	fixed  bool   // always is set
	chains []chain
}

// chain is an action under conditions that must all be true.
type chain struct {
	action uint32
	args   []specs.LinuxSeccompArg
}

func rulesOf(p *specs.LinuxSeccomp) (*ruleSet, error) {
	rest, err := action(p.DefaultAction, p.DefaultErrnoRet)
	if err != nil {
		return nil, err
	}
	set := &ruleSet{byName: map[string]*callRules{}, rest: rest}
	switch p.DefaultAction {
	case specs.ActAllow, specs.ActLog, specs.ActTrace:
	default:
		set.newer = true
	}
	for i := range p.Syscalls {
		s := &p.Syscalls[i]
		act, err := action(s.Action, s.ErrnoRet)
		if err != nil {
			return nil, err
		}
		for _, name := range s.Names {
			r := set.byName[name]
			if r == nil {
				r = &callRules{always: rest}
				set.byName[name] = r
			}
			if act == rest {
				continue // always true, but the call counts as listed
			}
			if len(s.Args) == 0 {
				if !r.fixed {
					r.always, r.fixed = act, true
				}
				continue
			}
			for _, a := range s.Args {
				if a.Index > 5 || !operators[a.Op] {
					return nil, fmt.Errorf("seccomp: condition %s on argument %d of %s is not supported", a.Op, a.Index,
						name)
				}
			}
			r.chains = append(r.chains, chainsOf(act, s.Args)...)
		}
	}
	for _, r := range set.byName {
		if r.fixed {
			r.chains = nil // an unconditional rule overrides all conditional ones
		}
	}
	return set, nil
}

// chainsOf: several conditions on one argument are alternatives, conditions on different arguments
// must all be true. This is how runc reads them.
func chainsOf(act uint32, args []specs.LinuxSeccompArg) []chain {
	seen := map[uint]bool{}
	for _, a := range args {
		if seen[a.Index] {
			var out []chain
			for _, a := range args {
				out = append(out, chain{act, []specs.LinuxSeccompArg{a}})
			}
			return out
		}
		seen[a.Index] = true
	}
	return []chain{{act, args}}
}

func action(a specs.LinuxSeccompAction, errno *uint) (uint32, error) {
	ret := uint32(unix.EPERM)
	if errno != nil {
		ret = uint32(*errno) & 0xffff
	}
	switch a {
	case specs.ActKill, specs.ActKillThread:
		return unix.SECCOMP_RET_KILL_THREAD, nil
	case specs.ActKillProcess:
		return unix.SECCOMP_RET_KILL_PROCESS, nil
	case specs.ActTrap:
		return unix.SECCOMP_RET_TRAP, nil
	case specs.ActErrno:
		return unix.SECCOMP_RET_ERRNO | ret, nil
	case specs.ActTrace:
		return unix.SECCOMP_RET_TRACE | ret, nil
	case specs.ActLog:
		return unix.SECCOMP_RET_LOG, nil
	case specs.ActAllow:
		return unix.SECCOMP_RET_ALLOW, nil
	case specs.ActNotify:
		return unix.SECCOMP_RET_USER_NOTIF, nil
	}
	return 0, fmt.Errorf("seccomp: action %q is not supported", a)
}

var operators = map[specs.LinuxSeccompOperator]bool{
	specs.OpEqualTo: true, specs.OpNotEqual: true, specs.OpGreaterThan: true, specs.OpGreaterEqual: true,
	specs.OpLessThan: true, specs.OpLessEqual: true, specs.OpMaskedEqual: true,
}

// span is a range of call numbers with the same treatment.
type span struct {
	first uint32
	rules *callRules
}

// spans are the rules by number, without gaps: each lasts to the next.
func (s *ruleSet) spans(of abi) []span {
	numbers := of.numbers()
	rest := &callRules{always: s.rest}
	byNumber := map[uint32]*callRules{}
	var list []uint32
	var above uint32 // the highest one that is named
	for name, r := range s.byName {
		n, ok := numbers[name]
		if !ok {
			continue // not on this architecture
		}
		byNumber[n] = r
		list = append(list, n)
		if n < 0xf0000 { // ARM has private ones at high numbers
			above = max(above, n+1)
		}
	}
	for _, m := range of.muxes {
		if r := s.muxed(m); r != nil {
			n := numbers[m.name]
			if byNumber[n] == nil {
				list = append(list, n)
			}
			byNumber[n], above = r, max(above, n+1)
		}
	}
	slices.Sort(list)
	var out []span
	put := func(first uint32, r *callRules) {
		if n := len(out); n > 0 {
			last := out[n-1].rules
			if len(last.chains) == 0 && len(r.chains) == 0 && last.always == r.always {
				return
			}
		}
		out = append(out, span{first, r})
	}
	newer := rest
	if s.newer && len(list) > 0 {
		newer = &callRules{always: unix.SECCOMP_RET_ERRNO | uint32(unix.ENOSYS)}
	}
	gap := func(n uint32) {
		if n >= above {
			put(n, newer)
		} else {
			put(n, rest)
		}
	}
	at := uint32(0)
	for _, n := range list {
		if n > at {
			gap(at)
		}
		put(n, byNumber[n])
		at = n + 1
	}
	gap(at)
	return out
}

// search is a binary search; every path ends in a return.
func (s *ruleSet) search(a *assembler, list []span) {
	if len(list) == 1 {
		s.leaf(a, list[0].rules)
		return
	}
	mid := len(list) / 2
	upper := a.label()
	a.far(list[mid].first, upper)
	s.search(a, list[:mid])
	a.place(upper)
	s.search(a, list[mid:])
}

func (s *ruleSet) leaf(a *assembler, r *callRules) {
	for _, c := range r.chains {
		miss := a.label()
		for _, arg := range c.args {
			a.test(arg, miss)
		}
		a.ret(c.action)
		a.place(miss)
	}
	a.ret(r.always)
}
