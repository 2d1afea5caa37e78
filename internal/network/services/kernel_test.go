package services

import (
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
