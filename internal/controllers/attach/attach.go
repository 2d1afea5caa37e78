// Package attach attaches the volumes of CSI drivers to the nodes of the pods that use them, and detaches them.
// core/volume/attach decides; the controller manager runs it. It must never change a VolumeAttachment of another
// creator.
//
// It is idle until the first volume of a CSI driver or the first VolumeAttachment; then it watches VolumeAttachments
// and CSIDrivers. It decides about all attachments of a node together, one decision at a time.
//
// Contract: S4.D in docs/spec/storage-and-node.md.
package attach

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/record"

	"carob/internal/base/confirm"
	"carob/internal/controllers/inventory"
	"carob/internal/controllers/metrics"
	"carob/internal/controllers/reconciler"
	"carob/internal/controllers/source"
	"carob/internal/core/volume"
	"carob/internal/core/volume/attach"
)

// Watches are what the controller reads.
type Watches struct {
	Pods, Nodes, Claims  *source.Watch // run by the caller
	Volumes              *source.Watch // run by another controller, once there is a claim or volume
	Attachments, Drivers *source.Watch // run by the controller
}

// Controller attaches and detaches. Its key is the name of a node.
type Controller struct {
	loop   *reconciler.Reconciler
	client kubernetes.Interface
	events record.EventRecorder
	in     Watches
	first  *reconciler.First // volume or attachment

	mu      sync.Mutex
	memory  map[string]map[string]*attach.Memory // by node
	created map[string]*creation                 // of exclusive volumes, by PersistentVolume
}

// workers is the number of nodes that are processed in parallel.
const workers = 4

// Readers notifies the controller of the first attachment; an inventory implements it.
type Readers interface{ AddReader(r inventory.Reader) }

// New returns a controller.
func New(client kubernetes.Interface, events record.EventRecorder, readers Readers, in Watches) (*Controller, error) {
	c := &Controller{client: client, events: events, in: in, first: reconciler.NewFirst(),
		memory: map[string]map[string]*attach.Memory{}, created: map[string]*creation{}}
	c.loop = reconciler.New("attachments", workers, c.reconcile)
	readers.AddReader(inventory.Notify(c.first.Seen, storagev1.Resource("volumeattachments")))
	for _, err := range []error{
		in.Pods.OnChange(func(before, after metav1.Object) { c.podChanged(before); c.podChanged(after) }),
		in.Nodes.OnChange(func(before, after metav1.Object) {
			if after == nil {
				after = before
			}
			c.loop.Add(after.GetName())
		}),
		in.Claims.OnChange(func(before, after metav1.Object) {
			if after == nil {
				after = before
			}
			c.claimChanged(after.GetNamespace(), after.GetName())
		}),
		in.Volumes.OnChange(func(before, after metav1.Object) { c.volumeChanged(before); c.volumeChanged(after) }),
		in.Attachments.OnChange(func(before, after metav1.Object) { c.attachmentChanged(before, after) }),
		in.Drivers.OnChange(func(_, _ metav1.Object) {
			for _, name := range in.Nodes.Objects().ListKeys() {
				c.loop.Add(name)
			}
		}),
	} {
		if err != nil {
			return nil, fmt.Errorf("attach: %w", err)
		}
	}
	metrics.OnRead(c.measure)
	return c, nil
}

// Run waits for the first volume of a driver, then watches and works until ctx ends.
func (c *Controller) Run(ctx context.Context) {
	c.first.Run(ctx, []reconciler.Watched{c.in.Attachments, c.in.Drivers}, []reconciler.Watched{c.in.Volumes},
		c.loop.Run)
}

func (c *Controller) podChanged(o metav1.Object) {
	if pod, ok := o.(*corev1.Pod); ok && pod.Spec.NodeName != "" && len(volume.ClaimsOf(pod)) > 0 {
		c.loop.Add(pod.Spec.NodeName)
	}
}

// claimChanged queues the nodes of the pods that use a claim.
func (c *Controller) claimChanged(namespace, name string) {
	for _, pod := range c.users(namespace, name) {
		c.loop.Add(pod.Spec.NodeName)
	}
}

