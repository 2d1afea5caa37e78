package metrics

import (
	"context"
	"slices"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"carob/internal/core/podlife"
	"carob/internal/node/execute"
	"carob/internal/node/pods"
)

// Executor returns an executor that also counts starts and probes.
func (m *Meter) Executor(inner pods.Executor) pods.Executor { return &executor{inner, m} }

type executor struct {
	pods.Executor
	m *Meter
}

// Do implements pods.Executor.
func (e *executor) Do(ctx context.Context, pod *corev1.Pod, action podlife.Action) pods.Result {
	began := time.Now()
	if _, pulls := action.(podlife.PullImage); pulls {
		e.m.pulls(pod, 1)
		defer e.m.pulls(pod, -1)
	}
	r := e.Executor.Do(ctx, pod, action)
	switch a := action.(type) {
	case podlife.CreateSandbox:
		userNS := pod.Spec.HostUsers != nil && !*pod.Spec.HostUsers
		e.m.podsStarted.Inc()
		if userNS {
			e.m.userNSPodsStarted.Inc()
		}
		if r.Err != nil {
			e.m.podsFailed.Inc()
			if userNS {
				e.m.userNSPodsFailed.Inc()
			}
		}
	case podlife.StartContainer:
		kind := containerType(pod, a.Container)
		e.m.containersStarted.WithLabelValues(kind).Inc()
		if r.Err != nil {
			e.m.containersFailed.WithLabelValues(kind, r.Err.Reason).Inc()
		}
	case podlife.PullImage:
		if r.Err == nil && r.Pulled != nil && r.Pulled.Took > 0 {
			e.m.imagePull.WithLabelValues(sizeBucket(r.Pulled.Size)).Observe(r.Pulled.Took.Seconds())
		}
	case podlife.RunProbe:
		if r.Err == nil { // else it was cancelled
			e.m.probeTotal.WithLabelValues(string(a.Type), result(r.Verdict), a.Container, pod.Name, pod.Namespace,
				string(pod.UID)).Inc()
			if r.Verdict != podlife.ProbeFailure {
				e.m.probeTime.WithLabelValues(string(a.Type), a.Container, pod.Name,
					pod.Namespace).Observe(time.Since(began).Seconds())
			}
		}
	}
	return r
}

// pulls counts the pulls of a pod that run.
func (m *Meter) pulls(pod *corev1.Pod, more int) {
	now := time.Now()
	m.mu.Lock()
	defer m.mu.Unlock()
	p := m.pods[pod.UID]
	if p == nil {
		return // it is gone, or was never seen
	}
	if p.pulls == 0 {
		p.pullsFrom = now
	}
	if p.pulls += more; p.pulls == 0 {
		p.pulled += now.Sub(p.pullsFrom)
	}
	p.pulls = max(p.pulls, 0)
}

// Forget implements pods.Executor: the families of a pod that is gone go with it.
func (e *executor) Forget(pod *corev1.Pod) {
	e.Executor.Forget(pod)
	e.m.forget(pod)
}

func (m *Meter) forget(pod *corev1.Pod) {
	m.mu.Lock()
	delete(m.pods, pod.UID)
	m.mu.Unlock()
	m.probeTotal.DeletePartialMatch(prometheus.Labels{"pod_uid": string(pod.UID)})
	m.probeTime.DeletePartialMatch(prometheus.Labels{"pod": pod.Name, "namespace": pod.Namespace})
}

// Statuses returns the writer of statuses with starts of pods and ends of containers counted.
func (m *Meter) Statuses(inner pods.StatusWriter) pods.StatusWriter { return &statuses{inner, m} }

type statuses struct {
	pods.StatusWriter
	m *Meter
}

// Set implements pods.StatusWriter.
func (s *statuses) Set(pod *corev1.Pod, status *corev1.PodStatus) {
	s.m.published(pod, status, time.Now())
	s.StatusWriter.Set(pod, status)
}

// Seen implements pods.StatusWriter.
func (s *statuses) Seen(pod *corev1.Pod) {
	s.m.mu.Lock()
	s.m.counts(pod, time.Now())
	s.m.mu.Unlock()
	s.StatusWriter.Seen(pod)
}

// Forget implements pods.StatusWriter.
func (s *statuses) Forget(uid types.UID) {
	s.m.mu.Lock()
	delete(s.m.pods, uid)
	s.m.mu.Unlock()
	s.StatusWriter.Forget(uid)
}

