package scheduler

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"carob/internal/base/confirm"
	"carob/internal/core/placement"
)

// preempt decides again with the disruption budgets and deletes the victims in the background. The
// pod stays out of the queue until this is done (L2.53).
func (s *Scheduler) preempt(ctx context.Context, it *item, budgets []*policyv1.PodDisruptionBudget) {
	pod := it.pod.Object
	if s.queue.items[pod.UID] != it {
		return // deleted meanwhile
	}
	began := time.Now()
	d, extend := s.decideAgain(it)
	if extend {
		s.consult(ctx, it)
		return
	}
	if d.Node != "" { // resources became free while the budgets were read
		s.assume(ctx, it, d.Node, began)
		return
	}
	preemptions.Inc()
	d.Unusable, d.InUse = s.unusable(it, d)
	p := s.cluster.Preempt(it.pod, d, budgets)
	if p.Node != "" && s.preemptWith(ctx, it, d, budgets, began) {
		return
	}
	s.evict(ctx, it, d, p, budgets, began)
}

// evict deletes the victims of a preemption, or reports why there is none. budgets are those that the victims were
// chosen with; they count the victims afterwards.
func (s *Scheduler) evict(ctx context.Context, it *item, d placement.Decision, p placement.Preemption,
	budgets []*policyv1.PodDisruptionBudget, began time.Time) {
	pod := it.pod.Object
	if p.Node == "" {
		s.reject(ctx, it, d, p, began)
		return
	}
	preemptionVictims.Observe(float64(len(p.Victims)))
	s.queue.Watch(it, d.Filters())
	message := d.Message("") // before the cluster changes
	placement.Spend(budgets, p.Victims)
	s.requeue(s.cluster.Nominate(it.pod, p.Node))
	s.unscheduled(ctx, pod, corev1.PodReasonUnschedulable, message, nomination{true, p.Node})
	s.record(pod, "", message+" Preempting on "+p.Node, began)
	s.giveWay(ctx, it.pod, p.Node)
	s.calls.Do(pod.UID, func() {
		err := s.removeVictims(ctx, pod, p.Victims, p.Node)
		s.box.post(func() {
			if err != nil {
				s.requeue(s.cluster.RemoveNomination(pod.UID))
				s.failed(ctx, it, err)
				return
			}
			s.attempted(it, noRoom)
			s.awaitVictims(it, p.Victims)
		})
	})
}

// awaitVictims parks a pod when the watch shows that its victims are gone or end. Before that, another attempt would
// find their node full and preempt them again.
func (s *Scheduler) awaitVictims(it *item, victims []*placement.Pod) {
	for _, v := range victims {
		uid := v.Object.UID
		if now := s.cluster.Pod(uid); now != nil && now.Object.DeletionTimestamp == nil {
			s.leaving[uid] = append(s.leaving[uid], it)
			it.victims++
		}
	}
	if it.victims == 0 {
		s.queue.Park(it, it.refused, time.Now())
	}
}

// victimLeaves parks the pods of which this was the last victim that was not seen to end.
func (s *Scheduler) victimLeaves(uid types.UID) {
	waiting := s.leaving[uid]
	delete(s.leaving, uid)
	for _, it := range waiting {
		if it.victims--; it.victims == 0 {
			s.queue.Park(it, it.refused, time.Now())
		}
	}
}

// giveWay removes the nominations of pods of lower priority to the node: they may no longer fit
// beside p, and need another node (L2.52).
func (s *Scheduler) giveWay(ctx context.Context, p *placement.Pod, node string) {
	for _, o := range s.cluster.NominatedBelow(p, node) {
		s.requeue(s.cluster.RemoveNomination(o.Object.UID))
		it := s.queue.items[o.Object.UID]
		if it == nil {
			continue
		}
		s.patchStatus(ctx, it.pod.Object, statusPatch(it.pod.Object, nil, nomination{true, ""}, time.Now()))
		s.queue.Retry(it, time.Now())
	}
}

// removeVictims deletes the victims in parallel, each with its own grace period (L2.52).
func (s *Scheduler) removeVictims(ctx context.Context, preemptor *corev1.Pod, victims []*placement.Pod,
	node string) error {
	errs := make([]error, len(victims))
	var group sync.WaitGroup
	for i, v := range victims {
		group.Go(func() { errs[i] = s.removeVictim(ctx, preemptor, v.Object, node) })
	}
	group.Wait()
	return errors.Join(errs...)
}

func (s *Scheduler) removeVictim(ctx context.Context, preemptor, victim *corev1.Pod, node string) error {
	if victim.DeletionTimestamp != nil {
		return nil // it is already being deleted
	}
	pods := s.client.CoreV1().Pods(victim.Namespace)
	patch := statusPatch(victim, &corev1.PodCondition{
		Type:    corev1.DisruptionTarget,
		Status:  corev1.ConditionTrue,
		Reason:  corev1.PodReasonPreemptionByScheduler,
		Message: s.profileOf(preemptor).Name + ": preempting to accommodate a higher priority pod",
	}, nomination{}, time.Now())
	_, err := pods.Patch(ctx, victim.Name, types.StrategicMergePatchType, patch, metav1.PatchOptions{}, "status")
	if err == nil {
		err = pods.Delete(ctx, victim.Name,
			metav1.DeleteOptions{Preconditions: metav1.NewUIDPreconditions(string(victim.UID))})
	}
	deleted := err == nil
	if err = confirm.Ended(ctx, victim.UID, err, confirm.By(pods.Get, victim.Name)); err != nil {
		return fmt.Errorf("preempt pod %s/%s: %w", victim.Namespace, victim.Name, err)
	}
	if !deleted {
		return nil // another client deletes it
	}
	s.recorders[s.profileOf(preemptor).Name].Eventf(victim, preemptor, corev1.EventTypeNormal, "Preempted",
		"Preempting", "Preempted by pod %s on node %s", preemptor.UID, node)
	return nil
}
