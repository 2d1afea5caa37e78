package attach_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"carob/internal/core/volume"
	"carob/internal/core/volume/attach"
)

var start = time.Date(2026, 11, 23, 0, 0, 0, 0, time.UTC)

func volumeNamed(name string, exclusive bool) attach.Volume {
	return attach.Volume{Name: name, Handle: volume.Handle{Driver: "d", ID: name}, Exclusive: exclusive}
}

func podNamed(namespace, name string) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, UID: types.UID(namespace + name)},
	}
}

func nodeNamed(name string, ready corev1.ConditionStatus) *corev1.Node {
	return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}, Status: corev1.NodeStatus{
		Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: ready}}}}
}

func attachment(v attach.Volume, node string, attached bool) *storagev1.VolumeAttachment {
	pv := v.Name
	return &storagev1.VolumeAttachment{ObjectMeta: metav1.ObjectMeta{Name: v.AttachmentName(node)},
		Spec: storagev1.VolumeAttachmentSpec{Attacher: v.Driver, NodeName: node,
			Source: storagev1.VolumeAttachmentSource{PersistentVolumeName: &pv}},
		Status: storagev1.VolumeAttachmentStatus{Attached: attached}}
}

// transcript is one node and the decisions about it, as text.
type transcript struct {
	in attach.Input
}

func newTranscript() *transcript {
	return &transcript{attach.Input{Node: "n", Object: nodeNamed("n", corev1.ConditionTrue), Now: start,
		Memory:    map[string]*attach.Memory{},
		Elsewhere: func(attach.Volume) []string { return nil },
		UsedBy:    func(attach.Volume) []*corev1.Pod { return nil }}}
}

// decide returns the decision after some time.
func (x *transcript) decide(after time.Duration) string {
	x.in.Now = x.in.Now.Add(after)
	s := attach.ForNode(x.in)
	var out []string
	if s.Attached != nil {
		names := []string{}
		for _, a := range *s.Attached {
			names = append(names, string(a.Name))
		}
		out = append(out, fmt.Sprintf("attached %v", names))
		if x.in.Object != nil {
			x.in.Object.Status.VolumesAttached = *s.Attached
		}
	}
	for _, c := range s.Create {
		out = append(out, "create "+*c.Spec.Source.PersistentVolumeName)
	}
	for _, d := range s.Delete {
		out = append(out, fmt.Sprintf("delete safe=%t %s", d.Safe, d.Forced))
	}
	for _, e := range s.Events {
		out = append(out, fmt.Sprintf("%s %s %s: %s", e.Pod.Name, e.Type, e.Reason, e.Message))
	}
	if s.Again > 0 {
		out = append(out, "again in "+s.Again.String())
	}
	return strings.Join(out, "; ")
}

func expect(t *testing.T, got, want string) {
	t.Helper()
	if got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}

func TestAttachAndDetach(t *testing.T) {
	x, v := newTranscript(), volumeNamed("pv", true)
	pod := podNamed("ns", "p")
	x.in.Wanted = []attach.Wanted{{Volume: v, Pods: []*corev1.Pod{pod}}}
	expect(t, x.decide(0), "create pv; again in 2m0s")
	a := attachment(v, "n", false)
	x.in.Attachments = []*storagev1.VolumeAttachment{a}
	expect(t, x.decide(time.Minute), "again in 1m0s")
	expect(
		t,
		x.decide(time.Minute),
		`p Warning FailedAttachVolume: AttachVolume.Attach failed for volume "pv" : timed out `+
			`waiting for external-attacher of d CSI driver to attach volume pv; again in 4m0s`,
	)
	expect(t, x.decide(time.Second), "again in 3m59s")
	a.Status.AttachError = &storagev1.VolumeError{Time: metav1.NewTime(start), Message: "no room"}
	expect(t, x.decide(time.Second),
		`p Warning FailedAttachVolume: AttachVolume.Attach failed for volume "pv" : no room`)
	expect(t, x.decide(time.Second), "") // reported once
	a.Status.AttachError, a.Status.Attached = nil, true
	expect(t, x.decide(time.Second), `attached [kubernetes.io/csi/d^pv]; p Normal SuccessfulAttachVolume: `+
		`AttachVolume.Attach succeeded for volume "pv" `)
	x.in.Object.Status.VolumesAttached = nil // the watch lags behind: nothing is reported twice
	expect(t, x.decide(0), "attached [kubernetes.io/csi/d^pv]")
	expect(t, x.decide(time.Hour), "")
	// The pod is deleted; the node still uses the volume.
	x.in.Object.Status.VolumesInUse = []corev1.UniqueVolumeName{v.UniqueName()}
	x.in.Wanted = nil
	expect(t, x.decide(0), "")
	x.in.Object.Status.VolumesInUse = nil
	expect(t, x.decide(time.Second), "attached []; delete safe=true ")
	now := metav1.NewTime(start)
	a.DeletionTimestamp = &now
	expect(t, x.decide(time.Second), "")
	// It is needed again before it is detached.
	x.in.Wanted = []attach.Wanted{{Volume: v, Pods: []*corev1.Pod{pod}}}
	expect(t, x.decide(time.Second), "")
	x.in.Attachments = nil
	expect(t, x.decide(time.Second), "create pv; again in 2m0s")
}

