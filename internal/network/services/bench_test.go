package services

import (
	"fmt"
	"testing"

	core "carob/internal/core/netplan/services"
)

// BenchmarkChange measures one endpoint change among n Services, from the decision until the kernel has it.
func BenchmarkChange(b *testing.B) {
	for _, n := range []int{1, 1000, 10_000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			p := newPlane(b, false)
			var all []core.Input
			for i := range n {
				in := p.service(fmt.Sprint("s", i), fmt.Sprintf("10.96.%d.%d", i/250, 1+i%250), nil, "pod1", "pod2")
				all = append(all, in)
			}
			p.must(p.nft.Apply(p.change(p.state.Update(all))))
			ip := "10.96.0.1"
			two, three := p.service("s0", ip, nil, "pod1", "pod2"), p.service("s0", ip, nil, "pod1", "pod2", "pod3")
			for i := 0; b.Loop(); i++ {
				in := two
				if i%2 == 0 {
					in = three
				}
				p.must(p.nft.Apply(p.change(p.state.Update([]core.Input{in}))))
			}
		})
	}
}
