package scheduler

import (
	"context"
	"fmt"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/klog/v2"
	extenderv1 "k8s.io/kube-scheduler/extender/v1"

	"carob/internal/core/placement"
	"carob/internal/core/volume"
	"carob/internal/scheduler/devices"
	"carob/internal/scheduler/extender"
)

// scoreUnit converts a score of an extender, 0 to 10, to a score of a node, 0 to 100.
const scoreUnit = 10

// interested returns the extenders to call for a pod.
func (s *Scheduler) interested(pod *corev1.Pod) []*extender.Client {
	var list []*extender.Client
	for _, e := range s.extenders {
		if e.Interested(pod) {
			list = append(list, e)
		}
	}
	return list
}

// hasExtenders reports whether nodes that fit need further checks: by extenders, or for devices.
func (s *Scheduler) hasExtenders(p *placement.Pod) bool {
	return len(s.interested(p.Object)) > 0 || needsDevices(p) || needsVolumes(p)
}

// consult calls the extenders for a popped pod, one pod at a time: an extender may rely on knowing the node
// of the last pod before the call for the next one. Pods without an interested extender continue.
func (s *Scheduler) consult(ctx context.Context, it *item) {
	if s.consulting {
		s.toConsult = append(s.toConsult, it)
		return
	}
	began := time.Now()
	it.answers, it.devices, it.stored, it.storing = nil, nil, nil, false
	var needs *volume.Needs
	if needsVolumes(it.pod) {
		var no *volume.Refusal
		if needs, no = s.volumeNeeds(it.pod); no != nil {
			s.noNode(ctx, it, s.cluster.Nowhere(placement.Filter(no.By), no.Reasons[0]), began)
			return
		}
	}
	var attempt *devices.Attempt
	if needsDevices(it.pod) {
		var done bool
		if attempt, done = s.beginDevices(ctx, it, began); done {
			return
		}
		it.devices = attempt
	}
	nodes, d := s.cluster.Candidates(it.pod, s.start, attempt != nil || needs != nil)
	s.start = d.Next
	if len(nodes) == 0 {
		s.noNode(ctx, it, d, began)
		return
	}
	answers := placement.Answers{Accepted: map[string]bool{}, Refused: map[string]placement.Refusal{},
		Scores: map[string]int64{}}
	if needs != nil {
		nodes = checkVolumes(needs, nodes, &answers)
		if attempt == nil && len(s.interested(it.pod.Object)) == 0 {
			for _, n := range nodes {
				answers.Accepted[n.Name] = true
			}
			s.answered(ctx, it, answers, nil, began)
			return
		}
	}
	s.consulting = true
	refusedBy := []placement.Filter{placement.Extender}
	if len(s.interested(it.pod.Object)) == 0 {
		refusedBy = []placement.Filter{placement.DynamicResources}
	}
	s.queue.Watch(it, refusedBy)
	pod, enough, weight := it.pod.Object, s.cluster.Enough(it.pod), it.pod.Profile().Weights.Devices
	s.calls.Do(pod.UID, func() {
		var err error
		if attempt != nil {
			nodes, err = checkDevices(ctx, attempt, nodes, enough, &answers)
			for name, score := range attempt.Scores() {
				answers.Scores[name] = score * weight
			}
		}
		if err == nil {
			err = callExtenders(ctx, s.interested(pod), pod, nodes, &answers)
		}
		s.box.post(func() {
			s.consulting = false
			s.answered(ctx, it, answers, err, began)
			for len(s.toConsult) > 0 && !s.consulting {
				next := s.toConsult[0]
				s.toConsult = s.toConsult[1:]
				if s.queue.items[next.pod.Object.UID] == next {
					s.consult(ctx, next)
				}
			}
		})
	})
}

// answered continues with a pod after the calls of extenders.
func (s *Scheduler) answered(ctx context.Context, it *item, answers placement.Answers, err error, began time.Time) {
	if s.queue.items[it.pod.Object.UID] != it {
		return // deleted meanwhile
	}
	if err != nil {
		s.failed(ctx, it, err)
		return
	}
	d, again := s.cluster.Choose(it.pod, answers)
	switch {
	case d.Node != "":
		s.assume(ctx, it, d.Node, began)
	case again:
		s.toConsult = append(s.toConsult, it) // the accepted nodes are full by now
	default:
		it.answers = &answers
		s.noNode(ctx, it, d, began)
	}
}

// callExtenders calls the filters of extenders one after the other, each with the nodes that the previous ones
// accepted, then all of them for their scores. It reads the snapshot of nodes only.
func callExtenders(ctx context.Context, extenders []*extender.Client, pod *corev1.Pod, nodes []*corev1.Node,
	a *placement.Answers) error {
	for _, e := range extenders {
		if len(nodes) == 0 {
			break
		}
		result, err := e.Filter(ctx, pod, nodes)
		if err != nil {
			if e.Ignorable() {
				klog.FromContext(ctx).Info("Skipping an extender that does not answer",
					"extender", e.Name(), "err", err)
				continue
			}
			return err
		}
		for name, why := range result.Failed {
			a.Refused[name] = refusedBy(a.Refused[name], why, true)
		}
		for name, why := range result.Unresolvable {
			a.Refused[name] = refusedBy(a.Refused[name], why, false)
		}
		nodes = result.Nodes
	}
	for _, n := range nodes {
		a.Accepted[n.Name] = true
	}
	if len(nodes) < 2 {
		return nil
	}
	var mu sync.Mutex
	var all sync.WaitGroup
	for _, e := range extenders {
		all.Go(func() {
			scores, err := e.Scores(ctx, pod, nodes)
			if err != nil {
				// A failed score call must not keep pods from running.
				klog.FromContext(ctx).Info("An extender does not score; its scores are left out",
					"extender", e.Name(), "err", err)
			}
			mu.Lock()
			defer mu.Unlock()
			for name, score := range scores {
				a.Scores[name] += score * e.Weight() * scoreUnit
			}
		})
	}
	all.Wait()
	return nil
}