// counts is what was counted of a pod; events from before the pod was first seen are not counted again. With m.mu held.
func (m *Meter) counts(pod *corev1.Pod, now time.Time) *podCounts {
	p := m.pods[pod.UID]
	if p == nil {
		p = &podCounts{seen: now, runs: pod.Status.Phase != corev1.PodPending && pod.Status.Phase != "",
			ended: map[string]string{}}
		ends(&pod.Status, func(_ string, s *corev1.ContainerStatus, id string, _ *corev1.ContainerStateTerminated) {
			p.ended[s.Name] = id
		})
		m.pods[pod.UID] = p
	}
	return p
}

// published counts what a status reports for the first time.
func (m *Meter) published(pod *corev1.Pod, status *corev1.PodStatus, now time.Time) {
	m.mu.Lock()
	defer m.mu.Unlock()
	p := m.counts(pod, now)
	if !p.runs && status.Phase == corev1.PodRunning {
		m.podStart.Observe(now.Sub(p.seen).Seconds())
		if made := pod.CreationTimestamp; !made.IsZero() { // static pods have none
			total := now.Sub(made.Time)
			m.podStartTotal.Observe(total.Seconds())
			if !stateful(pod) {
				m.podStartSLI.Observe(max(total-p.pulled-initTime(status), 0).Seconds())
			}
		}
	}
	p.runs = p.runs || status.Phase != corev1.PodPending
	ends(status, func(kind string, s *corev1.ContainerStatus, id string, t *corev1.ContainerStateTerminated) {
		if p.ended[s.Name] != id {
			p.ended[s.Name] = id
			m.containersEnded.WithLabelValues(kind, strconv.Itoa(int(t.ExitCode)), t.Reason).Inc()
		}
	})
}

// stateful reports whether the start of a pod depends on storage: the indicator of starts leaves such pods out.
func stateful(pod *corev1.Pod) bool {
	return slices.ContainsFunc(pod.Spec.Volumes, func(v corev1.Volume) bool {
		return v.Secret == nil && v.ConfigMap == nil && v.DownwardAPI == nil && v.EmptyDir == nil && v.Projected == nil
	})
}

// initTime is how long the init containers ran that have ended.
func initTime(status *corev1.PodStatus) (sum time.Duration) {
	for i := range status.InitContainerStatuses {
		if t := status.InitContainerStatuses[i].State.Terminated; t != nil && !t.StartedAt.IsZero() {
			sum += max(t.FinishedAt.Sub(t.StartedAt.Time), 0)
		}
	}
	return sum
}

// ends calls a function for the newest instance of each container that has ended.
func ends(status *corev1.PodStatus,
	report func(kind string, s *corev1.ContainerStatus, id string, t *corev1.ContainerStateTerminated)) {
	for kind, list := range map[string][]corev1.ContainerStatus{
		"container": status.ContainerStatuses, "init_container": status.InitContainerStatuses,
		"ephemeral_container": status.EphemeralContainerStatuses,
	} {
		for i := range list {
			s := &list[i]
			t := s.State.Terminated
			if t == nil {
				t = s.LastTerminationState.Terminated
			}
			if t != nil && t.ContainerID != "" {
				report(kind, s, t.ContainerID, t)
			}
		}
	}
}

// Cgroups returns the cgroups of pods with their changes timed.
func (m *Meter) Cgroups(inner execute.Cgroups) execute.Cgroups { return &cgroups{inner, m} }

type cgroups struct {
	execute.Cgroups
	m *Meter
}

func (c *cgroups) time(operation string, began time.Time) {
	c.m.cgroupTime.WithLabelValues(operation).Observe(time.Since(began).Seconds())
}

// Ensure implements execute.Cgroups.
func (c *cgroups) Ensure(pod *corev1.Pod) error {
	defer c.time("create", time.Now())
	return c.Cgroups.Ensure(pod)
}

// Resize implements execute.Cgroups.
func (c *cgroups) Resize(pod *corev1.Pod, widen bool) error {
	defer c.time("update", time.Now())
	return c.Cgroups.Resize(pod, widen)
}

// Remove implements execute.Cgroups.
func (c *cgroups) Remove(ctx context.Context, uid types.UID) error {
	defer c.time("destroy", time.Now())
	return c.Cgroups.Remove(ctx, uid)
}
