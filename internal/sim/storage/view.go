package storage

import (
	"errors"
	"slices"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/types"

	"carob/internal/core/volume"
	"carob/internal/sim/fakeapi"
)

// View has the claims and volumes as a process has them: its watches, and its writes that these do not show yet. It is
// the volume.View of its decisions.
type View struct {
	claims, volumes *fakeapi.Watch
	classes         []*storagev1.StorageClass
	written         map[types.UID]fakeapi.Entry
	spoil           func(*corev1.PersistentVolume) *corev1.PersistentVolume
}

// NewView returns the view of some watches.
func (s *Storage) NewView(claims, volumes *fakeapi.Watch) *View {
	return &View{claims: claims, volumes: volumes, classes: s.classes, written: map[types.UID]fakeapi.Entry{},
		spoil: func(v *corev1.PersistentVolume) *corev1.PersistentVolume { return v }}
}

// Wrote records the response of a write.
func (v *View) Wrote(e fakeapi.Entry) { v.written[e.Object.GetUID()] = e }

// newest returns the objects of a watch, or the written versions while the watch shows older ones.
func newest[T fakeapi.Object](v *View, w *fakeapi.Watch) []T {
	all := fakeapi.Seen[T](w)
	for uid, e := range v.written { // any order: each by itself
		own, ok := e.Object.(T)
		if !ok {
			continue
		}
		if e.Version <= w.Version() {
			delete(v.written, uid)
			continue
		}
		i := slices.IndexFunc(all, func(o T) bool { return o.GetUID() == uid })
		if i >= 0 {
			all[i] = own
		}
	}
	return all
}

// Claims returns all claims, oldest first.
func (v *View) Claims() []*corev1.PersistentVolumeClaim {
	return newest[*corev1.PersistentVolumeClaim](v, v.claims)
}

// Claim implements volume.View.
func (v *View) Claim(namespace, name string) *corev1.PersistentVolumeClaim {
	for _, c := range v.Claims() {
		if c.Name == name && c.Namespace == namespace {
			return c
		}
	}
	return nil
}

// Volume implements volume.View.
func (v *View) Volume(name string) *corev1.PersistentVolume {
	for _, o := range v.Volumes() {
		if o.Name == name {
			return o
		}
	}
	return nil
}

// Volumes implements volume.View.
func (v *View) Volumes() []*corev1.PersistentVolume {
	all := newest[*corev1.PersistentVolume](v, v.volumes)
	for i := range all {
		all[i] = v.spoil(all[i])
	}
	volume.SortVolumes(all)
	return all
}

// Class implements volume.View.
func (v *View) Class(name string) *storagev1.StorageClass {
	for _, c := range v.classes {
		if c.Name == name {
			return c
		}
	}
	return nil
}

// Classes implements volume.View.
func (v *View) Classes() []*storagev1.StorageClass { return v.classes }

// Write does the write of a decision.
func (v *View) Write(client *fakeapi.Client, w volume.Write) error {
	var e fakeapi.Entry
	var err error
	if w.Claim != nil {
		e, err = client.Update(w.Claim, func(o fakeapi.Object) {
			if c, ok := o.(*corev1.PersistentVolumeClaim); ok && w.Status {
				c.Status = w.Claim.Status
			} else if ok {
				c.Spec, c.Annotations, c.Finalizers = w.Claim.Spec, w.Claim.Annotations, w.Claim.Finalizers
			}
		})
	} else {
		e, err = client.Update(w.Volume, func(o fakeapi.Object) {
			if c, ok := o.(*corev1.PersistentVolume); ok && w.Status {
				c.Status = w.Volume.Status
			} else if ok {
				c.Spec, c.Annotations, c.Finalizers = w.Volume.Spec, w.Volume.Annotations, w.Volume.Finalizers
			}
		})
	}
	if err == nil {
		v.Wrote(e)
	}
	return err
}

func isCrash(err error) bool { return errors.Is(err, fakeapi.ErrCrash) }
