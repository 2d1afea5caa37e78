package services

import (
	"errors"
	"fmt"
	"net/netip"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"github.com/google/nftables"

	"carob/internal/base/netns"
)

// kernelElements counts the elements of the kernel's sets.
func (p *testPlane) kernelElements() map[string]int {
	p.t.Helper()
	out := map[string]int{}
	p.must(netns.Do(p.path("node"), func() error {
		conn, err := nftables.New(nftables.AsLasting())
		if err != nil {
			return err
		}
		defer func() { _ = conn.CloseLasting() }()
		table := &nftables.Table{Name: "carob-test", Family: p.family()}
		sets, err := conn.GetSets(table)
		if err != nil {
			return err
		}
		for _, s := range sets {
			list, err := conn.GetSetElements(s)
			if err != nil {
				return err
			}
			out[s.Name] = len(list)
		}
		return nil
	}))
	return out
}

// The table that an earlier version left has the chain `tell`, which rules lead to: the next process replaces these
// rules, and empties the chain, which is deleted with a later change.
func TestChainOfEarlierVersion(t *testing.T) {
	p := newPlane(t, false)
	p.update(p.service("a", p.ip(1), nil))
	run := func(script string) string {
		t.Helper()
		var out []byte
		p.must(netns.Do(p.path("node"), func() (err error) {
			if out, err = exec.Command("sh", "-c", script).CombinedOutput(); err != nil {
				err = fmt.Errorf("%s: %w: %s", script, err, out)
			}
			return err
		}))
		return string(out)
	}
	run("nft 'add chain ip carob-test tell; add rule ip carob-test tell drop; " +
		"insert rule ip carob-test refuse goto tell'")
	p.open()
	p.must(p.nft.Sync(p.content(p.state)))
	table := run("nft list table ip carob-test")
	if !strings.Contains(table, "chain "+chainReject+" {") {
		t.Errorf("no chain %s", chainReject)
	}
	if strings.Contains(table, "goto tell") || !strings.Contains(table, "chain tell {\n\t}") {
		t.Errorf("the chain of the earlier version is in use:\n%s", table)
	}
	vip := netip.AddrPortFrom(netip.MustParseAddr(p.ip(1)), 80)
	if _, _, err := p.reach("pod3", "tcp", vip, patience); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("a Service without endpoints: %v", err)
	}
}
