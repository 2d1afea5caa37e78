package node

import (
	"os"
	goruntime "runtime"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"carob/internal/core/placement"
	"carob/internal/core/podclaims"
	"carob/internal/core/podlife"
	"carob/internal/node/devices"
	"carob/internal/node/object"
	"carob/internal/node/pods"
	"carob/internal/node/spec"
)

// gate asks placement.AdmitHere about pods. It keeps what the pods hold counted, so that
// one more pod costs no walk over all the others. One goroutine at a time.
type gate struct {
	object func() *corev1.Node
	down   func() bool // the machine is going down
	// appArmor says whether the kernel enforces AppArmor profiles.
	appArmor func() bool
	devices  *devices.Manager // nil: none
	sysctls  []string         // that are unsafe and allowed
	node     placement.Node
	counted  map[types.UID]*corev1.Pod
}

// admit says whether the pod may run on this node, beside the others.
func (g *gate) admit(pod *corev1.Pod, others []*corev1.Pod) pods.Verdict {
	object := g.object()
	if object != nil {
		if g.node.Object != object {
			g.node.Set(object)
		}
		g.count(others)
	}
	node := &g.node
	if object == nil {
		node = &placement.Node{}
	}
	needs := needs(pod)
	needs.Served = g.served(pod)
	machine := placement.Machine{OS: goruntime.GOOS, AppArmor: needs.AppArmor && g.appArmor(), ShuttingDown: g.down(),
		UnsafeSysctls: g.sysctls}
	v := node.AdmitHere(placement.Prepare(pod), machine, needs)
	if v.Rejection == nil {
		return pods.Verdict{}
	}
	return pods.Verdict{Rejection: &podlife.Rejection{Reason: v.Rejection.Reason, Message: v.Rejection.Message},
		Victims: v.Victims}
}

// served are the extended resources that the pod is not refused for.
func (g *gate) served(pod *corev1.Pod) []corev1.ResourceName {
	if g.devices == nil {
		return nil
	}
	var names []corev1.ResourceName
	for _, list := range [][]corev1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for i := range list {
			for name := range list[i].Resources.Limits { // any order: a set
				if podclaims.IsDevice(name) && !slices.Contains(names, name) &&
					(podclaims.ServedByClaim(pod, list[i].Name, name) || g.devices.Waits(pod, name)) {
					names = append(names, name)
				}
			}
		}
	}
	return names
}

func needs(pod *corev1.Pod) placement.Needs {
	missing, err := object.MissingFeatures(pod)
	return placement.Needs{AppArmor: spec.WantsAppArmor(pod), Missing: missing, Unknown: err}
}

// count brings the ledger up to these pods.
func (g *gate) count(all []*corev1.Pod) {
	if g.counted == nil {
		g.counted = map[types.UID]*corev1.Pod{}
	}
	here := make(map[types.UID]bool, len(all))
	for _, pod := range all {
		here[pod.UID] = true
		old := g.counted[pod.UID]
		switch {
		case old == nil:
		case old == pod:
			continue
		case old.Generation == pod.Generation && old.Status.ObservedGeneration == pod.Status.ObservedGeneration &&
			!resizing(old):
			continue // what it holds changes only with its spec, and with what the agent made of it
		default:
			g.node.Remove(pod.UID)
		}
		g.node.Add(placement.Prepare(pod))
		g.counted[pod.UID] = pod
	}
	for uid := range g.counted {
		if !here[uid] {
			g.node.Remove(uid)
			delete(g.counted, uid)
		}
	}
}

func resizing(pod *corev1.Pod) bool {
	return slices.ContainsFunc(pod.Status.Conditions,
		func(c corev1.PodCondition) bool { return c.Type == corev1.PodResizeInProgress })
}

// hostAppArmor asks the kernel; that changes at a boot only.
func hostAppArmor() bool {
	b, err := os.ReadFile("/sys/module/apparmor/parameters/enabled")
	return err == nil && strings.HasPrefix(string(b), "Y")
}
