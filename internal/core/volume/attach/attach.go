// Package attach decides which volumes of CSI drivers are attached to which nodes: which VolumeAttachments are created
// and deleted, the volumesAttached of the status of nodes, and the events of pods. Pure: the attach/detach controller
// drives it.
//
// The order of writes keeps a volume on a node that uses it. The node reports that a volume is in use before it checks
// whether it is attached; this controller removes the volume from the node's list, then checks volumesInUse again, and
// only then deletes the VolumeAttachment.
//
// Contract: S4.D in docs/spec/storage-and-node.md.
package attach

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"

	"carob/internal/core/volume"
)

// Limits of waits (S0.33, S0.35).
const (
	ForceWait   = 6 * time.Minute // for a node that is not ready
	AttachWait  = 2 * time.Minute // for the driver, before an event for the pods
	RepeatEvent = 4 * time.Minute // between two events about the same wait
)

// Volume is a persistent volume of a CSI driver.
type Volume struct {
	Name string // of the PersistentVolume
	volume.Handle
	Exclusive bool // may be attached to one node at a time
}

// VolumeOf reads a volume; false: it is not of a CSI driver.
func VolumeOf(v *corev1.PersistentVolume) (Volume, bool) {
	h, ok := volume.HandleOf(v)
	if !ok {
		return Volume{}, false
	}
	shared := slices.Contains(v.Spec.AccessModes, corev1.ReadWriteMany) ||
		slices.Contains(v.Spec.AccessModes, corev1.ReadOnlyMany)
	return Volume{Name: v.Name, Handle: h, Exclusive: len(v.Spec.AccessModes) > 0 && !shared}, true
}

// Holds reports whether a pod with a node still needs its volumes (S4.33).
func Holds(pod *corev1.Pod) bool {
	if pod.Spec.NodeName == "" || pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed {
		return false
	}
	if pod.DeletionTimestamp == nil {
		return true
	}
	for _, list := range [][]corev1.ContainerStatus{pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses,
		pod.Status.EphemeralContainerStatuses} {
		if slices.ContainsFunc(list, func(s corev1.ContainerStatus) bool { return s.State.Running != nil }) {
			return true
		}
	}
	// Without container statuses, its containers may still be running.
	return len(pod.Status.ContainerStatuses) == 0 && pod.Status.Phase == corev1.PodRunning
}

// Wanted is a volume that pods of a node need, with these pods.
type Wanted struct {
	Volume
	Pods []*corev1.Pod // in any order
}

// Memory is the controller's state of one VolumeAttachment between decisions. After a restart it is
// empty.
type Memory struct {
	Waiting  time.Time            // start of the wait for the driver; zero: no wait
	Leaving  time.Time            // since when no pod needs it; zero: a pod needs it
	NotReady time.Time            // since when the node has not been ready, within Leaving; zero: it is ready
	Error    string               // the last failure in an event for the pods
	Attached bool                 // an event has reported it, or it was already attached
	Recorded time.Time            // time of the last event that they wait
	Blocked  map[string]time.Time // pods with an event about other nodes, by UID
}

// Input holds everything that a decision about the attachments of a node depends on.
type Input struct {
	Node   string
	Object *corev1.Node // nil: the node does not exist
	Wanted []Wanted
	// Attachments are those of the node that this controller created, also if their volume no longer
	// exists.
	Attachments []*storagev1.VolumeAttachment
	// Elsewhere are the nodes other than this one that a volume has an attachment on, and UsedBy the pods that use it
	// there.
	Elsewhere func(v Volume) []string
	UsedBy    func(v Volume) []*corev1.Pod
	// NoForce means that a node that is not ready keeps its volumes.
	NoForce bool
	Memory  map[string]*Memory // by name of the attachment; changed by the decision
	Now     time.Time
}

// Event is an event about a pod.
type Event struct {
	Pod                   *corev1.Pod
	Type, Reason, Message string
}

// Step holds the actions, in this order.
type Step struct {
	// Attached is the new volumesAttached of the node's status; nil: no change.
	Attached *[]corev1.AttachedVolume
	// Delete are attachments to delete after that write, if MayGo allows it for the node as read after the write.
	Delete []Deletion
	Create []*storagev1.VolumeAttachment
	Events []Event
	Again  time.Duration // when to decide again without a change; 0: never
}

// Deletion is an attachment to delete.
type Deletion struct {
	Name   string
	Safe   bool
	Forced string // why it is not safe: "timeout" or "out-of-service"; "" if the node no longer exists
}

