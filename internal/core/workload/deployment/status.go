package deployment

import (
	"fmt"
	"slices"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"carob/internal/core/workload"
)

// Reasons of the condition Progressing that later decisions need.
const (
	newAvailable = "NewReplicaSetAvailable"
	timedOut     = "ProgressDeadlineExceeded"
	paused       = "DeploymentPaused"
)

func find(s *appsv1.DeploymentStatus, kind appsv1.DeploymentConditionType) *appsv1.DeploymentCondition {
	for i := range s.Conditions {
		if s.Conditions[i].Type == kind {
			return &s.Conditions[i]
		}
	}
	return nil
}

func (p *pass) condition(kind appsv1.DeploymentConditionType) *appsv1.DeploymentCondition {
	return find(&p.d.Status, kind)
}

func (p *pass) drop(kind appsv1.DeploymentConditionType) {
	p.d.Status.Conditions = slices.DeleteFunc(p.d.Status.Conditions,
		func(c appsv1.DeploymentCondition) bool { return c.Type == kind })
}

// set sets a condition unless it is equal already (W2.74). It then is the last in the list
// (W2.91).
func (p *pass) set(kind appsv1.DeploymentConditionType, status corev1.ConditionStatus, reason, message string) {
	now := metav1.NewTime(p.in.Now)
	p.put(appsv1.DeploymentCondition{Type: kind, Status: status, Reason: reason, Message: message, LastUpdateTime: now,
		LastTransitionTime: now})
}

func (p *pass) put(c appsv1.DeploymentCondition) {
	if old := p.condition(c.Type); old != nil && old.Status == c.Status {
		if old.Reason == c.Reason {
			return
		}
		c.LastTransitionTime = old.LastTransitionTime
	}
	p.drop(c.Type)
	p.d.Status.Conditions = append(p.d.Status.Conditions, c)
}

// notePause records when a rollout is paused and resumed, so that the time between does not count
// (W2.83).
func (p *pass) notePause() {
	c := p.condition(appsv1.DeploymentProgressing)
	if !hasDeadline(p.d) || c != nil && c.Reason == timedOut {
		return
	}
	switch noted := c != nil && c.Reason == paused; {
	case p.d.Spec.Paused && !noted:
		p.set(appsv1.DeploymentProgressing, corev1.ConditionUnknown, paused, "Deployment is paused")
	case !p.d.Spec.Paused && noted:
		p.set(appsv1.DeploymentProgressing, corev1.ConditionUnknown, "DeploymentResumed", "Deployment is resumed")
	}
}

// status returns the counts (W2.70, W2.71) and the condition Available (W2.75).
func (p *pass) status() {
	all := p.all()
	s := &p.d.Status
	s.ObservedGeneration = p.d.Generation
	s.Replicas = sum(all, func(s *appsv1.ReplicaSet) int32 { return s.Status.Replicas })
	s.UpdatedReplicas = 0
	if p.now != nil {
		s.UpdatedReplicas = p.now.Status.Replicas
	}
	s.ReadyReplicas = sum(all, func(s *appsv1.ReplicaSet) int32 { return s.Status.ReadyReplicas })
	s.AvailableReplicas = sum(all, func(s *appsv1.ReplicaSet) int32 { return s.Status.AvailableReplicas })
	s.UnavailableReplicas = max(0, sum(all, workload.Replicas)-s.AvailableReplicas)
	s.TerminatingReplicas = terminating(all)
	if s.AvailableReplicas >= p.minAvailable() {
		p.set(appsv1.DeploymentAvailable, corev1.ConditionTrue, "MinimumReplicasAvailable",
			"Deployment has minimum availability.")
	} else {
		p.set(appsv1.DeploymentAvailable, corev1.ConditionFalse, "MinimumReplicasUnavailable",
			"Deployment does not have minimum availability.")
	}
}

// terminating returns the sum; nil if an observed set does not report it.
func terminating(sets []*appsv1.ReplicaSet) *int32 {
	n := int32(0)
	for _, s := range sets {
		switch t := s.Status.TerminatingReplicas; {
		case t != nil:
			n += *t
		case s.Status.ObservedGeneration > 0:
			return nil
		}
	}
	return &n
}

