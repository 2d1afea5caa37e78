package services

import (
	"fmt"
	"testing"
)

// BenchmarkUpdate measures one endpoint change among n Services, and adding all of them at once.
func BenchmarkUpdate(b *testing.B) {
	for _, n := range []int{1, 1000, 10_000} {
		var all []Input
		for i := range n {
			all = append(all, simple(i, 2))
		}
		b.Run(fmt.Sprint("one of ", n), func(b *testing.B) {
			s := New(false, Node{Name: "here"})
			s.Update(all)
			two, three := simple(0, 2), simple(0, 3)
			for i := 0; b.Loop(); i++ {
				if i%2 == 0 {
					s.Update([]Input{three})
				} else {
					s.Update([]Input{two})
				}
			}
		})
		b.Run(fmt.Sprint("all of ", n), func(b *testing.B) {
			for b.Loop() {
				New(false, Node{Name: "here"}).Update(all)
			}
		})
	}
}
