// Package localpath creates and deletes the volumes of the built-in local class on the node of this
// process. core/volume decides, a Disk does the file operations; the controller manager runs it. It
// must never bind a claim.
//
// It is idle until the first claim or volume; then it watches volumes, classes and nodes.
//
// Contract: S3 in docs/spec/storage-and-node.md.
package localpath

import (
	"context"
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/record"

	"carob/internal/base/confirm"
	"carob/internal/controllers/metrics"
	"carob/internal/controllers/reconciler"
	"carob/internal/controllers/source"
	"carob/internal/core/volume"
)

// Disk keeps the data of volumes. Its methods are idempotent, and safe for concurrent use.
type Disk interface {
	// Bases are the directories that may contain data.
	Bases() []string
	// Make makes a directory or file. It returns its path, and the mechanism that enforces its
	// size.
	Make(ctx context.Context, p volume.LocalPlace) (path, limit string, err error)
	Resize(ctx context.Context, p volume.LocalPlace) error
	// Remove deletes the data completely.
	Remove(ctx context.Context, p volume.LocalPlace) error
	// Sweep deletes leftovers of Make for volumes that were never created: empty directories of
	// unknown volumes.
	Sweep(ctx context.Context, known func(volume string) bool) error
}

// Watches are what the controller reads.
type Watches struct {
	Claims, Nodes    *source.Watch // run by the caller
	Volumes, Classes *source.Watch // run by another controller, once there is a claim or volume
}

// Controller is the provisioner. Its key is claim/NAMESPACE/NAME, volume/NAME, or sweep.
type Controller struct {
	loop   *reconciler.Reconciler
	client kubernetes.Interface
	events record.EventRecorder
	node   string
	disk   Disk
	in     Watches
	first  *reconciler.First // claim or volume
}

const sweepKey = "sweep"

// New returns the provisioner of a node.
func New(client kubernetes.Interface, events record.EventRecorder, node string, disk Disk, in Watches) (*Controller,
	error) {
	c := &Controller{client: client, events: events, node: node, disk: disk, in: in, first: reconciler.NewFirst()}
	c.loop = reconciler.New("local_volumes", 4, c.reconcile)
	for _, err := range []error{
		in.Claims.OnChange(c.claimChanged),
		in.Volumes.OnChange(func(before, after metav1.Object) {
			o := after
			if o == nil {
				o = before
			}
			c.volumeChanged(o)
		}),
		in.Classes.OnChange(func(_, after metav1.Object) {
			for _, o := range in.Claims.Objects().List() {
				claim, ok := o.(*corev1.PersistentVolumeClaim)
				if !ok || after == nil {
					continue
				}
				if name, _ := volume.ClassOf(claim); name == after.GetName() && claim.Spec.VolumeName == "" {
					c.loop.Add("claim/" + claim.Namespace + "/" + claim.Name)
				}
			}
		}),
	} {
		if err != nil {
			return nil, fmt.Errorf("localpath: %w", err)
		}
	}
	return c, nil
}

func (c *Controller) claimChanged(before, after metav1.Object) {
	c.first.Seen()
	if after == nil {
		// A directory may have been created for it, but no volume.
		if claim, ok := before.(*corev1.PersistentVolumeClaim); ok && claim.Spec.VolumeName == "" {
			c.loop.Add(sweepKey)
		}
		return
	}
	c.loop.Add("claim/" + after.GetNamespace() + "/" + after.GetName())
}

func (c *Controller) volumeChanged(o metav1.Object) {
	c.first.Seen()
	v, ok := o.(*corev1.PersistentVolume)
	if !ok || v.Annotations[volume.ProvisionedBy] != volume.LocalProvisioner {
		return
	}
	c.loop.Add("volume/" + v.Name)
	if r := v.Spec.ClaimRef; r != nil {
		c.loop.Add("claim/" + r.Namespace + "/" + r.Name)
	}
}

// Run works until ctx ends.
func (c *Controller) Run(ctx context.Context) {
	c.first.Run(ctx, nil, []reconciler.Watched{c.in.Volumes, c.in.Classes}, func(ctx context.Context) {
		c.loop.Add(sweepKey)
		c.loop.Run(ctx)
	})
}