// complete reports whether a rollout is complete (W2.73).
func complete(d *appsv1.Deployment, s *appsv1.DeploymentStatus) bool {
	size := int32(1)
	if d.Spec.Replicas != nil {
		size = *d.Spec.Replicas
	}
	return s.UpdatedReplicas == size && s.Replicas == size && s.AvailableReplicas == size &&
		s.ObservedGeneration >= d.Generation
}

// progressed reports whether a rollout has progressed since a status was stored (W2.79).
func progressed(from, to *appsv1.DeploymentStatus) bool {
	return to.UpdatedReplicas > from.UpdatedReplicas ||
		to.Replicas-to.UpdatedReplicas < from.Replicas-from.UpdatedReplicas ||
		to.ReadyReplicas > from.ReadyReplicas || to.AvailableReplicas > from.AvailableReplicas
}

// rolloutStatus returns the status with the condition Progressing (W2.86).
func (p *pass) rolloutStatus() {
	before := p.d.Status // the counts
	p.status()
	c := p.condition(appsv1.DeploymentProgressing)
	switch s := &p.d.Status; {
	case !hasDeadline(p.d):
		p.drop(appsv1.DeploymentProgressing)
	case s.Replicas == s.UpdatedReplicas && c != nil && c.Reason == newAvailable:
		// No rollout is in progress.
	case complete(p.d, s):
		p.set(appsv1.DeploymentProgressing, corev1.ConditionTrue, newAvailable,
			p.subject()+" has successfully progressed.")
	case progressed(&before, s):
		now := metav1.NewTime(p.in.Now)
		next := appsv1.DeploymentCondition{Type: appsv1.DeploymentProgressing, Status: corev1.ConditionTrue,
			Reason:  "ReplicaSetUpdated",
			Message: p.subject() + " is progressing.", LastUpdateTime: now, LastTransitionTime: now}
		if c != nil && c.Status == corev1.ConditionTrue {
			next.LastTransitionTime = c.LastTransitionTime
		}
		p.drop(appsv1.DeploymentProgressing) // each progress updates the time, also with the same reason
		p.put(next)
	case c != nil && c.Reason != newAvailable && c.Reason != timedOut && p.deadline(c).Before(p.in.Now):
		p.set(appsv1.DeploymentProgressing, corev1.ConditionFalse, timedOut, p.subject()+" has timed out progressing.")
	}
	if failure := p.failure(); failure != nil {
		p.put(*failure)
	} else {
		p.drop(appsv1.DeploymentReplicaFailure)
	}
	p.awaitDeadline()
}

func (p *pass) deadline(c *appsv1.DeploymentCondition) time.Time {
	return c.LastUpdateTime.Add(time.Duration(*p.d.Spec.ProgressDeadlineSeconds) * time.Second)
}

// awaitDeadline schedules the next decision for the time at which a rollout without progress times
// out (W2.89).
func (p *pass) awaitDeadline() {
	c := p.condition(appsv1.DeploymentProgressing)
	if c == nil || c.Reason == timedOut || c.Reason == newAvailable || complete(p.d, &p.d.Status) {
		return
	}
	p.plan.Next = workload.Earlier(p.plan.Next, p.deadline(c).Add(time.Second))
}

// subject returns the object in messages (W2.85).
func (p *pass) subject() string {
	if p.now == nil {
		return fmt.Sprintf("Deployment %q", p.d.Name)
	}
	return fmt.Sprintf("ReplicaSet %q", p.now.Name)
}

// failure returns why pods of a set cannot be created, of the new one first (W2.84).
func (p *pass) failure() *appsv1.DeploymentCondition {
	all := p.old
	if p.now != nil {
		all = append([]*appsv1.ReplicaSet{p.now}, all...)
	}
	for _, s := range all {
		for _, c := range s.Status.Conditions {
			if c.Type == appsv1.ReplicaSetReplicaFailure {
				return &appsv1.DeploymentCondition{Type: appsv1.DeploymentReplicaFailure, Status: c.Status,
					Reason: c.Reason, Message: c.Message,
					LastTransitionTime: c.LastTransitionTime, LastUpdateTime: c.LastTransitionTime}
			}
		}
	}
	return nil
}