// refusedBy adds the reason of an extender; an unresolvable refusal stays unresolvable.
func refusedBy(before placement.Refusal, why string, curable bool) placement.Refusal {
	r := placement.Refusal{Filter: placement.Extender, Curable: curable && (before.Filter == "" || before.Curable)}
	r.Reasons = append(append(r.Reasons, before.Reasons...), why)
	return r
}

// decideAgain decides about a pod for which no node was found, with the results of extenders, if
// any. ask means that they must be called before a node is chosen.
func (s *Scheduler) decideAgain(it *item) (d placement.Decision, extend bool) {
	if it.answers != nil {
		return s.cluster.Choose(it.pod, *it.answers)
	}
	d = s.decide(it)
	s.start = d.Next
	return d, d.Node != "" && s.hasExtenders(it.pod)
}

// preemptWith lets extenders change the victims, then evicts what remains. It reports whether it does.
func (s *Scheduler) preemptWith(ctx context.Context, it *item, d placement.Decision,
	budgets []*policyv1.PodDisruptionBudget, began time.Time) bool {
	var changing []*extender.Client
	for _, e := range s.interested(it.pod.Object) {
		if e.Preempts() {
			changing = append(changing, e)
		}
	}
	if len(changing) == 0 {
		return false
	}
	s.queue.Watch(it, []placement.Filter{placement.Extender})
	pod, list := it.pod.Object, s.cluster.VictimsByNode(it.pod, d, budgets)
	s.calls.Do(pod.UID, func() {
		left, err := changeVictims(ctx, changing, pod, list)
		s.box.post(func() {
			if s.queue.items[pod.UID] != it {
				return
			}
			if err != nil {
				s.failed(ctx, it, err)
				return
			}
			s.evict(ctx, it, d, placement.PickVictims(left), budgets, began)
		})
	})
	return true
}

// changeVictims lets extenders change the victims on each node, one after the other.
func changeVictims(ctx context.Context, extenders []*extender.Client, pod *corev1.Pod, list []placement.Victims) (
	[]placement.Victims, error) {
	for _, e := range extenders {
		if len(list) == 0 {
			break
		}
		plan, known := map[string]*extenderv1.Victims{}, map[string]placement.Victims{}
		for _, v := range list {
			one := &extenderv1.Victims{NumPDBViolations: int64(v.Violating)}
			for _, p := range v.Pods {
				one.Pods = append(one.Pods, p.Object)
			}
			plan[v.Node], known[v.Node] = one, v
		}
		answer, err := e.Preempt(ctx, pod, plan)
		if err == nil {
			var next []placement.Victims
			if next, err = narrow(e.Name(), list, answer); err == nil {
				list = next
				continue
			}
		}
		if !e.Ignorable() {
			return nil, err
		}
		klog.FromContext(ctx).Info("Skipping an extender that does not answer", "extender", e.Name(), "err", err)
	}
	return list, nil
}

// narrow applies an extender's response, which may remove nodes and victims, but not add any.
func narrow(name string, list []placement.Victims, answer map[string]*extenderv1.MetaVictims) ([]placement.Victims,
	error) {
	var left []placement.Victims
	found := 0
	for _, v := range list {
		meta := answer[v.Node]
		if meta == nil {
			continue
		}
		found++
		one := placement.Victims{Node: v.Node, Violating: int(meta.NumPDBViolations)}
		byUID := map[string]*placement.Pod{}
		for _, p := range v.Pods {
			byUID[string(p.Object.UID)] = p
		}
		for _, m := range meta.Pods {
			if m == nil {
				return nil, fmt.Errorf("extender: %v returned a victim without a UID on node: %v", name, v.Node)
			}
			p := byUID[m.UID]
			if p == nil {
				return nil, fmt.Errorf("extender: %v claims to preempt pod (UID: %v) on node: %v, but the pod is not "+
					"found on that node", name, m.UID, v.Node)
			}
			one.Pods = append(one.Pods, p)
		}
		left = append(left, one)
	}
	if found < len(answer) {
		return nil, fmt.Errorf("extender: %v returned nodes that were not in the request", name)
	}
	return left, nil
}

// bind binds a pod, by an extender if one binds it.
func (s *Scheduler) bindBy(ctx context.Context, b *corev1.Binding, pod *corev1.Pod) (done bool, err error) {
	for _, e := range s.interested(pod) {
		if !e.Binds() {
			continue
		}
		if err := e.Bind(ctx, b); err != nil {
			if e.Ignorable() {
				continue
			}
			return true, err
		}
		return true, nil
	}
	return false, nil
}
