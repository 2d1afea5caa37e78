package sim

import (
	"bytes"
	"fmt"
	"hash/fnv"
	"io"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"carob/internal/core/placement"
	"carob/internal/core/podlife"
	"carob/internal/core/podstatus"
	runtimesim "carob/internal/runtime/sim"
)

// Store is the API server of a simulated cluster, to which the agent of a node writes. It calls
// Machine.Stored for each stored version of a pod that is bound to the node.
type Store interface {
	// SetStatus replaces the status of a pod.
	SetStatus(uid types.UID, status corev1.PodStatus)
	// Remove deletes a pod without grace: it has ended on the node.
	Remove(uid types.UID)
}

// MachineConfig describes a node of a simulated cluster.
type MachineConfig struct {
	Seed      uint64
	Node      *corev1.Node // with its allocatable resources
	Fault     float64      // probability that an action fails, between 0 and 1
	Behaviour func(r *rand.Rand, c *cri.ContainerConfig) runtimesim.Behaviour
	Log       io.Writer               // receives the log, one line per event; nil for none
	Break     string                  // name of an invariant of pods to break on purpose
	Mount     func(*corev1.Pod) error // what the volumes of a pod wait for; nil: nothing
	Careless  bool                    // breaks the agent: it does not check whether a pod fits on its node
}

// Machine is one node of a simulated cluster: its runtime, and an agent that drives podlife. The
// invariants of the pod lifecycle are checked as in a separate run, except those about time.
type Machine struct {
	w        *world
	store    Store
	node     *corev1.Node // newest version
	off      bool
	careless bool
	mount    func(*corev1.Pod) error
	turns    int // pods that had to wait for resources
}

// NewMachine starts a machine in a loop that it shares with others. The error is about c.Break.
func NewMachine(loop *Loop, store Store, c MachineConfig) (*Machine, error) {
	m := &Machine{store: store, node: c.Node, careless: c.Careless, mount: c.Mount}
	w := &world{loop: loop, rand: rand.New(rand.NewPCG(c.Seed, 0x6e_6f_64_65)), digest: fnv.New64a(), turn: plain,
		joined: m, fault: c.Fault, versions: 1, addresses: []string{"192.168.0.1"},
		volumes: map[types.UID]podlife.VolumeState{}, groups: map[types.UID]group{}}
	w.opts = Options{Seed: c.Seed}
	if c.Log != nil {
		w.opts.Log = prefixed{c.Log, c.Node.Name}
	}
	m.w = w
	if c.Break != "" {
		if err := w.sabotage(c.Break); err != nil {
			return nil, err
		}
	}
	w.runtime = runtimesim.New(runtimesim.Config{Clock: clock{w},
		Behaviour: func(cc *cri.ContainerConfig) runtimesim.Behaviour { return c.Behaviour(w.rand, cc) },
		PullError: func(string) error {
			if w.chance(w.fault / 2) {
				return fmt.Errorf("the registry is unavailable")
			}
			return nil
		}})
	w.agent = agent{w: w, began: w.now()}
	w.runtime.Listen(w.agent.receive)
	w.after(time.Minute, w.agent.relist)
	return m, nil
}

// prefixed writes the lines of a machine with its name behind the time.
type prefixed struct {
	to   io.Writer
	name string
}

func (p prefixed) Write(line []byte) (int, error) {
	at, what, _ := bytes.Cut(line, []byte(" "))
	if _, err := fmt.Fprintf(p.to, "%s %s: %s", at, p.name, what); err != nil {
		return 0, err
	}
	return len(line), nil
}

// Stored passes a version of a pod that is bound to the node, or its deletion. The agent receives it later.
func (m *Machine) Stored(p *corev1.Pod, gone bool) {
	w := m.w
	i := slices.IndexFunc(w.pods, func(o *object) bool { return o.pod.UID == p.UID })
	w.versions++
	if i < 0 {
		if gone || m.off {
			return
		}
		o := &object{pod: p, number: w.versions, exists: true, truth: map[string]*truth{}, granted: []*corev1.Pod{p},
			stored: p.Status}
		w.pods = append(w.pods, o)
		w.result.Pods++
		w.after(w.upTo(50*time.Millisecond)+w.away(), func() { m.arrive(o) })
		return
	}
	o := w.pods[i]
	o.pod, o.number, o.exists = p, w.versions, !gone
	if podstatus.Terminal(p.Status.Phase) && !podstatus.Terminal(o.stored.Phase) {
		o.collected, o.stored = true, p.Status // by another writer
	}
	w.agent.notify(o)
}

// arrive is called when the agent receives a new pod.
func (m *Machine) arrive(o *object) {
	w := m.w
	switch {
	case w.away() > 0:
		w.after(w.away(), func() { m.arrive(o) })
	case o.exists || w.has(o.pod.UID):
		w.agent.add(o)
	}
}

// SetNode sets a new version of the Node object.
func (m *Machine) SetNode(n *corev1.Node) { m.node = n }

// remove is the agent's final DELETE.
func (m *Machine) remove(o *object) {
	if g := o.pod.DeletionGracePeriodSeconds; g == nil || *g > 0 || len(o.pod.Finalizers) == 0 {
		m.store.Remove(o.pod.UID)
	}
}

// forget drops pods without any state.
func (m *Machine) forget() {
	m.w.pods = slices.DeleteFunc(m.w.pods, func(o *object) bool {
		return !o.exists && m.w.agent.find(o) == nil && !m.w.has(o.pod.UID)
	})
}

