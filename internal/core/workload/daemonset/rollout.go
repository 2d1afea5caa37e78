package daemonset

import (
	"fmt"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

func scaled(v *intstr.IntOrString, of int) (int, error) {
	if v == nil {
		return 0, nil
	}
	return intstr.GetScaledValueFromIntOrPercent(v, of, true) // W4.52
}

// surges reports whether a node may run an old and a new pod at the same time.
func surges(set *appsv1.DaemonSet) bool {
	r := set.Spec.UpdateStrategy.RollingUpdate
	if set.Spec.UpdateStrategy.Type != appsv1.RollingUpdateDaemonSetStrategyType || r == nil {
		return false
	}
	n, err := scaled(r.MaxSurge, 1)
	return err == nil && n > 0
}

// budgets returns maxUnavailable and maxSurge as numbers of nodes (W4.52).
func (s *sync) budgets() (unavailable, surge int, err error) {
	desired := int(s.plan.Status.DesiredNumberScheduled)
	if r := s.Set.Spec.UpdateStrategy.RollingUpdate; r != nil {
		if unavailable, err = scaled(r.MaxUnavailable, desired); err != nil {
			return 0, 0, fmt.Errorf("invalid value for MaxUnavailable: %w", err)
		}
		if surge, err = scaled(r.MaxSurge, desired); err != nil {
			return 0, 0, fmt.Errorf("invalid value for MaxSurge: %w", err)
		}
	}
	if unavailable == 0 && surge == 0 {
		unavailable = 1
	}
	return unavailable, surge, nil
}

// rollout plans the replacement of old pods within the limits of the strategy (W4.53–W4.57).
func (s *sync) rollout() error {
	unavailable, surge, err := s.budgets()
	if err != nil {
		return err
	}
	if surge == 0 {
		s.replace(unavailable)
	} else {
		s.surge(surge)
	}
	return nil
}

// pair returns the new and the old pod of a node, without terminating pods. several means that there are two of one
// kind, which manage resolves.
func (s *sync) pair(node string) (newer, older *corev1.Pod, several bool) {
	for _, p := range s.on[node] {
		if p.DeletionTimestamp != nil {
			continue // neither old nor new (W4.56)
		}
		which := &newer
		if s.old(p) {
			which = &older
		}
		if *which != nil {
			return nil, nil, true
		}
		*which = p
	}
	return newer, older, false
}

// concerned returns the nodes that a rollout considers: those that should run a pod, and those that have one.
func (s *sync) concerned() []string {
	var list []string
	for _, name := range s.names() {
		if len(s.on[name]) == 0 {
			if run, _ := s.eligible.Of(s.nodes[name]); !run {
				continue
			}
		}
		list = append(list, name)
	}
	return list
}

// replace deletes old pods: all unavailable ones, and as many available ones as the budget allows (W4.53).
func (s *sync) replace(budget int) {
	var candidates []*corev1.Pod
	for _, name := range s.concerned() {
		newer, older, several := s.pair(name)
		switch {
		case several, newer == nil && older == nil, newer != nil && older != nil:
			budget--
		case newer != nil:
			if !s.available(newer) {
				budget--
			}
		case !s.available(older):
			s.delete(older)
			budget--
		default:
			candidates = append(candidates, older)
		}
	}
	for _, p := range candidates[:min(len(candidates), max(0, budget))] {
		s.delete(p)
	}
}

// surge creates new pods next to old ones and deletes old pods whose replacement is available (W4.54, W4.55).
func (s *sync) surge(budget int) {
	var candidates []string
	var leave []*corev1.Pod // available, on nodes that are no longer eligible
	available := 0
	for _, name := range s.concerned() {
		newer, older, several := s.pair(name)
		if several {
			budget--
			continue
		}
		if p := older; p != nil || newer != nil {
			if p == nil {
				p = newer
			}
			if s.available(p) {
				available++
			}
		}
		node := s.nodes[name]
		switch {
		case older == nil || node == nil: // handled by manage and by the pod garbage collector (W4.40, W4.56)
		case newer != nil && s.available(newer):
			s.delete(older)
		case newer != nil:
			budget--
		default:
			run, _ := s.eligible.Of(node)
			switch there := s.available(older); {
			case !run && there:
				leave = append(leave, older)
			case !run:
				s.delete(older)
			case !there:
				s.create(name)
			default:
				candidates = append(candidates, name)
			}
		}
	}
	spare := available - int(s.plan.Status.DesiredNumberScheduled)
	for _, p := range leave[:min(len(leave), max(0, spare))] {
		s.delete(p)
	}
	for _, name := range candidates[:min(len(candidates), max(0, budget))] {
		s.create(name)
	}
}
