package seccomp

import (
	"runtime"
	"testing"

	csec "github.com/containerd/containerd/v2/contrib/seccomp"
	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
	"pgregory.net/rapid"
)

// machine runs a compiled program.
func machine(t interface{ Fatal(...any) }, p *Program) func(call) uint32 {
	run, err := p.machine()
	if err != nil {
		t.Fatal(err)
	}
	return func(c call) uint32 {
		n, err := run(c)
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
}

// reference evaluates a profile rule by rule, as it is written, for a call of an ABI.
func reference(p *specs.LinuxSeccomp, of abi, c call) uint32 {
	rest, _ := action(p.DefaultAction, p.DefaultErrnoRet)
	numbers := of.numbers()
	var above uint32
	named := map[uint32]bool{}
	for _, s := range p.Syscalls {
		for _, name := range s.Names {
			if n, ok := numbers[name]; ok {
				named[n] = true
			}
			for _, m := range of.muxes {
				if _, ok := m.calls[name]; ok {
					named[numbers[m.name]] = true
				}
			}
		}
	}
	for n := range named {
		if n < 0xf0000 {
			above = max(above, n+1)
		}
	}
	for name, n := range numbers {
		if n != c.number {
			continue
		}
		if act, ok := decide(p, name, of.narrow, false, c); ok {
			return act
		}
	}
	for _, m := range of.muxes {
		for name, which := range m.calls {
			if c.number != numbers[m.name] || c.args[0]&m.mask != which {
				continue
			}
			if act, ok := decide(p, name, of.narrow, true, c); ok {
				return act
			}
		}
	}
	deny := p.DefaultAction != specs.ActAllow && p.DefaultAction != specs.ActLog && p.DefaultAction != specs.ActTrace
	if len(named) > 0 && !named[c.number] && c.number >= above && deny {
		return unix.SECCOMP_RET_ERRNO | uint32(unix.ENOSYS)
	}
	return rest
}

// decide evaluates the rules of one name; through a mux, the first argument says which call it is.
func decide(p *specs.LinuxSeccomp, name string, narrow, mux bool, c call) (act uint32, ok bool) {
	rest, _ := action(p.DefaultAction, p.DefaultErrnoRet)
	conditional, fixed := rest, rest
	var haveC, haveF bool
	for _, s := range p.Syscalls {
		act, _ := action(s.Action, s.ErrnoRet)
		for _, n := range s.Names {
			if n != name || act == rest {
				continue
			}
			if len(s.Args) == 0 {
				if !haveF {
					fixed, haveF = act, true
				}
				continue
			}
			all, any, count := true, false, map[uint]int{}
			for _, a := range s.Args {
				v := c.args[a.Index]
				if narrow {
					v, a.Value, a.ValueTwo = uint64(uint32(v)), uint64(uint32(a.Value)), uint64(uint32(a.ValueTwo))
				}
				ok := mux && a.Index == 0
				switch a.Op {
				case specs.OpEqualTo:
					ok = ok || v == a.Value
				case specs.OpNotEqual:
					ok = ok || v != a.Value
				case specs.OpGreaterThan:
					ok = ok || v > a.Value
				case specs.OpGreaterEqual:
					ok = ok || v >= a.Value
				case specs.OpLessThan:
					ok = ok || v < a.Value
				case specs.OpLessEqual:
					ok = ok || v <= a.Value
				case specs.OpMaskedEqual:
					ok = ok || (v^a.ValueTwo)&a.Value == 0
				}
				all, any = all && ok, any || ok
				count[a.Index]++
			}
			twice := len(count) < len(s.Args)
			if !haveC && (all || twice && any) {
				conditional, haveC = act, true
			}
		}
	}
	if haveF {
		return fixed, true
	}
	return conditional, haveC
}

func TestProfilesDecideAsWritten(t *testing.T) {
	pick := []string{"read", "write", "open", "socket", "clone", "clone3", "personality", "io_uring_setup",
		"not_a_call", "ptrace", "mount", "socketcall", "ipc", "bind", "send", "shmget", "set_tls"}
	rapid.Check(t, func(t *rapid.T) {
		value := rapid.SampledFrom([]uint64{0, 1, 2, 9, 23, 1<<16 | 23, 40, 0xffffffff, 1 << 32, 1<<32 | 1, 0x7e020000,
			1 << 63, ^uint64(0)})
		p := &specs.LinuxSeccomp{DefaultAction: rapid.SampledFrom([]specs.LinuxSeccompAction{specs.ActErrno,
			specs.ActAllow}).Draw(t, "default"),
			Architectures: []specs.Arch{specs.ArchX86_64, specs.ArchX86, specs.ArchAARCH64, specs.ArchARM}}
		for range rapid.IntRange(0, 12).Draw(t, "rules") {
			s := specs.LinuxSyscall{
				Names: rapid.SliceOfN(rapid.SampledFrom(pick), 1, 4).Draw(t, "names"),
				Action: rapid.SampledFrom([]specs.LinuxSeccompAction{specs.ActErrno, specs.ActAllow, specs.ActLog,
					specs.ActTrap}).Draw(t, "action"),
			}
			for range rapid.IntRange(0, 3).Draw(t, "args") {
				s.Args = append(s.Args, specs.LinuxSeccompArg{
					Index: uint(rapid.IntRange(0, 5).Draw(t, "index")), Value: value.Draw(t, "value"),
					ValueTwo: value.Draw(t, "value2"),
					Op: rapid.SampledFrom([]specs.LinuxSeccompOperator{specs.OpEqualTo, specs.OpNotEqual,
						specs.OpGreaterThan, specs.OpGreaterEqual, specs.OpLessThan, specs.OpLessEqual,
						specs.OpMaskedEqual}).Draw(t, "op"),
				})
			}
			p.Syscalls = append(p.Syscalls, s)
		}
		arch := rapid.SampledFrom([]string{"amd64", "arm64"}).Draw(t, "arch")
		prog, err := compile(p, arch)
		if err != nil {
			t.Fatal(err)
		}
		run := machine(t, prog)
		for range 20 {
			of := rapid.SampledFrom(abis[arch]).Draw(t, "abi")
			c := call{arch: of.audit, number: uint32(rapid.IntRange(0, 500).Draw(t, "number"))}
			if n, ok := of.numbers()[rapid.SampledFrom(pick).Draw(t, "call")]; ok && rapid.Bool().Draw(t, "named") {
				c.number = n
			}
			for i := range c.args {
				c.args[i] = value.Draw(t, "arg")
			}
			if got, want := run(c), reference(p, of, c); got != want {
				t.Fatalf("call %+v: %#x, want %#x", c, got, want)
			}
		}
	})
}

// TestRulesHoldForEveryWayToMakeACall: a program may make a call of the 32-bit ABI from 64-bit code, or through the
// call that makes others, or skip it for a process that it traces.
func TestRulesHoldForEveryWayToMakeACall(t *testing.T) {
	const (
		allow  = unix.SECCOMP_RET_ALLOW
		eperm  = unix.SECCOMP_RET_ERRNO | uint32(unix.EPERM)
		enosys = unix.SECCOMP_RET_ERRNO | uint32(unix.ENOSYS)
		x86    = unix.AUDIT_ARCH_I386
	)
	rule := func(action specs.LinuxSeccompAction, names []string, args ...specs.LinuxSeccompArg) specs.LinuxSyscall {
		return specs.LinuxSyscall{Names: names, Action: action, Args: args}
	}
	deny := &specs.LinuxSeccomp{DefaultAction: specs.ActAllow, Architectures: []specs.Arch{specs.ArchX86},
		Syscalls: []specs.LinuxSyscall{
			rule(specs.ActErrno, []string{"socket"}, specs.LinuxSeccompArg{Index: 0, Value: 38, Op: specs.OpEqualTo}),
			rule(specs.ActErrno, []string{"shmget", "listen"}),
			rule(specs.ActErrno, []string{"personality"},
				specs.LinuxSeccompArg{Index: 0, Value: ^uint64(0), Op: specs.OpEqualTo}),
			rule(specs.ActErrno, []string{"clone"}, specs.LinuxSeccompArg{Index: 0, Value: unix.CLONE_NEWUSER,
				ValueTwo: unix.CLONE_NEWUSER | 1, Op: specs.OpMaskedEqual}),
		}}
	only := &specs.LinuxSeccomp{DefaultAction: specs.ActErrno, Architectures: []specs.Arch{specs.ArchX86},
		Syscalls: []specs.LinuxSyscall{rule(specs.ActAllow, []string{"socket", "send", "read"})}}
	arm := &specs.LinuxSeccomp{DefaultAction: specs.ActErrno, Architectures: []specs.Arch{specs.ArchARM},
		Syscalls: []specs.LinuxSyscall{rule(specs.ActAllow, []string{"read", "set_tls", "cacheflush"})}}
	for _, c := range []struct {
		what    string
		profile *specs.LinuxSeccomp
		goarch  string
		call    call
		want    uint32
	}{
		{"socket through socketcall", deny, "amd64", call{arch: x86, number: 102, args: [6]uint64{1}}, eperm},
		{"listen through socketcall", deny, "amd64", call{arch: x86, number: 102, args: [6]uint64{4}}, eperm},
		{"bind through socketcall", deny, "amd64", call{arch: x86, number: 102, args: [6]uint64{2}}, allow},
		{"shmget through ipc", deny, "amd64", call{arch: x86, number: 117, args: [6]uint64{23}}, eperm},
		{"shmget through ipc with a version", deny, "amd64", call{arch: x86, number: 117, args: [6]uint64{1<<16 | 23}},
			eperm},
		{"shmdt through ipc", deny, "amd64", call{arch: x86, number: 117, args: [6]uint64{22}}, allow},
		{"-1 in 32 bits", deny, "amd64", call{arch: x86, number: 136, args: [6]uint64{0xffffffff}}, eperm},
		{"-1 in 32 bits with more above", deny, "amd64",
			call{arch: x86, number: 136, args: [6]uint64{7<<32 | 0xffffffff}}, eperm},
		{"bits outside a mask", deny, "amd64", call{arch: unix.AUDIT_ARCH_X86_64, number: unix.SYS_CLONE,
			args: [6]uint64{unix.CLONE_NEWUSER}}, eperm},
		{"a call that a tracer skips", deny, "amd64", call{arch: unix.AUDIT_ARCH_X86_64, number: 0xffffffff}, allow},
		{"the same with few calls allowed", only, "amd64", call{arch: unix.AUDIT_ARCH_X86_64, number: 0xffffffff}, enosys},
		{"allowed socket through socketcall", only, "amd64", call{arch: x86, number: 102, args: [6]uint64{1}}, allow},
		{"allowed send through socketcall", only, "amd64", call{arch: x86, number: 102, args: [6]uint64{9}}, allow},
		{"bind not allowed through socketcall", only, "amd64", call{arch: x86, number: 102, args: [6]uint64{2}}, eperm},
		{"ipc not allowed", only, "amd64", call{arch: x86, number: 117, args: [6]uint64{23}}, eperm},
		{"set_tls of ARM", arm, "arm64", call{arch: unix.AUDIT_ARCH_ARM, number: 0xf0005}, allow},
		{"cacheflush of ARM", arm, "arm64", call{arch: unix.AUDIT_ARCH_ARM, number: 0xf0002}, allow},
		{"no private call of ARM", arm, "arm64", call{arch: unix.AUDIT_ARCH_ARM, number: 0xf0006}, enosys},
	} {
		prog, err := compile(c.profile, c.goarch)
		if err != nil {
			t.Fatal(err)
		}
		if got := machine(t, prog)(c.call); got != c.want {
			t.Errorf("%s: %#x, want %#x", c.what, got, c.want)
		}
	}
}

func TestDefaultProfile(t *testing.T) {
	profile := func(caps ...string) *specs.LinuxSeccomp {
		return csec.DefaultProfile(
			&specs.Spec{Process: &specs.Process{Capabilities: &specs.LinuxCapabilities{Bounding: caps}},
				Linux: &specs.Linux{}})
	}
	const (
		allow  = unix.SECCOMP_RET_ALLOW
		eperm  = unix.SECCOMP_RET_ERRNO | uint32(unix.EPERM)
		enosys = unix.SECCOMP_RET_ERRNO | uint32(unix.ENOSYS)
	)
	type check struct {
		what string
		caps []string
		call call
		want uint32
	}
	x64, arm := uint32(unix.AUDIT_ARCH_X86_64), uint32(unix.AUDIT_ARCH_AARCH64)
	own, others := x64, []check{
		{"x32, which the profile lists", nil, call{arch: x64, number: x32Bit | unix.SYS_READ}, enosys},
		{"i386 read", nil, call{arch: unix.AUDIT_ARCH_I386, number: 3}, allow},
		{"i386 mount", nil, call{arch: unix.AUDIT_ARCH_I386, number: 21}, eperm},
	}
	if runtime.GOARCH == "arm64" {
		own, others = arm, []check{
			{"32-bit read", nil, call{arch: unix.AUDIT_ARCH_ARM, number: 3}, allow},
			{"32-bit mount", nil, call{arch: unix.AUDIT_ARCH_ARM, number: 21}, eperm},
		}
	}
	for _, c := range append(others, []check{
		{"read", nil, call{arch: own, number: unix.SYS_READ}, allow},
		{"mount without the capability", nil, call{arch: own, number: unix.SYS_MOUNT}, eperm},
		{"mount with it", []string{"CAP_SYS_ADMIN"}, call{arch: own, number: unix.SYS_MOUNT}, allow},
		{"a thread", nil, call{arch: own, number: unix.SYS_CLONE, args: [6]uint64{unix.CLONE_VM | unix.CLONE_THREAD}},
			allow},
		{"a new namespace", nil, call{arch: own, number: unix.SYS_CLONE, args: [6]uint64{unix.CLONE_NEWUSER}}, eperm},
		{"clone3, so that libc falls back", nil, call{arch: own, number: unix.SYS_CLONE3}, enosys},
		{"personality PER_LINUX", nil, call{arch: own, number: unix.SYS_PERSONALITY}, allow},
		{"personality other", nil, call{arch: own, number: unix.SYS_PERSONALITY, args: [6]uint64{5}}, eperm},
		{"socket AF_INET", nil, call{arch: own, number: unix.SYS_SOCKET, args: [6]uint64{unix.AF_INET}}, allow},
		{"socket AF_VSOCK", nil, call{arch: own, number: unix.SYS_SOCKET, args: [6]uint64{unix.AF_VSOCK}}, eperm},
		{"a call of the future", nil, call{arch: own, number: 600}, enosys},
		{"another architecture", nil, call{arch: unix.AUDIT_ARCH_S390X, number: 3}, unix.SECCOMP_RET_KILL_PROCESS},
	}...) {
		prog, err := compile(profile(c.caps...), runtime.GOARCH)
		if err != nil {
			t.Fatal(err)
		}
		if got := machine(t, prog)(c.call); got != c.want {
			t.Errorf("%s: %#x, want %#x", c.what, got, c.want)
		}
	}
	prog, err := compile(profile(), "arm64")
	if err != nil {
		t.Fatal(err)
	}
	if got := machine(t, prog)(call{arch: arm, number: 63}); got != allow {
		t.Errorf("read on arm64: %#x", got)
	}
	t.Logf("%d instructions", len(prog.BPF)/8)
}

func TestWhatIsNotSupportedIsAnError(t *testing.T) {
	for _, p := range []*specs.LinuxSeccomp{
		{DefaultAction: "SCMP_ACT_DREAM"},
		{DefaultAction: specs.ActNotify},
		{DefaultAction: specs.ActErrno,
			Syscalls: []specs.LinuxSyscall{{Names: []string{"read", "write"}, Action: specs.ActNotify}}},
		{DefaultAction: specs.ActErrno, Flags: []specs.LinuxSeccompFlag{"SECCOMP_FILTER_FLAG_X"}},
		{DefaultAction: specs.ActErrno,
			Syscalls: []specs.LinuxSyscall{{Names: []string{"read"}, Action: specs.ActAllow,
				Args: []specs.LinuxSeccompArg{{Index: 6, Op: specs.OpEqualTo}}}}},
	} {
		if _, err := Compile(p); err == nil {
			t.Errorf("%+v compiled", p)
		}
	}
}

// TestListener: calls that are left to an agent, and an ABI that the profile does not list.
func TestListener(t *testing.T) {
	prog, err := compile(&specs.LinuxSeccomp{DefaultAction: specs.ActAllow,
		Syscalls: []specs.LinuxSyscall{{Names: []string{"mount"}, Action: specs.ActNotify}}}, "amd64")
	if err != nil {
		t.Fatal(err)
	}
	if !prog.Notify || prog.Flags&unix.SECCOMP_FILTER_FLAG_NEW_LISTENER == 0 {
		t.Errorf("no listener is asked for: %+v", prog)
	}
	run := machine(t, prog)
	const x64 = unix.AUDIT_ARCH_X86_64
	for call, want := range map[call]uint32{
		{arch: x64, number: 165}:                    unix.SECCOMP_RET_USER_NOTIF, // mount
		{arch: x64, number: 0}:                      unix.SECCOMP_RET_ALLOW,
		{arch: x64, number: x32Bit}:                 unix.SECCOMP_RET_KILL_PROCESS,
		{arch: unix.AUDIT_ARCH_I386, number: 3}:     unix.SECCOMP_RET_KILL_PROCESS,
		{arch: unix.AUDIT_ARCH_AARCH64, number: 63}: unix.SECCOMP_RET_KILL_PROCESS,
	} {
		if got := run(call); got != want {
			t.Errorf("%+v: %#x, want %#x", call, got, want)
		}
	}
}

func BenchmarkCompileDefault(b *testing.B) {
	p := csec.DefaultProfile(&specs.Spec{Process: &specs.Process{}, Linux: &specs.Linux{}})
	for b.Loop() {
		if _, err := Compile(p); err != nil {
			b.Fatal(err)
		}
	}
}