func (c *Controller) reconcile(ctx context.Context, key string) (time.Duration, error) {
	switch kind, rest, _ := strings.Cut(key, "/"); kind {
	case "claim":
		return 0, c.claim(ctx, rest)
	case "volume":
		return 0, c.volume(ctx, rest)
	}
	return 0, c.disk.Sweep(ctx, c.known)
}

// staleClaim and staleVolume return the error of a write; nil if a newer version is stored, or none, which a watch will
// show.
func (c *Controller) staleClaim(ctx context.Context, claim *corev1.PersistentVolumeClaim, err error) error {
	return confirm.Overtaken(ctx, claim, err,
		confirm.By(c.client.CoreV1().PersistentVolumeClaims(claim.Namespace).Get, claim.Name))
}

func (c *Controller) staleVolume(ctx context.Context, v *corev1.PersistentVolume, err error) error {
	return confirm.Overtaken(ctx, v, err, confirm.By(c.client.CoreV1().PersistentVolumes().Get, v.Name))
}

// known reports whether a volume exists, or a claim for which it is being created.
func (c *Controller) known(name string) bool {
	if source.Get[*corev1.PersistentVolume](c.in.Volumes, name) != nil {
		return true
	}
	for _, o := range c.in.Claims.Objects().List() {
		if claim, ok := o.(*corev1.PersistentVolumeClaim); ok && volume.LocalName(claim) == name {
			return true
		}
	}
	return false
}

// claim creates or expands the volume of a claim.
func (c *Controller) claim(ctx context.Context, key string) error {
	claim := source.Get[*corev1.PersistentVolumeClaim](c.in.Claims, key)
	if claim == nil {
		return nil
	}
	class, _ := volume.ClassOf(claim)
	in := volume.LocalInput{
		Claim: claim, Class: source.Get[*storagev1.StorageClass](c.in.Classes, class),
		Node:       source.Get[*corev1.Node](c.in.Nodes, c.node),
		NodeExists: func(name string) bool { return source.Get[*corev1.Node](c.in.Nodes, name) != nil },
		Bases:      c.disk.Bases(),
	}
	if in.Node == nil {
		return fmt.Errorf("node %q does not exist yet", c.node)
	}
	name := claim.Spec.VolumeName
	if name == "" {
		name = volume.LocalName(claim)
	}
	in.Volume = source.Get[*corev1.PersistentVolume](c.in.Volumes, name)
	s := volume.ForLocalClaim(in)
	c.record(claim, s.Events)
	if s.Make != nil {
		return c.provision(ctx, claim, in.Class, s)
	}
	if s.Resize != nil {
		if err := c.disk.Resize(ctx, *s.Resize); err != nil {
			failed, event := volume.ResizeFailed(claim, in.Volume, err, metav1.Now())
			c.record(claim, []volume.Event{event})
			_, unwritten := c.client.CoreV1().PersistentVolumeClaims(claim.Namespace).UpdateStatus(ctx, failed,
				metav1.UpdateOptions{})
			if unwritten = c.staleClaim(ctx, claim, unwritten); unwritten != nil {
				return fmt.Errorf("report that claim %s cannot be resized: %w", key, unwritten)
			}
			return fmt.Errorf("resize the volume of claim %s: %w", key, err)
		}
		_, err := c.client.CoreV1().PersistentVolumes().Update(ctx, s.Volume, metav1.UpdateOptions{})
		if err = c.staleVolume(ctx, s.Volume, err); err != nil {
			return fmt.Errorf("write the size of volume %s: %w", s.Volume.Name, err)
		}
		return nil // the watch shows the volume, then the claim's status is next
	}
	if s.Claim != nil {
		var err error
		claims := c.client.CoreV1().PersistentVolumeClaims(claim.Namespace)
		if s.Status {
			_, err = claims.UpdateStatus(ctx, s.Claim, metav1.UpdateOptions{})
		} else {
			_, err = claims.Update(ctx, s.Claim, metav1.UpdateOptions{})
		}
		stale := confirm.Stale(err)
		if err = c.staleClaim(ctx, s.Claim, err); err != nil {
			return fmt.Errorf("update claim %s: %w", key, err)
		}
		if !stale {
			c.record(claim, s.Done)
		}
	}
	return nil
}

