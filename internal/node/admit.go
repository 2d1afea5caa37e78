package node

import (
	"os"
	goruntime "runtime"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/types"

	"carob/internal/core/placement"
	"carob/internal/core/podclaims"
	"carob/internal/core/podlife"
	"carob/internal/core/resources"
	"carob/internal/node/devices"
	"carob/internal/node/nodeobject"
	"carob/internal/node/pods"
	"carob/internal/node/spec"
)

// admission decides with placement.AdmitHere whether the node admits a pod. It keeps the sum of the resources that pods
// use, so that adding a pod does not need a loop over all others. Only one goroutine at a time may use it.
type admission struct {
	object func() *corev1.Node
	down   func() bool // the machine is going down
	// appArmor reports whether the kernel enforces AppArmor profiles.
	appArmor func() bool
	devices  *devices.Manager // nil: none
	sysctls  []string         // that are unsafe and allowed
	node     placement.Node
	counted  map[types.UID]*corev1.Pod
}

// admit decides whether the pod may run on this node, in addition to the others.
func (a *admission) admit(pod *corev1.Pod, others []*corev1.Pod) pods.Verdict {
	object := a.object()
	if object != nil {
		if a.node.Object != object {
			a.node.Set(object)
		}
		a.count(others)
	}
	node := &a.node
	if object == nil {
		node = &placement.Node{}
	}
	needs := needs(pod)
	needs.Served = a.served(pod)
	machine := placement.Machine{OS: goruntime.GOOS, AppArmor: needs.AppArmor && a.appArmor(), ShuttingDown: a.down(),
		UnsafeSysctls: a.sysctls}
	v := node.AdmitHere(placement.Prepare(pod), machine, needs)
	if v.Rejection == nil {
		return pods.Verdict{}
	}
	return pods.Verdict{Rejection: &podlife.Rejection{Reason: v.Rejection.Reason, Message: v.Rejection.Message},
		Victims: v.Victims}
}

// served are the extended resources for which the pod is not refused.
func (a *admission) served(pod *corev1.Pod) []corev1.ResourceName {
	if a.devices == nil {
		return nil
	}
	var names []corev1.ResourceName
	for _, list := range [][]corev1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for i := range list {
			for name := range list[i].Resources.Limits { // any order: a set
				if podclaims.IsDevice(name) && !slices.Contains(names, name) &&
					(podclaims.ServedByClaim(pod, list[i].Name, name) || a.devices.Waits(pod, name)) {
					names = append(names, name)
				}
			}
		}
	}
	return names
}

// pin gives a pod CPUs and memory of its own.
func (m *machine) pin(pod *corev1.Pod) *podlife.Rejection {
	r := m.pinning.Admit(pod)
	if r == nil {
		return nil
	}
	m.meter.Refused(r.Reason)
	return &podlife.Rejection{Reason: r.Reason, Message: r.Message}
}

func needs(pod *corev1.Pod) placement.Needs {
	missing, err := nodeobject.MissingFeatures(pod)
	return placement.Needs{AppArmor: spec.RequestsAppArmor(pod), Missing: missing, Unknown: err}
}

// count updates the ledger to these pods.
func (a *admission) count(all []*corev1.Pod) {
	if a.counted == nil {
		a.counted = map[types.UID]*corev1.Pod{}
	}
	here := make(map[types.UID]bool, len(all))
	for _, pod := range all {
		here[pod.UID] = true
		old := a.counted[pod.UID]
		switch {
		case old == nil:
		case old == pod:
			continue
		case old.Generation == pod.Generation && old.Status.ObservedGeneration == pod.Status.ObservedGeneration &&
			(pod.Generation <= 1 || equality.Semantic.DeepEqual(resources.Requests(old), resources.Requests(pod))):
			continue // what it occupies changes with its spec, and, when it was resized, with its status (L3.127a)
		default:
			a.node.Remove(pod.UID)
		}
		a.node.Add(placement.Prepare(pod))
		a.counted[pod.UID] = pod
	}
	for uid := range a.counted {
		if !here[uid] {
			a.node.Remove(uid)
			delete(a.counted, uid)
		}
	}
}

// hostAppArmor reads whether the kernel enforces AppArmor; this changes only at a boot.
func hostAppArmor() bool {
	b, err := os.ReadFile("/sys/module/apparmor/parameters/enabled")
	return err == nil && strings.HasPrefix(string(b), "Y")
}

// countRejections is the node's admission that also counts the pods it refuses. Refused resizes
// do not count.
func (m *machine) countRejections(admit func(*corev1.Pod, []*corev1.Pod) pods.Verdict) func(*corev1.Pod,
	[]*corev1.Pod) pods.Verdict {
	return func(pod *corev1.Pod, others []*corev1.Pod) pods.Verdict {
		v := admit(pod, others)
		switch {
		case v.Rejection == nil || pod.Status.StartTime != nil:
		case len(v.Victims) > 0:
			m.meter.Preempted(strings.TrimPrefix(v.Rejection.Reason, "OutOf"), len(v.Victims))
		default:
			m.meter.Refused(v.Rejection.Reason)
		}
		return v
	}
}
