package services

import (
	"fmt"
	"slices"

	"k8s.io/apimachinery/pkg/types"
)

// Problem is the reason why an address or port of a Service does not work.
type Problem struct {
	Service types.NamespacedName
	Text    string
}

// maxProblems is how many problems of a Service are reported one by one: each becomes an event.
const maxProblems = 10

// problems lists what of a Service is not served, in the order of the texts.
func (s *State) problems(name types.NamespacedName, now *compiled) []Problem {
	if first := s.owners[now.ip][0]; first != name {
		return []Problem{{name, fmt.Sprintf("its cluster IP %s belongs to Service %s: it is not served", now.ip,
			first)}}
	}
	texts := slices.Clone(now.problems)
	// any order: sorted below
	for p := range now.vips {
		if first := s.ports[p][0]; first != name {
			texts = append(texts, fmt.Sprintf("%s belongs to Service %s: this Service is not served there", p, first))
		}
	}
	if slices.Sort(texts); len(texts) > maxProblems {
		texts = append(texts[:maxProblems],
			fmt.Sprintf("and %d more of its addresses and ports", len(texts)-maxProblems))
	}
	var out []Problem
	for _, text := range texts {
		out = append(out, Problem{name, text})
	}
	return out
}
