package sim

import (
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// newPod makes a random pod.
func (w *world) newPod(i int) *corev1.Pod {
	grace := int64(w.rand.IntN(40))
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("pod-%d", i), Namespace: "default",
			UID: types.UID(fmt.Sprintf("uid-%d", i)), Generation: 1},
		Spec: corev1.PodSpec{TerminationGracePeriodSeconds: &grace,
			RestartPolicy: []corev1.RestartPolicy{corev1.RestartPolicyAlways, corev1.RestartPolicyAlways,
				corev1.RestartPolicyOnFailure, corev1.RestartPolicyNever}[w.rand.IntN(4)]},
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
	if w.chance(0.15) {
		p.Spec.ReadinessGates = []corev1.PodReadinessGate{{ConditionType: gateType}}
	}
	if w.chance(0.4) {
		w.resources(p)
	}
	switch {
	case w.chance(0.08):
		p.Annotations = map[string]string{"kubernetes.io/config.source": "file"}
	case w.chance(0.06):
		p.Finalizers = []string{"example.com/wait"}
	}
	if w.chance(0.3) {
		p.Spec.Volumes = []corev1.Volume{{Name: "data",
			VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}}}
		for _, c := range containers(p) {
			c.VolumeMounts = []corev1.VolumeMount{{Name: "data", MountPath: "/data", ReadOnly: w.chance(0.5)}}
			if c.VolumeMounts[0].ReadOnly && w.chance(0.5) {
				mode := corev1.RecursiveReadOnlyIfPossible
				c.VolumeMounts[0].RecursiveReadOnly = &mode
			}
		}
	}
	return p
}

// resources sets requests and limits of the containers, and sometimes of the pod.
func (w *world) resources(p *corev1.Pod) {
	mode := w.rand.IntN(4) // for all containers, so that every QoS class occurs
	for _, c := range containers(p) {
		kind := mode
		if mode == 3 {
			kind = w.rand.IntN(3)
		}
		c.Resources = corev1.ResourceRequirements{Requests: corev1.ResourceList{}, Limits: corev1.ResourceList{}}
		for _, name := range []corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory} {
			q := w.amount(name)
			switch kind {
			case 0: // a request
				c.Resources.Requests[name] = q
			case 1: // both
				limit := q.DeepCopy()
				limit.Add(q)
				c.Resources.Requests[name], c.Resources.Limits[name] = q, limit
			case 2: // the same
				c.Resources.Requests[name], c.Resources.Limits[name] = q, q
			}
		}
		if p.Spec.RestartPolicy != corev1.RestartPolicyNever && !strings.HasPrefix(c.Name, "init") && w.chance(0.3) {
			c.ResizePolicy = []corev1.ContainerResizePolicy{
				{ResourceName: corev1.ResourceCPU, RestartPolicy: corev1.NotRequired},
				{ResourceName: corev1.ResourceMemory, RestartPolicy: corev1.RestartContainer}}
		}
	}
	if w.chance(0.2) {
		cpu, memory := *resource.NewQuantity(20, resource.DecimalSI), *resource.NewQuantity(20<<30, resource.BinarySI)
		p.Spec.Resources = &corev1.ResourceRequirements{Limits: corev1.ResourceList{corev1.ResourceCPU: cpu,
			corev1.ResourceMemory: memory}}
	}
}

// rules gives a container restart rules of its own, in some pods.
func (w *world) rules(c *corev1.Container) {
	if !w.chance(0.08) {
		return
	}
	policy := []corev1.ContainerRestartPolicy{corev1.ContainerRestartPolicyNever,
		corev1.ContainerRestartPolicyOnFailure}[w.rand.IntN(2)]
	c.RestartPolicy = &policy
	c.RestartPolicyRules = []corev1.ContainerRestartRule{{
		Action: []corev1.ContainerRestartRuleAction{corev1.ContainerRestartRuleActionRestart,
			corev1.ContainerRestartRuleActionRestartAllContainers}[w.rand.IntN(2)],
		ExitCodes: &corev1.ContainerRestartRuleOnExitCodes{Operator: corev1.ContainerRestartRuleOnExitCodesOpIn,
			Values: []int32{1}},
	}}
	if w.chance(0.3) {
		c.RestartPolicyRules[0].ExitCodes = &corev1.ContainerRestartRuleOnExitCodes{
			Operator: corev1.ContainerRestartRuleOnExitCodesOpNotIn, Values: []int32{0, 137, 143}}
	}
}

func (w *world) newContainer(name string) corev1.Container {
	c := corev1.Container{Name: name, Image: w.image(),
		ImagePullPolicy: []corev1.PullPolicy{corev1.PullIfNotPresent, corev1.PullIfNotPresent,
			corev1.PullAlways}[w.rand.IntN(3)]}
	if w.chance(0.02) {
		c.Image = []string{badImage, brokenImage, absentImage}[w.rand.IntN(3)]
	}
	if w.chance(0.01) {
		c.ImagePullPolicy = corev1.PullNever
	}
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
			PeriodSeconds: []int32{2, 5, 10, 10, 20, 60}[w.rand.IntN(6)], FailureThreshold: int32(1 + w.rand.IntN(3)),
			SuccessThreshold:    1,
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

// describe formats a pod on one line of the log.
func describe(p *corev1.Pod) string {
	var b strings.Builder
	fmt.Fprintf(&b, "restartPolicy=%s grace=%ds", p.Spec.RestartPolicy, *p.Spec.TerminationGracePeriodSeconds)
	if d := p.Spec.ActiveDeadlineSeconds; d != nil {
		fmt.Fprintf(&b, " deadline=%ds", *d)
	}
	for _, x := range []struct {
		has  bool
		what string
	}{{p.Spec.HostNetwork, "host network"}, {isStatic(p), "static"}, {len(p.Finalizers) > 0, "finalizer"},
		{len(p.Spec.ReadinessGates) > 0, "readiness gate"}} {
		if x.has {
			b.WriteString(" " + x.what)
		}
	}
	b.WriteString(sizes(p))
	for _, list := range [][]corev1.Container{p.Spec.InitContainers, p.Spec.Containers} {
		for i := range list {
			c := &list[i]
			fmt.Fprintf(&b, "; %s %s %s", c.Name, c.Image, c.ImagePullPolicy)
			for _, r := range c.RestartPolicyRules {
				fmt.Fprintf(&b, " %s %s %v, else %s", r.Action, r.ExitCodes.Operator, r.ExitCodes.Values,
					*c.RestartPolicy)
			}
			for _, x := range []struct {
				kind  string
				probe *corev1.Probe
			}{{"liveness", c.LivenessProbe}, {"readiness", c.ReadinessProbe}, {"startup", c.StartupProbe}} {
				if x.probe != nil {
					fmt.Fprintf(&b, " %s=%d+%ds*%d", x.kind, x.probe.InitialDelaySeconds, x.probe.PeriodSeconds,
						x.probe.FailureThreshold)
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
