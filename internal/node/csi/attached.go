package csi

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"google.golang.org/grpc/codes"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// ErrNotAttached is the kind of errors for volumes that are not attached to the node.
var ErrNotAttached = errors.New("timed out waiting for the condition")

// FullError is the error of a volume that is not attached because the node already has as many volumes as its driver
// can attach (S4.63).
type FullError struct{ Err error }

func (e *FullError) Error() string { return e.Err.Error() }
func (e *FullError) Unwrap() error { return e.Err }

// awaitAttached waits until the node may use a volume (S4.34): the Node object must list it as
// in use and as attached. A change of the object ends the wait; after some time without one, the
// pod gets an error.
func (m *Manager) awaitAttached(ctx context.Context, u *use) error {
	if u.PV == nil || !u.rules.Attach {
		return nil
	}
	start := time.Now()
	m.cfg.InUseChanged()
	err := m.waitAttached(ctx, u)
	m.cfg.Meter.Operation(plugin(u.handle), "verify_controller_attached_volume", err, time.Since(start))
	return err
}

func (m *Manager) waitAttached(ctx context.Context, u *use) error {
	name := u.handle.UniqueName()
	var patience <-chan time.Time
	for {
		moved := m.news()
		if n := m.cfg.Object(); n != nil && slices.Contains(n.Status.VolumesInUse, name) && slices.ContainsFunc(
			n.Status.VolumesAttached, func(a corev1.AttachedVolume) bool { return a.Name == name }) {
			break
		}
		if patience == nil {
			timer := time.NewTimer(attachTimeout)
			defer timer.Stop()
			patience = timer.C
		}
		select {
		case <-moved:
		case <-ctx.Done():
			return ctx.Err()
		case <-patience:
			return m.notAttached(ctx, u)
		}
	}
	id := u.handle.AttachmentName(m.cfg.Node)
	a, err := m.cfg.Client.StorageV1().VolumeAttachments().Get(ctx, id, metav1.GetOptions{})
	switch {
	case err != nil:
		return &StepError{
			"MountVolume.WaitForAttach",
			fmt.Errorf("volume %s has GET error for volume attachment %s: %w",
				u.handle.ID, id, err),
		}
	case !a.Status.Attached:
		return &StepError{"MountVolume.WaitForAttach", fmt.Errorf("volume %s is not attached for volume attachment %s",
			u.handle.ID, id)}
	}
	u.publish = a.Status.AttachmentMetadata
	return nil
}

// notAttached is the error of a volume that was not attached in time: a FullError if its driver reports that no other
// volume can be attached. Then the driver is called at once for its limit (S4.63).
func (m *Manager) notAttached(ctx context.Context, u *use) error {
	late := fmt.Errorf("volume %s of driver %s is not attached to this node: %w", u.handle.ID, u.handle.Driver,
		ErrNotAttached)
	if u.rules.Refresh == 0 {
		return late
	}
	a, err := m.cfg.Client.StorageV1().VolumeAttachments().Get(ctx, u.handle.AttachmentName(m.cfg.Node),
		metav1.GetOptions{})
	if err != nil || a.Status.AttachError == nil || a.Status.AttachError.ErrorCode == nil ||
		codes.Code(*a.Status.AttachError.ErrorCode) != codes.ResourceExhausted {
		return late
	}
	d, err := m.registered(u.handle.Driver)
	if err == nil {
		err = m.newLimit(ctx, d)
	}
	if err != nil {
		m.cfg.Logger.Info("Looking at how many volumes of a CSI driver fit on the node failed", "driver",
			u.handle.Driver, "err", err)
	}
	return &FullError{late}
}