func TestLostNodes(t *testing.T) {
	v := volumeNamed("pv", true)
	used := func() *transcript {
		x := newTranscript()
		x.in.Attachments = []*storagev1.VolumeAttachment{attachment(v, "n", true)}
		x.in.Object = nodeNamed("n", corev1.ConditionUnknown)
		x.in.Object.Status.VolumesInUse = []corev1.UniqueVolumeName{v.UniqueName()}
		x.in.Object.Status.VolumesAttached = []corev1.AttachedVolume{{Name: v.UniqueName()}}
		return x
	}
	x := used()
	expect(t, x.decide(0), "again in 6m0s")
	x.in.Object.Status.Conditions[0].Status = corev1.ConditionTrue // it was ready once: the time begins anew
	expect(t, x.decide(5*time.Minute), "")
	x.in.Object.Status.Conditions[0].Status = corev1.ConditionUnknown
	expect(t, x.decide(5*time.Minute), "again in 6m0s")
	expect(t, x.decide(6*time.Minute), "attached []; delete safe=false timeout")

	x = used()
	x.in.NoForce = true
	expect(t, x.decide(0), "")
	expect(t, x.decide(time.Hour), "")
	x.in.Object.Spec.Taints = []corev1.Taint{{Key: corev1.TaintNodeOutOfService}}
	expect(t, x.decide(0), "attached []; delete safe=false out-of-service")

	x = used()
	x.in.Object = nil
	expect(t, x.decide(0), "delete safe=false ")
}

func TestElsewhere(t *testing.T) {
	v := volumeNamed("pv", true)
	for want, users := range map[string][]*corev1.Pod{
		"Volume is already used by pod(s) a, b":                                                                           {podNamed("ns", "b"), podNamed("ns", "a")},
		"Volume is already used by pod(s) a and 1 pod(s) in different namespaces":                                         {podNamed("ns", "a"), podNamed("x", "b")},
		"Volume is already used by 1 pod(s) in different namespaces":                                                      {podNamed("x", "b")},
		"Volume is already exclusively attached to one node, waiting on detach before it can be attached to another node": nil,
	} {
		x := newTranscript()
		x.in.Wanted = []attach.Wanted{{Volume: v, Pods: []*corev1.Pod{podNamed("ns", "p")}}}
		x.in.Elsewhere = func(attach.Volume) []string { return []string{"m"} }
		x.in.UsedBy = func(attach.Volume) []*corev1.Pod { return users }
		expect(t, x.decide(0), `p Warning FailedAttachVolume: Waiting for detach for volume "pv" `+want)
		expect(t, x.decide(time.Hour), "") // once
		x.in.Wanted[0].Exclusive = false
		expect(t, x.decide(0), "create pv; again in 2m0s")
	}
}

func TestHolds(t *testing.T) {
	pod := podNamed("ns", "p")
	running := []corev1.ContainerStatus{{State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}}}
	check := func(want bool) {
		t.Helper()
		if attach.Holds(pod) != want {
			t.Errorf("%+v: %t", pod.Status, !want)
		}
	}
	check(false)
	pod.Spec.NodeName = "n"
	check(true)
	pod.Status.Phase = corev1.PodFailed
	check(false)
	pod.Status.Phase, pod.DeletionTimestamp = corev1.PodRunning, new(metav1.Now())
	check(true)
	pod.Status.ContainerStatuses = running
	check(true)
	pod.Status.ContainerStatuses = []corev1.ContainerStatus{{}}
	check(false)
}

// world is two nodes with agents, an external attacher, and one volume, which pods start and stop using. Each part
// sees changes of the others late.
type world struct {
	r       *rand.Rand
	v       attach.Volume
	now     time.Time
	nodes   map[string]*corev1.Node // as the API has them
	seen    map[string]*corev1.Node // as the controller's watch has them
	wanted  map[string]bool         // a pod on the node
	mounted map[string]bool         // by the agent
	known   map[string]*corev1.Node // what the agent got as the answer to its last write or from its watch
	have    map[string]*storagev1.VolumeAttachment
	memory  map[string]map[string]*attach.Memory
}

func newSim(seed uint64) *world {
	w := &world{r: rand.New(rand.NewPCG(seed, 1)), v: volumeNamed("pv", true), now: start,
		nodes: map[string]*corev1.Node{}, seen: map[string]*corev1.Node{}, wanted: map[string]bool{},
		mounted: map[string]bool{}, known: map[string]*corev1.Node{}, have: map[string]*storagev1.VolumeAttachment{},
		memory: map[string]map[string]*attach.Memory{}}
	for _, n := range []string{"a", "b"} {
		w.nodes[n] = nodeNamed(n, corev1.ConditionTrue)
		w.seen[n], w.known[n] = w.nodes[n], w.nodes[n]
		w.memory[n] = map[string]*attach.Memory{}
	}
	return w
}

