package placement

import (
	"slices"

	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/selection"
)

// podLabel is one label of the pods of a namespace.
type podLabel struct{ namespace, key, value string }

// labelled are the counted pods with each label, in no order. For a selector that requires a label, only these pods
// are checked, and so the cost of a new group does not grow with the other pods of its namespace.
type labelled map[podLabel][]*Pod

// place is where a list of labelled has a pod.
type place struct {
	key string
	at  int
}

func (l labelled) add(p *Pod) {
	p.places = make([]place, 0, len(p.Object.Labels))
	for key, value := range p.Object.Labels { // any order: each label has its own list
		of := podLabel{p.Object.Namespace, key, value}
		p.places = append(p.places, place{key, len(l[of])})
		l[of] = append(l[of], p)
	}
}

func (l labelled) remove(p *Pod) {
	for _, at := range p.places {
		of := podLabel{p.Object.Namespace, at.key, p.Object.Labels[at.key]}
		pods := l[of]
		last := len(pods) - 1
		moved := pods[last]
		pods[at.at], pods[last] = moved, nil
		moved.places[slices.IndexFunc(moved.places, func(o place) bool { return o.key == at.key })].at = at.at
		if last == 0 {
			delete(l, of)
		} else {
			l[of] = pods[:last]
		}
	}
	p.places = nil
}

// selected returns candidates for a selector: all counted pods of a namespace that it matches, and few others. It
// takes the pods with the required label that has the fewest pods.
func (c *Cluster) selected(namespace string, selector labels.Selector) []*Pod {
	requirements, some := selector.Requirements()
	if !some {
		return nil
	}
	few := c.byNamespace[namespace]
	for i := range requirements {
		r := &requirements[i]
		switch r.Operator() {
		case selection.In, selection.Equals, selection.DoubleEquals:
			if values := r.ValuesUnsorted(); len(values) == 1 {
				if pods := c.labelled[podLabel{namespace, r.Key(), values[0]}]; len(pods) < len(few) {
					few = pods
				}
			}
		}
	}
	return few
}
