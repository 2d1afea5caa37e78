package scheduler

import (
	"context"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"carob/internal/base/journal"
	"carob/internal/core/placement"
)

// schedule makes one attempt for a popped pod.
func (s *Scheduler) schedule(ctx context.Context, it *item) {
	began := time.Now()
	it.began = began
	it.tries++
	if s.hasExtenders(it.pod) {
		s.consult(ctx, it)
		return
	}
	d := s.decide(it)
	s.start = d.Next
	if d.Node != "" {
		s.assume(ctx, it, d.Node, began)
		return
	}
	s.noNode(ctx, it, d, began)
}

// decide decides where a pod fits, and measures the time.
func (s *Scheduler) decide(it *item) placement.Decision {
	began := time.Now()
	d := s.cluster.Decide(it.pod, s.start)
	decisionSeconds.Observe(time.Since(began).Seconds())
	return d
}

// noNode checks whether a preemption may help a pod that fits nowhere.
func (s *Scheduler) noNode(ctx context.Context, it *item, d placement.Decision, began time.Time) {
	d.Unusable, d.InUse = s.unusable(it, d)
	p := s.cluster.MayPreempt(it.pod, d)
	if p.Node == "" {
		s.reject(ctx, it, d, p, began)
		return
	}
	s.queue.Watch(it, d.Filters())
	// Preemption may help. It depends on disruption budgets, which are read only now, for all pods that wait for them.
	if s.toPreempt = append(s.toPreempt, it); len(s.toPreempt) > 1 {
		return
	}
	s.calls.Do("", func() {
		budgets, err := s.budgets(ctx)
		s.box.post(func() {
			waiting := s.toPreempt
			s.toPreempt = nil
			for _, it := range waiting {
				if err != nil {
					s.failed(ctx, it, fmt.Errorf("list disruption budgets: %w", err))
					continue
				}
				s.preempt(ctx, it, budgets)
			}
		})
	})
}

// budgets lists all disruption budgets; none if the API does not serve them.
func (s *Scheduler) budgets(ctx context.Context) ([]*policyv1.PodDisruptionBudget, error) {
	list, err := s.client.PolicyV1().PodDisruptionBudgets(metav1.NamespaceAll).List(ctx,
		metav1.ListOptions{ResourceVersion: "0"})
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	budgets := make([]*policyv1.PodDisruptionBudget, len(list.Items))
	for i := range list.Items {
		budgets[i] = &list.Items[i]
	}
	return budgets, nil
}

// assume counts the pod on its node at once, so that the next decision includes it, and binds it in
// the background.
func (s *Scheduler) assume(ctx context.Context, it *item, node string, began time.Time) {
	pod := it.pod.Object
	s.requeue(s.cluster.SetPod(it.pod, node))
	s.assumed[pod.UID] = it
	s.reserveDevices(it, node)
	bind := func() {
		binding := &corev1.Binding{
			ObjectMeta: metav1.ObjectMeta{Namespace: pod.Namespace, Name: pod.Name, UID: pod.UID},
			Target:     corev1.ObjectReference{Kind: "Node", Name: node},
		}
		done, err := s.bindBy(ctx, binding, pod)
		if !done {
			err = s.client.CoreV1().Pods(pod.Namespace).Bind(ctx, binding, metav1.CreateOptions{})
		}
		if err == nil {
			s.placed.add(ctx, newPlaced(pod, s.profileOf(pod).Name, node, time.Now()))
			s.record(pod, node, "", began)
		}
		s.box.post(func() { s.bindingEnded(ctx, it, node, err) })
	}
	next := func() {
		s.placed.begin()
		s.calls.Do(pod.UID, func() {
			defer s.placed.end()
			bind()
		})
	}
	if it.devices != nil {
		next = func() {
			it.storing = true
			s.calls.Do(pod.UID, func() { s.storeDevices(ctx, it, node, bind) })
		}
	}
	plan, err := s.reserveVolumes(it, node)
	switch {
	case err != nil:
		s.bindingEnded(ctx, it, node, err)
	case plan != nil:
		s.calls.Do(pod.UID, func() { s.storeVolumes(ctx, it, node, plan, next) })
	default:
		next()
	}
}

// unassume ends the assumption that a pod is on its node.
func (s *Scheduler) unassume(pod types.UID) {
	it := s.assumed[pod]
	if it == nil {
		return
	}
	delete(s.assumed, pod)
	s.releaseDevices(it)
}

// bindingEnded handles the result of a binding. After a success, the watch shows the pod on its
// node. After a failure, the resources on the node are released.
func (s *Scheduler) bindingEnded(ctx context.Context, it *item, node string, err error) {
	pod := it.pod.Object
	s.forgetVolumes(pod.UID)
	if err == nil {
		s.attempted(it, scheduled)
		s.queue.Remove(pod.UID)
		return
	}
	if s.assumed[pod.UID] != it {
		return // deleted, or observed on a node, meanwhile
	}
	s.unassume(pod.UID)
	s.undoDevices(ctx, it)
	gone := s.cluster.Pod(pod.UID)
	s.requeue(s.cluster.RemovePod(pod.UID))
	s.volumesLeft(gone)
	if newer := it.newer; newer != nil { // it may be ending by now
		it.newer = nil
		s.podSeen(newer)
	}
	if apierrors.IsNotFound(err) && it.errors == 0 {
		// It was deleted, as the watch shows soon: nothing is reported. A webhook may refuse the binding with this
		// error, too: then the pod is tried again.
		s.queue.Fail(it, time.Now())
		return
	}
	if _, ok := errors.AsType[*volumeError](err); !ok {
		err = fmt.Errorf("bind pod to node %q: %w", node, err)
	}
	s.failed(ctx, it, err)
}

// failed reports an internal or API error, and retries later.
func (s *Scheduler) failed(ctx context.Context, it *item, err error) {
	if ctx.Err() != nil || s.queue.items[it.pod.Object.UID] != it {
		return // stopping, or deleted meanwhile
	}
	s.attempted(it, broken)
	klog.FromContext(ctx).Error(err, "Scheduling failed", "pod", klog.KObj(it.pod.Object))
	s.unscheduled(ctx, it.pod.Object, corev1.PodReasonSchedulerError, err.Error(), nomination{})
	s.queue.Fail(it, time.Now())
}

// reject parks a pod that fits nowhere and reports why (L2.40–L2.42). If a preemption cannot help
// either, the resources reserved for it are released.
func (s *Scheduler) reject(ctx context.Context, it *item, d placement.Decision, p placement.Preemption,
	began time.Time) {
	s.attempted(it, noRoom)
	message, filters := d.Message(p.Message), append(d.Filters(), p.Filters...) // before the cluster changes
	if freed := s.freeObstacle(ctx, it); freed != "" {
		message += " " + freed
	}
	if p.NoHelp {
		s.requeue(s.cluster.RemoveNomination(it.pod.Object.UID))
	}
	s.unscheduled(ctx, it.pod.Object, corev1.PodReasonUnschedulable, message, nomination{change: p.NoHelp})
	s.record(it.pod.Object, "", message, began)
	s.queue.Park(it, filters, time.Now())
}

func (s *Scheduler) record(pod *corev1.Pod, node, detail string, began time.Time) {
	now := time.Now()
	s.journal.Record(journal.Entry{
		Time: now, Namespace: pod.Namespace, Pod: pod.Name, UID: string(pod.UID),
		Kind: journal.Schedule, Key: node, Detail: detail, Duration: now.Sub(began),
	})
}
