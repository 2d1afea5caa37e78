// Package volumes binds persistent volume claims to volumes. core/volume decides; the controller
// manager runs it. It must never decide which volume a claim gets, and never access data.
//
// Its watches of volumes and classes begin with the first claim or volume: a cluster without any has
// no cost. Decisions are made on the newest versions that were read or written, and each write names the version that
// it replaces, so that a volume is never bound to two claims, although several workers make decisions: a webhook that
// is slow to review the claims of one namespace does not delay those of others.
//
// Contract: S1 in docs/spec/storage-and-node.md.
package volumes

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/record"

	"carob/internal/base/confirm"
	"carob/internal/controllers/inventory"
	"carob/internal/controllers/metrics"
	"carob/internal/controllers/reconciler"
	"carob/internal/controllers/source"
	"carob/internal/core/volume"
)

// again is the interval at which an unbound claim is checked without a change (S0.30).
const again = 15 * time.Second

// mostWrites is more than one object ever needs. If another component changes what is written, the worker must go on
// with other objects.
const mostWrites = 20

// workers is the number of claims and volumes that are processed in parallel.
const workers = 4

// Watches are what the controller reads.
type Watches struct {
	Claims, Pods     *source.Watch // run by the caller
	Volumes, Classes *source.Watch // run by the controller
}

// Controller binds claims. Its key is claim/NAMESPACE/NAME or volume/NAME.
type Controller struct {
	loop   *reconciler.Reconciler
	client kubernetes.Interface
	events record.EventRecorder
	// expands records the events of upstream's expand controller.
	expands record.EventRecorder
	in      Watches
	first   *reconciler.First // claim or volume

	mu      sync.Mutex
	work    operations
	pending map[string]bool // keys of unbound claims

	writes writes
	sorted sorted
}

// Readers notifies the controller of the first volume; an inventory implements it.
type Readers interface{ AddReader(r inventory.Reader) }

// New returns a controller.
func New(client kubernetes.Interface, events, expands record.EventRecorder, readers Readers,
	in Watches) (*Controller, error) {
	c := &Controller{client: client, events: events, expands: expands, in: in, first: reconciler.NewFirst(),
		pending: map[string]bool{}, work: operations{running: map[string]operation{}},
		writes: writes{running: map[string]chan struct{}{}, answers: map[string]metav1.Object{}}}
	c.loop = reconciler.New("claims", workers, c.reconcile)
	// claims are always watched
	readers.AddReader(inventory.Notify(c.first.Seen, corev1.Resource("persistentvolumes")))
	for _, err := range []error{
		in.Claims.OnChange(c.claimChanged), in.Volumes.OnChange(c.volumeChanged),
		in.Classes.OnChange(func(_, after metav1.Object) {
			if after != nil {
				c.retryPending(nil)
			}
		}),
		in.Pods.OnChange(c.podChanged),
	} {
		if err != nil {
			return nil, fmt.Errorf("volumes: %w", err)
		}
	}
	metrics.OnRead(c.measure)
	return c, nil
}

// Run waits for the first claim or volume, then watches and works until ctx ends.
func (c *Controller) Run(ctx context.Context) {
	c.first.Run(ctx, []reconciler.Watched{c.in.Volumes, c.in.Classes}, nil, c.loop.Run)
}

func claimKey(namespace, name string) string { return "claim/" + namespace + "/" + name }

func (c *Controller) claimChanged(before, after metav1.Object) {
	c.first.Seen()
	o := after
	if o == nil {
		o = before
	}
	key := claimKey(o.GetNamespace(), o.GetName())
	c.loop.Add(key)
	if after == nil {
		c.setPending(key, false)
		c.work.end(key, false)
	}
	// Its volumes are released, or bound, depending on the stored claim.
	for _, v := range source.VolumesOf(c.in.Volumes, o.GetNamespace()+"/"+o.GetName()) {
		c.loop.Add("volume/" + v.Name)
	}
}

func (c *Controller) volumeChanged(before, after metav1.Object) {
	c.sorted.change()
	c.first.Seen()
	for _, o := range []metav1.Object{before, after} {
		v, ok := o.(*corev1.PersistentVolume)
		if !ok {
			continue
		}
		c.loop.Add("volume/" + v.Name)
		if after == nil {
			c.work.end("volume/"+v.Name, true)
		}
		if r := v.Spec.ClaimRef; r != nil {
			c.loop.Add(claimKey(r.Namespace, r.Name))
		}
	}
	if v, ok := after.(*corev1.PersistentVolume); ok && (v.Spec.ClaimRef == nil || v.Spec.ClaimRef.UID == "") {
		c.retryPending(v)
	}
}

