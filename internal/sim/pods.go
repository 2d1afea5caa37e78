package sim

import (
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// newPod draws a pod.
func (w *world) newPod(i int) *corev1.Pod {
	grace := int64(w.rand.IntN(40))
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("pod-%d", i), Namespace: "default", UID: types.UID(fmt.Sprintf("uid-%d", i)), Generation: 1},
		Spec: corev1.PodSpec{TerminationGracePeriodSeconds: &grace,
			RestartPolicy: []corev1.RestartPolicy{corev1.RestartPolicyAlways, corev1.RestartPolicyAlways, corev1.RestartPolicyOnFailure, corev1.RestartPolicyNever}[w.rand.IntN(4)]},
	}
	always := corev1.ContainerRestartPolicyAlways
	for k := range max(0, w.rand.IntN(5)-1) {
		c := w.newContainer(fmt.Sprintf("init%d", k))
		if w.chance(0.5) {
			c.Name = fmt.Sprintf("side%d", k)
			c.RestartPolicy = &always
			w.probes(&c)
		} else {
			w.rules(&c)
		}
		p.Spec.InitContainers = append(p.Spec.InitContainers, c)
	}
	for k := range 1 + w.rand.IntN(3) {
		c := w.newContainer(fmt.Sprintf("app%d", k))
		w.probes(&c)
		w.rules(&c)
		p.Spec.Containers = append(p.Spec.Containers, c)
	}
	if w.chance(0.1) {
		d := int64(1 + w.rand.IntN(3600))
		p.Spec.ActiveDeadlineSeconds = &d
	}
	p.Spec.HostNetwork = w.chance(0.1)
	return p
}

// rules gives a container restart rules of its own, sometimes.
func (w *world) rules(c *corev1.Container) {
	if !w.chance(0.08) {
		return
	}
	policy := []corev1.ContainerRestartPolicy{corev1.ContainerRestartPolicyNever, corev1.ContainerRestartPolicyOnFailure}[w.rand.IntN(2)]
	c.RestartPolicy = &policy
	c.RestartPolicyRules = []corev1.ContainerRestartRule{{
		Action:    []corev1.ContainerRestartRuleAction{corev1.ContainerRestartRuleActionRestart, corev1.ContainerRestartRuleActionRestartAllContainers}[w.rand.IntN(2)],
		ExitCodes: &corev1.ContainerRestartRuleOnExitCodes{Operator: corev1.ContainerRestartRuleOnExitCodesOpIn, Values: []int32{1}},
	}}
}

func (w *world) newContainer(name string) corev1.Container {
	c := corev1.Container{Name: name, Image: fmt.Sprintf("image%d", w.rand.IntN(3)),
		ImagePullPolicy: []corev1.PullPolicy{corev1.PullIfNotPresent, corev1.PullIfNotPresent, corev1.PullAlways}[w.rand.IntN(3)]}
	handler := &corev1.LifecycleHandler{Exec: &corev1.ExecAction{Command: []string{"hook"}}}
	if w.chance(0.2) && !strings.HasPrefix(name, "init") {
		c.Lifecycle = &corev1.Lifecycle{PreStop: handler}
		if w.chance(0.5) {
			c.Lifecycle.PostStart = handler
		}
	}
	return c
}

func (w *world) probes(c *corev1.Container) {
	probe := func() *corev1.Probe {
		return &corev1.Probe{ProbeHandler: corev1.ProbeHandler{Exec: &corev1.ExecAction{Command: []string{"probe"}}},
			PeriodSeconds: []int32{2, 5, 10, 10, 20, 60}[w.rand.IntN(6)], FailureThreshold: int32(1 + w.rand.IntN(3)), SuccessThreshold: 1,
			InitialDelaySeconds: int32(w.rand.IntN(2) * w.rand.IntN(20)), TimeoutSeconds: 1}
	}
	if w.chance(0.3) {
		c.LivenessProbe = probe()
		if w.chance(0.2) {
			grace := int64(1 + w.rand.IntN(10))
			c.LivenessProbe.TerminationGracePeriodSeconds = &grace
		}
	}
	if w.chance(0.3) {
		c.ReadinessProbe = probe()
		c.ReadinessProbe.SuccessThreshold = int32(1 + w.rand.IntN(2))
	}
	if w.chance(0.2) {
		c.StartupProbe = probe()
	}
}

// describe is a pod in one line of the log.
func describe(p *corev1.Pod) string {
	var b strings.Builder
	fmt.Fprintf(&b, "restartPolicy=%s grace=%ds", p.Spec.RestartPolicy, *p.Spec.TerminationGracePeriodSeconds)
	if d := p.Spec.ActiveDeadlineSeconds; d != nil {
		fmt.Fprintf(&b, " deadline=%ds", *d)
	}
	if p.Spec.HostNetwork {
		b.WriteString(" host network")
	}
	for _, list := range [][]corev1.Container{p.Spec.InitContainers, p.Spec.Containers} {
		for i := range list {
			c := &list[i]
			fmt.Fprintf(&b, "; %s %s %s", c.Name, c.Image, c.ImagePullPolicy)
			for _, r := range c.RestartPolicyRules {
				fmt.Fprintf(&b, " %s on 1, else %s", r.Action, *c.RestartPolicy)
			}
			for _, x := range []struct {
				kind  string
				probe *corev1.Probe
			}{{"liveness", c.LivenessProbe}, {"readiness", c.ReadinessProbe}, {"startup", c.StartupProbe}} {
				if x.probe != nil {
					fmt.Fprintf(&b, " %s=%d+%ds*%d", x.kind, x.probe.InitialDelaySeconds, x.probe.PeriodSeconds, x.probe.FailureThreshold)
				}
			}
			if l := c.Lifecycle; l != nil {
				b.WriteString(" preStop")
				if l.PostStart != nil {
					b.WriteString(" postStart")
				}
			}
		}
	}
	return b.String()
}
