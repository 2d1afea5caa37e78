package seccomp

import (
	"maps"
	"slices"

	specs "github.com/opencontainers/runtime-spec/specs-go"
)

// mux is a system call that makes others: its first argument says which.
type mux struct {
	name  string
	mask  uint64 // of the argument
	calls map[string]uint64
}

// muxesI386 are those of 32-bit x86. A rule for one of the calls holds for both ways to make it, or a program could
// choose the way that no rule is for.
var muxesI386 = []mux{
	{name: "socketcall", mask: 0xffffffff, calls: map[string]uint64{
		"socket": 1, "bind": 2, "connect": 3, "listen": 4, "accept": 5, "getsockname": 6, "getpeername": 7,
		"socketpair": 8, "send": 9, "recv": 10, "sendto": 11, "recvfrom": 12, "shutdown": 13, "setsockopt": 14,
		"getsockopt": 15, "sendmsg": 16, "recvmsg": 17, "accept4": 18, "recvmmsg": 19, "sendmmsg": 20,
	}},
	// The upper half is a version, which the kernel does not compare.
	{name: "ipc", mask: 0xffff, calls: map[string]uint64{
		"semop": 1, "semget": 2, "semctl": 3, "semtimedop": 4, "msgsnd": 11, "msgrcv": 12, "msgget": 13, "msgctl": 14,
		"shmat": 21, "shmdt": 22, "shmget": 23, "shmctl": 24,
	}},
}

// muxed are the rules for a mux: its own, and those of the calls that it makes; nil if none is listed. Conditions on
// the first argument of such a call cannot be tested, for it is in memory: the rule holds without them, as libseccomp
// has it.
func (s *ruleSet) muxed(m mux) *callRules {
	own := s.byName[m.name]
	if own != nil && own.fixed {
		return own
	}
	made, listed := &callRules{always: s.rest}, own != nil
	if own != nil {
		made.chains = slices.Clone(own.chains)
	}
	for _, name := range slices.Sorted(maps.Keys(m.calls)) {
		r := s.byName[name]
		if r == nil {
			continue
		}
		listed = true
		is := specs.LinuxSeccompArg{Op: specs.OpMaskedEqual, Value: m.mask, ValueTwo: m.calls[name]}
		for _, c := range r.chains {
			args := slices.DeleteFunc(slices.Clone(c.args), func(a specs.LinuxSeccompArg) bool { return a.Index == 0 })
			made.chains = append(made.chains, chain{c.action, append([]specs.LinuxSeccompArg{is}, args...)})
		}
		if r.fixed {
			made.chains = append(made.chains, chain{r.always, []specs.LinuxSeccompArg{is}})
		}
	}
	if !listed {
		return nil
	}
	return made
}
