package cluster

import (
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/types"

	"carob/internal/core/placement"
	"carob/internal/sim/fakeapi"
)

// preempting reports whether the watch has not shown yet that all victims of a pod are being deleted: the
// real scheduler does not retry the pod before that either.
func (s *scheduler) preempting(uid types.UID) bool {
	s.victims[uid] = slices.DeleteFunc(s.victims[uid], func(victim types.UID) bool {
		p, ok := s.pods.Get(victim).(*corev1.Pod)
		return !ok || p.DeletionTimestamp != nil
	})
	return len(s.victims[uid]) > 0
}

// preempt deletes less important pods for a pod that fits nowhere (L2.50 to L2.53). It returns false if the
// process has ended.
func (s *scheduler) preempt(p *corev1.Pod, prepared *placement.Pod, d placement.Decision) bool {
	w := s.c.w
	if !w.kind.preempts() {
		return true // all are as important: an event may help
	}
	pod := prepared
	if w.options.Sabotage.Unfair {
		pod = s.prepared(p)
		pod.Priority += 5000
	}
	chosen := s.snapshot.Preempt(pod, d, fakeapi.All[*policyv1.PodDisruptionBudget](w.API))
	if chosen.Node == "" {
		if chosen.NoHelp {
			s.snapshot.RemoveNomination(p.UID)
		}
		return true // an event may help
	}
	s.snapshot.Nominate(prepared, chosen.Node)
	for _, lower := range s.snapshot.NominatedBelow(prepared, chosen.Node) {
		s.snapshot.RemoveNomination(lower.Object.UID)
	}
	err := s.nominate(p.UID, chosen.Node)
	for _, victim := range chosen.Victims {
		if err == nil && victim.Object.DeletionTimestamp == nil {
			err = s.evict(p, victim.Object)
		}
	}
	if err != nil {
		s.snapshot.RemoveNomination(p.UID)
		s.notBefore[p.UID] = w.Now.Add(time.Second)
	}
	return !failed(err)
}

func (s *scheduler) nominate(uid types.UID, node string) error {
	_, err := s.c.client.Patch(uid, func(o fakeapi.Object) {
		if p, ok := o.(*corev1.Pod); ok {
			p.Status.NominatedNodeName = node
		}
	})
	return ignoreMissing(err)
}

// evict deletes a victim.
func (s *scheduler) evict(preemptor, victim *corev1.Pod) error {
	w := s.c.w
	w.checkPreempted(preemptor, victim)
	if _, err := s.c.client.Patch(victim.UID, func(o fakeapi.Object) {
		disrupt(o, corev1.PodReasonPreemptionByScheduler, w.Now)
	}); err != nil {
		return ignoreMissing(err)
	}
	w.logf("%s is preempted for %s", victim.Name, preemptor.Name)
	if _, err := s.c.client.Delete(victim.UID, podGrace); err != nil {
		return ignoreMissing(err)
	}
	s.victims[preemptor.UID] = append(s.victims[preemptor.UID], victim.UID)
	return nil
}
