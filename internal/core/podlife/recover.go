package podlife

import (
	corev1 "k8s.io/api/core/v1"

	"carob/internal/core/podstatus"
)

// Recover rebuilds a State from what survives a restart of the agent: the pod's last status and the
// runtime. It may repeat an action, never lose one: preStop may run again (L7.74), back-off memory
// and probe counts start over (L7.71), a postStart hook that was running is neither repeated nor
// awaited (L7.72).
func Recover(pod *corev1.Pod, o Observed) State {
	s := State{Life: Syncing, Last: *pod.Status.DeepCopy()}
	if t := pod.Status.StartTime; t != nil {
		s.StartTime = t.Time
	}
	for i := range o.Containers {
		if c := &o.Containers[i]; c.State == ContainerRunning {
			s.record(c.Name).Adopted = c.ID
		}
	}
	s.Resize = recoverResize(pod, &s)
	if podstatus.Terminal(pod.Status.Phase) {
		// The pod ended before; its sandboxes were stopped then (L7.3).
		for i := range o.Sandboxes {
			if !o.Sandboxes[i].Ready {
				s.Stopped = append(s.Stopped, o.Sandboxes[i].ID)
			}
		}
	}
	return s
}
