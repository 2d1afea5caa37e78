package attach

import (
	"context"
	"fmt"
	"slices"

	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"carob/internal/core/volume/attach"
)

// creation is the last attachment that the controller created for an exclusive volume. Workers of other nodes do not
// see it before the watch delivers it.
type creation struct {
	node, name string
	running    bool // the request is in progress
}

// create creates an attachment. It returns false if the volume is exclusive and another node may have it: the caller
// decides again later.
func (c *Controller) create(ctx context.Context, a *storagev1.VolumeAttachment, wanted []attach.Wanted) (bool, error) {
	node := a.Spec.NodeName
	i := slices.IndexFunc(wanted, func(w attach.Wanted) bool { return w.AttachmentName(node) == a.Name })
	exclusive := i >= 0 && wanted[i].Exclusive
	if exclusive {
		if ok, err := c.claim(ctx, wanted[i].Volume, node, a.Name); !ok {
			return false, err
		}
	}
	_, err := c.client.StorageV1().VolumeAttachments().Create(ctx, a, metav1.CreateOptions{})
	if exclusive {
		c.mu.Lock()
		if made := c.created[wanted[i].Name]; made != nil { // after an error, too: it may have been created
			made.running = false
		}
		c.mu.Unlock()
	}
	if err != nil && !apierrors.IsAlreadyExists(err) {
		return false, fmt.Errorf("create volume attachment %s: %w", a.Name, err)
	}
	return true, nil
}

// claim reserves an exclusive volume for a node, unless another node has an attachment of it: one that the watch shows,
// or one that this controller created and the watch may not show yet.
func (c *Controller) claim(ctx context.Context, v attach.Volume, node, name string) (bool, error) {
	c.mu.Lock()
	last := c.created[v.Name]
	var of string
	if last != nil && last.node != node {
		if last.running {
			c.mu.Unlock()
			return false, nil
		}
		of = last.name
	}
	c.mu.Unlock()
	if of != "" {
		_, err := c.client.StorageV1().VolumeAttachments().Get(ctx, of, metav1.GetOptions{})
		switch {
		case err == nil:
			return false, nil
		case !apierrors.IsNotFound(err):
			return false, fmt.Errorf("check whether volume %s is attached to another node: %w", v.Name, err)
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.created[v.Name] != last || last != nil && last.running || len(c.elsewhere(v, node)) > 0 {
		return false, nil // another worker was faster
	}
	c.created[v.Name] = &creation{node: node, name: name, running: true}
	return true, nil
}

// forget removes what was recorded about the creation of a volume's attachment that is deleted.
func (c *Controller) forget(volume, name string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if made := c.created[volume]; made != nil && made.name == name && !made.running {
		delete(c.created, volume)
	}
}
