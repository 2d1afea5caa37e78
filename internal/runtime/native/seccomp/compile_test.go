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

// reference evaluates a profile rule by rule, as it is written.
func reference(p *specs.LinuxSeccomp, names map[string]uint32, c call) uint32 {
	rest, _ := action(p.DefaultAction, p.DefaultErrnoRet)
	var highest uint32
	conditional, fixed := rest, rest
	var haveC, haveF, known bool
	for _, s := range p.Syscalls {
		act, _ := action(s.Action, s.ErrnoRet)
		for _, name := range s.Names {
			n, ok := names[name]
			if !ok {
				continue
			}
			if n < 0xf0000 {
				highest = max(highest, n)
			}
			known = true
			if n != c.number || act == rest {
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
				v, ok := c.args[a.Index], false
				switch a.Op {
				case specs.OpEqualTo:
					ok = v == a.Value
				case specs.OpNotEqual:
					ok = v != a.Value
				case specs.OpGreaterThan:
					ok = v > a.Value
				case specs.OpGreaterEqual:
					ok = v >= a.Value
				case specs.OpLessThan:
					ok = v < a.Value
				case specs.OpLessEqual:
					ok = v <= a.Value
				case specs.OpMaskedEqual:
					ok = v&a.Value == a.ValueTwo
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
	switch {
	case haveF:
		return fixed
	case haveC:
		return conditional
	case known && c.number > highest && p.DefaultAction == specs.ActErrno:
		return unix.SECCOMP_RET_ERRNO | uint32(unix.ENOSYS)
	}
	return rest
}

func TestProfilesDecideAsWritten(t *testing.T) {
	names := abis["amd64"][0].numbers()
	pick := []string{"read", "write", "open", "socket", "clone", "clone3", "personality", "io_uring_setup",
		"not_a_call", "ptrace", "mount"}
	rapid.Check(t, func(t *rapid.T) {
		value := rapid.SampledFrom([]uint64{0, 1, 2, 40, 0xffffffff, 1 << 32, 1<<32 | 1, 0x7e020000, 1 << 63,
			^uint64(0)})
		p := &specs.LinuxSeccomp{DefaultAction: rapid.SampledFrom([]specs.LinuxSeccompAction{specs.ActErrno,
			specs.ActAllow}).Draw(t, "default")}
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
		prog, err := compile(p, "amd64")
		if err != nil {
			t.Fatal(err)
		}
		run := machine(t, prog)
		for range 20 {
			c := call{arch: unix.AUDIT_ARCH_X86_64, number: uint32(rapid.IntRange(0, 500).Draw(t, "number"))}
			if n, ok := names[rapid.SampledFrom(pick).Draw(t, "call")]; ok && rapid.Bool().Draw(t, "named") {
				c.number = n
			}
			for i := range c.args {
				c.args[i] = value.Draw(t, "arg")
			}
			if got, want := run(c), reference(p, names, c); got != want {
				t.Fatalf("call %+v: %#x, want %#x", c, got, want)
			}
		}
	})
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