// ForNode decides about all attachments of a node.
func ForNode(in Input) Step {
	var s Step
	d := decision{in: in, step: &s, have: map[string]*storagev1.VolumeAttachment{}}
	for _, a := range in.Attachments {
		d.have[a.Name] = a
	}
	wanted := map[string]bool{}
	for _, w := range in.Wanted {
		name := w.AttachmentName(in.Node)
		wanted[name] = true
		m := d.memory(name)
		m.Leaving, m.NotReady = time.Time{}, time.Time{}
		d.attach(name, w, m)
	}
	for _, a := range in.Attachments {
		if !wanted[a.Name] {
			d.detach(a, d.memory(a.Name))
		}
	}
	for name := range in.Memory { // any order: each by itself
		if d.have[name] == nil && !wanted[name] {
			delete(in.Memory, name)
		}
	}
	d.status()
	slices.SortFunc(s.Create, func(a, b *storagev1.VolumeAttachment) int { return cmp.Compare(a.Name, b.Name) })
	return s
}

type decision struct {
	in       Input
	step     *Step
	have     map[string]*storagev1.VolumeAttachment
	attached []corev1.AttachedVolume
}

func (d *decision) memory(name string) *Memory {
	m := d.in.Memory[name]
	if m == nil {
		m = &Memory{}
		d.in.Memory[name] = m
	}
	return m
}

// again schedules the next decision.
func (d *decision) again(wait time.Duration) {
	wait = max(wait, time.Millisecond)
	if d.step.Again == 0 || wait < d.step.Again {
		d.step.Again = wait
	}
}

func (d *decision) record(pods []*corev1.Pod, kind, reason, format string, args ...any) {
	for _, p := range pods {
		d.step.Events = append(d.step.Events, Event{p, kind, reason, fmt.Sprintf(format, args...)})
	}
}

// attach decides about a volume that pods need (S4.31, S4.32, S4.41).
func (d *decision) attach(name string, w Wanted, m *Memory) {
	if d.in.Object == nil {
		return
	}
	if a := d.have[name]; a == nil || !a.Status.Attached || a.DeletionTimestamp != nil {
		m.Attached = false
	}
	switch a := d.have[name]; {
	case a == nil:
		if w.Exclusive && len(d.in.Elsewhere(w.Volume)) > 0 {
			d.blocked(w, m)
			return
		}
		pv := w.Name
		made := &storagev1.VolumeAttachment{
			Spec: storagev1.VolumeAttachmentSpec{Attacher: w.Driver, NodeName: d.in.Node,
				Source: storagev1.VolumeAttachmentSource{PersistentVolumeName: &pv}},
		}
		made.Name = name
		d.step.Create = append(d.step.Create, made)
		d.waits(w, m)
	case a.DeletionTimestamp != nil: // it is deleted first; the deletion is an event
	case a.Status.Attached:
		m.Waiting, m.Error, m.Recorded, m.Blocked = time.Time{}, "", time.Time{}, nil
		unique := w.UniqueName()
		d.attached = append(d.attached, corev1.AttachedVolume{Name: unique})
		if !listed(d.in.Object, unique) && !m.Attached {
			d.record(
				w.Pods,
				corev1.EventTypeNormal,
				"SuccessfulAttachVolume",
				"AttachVolume.Attach succeeded for volume %q ",
				w.Name,
			)
		}
		m.Attached = true
	case a.Status.AttachError != nil:
		failure := a.Status.AttachError.Time.UTC().Format(time.RFC3339) + " " + a.Status.AttachError.Message
		if m.Error != failure {
			d.record(
				w.Pods,
				corev1.EventTypeWarning,
				"FailedAttachVolume",
				"AttachVolume.Attach failed for volume %q : %s",
				w.Name,
				a.Status.AttachError.Message,
			)
		}
		m.Error, m.Waiting, m.Recorded = failure, time.Time{}, time.Time{}
	default:
		d.waits(w, m)
	}
}

// waits plans events for pods whose volume the driver has not attached.
func (d *decision) waits(w Wanted, m *Memory) {
	if m.Waiting.IsZero() {
		m.Waiting = d.in.Now
	}
	due := m.Waiting.Add(AttachWait)
	if !m.Recorded.IsZero() {
		due = m.Recorded.Add(RepeatEvent)
	}
	if d.in.Now.Before(due) {
		d.again(due.Sub(d.in.Now))
		return
	}
	m.Recorded = d.in.Now
	d.again(RepeatEvent)
	d.record(
		w.Pods,
		corev1.EventTypeWarning,
		"FailedAttachVolume",
		"AttachVolume.Attach failed for volume %q : timed out "+
			"waiting for external-attacher of %s CSI driver to attach volume %s",
		w.Name,
		w.Driver,
		w.ID,
	)
}

// blocked plans one event for each pod whose volume is attached to another node.
func (d *decision) blocked(w Wanted, m *Memory) {
	users := d.in.UsedBy(w.Volume)
	for _, p := range w.Pods {
		if _, ok := m.Blocked[string(p.UID)]; ok {
			continue
		}
		if m.Blocked == nil {
			m.Blocked = map[string]time.Time{}
		}
		m.Blocked[string(p.UID)] = d.in.Now
		d.record(
			[]*corev1.Pod{p},
			corev1.EventTypeWarning,
			"FailedAttachVolume",
			"Waiting for detach for volume %q %s",
			w.Name,
			whoUses(p, users),
		)
	}
}

