package policy

import (
	"bufio"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"testing"

	"carob/internal/core/netplan/policies"
)

// isolateOne isolates one pod, whatever else changes.
func isolateOne(p *policies.Plan) {
	_ = p.SetPolicy(deny("always", "always"))
	p.SetPod(policies.Pod{UID: "always", Namespace: "x", Here: true, Addresses: []netip.Addr{at(100)},
		Labels: map[string]string{"app": "always"}})
}

// TestWriter is the process that TestKilled kills: it writes random changes until then.
func TestWriter(t *testing.T) {
	if os.Getenv("POLICY_WRITER") == "" {
		t.Skip("only as a process of TestKilled")
	}
	e, both := enforcer(t), halves()
	isolateOne(e.plan)
	d := dice{rand.New(rand.NewPCG(rand.Uint64(), 1)), 12}
	for {
		if err := e.put(t.Context(), both); err != nil {
			t.Fatal(err)
		}
		fmt.Println("written")
		for range 5 {
			d.change(e.plan)
		}
	}
}

// A process is killed while it writes. No isolated pod is open meanwhile, and the next process repairs the tables.
func TestKilled(t *testing.T) {
	in(t, func(t *testing.T) {
		for round := range 10 {
			cmd := exec.Command(os.Args[0], "-test.run=^TestWriter$")
			cmd.Env = append(os.Environ(), "POLICY_WRITER=1")
			out, err := cmd.StdoutPipe()
			if err != nil {
				t.Fatal(err)
			}
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			lines := bufio.NewScanner(out)
			for range 1 + 7*round {
				if !lines.Scan() {
					t.Fatalf("the writer ended: %v", cmd.Wait())
				}
			}
			if err := cmd.Process.Kill(); err != nil { // in the middle of something
				t.Fatal(err)
			}
			_ = cmd.Wait()
			if !isolated(t, 100) {
				t.Fatalf("round %d: open\n%s", round, listing(t))
			}
			e, both := enforcer(t), halves()
			isolateOne(e.plan)
			dice{rand.New(rand.NewPCG(9, uint64(round))), 12}.change(e.plan)
			err = e.put(t.Context(), both)
			if have, want := kernel(t), fresh(t, e.plan); err != nil || !slices.Equal(have, want) {
				t.Errorf("round %d: %v\nthe kernel has\n%q\nfresh is\n%q", round, err, have, want)
			}
			closeAll(both)
		}
	})
}
