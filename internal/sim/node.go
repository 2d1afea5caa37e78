package sim

import (
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"carob/internal/core/podlife"
	"carob/internal/core/podstatus"
	"carob/internal/core/resources"
)

const runtimeName = "sim"

// name is the node's name.
func (w *world) name() string {
	if w.joined != nil {
		return w.joined.node.Name
	}
	return "node"
}

// facts are the node's facts in the input of Step.
func (w *world) facts() podlife.Node {
	return podlife.Node{Name: w.name(), HostIPs: w.addresses, RuntimeName: runtimeName, AgentStarted: w.agent.began,
		NetworkProblem: w.network, Vacated: w.agent.vacated, CrashBackoffMax: w.backoffMax, RecursiveReadOnly: true,
		DrainTimeout: drainTimeout}
}

// stop is eviction, preemption or the shutdown of the node (L3.40, L7.150, L7.156).
func (w *world) stop(o *object) {
	own := w.agent.find(o)
	if own == nil || own.stop != nil {
		return
	}
	grace := time.Duration(w.rand.IntN(20)) * time.Second
	s := &podlife.Stop{Reason: []string{"Evicted", "Preempting", "Terminated"}[w.rand.IntN(3)],
		Message: "The node is under pressure.", Grace: &grace}
	if o.static {
		s.Reason = "Terminated" // only these end a static pod (L7.116)
	}
	if w.chance(0.7) {
		s.Condition = &corev1.PodCondition{Type: corev1.DisruptionTarget, Status: corev1.ConditionTrue,
			Reason: corev1.PodReasonTerminationByKubelet, Message: s.Message}
	}
	// A deletion decides the pod's own grace, even to a longer one than the spec's (L7.15).
	ownGrace := tgps(o.pod)
	if g := o.pod.DeletionGracePeriodSeconds; g != nil {
		ownGrace = time.Duration(*g) * time.Second
	}
	if w.chance(0.3) {
		s.Grace, grace = nil, ownGrace
	}
	own.stop = s
	// The first reason to end the pod stays. A pod without a stage waits for the runtime's first answer.
	own.stopped = order(own.stage) == 0 && own.rejected == nil && own.pod.DeletionTimestamp == nil &&
		!podstatus.Terminal(own.pod.Status.Phase) && !podstatus.Terminal(own.published.Phase)
	w.logf("%s stop %s grace=%v", o.pod.Name, s.Reason, grace)
	o.requestDeletion(w.loop.now, min(grace, ownGrace))
	w.checkKilledInTime(o)
	own.step()
}

// refuse makes the next agent reject a pod that runs now (L7.70).
func (w *world) refuse(o *object) {
	w.logf("%s does not fit on the node any more", o.pod.Name)
	o.refused = &podlife.Rejection{Reason: "OutOfcpu", Message: "Node didn't have enough resource: cpu"}
	o.upset = true
}

// free frees resources on the node for a waiting pod.
func (w *world) free(o *object) {
	if o.held == nil {
		return
	}
	w.logf("%s has room now", o.pod.Name)
	o.held = nil
	if own := w.agent.find(o); own != nil {
		own.hold = nil
		own.soon()
	}
}

// outage makes the pod network not ready for some time (L3.50).
func (w *world) outage(d time.Duration) {
	w.logf("the pod network is not ready for %v", d)
	w.network = "cni config uninitialized"
	w.agent.stepAll()
	w.after(d, func() {
		w.logf("the pod network is ready")
		w.network = ""
		w.agent.stepAll()
	})
}

// admitResize is the node's decision about a resize (L3.120, L3.121).
func (w *world) admitResize(own *owner, pod *corev1.Pod) *podlife.Failure {
	cpu := func(p *corev1.Pod) int64 {
		q := resources.SpecRequests(p)[corev1.ResourceCPU]
		return q.MilliValue()
	}
	want := cpu(pod)
	if want > w.capacity {
		return &podlife.Failure{Reason: "OutOfcpu", Message: "Node didn't have enough capacity: cpu", Permanent: true}
	}
	for _, other := range w.agent.owners {
		if other != own && !podstatus.Terminal(other.published.Phase) {
			want += cpu(other.runs)
		}
	}
	if want > w.capacity {
		return &podlife.Failure{Reason: "OutOfcpu", Message: "Node didn't have enough resource: cpu"}
	}
	own.object.granted = append(own.object.granted, pod)
	return nil
}

// vacate records that a pod freed resources on the node (L3.123).
func (a *agent) vacate() {
	a.vacated++
	if a.w.joined != nil {
		a.w.joined.makeRoom()
	}
	for _, own := range a.owners {
		if own.waitsFor("resize") {
			own.soon()
		}
	}
}

// group is the limits of a pod's cgroup; 0 means none.
type group struct{ cpu, memory int64 }

func groupOf(p *corev1.Pod) group {
	c := resources.PodCgroup(p)
	return group{c.CPUQuota, c.Memory}
}

// widest returns the larger of two limits.
func widest(a, b int64) int64 {
	if a <= 0 || b <= 0 {
		return 0
	}
	return max(a, b)
}

// resourcesOf converts cgroup values to quantities, like the agent (L3.127).
func resourcesOf(quota, shares, memory int64) *corev1.ResourceRequirements {
	r := &corev1.ResourceRequirements{}
	limit := func(name corev1.ResourceName, q *resource.Quantity) {
		if r.Limits == nil {
			r.Limits = corev1.ResourceList{}
		}
		r.Limits[name] = *q
	}
	if quota > 0 {
		limit(corev1.ResourceCPU, resource.NewMilliQuantity(quota/100, resource.DecimalSI))
	}
	if memory > 0 {
		limit(corev1.ResourceMemory, resource.NewQuantity(memory, resource.BinarySI))
	}
	if shares > 0 {
		r.Requests = corev1.ResourceList{corev1.ResourceCPU: *resource.NewMilliQuantity((shares*1000+1023)/1024,
			resource.DecimalSI)}
	}
	return r
}

// sizes formats the resources of a pod's containers on one line.
func sizes(p *corev1.Pod) (line string) {
	for _, c := range containers(p) {
		if len(c.Resources.Requests) > 0 {
			line += fmt.Sprintf(" %s=%s/%s cpu %s/%s memory", c.Name, c.Resources.Requests.Cpu(),
				c.Resources.Limits.Cpu(), c.Resources.Requests.Memory(), c.Resources.Limits.Memory())
		}
	}
	return line
}