func whoUses(pod *corev1.Pod, users []*corev1.Pod) string {
	var same []string
	others := 0
	for _, u := range users {
		if u.Namespace == pod.Namespace {
			same = append(same, u.Name)
		} else {
			others++
		}
	}
	slices.Sort(same)
	switch {
	case len(same) > 0 && others > 0:
		return fmt.Sprintf("Volume is already used by pod(s) %s and %d pod(s) in different namespaces",
			strings.Join(same, ", "), others)
	case len(same) > 0:
		return "Volume is already used by pod(s) " + strings.Join(same, ", ")
	case others > 0:
		return fmt.Sprintf("Volume is already used by %d pod(s) in different namespaces", others)
	default:
		return "Volume is already exclusively attached to one node, waiting on detach before it can be attached to another node"
	}
}

// detach decides about an attachment that no pod needs (S4.36).
func (d *decision) detach(a *storagev1.VolumeAttachment, m *Memory) {
	if m.Leaving.IsZero() {
		m.Leaving = d.in.Now
	}
	m.Waiting, m.Recorded, m.Blocked = time.Time{}, time.Time{}, nil
	if a.DeletionTimestamp != nil {
		return
	}
	node := d.in.Object
	if node == nil {
		d.step.Delete = append(d.step.Delete, Deletion{Name: a.Name})
		return
	}
	used, known := usedAs(node, a.Name)
	if !used {
		d.step.Delete = append(d.step.Delete, Deletion{Name: a.Name, Safe: true})
		return
	}
	if slices.ContainsFunc(
		node.Spec.Taints,
		func(t corev1.Taint) bool { return t.Key == corev1.TaintNodeOutOfService },
	) {
		d.step.Delete = append(d.step.Delete, Deletion{Name: a.Name, Forced: "out-of-service"})
		return
	}
	if isReady(node) {
		m.NotReady = time.Time{}
	} else if m.NotReady.IsZero() {
		m.NotReady = d.in.Now
	}
	switch left := m.NotReady.Add(ForceWait).Sub(d.in.Now); {
	case m.NotReady.IsZero() || d.in.NoForce:
	case left <= 0:
		d.step.Delete = append(d.step.Delete, Deletion{Name: a.Name, Forced: "timeout"})
		return
	default:
		d.again(left)
	}
	if a.Status.Attached && listed(node, known) { // it stays until the node no longer uses it
		d.attached = append(d.attached, corev1.AttachedVolume{Name: known})
	}
}

// usedAs reports whether a node lists the volume of an attachment as in use, and under which name.
func usedAs(node *corev1.Node, attachment string) (bool, corev1.UniqueVolumeName) {
	for _, name := range node.Status.VolumesInUse {
		if h, ok := volume.ParseUniqueName(name); ok && h.AttachmentName(node.Name) == attachment {
			return true, name
		}
	}
	return false, ""
}

// MayGo reports whether an attachment can be deleted, given the present node: its status must no longer list the
// volume as attached, and the node must not use it unless the deletion is forced.
func MayGo(node *corev1.Node, d Deletion) bool {
	if slices.ContainsFunc(node.Status.VolumesAttached, func(a corev1.AttachedVolume) bool {
		h, ok := volume.ParseUniqueName(a.Name)
		return ok && h.AttachmentName(node.Name) == d.Name
	}) {
		return false
	}
	used, _ := usedAs(node, d.Name)
	return !used || !d.Safe
}

func listed(node *corev1.Node, name corev1.UniqueVolumeName) bool {
	return slices.ContainsFunc(node.Status.VolumesAttached,
		func(a corev1.AttachedVolume) bool { return a.Name == name })
}

func isReady(node *corev1.Node) bool {
	return slices.ContainsFunc(node.Status.Conditions, func(c corev1.NodeCondition) bool {
		return c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue
	})
}

// status decides the volumesAttached of the node's status. Volumes of other plugins stay as they
// are.
func (d *decision) status() {
	node := d.in.Object
	if node == nil {
		return
	}
	list := d.attached
	for _, a := range node.Status.VolumesAttached {
		if _, ok := volume.ParseUniqueName(a.Name); !ok {
			list = append(list, a)
		}
	}
	slices.SortFunc(list, func(a, b corev1.AttachedVolume) int { return cmp.Compare(a.Name, b.Name) })
	have := slices.Clone(node.Status.VolumesAttached)
	slices.SortFunc(have, func(a, b corev1.AttachedVolume) int { return cmp.Compare(a.Name, b.Name) })
	if !slices.Equal(list, have) {
		d.step.Attached = &list
	}
}
