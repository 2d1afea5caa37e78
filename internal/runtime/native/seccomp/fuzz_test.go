package seccomp

import (
	"encoding/json"
	"testing"

	specs "github.com/opencontainers/runtime-spec/specs-go"
)

// FuzzProfiles compiles profiles as a user's file may contain them: the result is an error, or a program that decides
// as the profile specifies.
func FuzzProfiles(f *testing.F) {
	for _, text := range []string{
		`{"defaultAction":"SCMP_ACT_ERRNO","architectures":["SCMP_ARCH_X86_64","SCMP_ARCH_X86","SCMP_ARCH_X32"],"syscalls":[{"names":["read","write","socket"],"action":"SCMP_ACT_ALLOW"},{"names":["personality"],"action":"SCMP_ACT_ALLOW","args":[{"index":0,"value":8,"op":"SCMP_CMP_EQ"}]}]}`,
		`{"defaultAction":"SCMP_ACT_ALLOW","defaultErrnoRet":38,"syscalls":[{"names":["clone"],"action":"SCMP_ACT_ERRNO","errnoRet":1,"args":[{"index":0,"value":2114060288,"valueTwo":0,"op":"SCMP_CMP_MASKED_EQ"},{"index":5,"value":1,"op":"SCMP_CMP_GT"}]}]}`,
		`{"defaultAction":"SCMP_ACT_NOTIFY","listenerPath":"/run/x","flags":["SECCOMP_FILTER_FLAG_LOG"],"syscalls":[{"names":["mount"],"action":"SCMP_ACT_NOTIFY"}]}`,
		`{"defaultAction":"SCMP_ACT_TRACE","syscalls":[{"names":[""],"action":"SCMP_ACT_KILL_PROCESS","args":[{"index":6,"op":"SCMP_CMP_LE"}]}]}`, `{}`,
	} {
		f.Add([]byte(text), uint32(1), uint64(8))
	}
	f.Fuzz(func(t *testing.T, text []byte, number uint32, arg uint64) {
		p := &specs.LinuxSeccomp{}
		if json.Unmarshal(text, p) != nil {
			return
		}
		for _, arch := range []string{"amd64", "arm64"} {
			program, err := compile(p, arch)
			if err != nil || program == nil {
				continue
			}
			abi := abis[arch][0]
			c := call{arch: abi.audit, number: number % 1000, args: [6]uint64{arg, arg, arg, arg, arg, arg}}
			if got, want := machine(t, program)(c), reference(p, abi, c); got != want {
				t.Errorf("%s: call %d (%d): %#x, want %#x of %s", arch, c.number, arg, got, want, text)
			}
		}
	})
}