// users returns the pods with a node that use a claim.
func (c *Controller) users(namespace, claim string) []*corev1.Pod {
	var list []*corev1.Pod
	for _, pod := range source.Namespaced[*corev1.Pod](c.in.Pods, namespace) {
		if pod.Spec.NodeName != "" && slices.Contains(volume.ClaimsOf(pod), claim) {
			list = append(list, pod)
		}
	}
	return list
}

func (c *Controller) volumeChanged(o metav1.Object) {
	v, ok := o.(*corev1.PersistentVolume)
	if !ok || v == nil || v.Spec.CSI == nil {
		return
	}
	c.first.Seen()
	if r := v.Spec.ClaimRef; r != nil {
		c.claimChanged(r.Namespace, r.Name)
	}
}

// attachmentChanged queues the node of an attachment; when one is deleted, also those that wait for its
// volume.
func (c *Controller) attachmentChanged(before, after metav1.Object) {
	o := after
	if o == nil {
		o = before
	}
	a, ok := o.(*storagev1.VolumeAttachment)
	if !ok {
		return
	}
	c.loop.Add(a.Spec.NodeName)
	if pv := a.Spec.Source.PersistentVolumeName; after == nil && pv != nil {
		c.forget(*pv, a.Name)
		c.volumeChanged(source.Get[*corev1.PersistentVolume](c.in.Volumes, *pv))
	}
}

func (c *Controller) reconcile(ctx context.Context, name string) (time.Duration, error) {
	node := source.Get[*corev1.Node](c.in.Nodes, name)
	in := attach.Input{Node: name, Object: node, Wanted: c.wantedOn(name), Attachments: c.attachments(name),
		Elsewhere: func(v attach.Volume) []string { return c.elsewhere(v, name) },
		UsedBy:    func(v attach.Volume) []*corev1.Pod { return c.usedBy(v, name) }, Memory: c.memories(name),
		Now: time.Now()}
	step := attach.ForNode(in)
	if step.Attached != nil {
		patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"uid": node.UID},
			"status": map[string]any{"volumesAttached": *step.Attached}})
		if err != nil {
			return 0, fmt.Errorf("encode what is attached to node %s: %w", name, err)
		}
		_, err = c.client.CoreV1().Nodes().Patch(
			ctx,
			name,
			types.MergePatchType,
			patch,
			metav1.PatchOptions{},
			"status",
		)
		stale := confirm.Stale(err)
		if err = confirm.Overtaken(ctx, node, err, confirm.By(c.client.CoreV1().Nodes().Get, name)); err != nil {
			return 0, fmt.Errorf("report what is attached to node %s: %w", name, err)
		}
		if stale {
			return 0, nil // the watch event will follow
		}
	}
	for _, e := range step.Events {
		c.events.Event(e.Pod, e.Type, e.Reason, e.Message)
	}
	var errs []error // of one volume: the others do not wait for it
	for _, a := range step.Create {
		made, err := c.create(ctx, a, in.Wanted)
		errs = append(errs, err)
		if err == nil && !made {
			step.Again = 10 * time.Millisecond // the watch event will follow
		}
	}
	for _, d := range step.Delete {
		errs = append(errs, c.delete(ctx, name, d, in.Attachments))
	}
	return step.Again, errors.Join(errs...)
}

// delete deletes one of the attachments, after it has read the present node (S4.35, S4.36).
func (c *Controller) delete(ctx context.Context, node string, d attach.Deletion,
	all []*storagev1.VolumeAttachment) error {
	now, err := c.client.CoreV1().Nodes().Get(ctx, node, metav1.GetOptions{})
	switch {
	case err != nil && !apierrors.IsNotFound(err):
		return fmt.Errorf("check whether node %s uses the volume of %s: %w", node, d.Name, err)
	case err == nil && !attach.MayGo(now, d):
		return nil // the watch event will follow
	}
	if d.Forced != "" {
		metrics.ForcedDetaches.WithLabelValues(d.Forced).Inc()
	}
	i := slices.IndexFunc(all, func(a *storagev1.VolumeAttachment) bool { return a.Name == d.Name })
	if i < 0 {
		return nil
	}
	// Its name follows from the volume and the node: a new one has the same.
	uid, api := all[i].UID, c.client.StorageV1().VolumeAttachments()
	err = api.Delete(ctx, d.Name, metav1.DeleteOptions{Preconditions: metav1.NewUIDPreconditions(string(uid))})
	if err = confirm.Ended(ctx, uid, err, confirm.By(api.Get, d.Name)); err != nil {
		return fmt.Errorf("delete volume attachment %s: %w", d.Name, err)
	}
	return nil
}