// podChanged checks the claims of a new pod: they may wait for it.
func (c *Controller) podChanged(before, after metav1.Object) {
	pod, ok := after.(*corev1.Pod)
	if !ok || before != nil || pod.Spec.NodeName != "" {
		return
	}
	for _, name := range volume.ClaimsOf(pod) {
		key := claimKey(pod.Namespace, name)
		c.mu.Lock()
		waits := c.pending[key]
		c.mu.Unlock()
		if waits {
			c.loop.Add(key)
		}
	}
}

func (c *Controller) setPending(key string, pending bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if pending {
		c.pending[key] = true
	} else {
		delete(c.pending, key)
	}
}

// retryPending queues the unbound claims that may be bound to a volume; nil: all.
func (c *Controller) retryPending(v *corev1.PersistentVolume) {
	c.mu.Lock()
	keys := slices.Collect(maps.Keys(c.pending))
	c.mu.Unlock()
	for _, key := range keys {
		namespace, name, _ := strings.Cut(strings.TrimPrefix(key, "claim/"), "/")
		if claim := c.view().Claim(namespace, name); v == nil || claim == nil || volume.MayBind(c.view(), claim, v) {
			c.loop.Add(key)
		}
	}
}

func (c *Controller) reconcile(ctx context.Context, key string) (time.Duration, error) {
	kind, rest, _ := strings.Cut(key, "/")
	namespace, name, _ := strings.Cut(rest, "/")
	for writes := 0; ; writes++ {
		if writes == mostWrites {
			return 0, fmt.Errorf("bind %s: another component, such as a webhook, changes what is written", key)
		}
		var step volume.Step
		var about metav1.Object
		if kind == "claim" {
			claim := c.view().Claim(namespace, name)
			if claim == nil {
				c.setPending(key, false)
				return 0, nil
			}
			about = claim
			c.work.claim(claim)
			step = volume.ForClaim(volume.ClaimInput{Claim: claim, View: c.view(),
				Unscheduled: c.unscheduled(namespace, name)})
			c.setPending(key, step.Pending)
		} else {
			v := c.view().Volume(rest)
			if v == nil {
				return 0, nil
			}
			about = v
			c.work.volume(v)
			var err error
			if step, err = c.forVolume(ctx, v); err != nil {
				return 0, err
			}
		}
		if step.Err != nil {
			return 0, step.Err
		}
		wrote, decideAgain, err := c.write(ctx, step.Write)
		if decideAgain && err == nil {
			writes-- // there was none
			continue
		}
		if claim, ok := about.(*corev1.PersistentVolumeClaim); ok {
			countLateClass(claim, step.Write, err)
		}
		stale := confirm.Stale(err)
		if err = c.overtaken(ctx, step.Write, err); err != nil {
			return 0, fmt.Errorf("bind %s: %w", key, err)
		}
		if stale {
			return 10 * time.Millisecond, nil // the watches will show the change, perhaps with the key of another claim
		}
		for _, e := range step.Events {
			c.record(about, e)
		}
		if v, ok := about.(*corev1.PersistentVolume); ok && step.WakeClaim {
			c.loop.Add(claimKey(v.Spec.ClaimRef.Namespace, v.Spec.ClaimRef.Name))
		}
		if !wrote {
			if step.Pending {
				return again, nil
			}
			return 0, nil
		}
		if len(step.Events) > 0 && step.Pending {
			return again, nil // already recorded; recorded again with the next check
		}
	}
}

// forVolume decides about a volume, and reads from the API before it treats a claim as deleted.
func (c *Controller) forVolume(ctx context.Context, v *corev1.PersistentVolume) (volume.Step, error) {
	in := volume.PVInput{Volume: v}
	if r := v.Spec.ClaimRef; r != nil {
		in.Claim = c.view().Claim(r.Namespace, r.Name)
	}
	step := volume.ForVolume(in)
	if !step.Confirm {
		return step, nil
	}
	r := v.Spec.ClaimRef
	claim, err := c.client.CoreV1().PersistentVolumeClaims(r.Namespace).Get(ctx, r.Name, metav1.GetOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		return step, fmt.Errorf("get the claim of volume %s: %w", v.Name, err)
	}
	in.Confirmed, in.Claim = true, nil
	if err == nil {
		in.Claim = claim
	}
	return volume.ForVolume(in), nil
}

