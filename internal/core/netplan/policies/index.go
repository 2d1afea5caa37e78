package policies

import (
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/selection"
)

// anchor is a key of the index of selectors: a label that the selector requires. A selector that
// requires none has the anchor without a label, which each lookup includes.
type anchor struct{ scope, key, value string }

// anchorsOf returns the anchors of a selector: all objects that it matches have one of these
// labels.
func anchorsOf(scope string, s labels.Selector) []anchor {
	var best []anchor
	requirements, _ := s.Requirements()
	for _, r := range requirements {
		values := r.ValuesUnsorted()
		switch r.Operator() {
		case selection.In, selection.Equals, selection.DoubleEquals:
		default:
			continue
		}
		if best != nil && len(values) >= len(best) {
			continue
		}
		best = nil
		for _, v := range values {
			best = append(best, anchor{scope, r.Key(), v})
		}
	}
	if best == nil {
		return []anchor{{scope: scope}}
	}
	return best
}

// lookups returns the anchors of all selectors that may match these labels.
func lookups(scope string, l map[string]string) map[anchor]struct{} {
	all := make(map[anchor]struct{}, len(l)+1)
	all[anchor{scope: scope}] = struct{}{}
	for k, v := range l { // any order: a set of places
		all[anchor{scope, k, v}] = struct{}{}
	}
	return all
}

func link[T comparable](index map[anchor]map[T]struct{}, at []anchor, t T) {
	for _, a := range at {
		if index[a] == nil {
			index[a] = map[T]struct{}{}
		}
		index[a][t] = struct{}{}
	}
}

func unlink[T comparable](index map[anchor]map[T]struct{}, at []anchor, t T) {
	for _, a := range at {
		delete(index[a], t)
		if len(index[a]) == 0 {
			delete(index, a)
		}
	}
}