// write changes a node in the API.
func (w *world) write(name string, change func(*corev1.NodeStatus)) *corev1.Node {
	n := w.nodes[name].DeepCopy()
	change(&n.Status)
	w.nodes[name] = n
	return n
}

// agent does one step of a node's agent.
func (w *world) agent(name string) {
	unique := w.v.UniqueName()
	uses := slices.Contains(w.known[name].Status.VolumesInUse, unique)
	switch {
	case w.wanted[name] && !uses:
		w.known[name] = w.write(
			name,
			func(s *corev1.NodeStatus) { s.VolumesInUse = []corev1.UniqueVolumeName{unique} },
		)
	case w.wanted[name] && !w.mounted[name]:
		if slices.ContainsFunc(w.known[name].Status.VolumesAttached, func(a corev1.AttachedVolume) bool {
			return a.Name == unique
		}) {
			w.mounted[name] = true
		} else {
			w.known[name] = w.nodes[name]
		}
	case !w.wanted[name] && w.mounted[name]:
		w.mounted[name] = false
	case !w.wanted[name] && uses:
		w.known[name] = w.write(name, func(s *corev1.NodeStatus) { s.VolumesInUse = nil })
	}
}

// controller carries out the decision about a node.
func (w *world) controller(name string) {
	in := attach.Input{Node: name, Object: w.seen[name], Memory: w.memory[name], Now: w.now,
		Elsewhere: func(attach.Volume) []string {
			var on []string
			for _, a := range w.have {
				if a.Spec.NodeName != name {
					on = append(on, a.Spec.NodeName)
				}
			}
			return on
		}, UsedBy: func(attach.Volume) []*corev1.Pod { return nil }}
	if w.wanted[name] {
		in.Wanted = []attach.Wanted{{Volume: w.v, Pods: []*corev1.Pod{podNamed("ns", name)}}}
	}
	if a := w.have[w.v.AttachmentName(name)]; a != nil {
		in.Attachments = []*storagev1.VolumeAttachment{a}
	}
	s := attach.ForNode(in)
	if s.Attached != nil {
		w.write(name, func(n *corev1.NodeStatus) { n.VolumesAttached = *s.Attached })
	}
	for range w.r.IntN(3) { // the agent continues meanwhile
		w.agent(name)
	}
	for _, c := range s.Create {
		if w.have[c.Name] == nil {
			w.have[c.Name] = c
		}
	}
	for _, d := range s.Delete {
		if a := w.have[d.Name]; a != nil && attach.MayGo(w.nodes[name], d) {
			a = a.DeepCopy()
			a.DeletionTimestamp = &metav1.Time{Time: w.now}
			w.have[d.Name] = a
		}
	}
}

// attacher is the driver's sidecar.
func (w *world) attacher() {
	for name, a := range w.have {
		a = a.DeepCopy()
		if a.DeletionTimestamp != nil {
			delete(w.have, name)
			continue
		}
		a.Status.Attached = true
		w.have[name] = a
	}
}

func (w *world) check(t *testing.T, seed uint64) {
	t.Helper()
	for name, is := range w.mounted {
		if a := w.have[w.v.AttachmentName(name)]; is &&
			(a == nil || a.DeletionTimestamp != nil || !a.Status.Attached) {
			t.Fatalf("seed %d: mounted on %s, but not attached", seed, name)
		}
	}
	if w.mounted["a"] && w.mounted["b"] {
		t.Fatalf("seed %d: mounted on both nodes", seed)
	}
}

// A volume is never detached from a node that has it mounted, never mounted on two nodes, and a node that
// needs it gets it.
func TestNoDetachWhileMounted(t *testing.T) {
	for seed := range uint64(2000) {
		w := newSim(seed)
		for range 120 {
			w.now = w.now.Add(time.Second)
			node := []string{"a", "b"}[w.r.IntN(2)]
			switch w.r.IntN(8) {
			case 0:
				w.wanted[node] = !w.wanted[node]
			case 1:
				w.attacher()
			case 2:
				w.seen[node] = w.nodes[node]
			case 3, 4:
				w.controller(node)
			case 5:
				w.memory[node] = map[string]*attach.Memory{} // the controller restarts
			default:
				w.agent(node)
			}
			w.check(t, seed)
		}
		w.wanted["a"], w.wanted["b"] = seed%2 == 0, seed%2 != 0
		for range 40 {
			for _, node := range []string{"a", "b"} {
				w.agent(node)
				w.seen[node] = w.nodes[node]
				w.controller(node)
				w.known[node] = w.nodes[node]
				w.check(t, seed)
			}
			w.attacher()
		}
		if w.mounted["a"] != w.wanted["a"] || w.mounted["b"] != w.wanted["b"] || len(w.have) != 1 {
			t.Fatalf("seed %d: wanted %v, mounted %v, attachments %d", seed, w.wanted, w.mounted, len(w.have))
		}
	}
}
