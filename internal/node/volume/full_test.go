package volume

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"carob/internal/node/csi"
)

// fullNode is a node on which no volume can be attached.
type fullNode struct{ err error }

func (f fullNode) SetUp(context.Context, csi.Request) (csi.Ready, error) { return csi.Ready{}, f.err }
func (fullNode) Release(context.Context, types.UID) error                { return nil }
func (fullNode) Held(types.UID) bool                                     { return false }
func (fullNode) Pods() []types.UID                                       { return nil }

// A pod whose driver reports that the node is full is rejected, without other events; one whose volume is only late is
// not (L3.36).
func TestNodeIsFull(t *testing.T) {
	for _, full := range []bool{false, true} {
		w, s := newWorld(t), bound(t.TempDir())
		s.volumes["pv"].Spec.PersistentVolumeSource = corev1.PersistentVolumeSource{
			CSI: &corev1.CSIPersistentVolumeSource{Driver: "d", VolumeHandle: "h"}}
		late := fmt.Errorf("volume h of driver d is not attached to this node: %w", csi.ErrNotAttached)
		w.cfg.Persistent, w.cfg.CSI = s, fullNode{late}
		if full {
			w.cfg.CSI = fullNode{&csi.FullError{Err: late}}
		}
		err := w.Prepare(t.Context(), podWithClaim("p1"))
		r, rejected := errors.AsType[*Rejection](err)
		if rejected != full {
			t.Fatalf("full %t: %v", full, err)
		}
		if events := slices.Clone(w.events); len(events) == 0 != full {
			t.Errorf("full %t: events %q", full, events)
		}
		const want = "Node has reached its volume attachment limit, rejecting pod. unmounted volumes=[v], " +
			"unattached volumes=[v], failed to process volumes=[]: volume h of driver d is not attached to this node: " +
			"timed out waiting for the condition"
		if full && (r.Message != want || r.Reason != "VolumeAttachmentLimitExceeded") {
			t.Errorf("%s: %s", r.Reason, r.Message)
		}
	}
}

// A volume of a driver has the name that upstream's metrics give it.
func TestPluginOfDriver(t *testing.T) {
	w, s := newWorld(t), bound(t.TempDir())
	s.volumes["pv"].Spec.PersistentVolumeSource = corev1.PersistentVolumeSource{
		CSI: &corev1.CSIPersistentVolumeSource{Driver: "d.example.com", VolumeHandle: "h"}}
	w.cfg.Persistent, w.cfg.CSI = s, fullNode{}
	if err := w.Prepare(t.Context(), podWithClaim("p1")); err != nil {
		t.Fatal(err)
	}
	if v := w.Volumes("p1")["v"]; v.Persistent != "kubernetes.io/csi:d.example.com" {
		t.Errorf("%+v", v)
	}
}