// memories returns the state of the attachments of a node. Only the reconciliation of the node may use it.
func (c *Controller) memories(node string) map[string]*attach.Memory {
	c.mu.Lock()
	defer c.mu.Unlock()
	m := c.memory[node]
	if m == nil {
		m = map[string]*attach.Memory{}
		c.memory[node] = m
	}
	for name, other := range c.memory { // any order
		if name != node && len(other) == 0 && source.Get[*corev1.Node](c.in.Nodes, name) == nil {
			delete(c.memory, name)
		}
	}
	return m
}

// wantedOn returns the volumes that the pods of a node need attached.
func (c *Controller) wantedOn(node string) []attach.Wanted {
	var list []attach.Wanted
	for _, pod := range source.OnNode(c.in.Pods, node) {
		if !attach.Holds(pod) {
			continue
		}
		for _, name := range volume.ClaimsOf(pod) {
			v, ok := c.volumeOf(pod.Namespace, name)
			if !ok {
				continue
			}
			i := slices.IndexFunc(list, func(w attach.Wanted) bool { return w.Handle == v.Handle })
			if i < 0 {
				i = len(list)
				list = append(list, attach.Wanted{Volume: v})
			}
			list[i].Pods = append(list[i].Pods, pod)
		}
	}
	return list
}

// volumeOf returns the volume of a claim; false: it has none that needs attachment.
func (c *Controller) volumeOf(namespace, claim string) (attach.Volume, bool) {
	pvc := source.Get[*corev1.PersistentVolumeClaim](c.in.Claims, namespace+"/"+claim)
	if pvc == nil || pvc.Spec.VolumeName == "" {
		return attach.Volume{}, false
	}
	pv := source.Get[*corev1.PersistentVolume](c.in.Volumes, pvc.Spec.VolumeName)
	if pv == nil || pv.Spec.ClaimRef == nil || pv.Spec.ClaimRef.UID != pvc.UID {
		return attach.Volume{}, false
	}
	v, ok := attach.VolumeOf(pv)
	if !ok {
		return attach.Volume{}, false
	}
	return v, volume.RulesOf(source.Get[*storagev1.CSIDriver](c.in.Drivers, v.Driver)).Attach
}

// ours matches the names of attachments that this controller creates.
var ours = regexp.MustCompile(`^csi-[0-9a-f]{64}$`)

// attachments returns the attachments of a node that this controller, or an earlier one, created.
func (c *Controller) attachments(node string) []*storagev1.VolumeAttachment {
	var list []*storagev1.VolumeAttachment
	for _, a := range source.AttachmentsOn(c.in.Attachments, node) {
		if a.Spec.Source.PersistentVolumeName == nil || !ours.MatchString(a.Name) {
			continue
		}
		pv := source.Get[*corev1.PersistentVolume](c.in.Volumes, *a.Spec.Source.PersistentVolumeName)
		if h, ok := volume.HandleOf(pv); ok && h.AttachmentName(node) != a.Name {
			continue
		}
		list = append(list, a)
	}
	slices.SortFunc(list, func(a, b *storagev1.VolumeAttachment) int { return cmp.Compare(a.Name, b.Name) })
	return list
}

func (c *Controller) elsewhere(v attach.Volume, node string) []string {
	var nodes []string
	for _, a := range source.AttachmentsOf(c.in.Attachments, v.Name) {
		if a.Spec.NodeName != node {
			nodes = append(nodes, a.Spec.NodeName)
		}
	}
	return nodes
}

func (c *Controller) usedBy(v attach.Volume, node string) []*corev1.Pod {
	pv := source.Get[*corev1.PersistentVolume](c.in.Volumes, v.Name)
	if pv == nil || pv.Spec.ClaimRef == nil {
		return nil
	}
	return slices.DeleteFunc(c.users(pv.Spec.ClaimRef.Namespace, pv.Spec.ClaimRef.Name), func(p *corev1.Pod) bool {
		return p.Spec.NodeName == node || !attach.Holds(p)
	})
}