// needsRoom reports whether the admission of the node applies to a pod (L3.10).
func needsRoom(p *corev1.Pod) bool {
	return p.DeletionTimestamp == nil && !podstatus.Terminal(p.Status.Phase)
}

// place runs the admission of a pod, like node/pods: it returns what the pod has to wait for, or
// why it is rejected; neither if it has its resources.
func (m *Machine) place(own *owner) (*podlife.Hold, *podlife.Rejection) {
	if m.careless || !needsRoom(own.pod) {
		return nil, nil
	}
	var staying, leaving []*corev1.Pod
	for _, other := range m.w.agent.owners {
		waitsBehind := other.hold != nil && own.hold != nil && other.turn > own.turn
		switch {
		case other == own || other.rejected != nil || podstatus.Terminal(other.last.Phase) || waitsBehind:
		case other.gone:
			leaving = append(leaving, other.runs)
		default:
			staying = append(staying, other.runs)
		}
	}
	if r := m.admit(own.pod, staying); r != nil {
		return nil, &podlife.Rejection{Reason: r.Reason, Message: r.Message}
	}
	r := m.admit(own.pod, slices.Concat(staying, leaving))
	if r == nil {
		return nil, nil
	}
	var names []string
	for _, p := range leaving {
		names = append(names, p.Namespace+"/"+p.Name)
	}
	if own.hold == nil {
		m.turns++
		own.turn = m.turns
	}
	return &podlife.Hold{For: "room", Object: strings.Join(names, ", "), Why: r.Message}, nil
}

// admit runs the admission of the node, with some pods on it.
func (m *Machine) admit(pod *corev1.Pod, beside []*corev1.Pod) *placement.Rejection {
	var n placement.Node
	n.Set(m.node)
	for _, p := range beside {
		n.Add(placement.Prepare(p))
	}
	return n.AdmitHere(placement.Prepare(pod), placement.Machine{OS: "linux"}, placement.Needs{}).Rejection
}

// makeRoom repeats the admission of the pods that wait for resources.
func (m *Machine) makeRoom() {
	waiting := slices.DeleteFunc(slices.Clone(m.w.agent.owners), func(own *owner) bool { return own.hold == nil })
	slices.SortFunc(waiting, func(a, b *owner) int { return a.turn - b.turn })
	for _, own := range waiting {
		own.hold, own.rejected = m.place(own)
		own.soon()
	}
}

// Running is a container that runs.
type Running struct {
	Pod       types.UID
	Container string
}

// Running returns the containers that actually run on the machine.
func (m *Machine) Running() []Running {
	list, _ := m.w.runtime.ListContainers(ctx, &cri.ListContainersRequest{Filter: &cri.ContainerFilter{
		State: &cri.ContainerStateValue{State: cri.ContainerState_CONTAINER_RUNNING}}})
	out := make([]Running, 0, len(list.GetContainers()))
	for _, c := range list.GetContainers() {
		out = append(out, Running{types.UID(c.Labels[uidLabel]), c.Metadata.Name})
	}
	return out
}

// OnStart calls a function whenever a container has started.
func (m *Machine) OnStart(do func()) {
	m.w.runtime.Listen(func(e *cri.ContainerEventResponse) {
		if e.GetContainerEventType() == cri.ContainerEventType_CONTAINER_STARTED_EVENT {
			do()
		}
	})
}

// Reachable reports whether the agent runs and can reach the API server, and so sends heartbeats.
func (m *Machine) Reachable() bool { return !m.off && !m.w.agent.down && m.w.away() == 0 }

// CutOff makes the API server unreachable from the machine for some time; containers continue.
func (m *Machine) CutOff(d time.Duration) {
	m.w.logf("the API server is away for %v", d)
	m.w.apiUp = later(m.w.apiUp, m.w.loop.now.Add(d))
}

// Crash ends the agent at once; it comes back within a minute.
func (m *Machine) Crash() { m.w.agent.crash() }

// Reboot restarts the machine. With keep, the runtime still has its records.
func (m *Machine) Reboot(keep bool) { m.w.reboot(keep) }

// Off destroys the machine: nothing runs on it any more, and it never comes back.
func (m *Machine) Off() {
	w := m.w
	w.logf("the machine is destroyed")
	if !w.agent.down {
		w.agent.crash()
	}
	m.off, w.agent.down = true, true
	w.late = w.loop.now
	w.runtime.Reboot(false)
	w.pods = nil
}

// Kill ends one of the running containers.
func (m *Machine) Kill() {
	if all := m.w.pods; len(all) > 0 {
		o := all[m.w.rand.IntN(len(all))]
		o.upset = true
		_, list := m.w.list(o.pod.UID)
		for _, c := range list {
			if c.State == cri.ContainerState_CONTAINER_RUNNING {
				m.w.logf("%s container %s is killed", o.pod.Name, c.Id)
				m.w.runtime.End(c.Id, 137, "")
				return
			}
		}
	}
}

// EndFaults ends all faults.
func (m *Machine) EndFaults() { m.w.endFaults() }

// CheckEnd checks that the machine has no state of deleted pods.
func (m *Machine) CheckEnd() {
	for _, o := range m.w.pods {
		s, c := m.w.list(o.pod.UID)
		if !o.exists && (len(s)+len(c) > 0 || m.w.volumes[o.pod.UID].Present) {
			m.w.broken(nothingLeft, o.pod.Name, "%d sandboxes, %d containers, volumes %v", len(s), len(c),
				m.w.volumes[o.pod.UID])
		}
	}
}

// Starts returns how many containers were started.
func (m *Machine) Starts() int { return m.w.result.Starts }
