package podlife

import (
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"carob/internal/core/podstatus"
)

// columns is what kubectl get shows of a pod: READY, STATUS and RESTARTS without its
// age (L1.121–L1.123).
func columns(p *corev1.Pod) string {
	st := &p.Status
	text := string(st.Phase)
	if st.Reason != "" {
		text = st.Reason
	}
	ready, restarts, sidecars := 0, int32(0), int32(0)
	initializing := false
	for i := range st.InitContainerStatuses {
		s := &st.InitContainerStatuses[i]
		restarts += s.RestartCount
		side := isSidecar(p, s.Name)
		if side {
			sidecars += s.RestartCount
		}
		t := s.State.Terminated
		switch {
		case t != nil && t.ExitCode == 0:
			continue
		case side && s.Started != nil && *s.Started:
			if s.Ready {
				ready++
			}
			continue
		case t != nil:
			text = "Init:" + ended(t)
		case s.State.Waiting != nil && s.State.Waiting.Reason != "" && s.State.Waiting.Reason != "PodInitializing":
			text = "Init:" + s.State.Waiting.Reason
		default:
			text = fmt.Sprintf("Init:%d/%d", i, len(p.Spec.InitContainers))
		}
		initializing = true
		break
	}
	if !initializing || podstatus.ConditionTrue(st.Conditions, corev1.PodInitialized) {
		restarts = sidecars
		running, failure := false, ""
		for i := len(st.ContainerStatuses) - 1; i >= 0; i-- {
			s := &st.ContainerStatuses[i]
			restarts += s.RestartCount
			switch w, t := s.State.Waiting, s.State.Terminated; {
			case w != nil && w.Reason != "":
				text = w.Reason
			case t != nil:
				text = ended(t)
				if t.ExitCode != 0 {
					failure = text
				}
			case s.Ready && s.State.Running != nil:
				running = true
				ready++
			}
		}
		if text == "Completed" {
			switch {
			case running && podstatus.ConditionTrue(st.Conditions, corev1.PodReady):
				text = "Running"
			case failure != "":
				text = failure
			case running:
				text = "NotReady"
			}
		}
	}
	if p.DeletionTimestamp != nil && !podstatus.Terminal(st.Phase) {
		text = "Terminating"
	}
	total := len(p.Spec.Containers)
	for i := range p.Spec.InitContainers {
		if isSidecar(p, p.Spec.InitContainers[i].Name) {
			total++
		}
	}
	return fmt.Sprintf("%d/%d  %s  %d", ready, total, text, restarts)
}

func ended(t *corev1.ContainerStateTerminated) string {
	switch {
	case t.Reason != "":
		return t.Reason
	case t.Signal != 0:
		return fmt.Sprintf("Signal:%d", t.Signal)
	}
	return fmt.Sprintf("ExitCode:%d", t.ExitCode)
}

func isSidecar(p *corev1.Pod, name string) bool {
	for i := range p.Spec.InitContainers {
		if c := &p.Spec.InitContainers[i]; c.Name == name {
			return c.RestartPolicy != nil && *c.RestartPolicy == corev1.ContainerRestartPolicyAlways
		}
	}
	return false
}

// up starts a pod without failures: its images are on the machine.
func (w *world) up(manifest string) string {
	w.apply(manifest)
	for _, i := range w.in.Observed.Images {
		w.present[i.Image] = true
	}
	w.images()
	w.step("")
	w.settle(nil)
	w.row = columns(w.in.Pod)
	names := make([]string, 0, len(w.in.Observed.Containers))
	for i := range w.in.Observed.Containers {
		if c := &w.in.Observed.Containers[i]; c.State == ContainerRunning {
			names = append(names, c.ID)
		}
	}
	w.watch = true
	return "  kubectl: " + w.row + "\n  runs: " + strings.Join(names, " ") + "\n"
}
