package cluster

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	runtimesim "carob/internal/runtime/sim"
	"carob/internal/sim"
	"carob/internal/sim/devices"
	"carob/internal/sim/fakeapi"
)

// machine is a node with its agent.
type machine struct {
	*sim.Machine
	w       *world
	name    string
	uid     types.UID // of the Node object
	cpu     int64     // allocatable, in thousandths
	removed bool
}

// SetStatus implements sim.Store.
func (w *world) SetStatus(uid types.UID, status corev1.PodStatus) {
	w.Now = w.loop.Now()
	w.Change(uid, func(o fakeapi.Object) {
		if p, ok := o.(*corev1.Pod); ok {
			status.ResourceClaimStatuses = p.Status.ResourceClaimStatuses // of another owner (S9.11)
			p.Status = status
		}
	})
}

// Remove implements sim.Store.
func (w *world) Remove(uid types.UID) {
	w.Now = w.loop.Now()
	w.Delete(uid, 0)
}

const (
	// unit is the smallest request of a pod; requests and nodes are multiples of it.
	unit = 100
	// podGrace is the longest requested grace period.
	podGrace = 30
)

// addNode creates a node with its machine.
func (w *world) addNode() {
	m := &machine{w: w, name: fmt.Sprintf("node-%d", len(w.machines)), cpu: int64(10+w.IntN(11)) * unit}
	if w.kind == Crowded && !w.Faultless {
		m.cpu = int64(5+w.IntN(6)) * unit
	}
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: m.name},
		Status: corev1.NodeStatus{Allocatable: corev1.ResourceList{
			corev1.ResourceCPU:  *resource.NewMilliQuantity(m.cpu, resource.DecimalSI),
			corev1.ResourcePods: *resource.NewQuantity(100, resource.DecimalSI)}}}
	n.Labels = map[string]string{corev1.LabelHostname: m.name}
	setNodeCondition(n, corev1.NodeCondition{Type: corev1.NodeReady, Status: corev1.ConditionTrue,
		LastTransitionTime: metav1.NewTime(w.Now)})
	if w.storage != nil {
		w.storage.AddNode(m.name)
	}
	config := sim.MachineConfig{Seed: w.Uint64(), Node: n, Behaviour: w.behaviour, Log: w.options.Log,
		Break: w.options.Sabotage.Pods, Careless: w.options.Sabotage.Overcommit}
	if w.kind.fails() && !w.Faultless {
		config.Fault = w.Float64() * 0.2
	}
	if w.storage != nil {
		config.Mount = func(p *corev1.Pod) error { return w.storage.Mount(p, m.name) }
	}
	if w.devices != nil {
		config.Mount = func(p *corev1.Pod) error { return w.devices.Prepare(p, m.name) }
		w.Create(devices.Slice(m.name, 2+w.IntN(3)))
	}
	var err error
	if m.Machine, err = sim.NewMachine(w.loop, w, config); err != nil {
		panic(err)
	}
	m.OnStart(w.checkRunning)
	if w.Faultless {
		m.EndFaults()
	}
	w.machines = append(w.machines, m)
	m.uid = w.Create(n).GetUID()
	m.beat()
}

// beat is the heartbeat of a node: a lease that is renewed every ten seconds, and its own condition.
func (m *machine) beat() {
	if m.removed {
		return
	}
	w := m.w
	if m.Reachable() {
		if n, ok := w.Get(m.uid).(*corev1.Node); ok && n.Status.Conditions[0].Status != corev1.ConditionTrue {
			w.Change(m.uid, func(o fakeapi.Object) {
				if n, ok := o.(*corev1.Node); ok {
					setNodeCondition(n, corev1.NodeCondition{Type: corev1.NodeReady, Status: corev1.ConditionTrue,
						LastTransitionTime: metav1.NewTime(w.Now)})
				}
			})
		}
		if w.carob != nil {
			for _, p := range w.carob.parts {
				if l, ok := p.(*lifecycle); ok {
					l.heartbeat(m.name)
				}
			}
		}
	}
	w.after(10*time.Second, m.beat)
}

// machine returns the machine of a node, nil for none.
func (w *world) machine(node string) *machine {
	i := slices.IndexFunc(w.machines, func(m *machine) bool { return m.name == node })
	if i < 0 {
		return nil
	}
	return w.machines[i]
}

// present returns the machines whose nodes exist.
func (w *world) present() []*machine {
	return slices.DeleteFunc(slices.Clone(w.machines), func(m *machine) bool { return m.removed })
}

// behaviour is the behaviour of a container's process: a task ends, a server does not.
func (w *world) behaviour(r *rand.Rand, c *cri.ContainerConfig) runtimesim.Behaviour {
	b := runtimesim.Behaviour{Linger: time.Duration(r.IntN(3000)) * time.Millisecond, IgnoreTerm: r.IntN(10) == 0}
	if c.GetMetadata().GetName() == "task" {
		b.Exit = time.Second + time.Duration(r.IntN(60))*time.Second
		b.TermCode = 143
		if !w.Faultless && r.IntN(5) == 0 {
			b.Code = 1
		}
	} else if w.kind.fails() && !w.Faultless && r.IntN(10) == 0 {
		b.Exit, b.Code = time.Second+time.Duration(r.IntN(600))*time.Second, 1
	}
	return b
}

// trouble is one fault of a machine.
func (w *world) trouble() {
	all := w.present()
	if len(all) == 0 {
		return
	}
	m := all[w.IntN(len(all))]
	switch n := w.IntN(20); {
	case n < 6:
		m.Kill()
	case n < 10:
		m.Crash()
	case n < 13:
		m.Reboot(w.IntN(2) == 0)
	case n < 18:
		m.CutOff(w.upTo(6 * time.Minute))
	default:
		if len(all) > 1 {
			w.lose(m)
		}
	}
}

// lose destroys a machine; its node is removed some time later, and another one is added.
func (w *world) lose(m *machine) {
	w.destroy(m)
	w.after(w.upTo(5*time.Minute), func() { w.removeNode(m) })
	w.after(w.upTo(5*time.Minute), w.addNode)
}

// destroy ends a machine, with the data on it.
func (w *world) destroy(m *machine) {
	m.Off()
	if w.storage != nil {
		w.storage.LoseNode(m.name)
	}
}

func (w *world) removeNode(m *machine) {
	if m.removed {
		return
	}
	m.removed = true
	w.logf("%s is removed", m.name)
	w.Delete(m.uid, 0)
	for _, s := range fakeapi.All[*resourcev1.ResourceSlice](w.API) {
		if s.Name == m.name {
			w.Delete(s.UID, 0)
		}
	}
}