// provision creates the directory of a volume, then the volume.
func (c *Controller) provision(ctx context.Context, claim *corev1.PersistentVolumeClaim, class *storagev1.StorageClass,
	s volume.LocalStep) error {
	path, limit, err := c.disk.Make(ctx, *s.Make)
	if err != nil {
		metrics.VolumeErrors.WithLabelValues(class.Provisioner, "provision").Inc()
		c.record(claim, []volume.Event{volume.LocalFailed(class, err)})
		return fmt.Errorf("provision a volume for claim %s/%s: %w", claim.Namespace, claim.Name, err)
	}
	_, err = c.client.CoreV1().PersistentVolumes().Create(ctx, volume.Into(s.Volume, path, limit),
		metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) {
		if _, failed := c.client.CoreV1().PersistentVolumes().Get(ctx, s.Volume.Name,
			metav1.GetOptions{}); failed == nil {
			return nil // the watch does not show it yet
		}
	}
	if err != nil {
		metrics.VolumeErrors.WithLabelValues(class.Provisioner, "provision").Inc()
		c.record(claim, []volume.Event{volume.LocalFailed(class, err)})
		return fmt.Errorf("create the volume of claim %s/%s: %w", claim.Namespace, claim.Name, err)
	}
	c.record(claim, s.Done)
	return nil
}

// volume deletes a volume without a claim, after its data.
func (c *Controller) volume(ctx context.Context, name string) error {
	v := source.Get[*corev1.PersistentVolume](c.in.Volumes, name)
	removed := false
	volumes := c.client.CoreV1().PersistentVolumes()
	for v != nil {
		s := volume.ForLocalVolume(v, c.node, c.disk.Bases(), removed)
		for _, e := range s.Events {
			c.events.Event(v, e.Type, e.Reason, e.Message)
		}
		switch {
		case s.Remove != nil:
			// The version in the watch is not sufficient, because deleted data cannot be restored.
			now, err := volumes.Get(ctx, name, metav1.GetOptions{})
			if apierrors.IsNotFound(err) {
				return nil
			}
			if err != nil {
				return fmt.Errorf("get volume %s before its data is deleted: %w", name, err)
			}
			if now.ResourceVersion != v.ResourceVersion {
				v = now
				continue
			}
			if err := c.disk.Remove(ctx, *s.Remove); ctx.Err() != nil {
				return ctx.Err() // carob ends; the next start goes on
			} else if err != nil {
				metrics.VolumeErrors.WithLabelValues(v.Annotations[volume.ProvisionedBy], "delete").Inc()
				c.events.Event(v, corev1.EventTypeWarning, "VolumeFailedDelete", err.Error())
				return fmt.Errorf("delete the data of volume %s: %w", name, err)
			}
			removed = true
		case s.Delete:
			err := volumes.Delete(ctx, name, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &v.UID}})
			if err = confirm.Ended(ctx, v.UID, err, confirm.By(volumes.Get, name)); err != nil {
				return fmt.Errorf("delete volume %s: %w", name, err)
			}
			v, err = volumes.Get(ctx, name, metav1.GetOptions{})
			if apierrors.IsNotFound(err) {
				return nil
			}
			if err != nil {
				return fmt.Errorf("get deleted volume %s: %w", name, err)
			}
		case s.Update != nil:
			_, err := volumes.Update(ctx, s.Update, metav1.UpdateOptions{})
			if err = c.staleVolume(ctx, s.Update, err); err != nil {
				return fmt.Errorf("update the finalizers of volume %s: %w", name, err)
			}
			return nil
		default:
			return nil
		}
	}
	return nil
}

func (c *Controller) record(claim *corev1.PersistentVolumeClaim, events []volume.Event) {
	for _, e := range events {
		c.events.Event(claim, e.Type, e.Reason, e.Message)
	}
}