// write does the write of a step and records the response. wrote is false if there was nothing to write. again is true
// if another worker was writing the object: the decision must be made again.
func (c *Controller) write(ctx context.Context, w volume.Write) (wrote, again bool, err error) {
	var key string
	var do func() (metav1.Object, error)
	o := metav1.UpdateOptions{}
	switch {
	case w.Nothing():
		return false, false, nil
	case w.Claim != nil:
		api := c.client.CoreV1().PersistentVolumeClaims(w.Claim.Namespace)
		key = claimKey(w.Claim.Namespace, w.Claim.Name)
		do = func() (metav1.Object, error) {
			if w.Status {
				return api.UpdateStatus(ctx, w.Claim, o)
			}
			return api.Update(ctx, w.Claim, o)
		}
	default:
		api := c.client.CoreV1().PersistentVolumes()
		key = "volume/" + w.Volume.Name
		do = func() (metav1.Object, error) {
			if w.Status {
				return api.UpdateStatus(ctx, w.Volume, o)
			}
			return api.Update(ctx, w.Volume, o)
		}
	}
	if !c.writes.begin(ctx, key) {
		return false, true, ctx.Err()
	}
	answer, err := do()
	if err != nil {
		c.writes.end(key, nil)
		return false, false, err
	}
	c.writes.end(key, answer)
	return true, false, nil
}

// overtaken returns the error of a write; nil if a newer version is stored, or none.
func (c *Controller) overtaken(ctx context.Context, w volume.Write, err error) error {
	switch {
	case w.Nothing():
		return err
	case w.Claim != nil:
		return confirm.Overtaken(ctx, w.Claim, err,
			confirm.By(c.client.CoreV1().PersistentVolumeClaims(w.Claim.Namespace).Get, w.Claim.Name))
	}
	return confirm.Overtaken(ctx, w.Volume, err, confirm.By(c.client.CoreV1().PersistentVolumes().Get, w.Volume.Name))
}

func (c *Controller) record(about metav1.Object, e volume.Event) {
	events := c.events
	if e.Component == volume.ExpandComponent {
		events = c.expands
	}
	switch {
	case e.Claim != nil:
		events.Event(e.Claim, e.Type, e.Reason, e.Message)
	case e.Volume != nil:
		events.Event(e.Volume, e.Type, e.Reason, e.Message)
	default:
		switch o := about.(type) {
		case *corev1.PersistentVolumeClaim:
			events.Event(o, e.Type, e.Reason, e.Message)
		case *corev1.PersistentVolume:
			events.Event(o, e.Type, e.Reason, e.Message)
		}
	}
}

// unscheduled returns the pods without a node that use a claim (S1.43).
func (c *Controller) unscheduled(namespace, claim string) []string {
	var names []string
	for _, pod := range source.Namespaced[*corev1.Pod](c.in.Pods, namespace) {
		if pod.Spec.NodeName == "" && pod.Status.Phase != corev1.PodSucceeded && pod.Status.Phase != corev1.PodFailed &&
			slices.Contains(volume.ClaimsOf(pod), claim) {
			names = append(names, pod.Name)
		}
	}
	slices.Sort(names)
	return names
}

// view provides the objects to decisions.
func (c *Controller) view() view { return view{c} }

type view struct{ c *Controller }

func (v view) Claim(namespace, name string) *corev1.PersistentVolumeClaim {
	return newest[*corev1.PersistentVolumeClaim](&v.c.writes, v.c.in.Claims, claimKey(namespace, name),
		namespace+"/"+name)
}

func (v view) Volume(name string) *corev1.PersistentVolume {
	return newest[*corev1.PersistentVolume](&v.c.writes, v.c.in.Volumes, "volume/"+name, name)
}

func (v view) Volumes() []*corev1.PersistentVolume {
	all, copied := v.c.sorted.get(v.c.in.Volumes), false
	for _, name := range v.c.writes.volumes() {
		i, ok := slices.BinarySearchFunc(all, name, func(o *corev1.PersistentVolume, name string) int {
			return cmp.Compare(o.Name, name)
		})
		if !ok {
			continue
		}
		if o := v.Volume(name); o != nil && o != all[i] {
			if !copied {
				all, copied = slices.Clone(all), true
			}
			all[i] = o
		}
	}
	return all
}

func (v view) Class(name string) *storagev1.StorageClass {
	return source.Get[*storagev1.StorageClass](v.c.in.Classes, name)
}

func (v view) Classes() []*storagev1.StorageClass {
	var out []*storagev1.StorageClass
	for _, o := range v.c.in.Classes.Objects().List() {
		if class, ok := o.(*storagev1.StorageClass); ok {
			out = append(out, class)
		}
	}
	return out
}
