package storage

import (
	"errors"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"carob/internal/core/volume"
	"carob/internal/sim/fakeapi"
)

// base is the directory of a node that contains the data of its volumes.
const base = "/base"

// provisioner simulates controllers/localpath for all nodes.
type provisioner struct {
	controller
	claims, volumes, nodes *fakeapi.Watch
}

func (s *Storage) newProvisioner(client *fakeapi.Client, caches *fakeapi.Caches) *provisioner {
	p := &provisioner{controller: controller{Storage: s, client: client, dirty: true}}
	p.claims = fakeapi.Shared[*corev1.PersistentVolumeClaim](caches, p.changed)
	p.volumes = fakeapi.Shared[*corev1.PersistentVolume](caches, p.changed)
	p.nodes = fakeapi.Shared[*corev1.Node](caches, p.changed)
	return p
}

// Turn implements Part.
func (p *provisioner) Turn() bool {
	if !p.dirty {
		return true
	}
	p.dirty = false
	for _, n := range fakeapi.Seen[*corev1.Node](p.nodes) {
		if p.disks[n.Name] == nil {
			continue
		}
		for _, c := range fakeapi.Seen[*corev1.PersistentVolumeClaim](p.claims) {
			if p.ended(p.claim(n, c)) {
				return false
			}
		}
		for _, v := range fakeapi.Seen[*corev1.PersistentVolume](p.volumes) {
			if p.ended(p.volume(n, v)) {
				return false
			}
		}
		p.sweep(n.Name)
	}
	return true
}

// claim makes the volume of a claim, its data first.
func (p *provisioner) claim(n *corev1.Node, c *corev1.PersistentVolumeClaim) error {
	view := p.NewView(p.claims, p.volumes)
	name := c.Spec.VolumeName
	if name == "" {
		name = volume.LocalName(c)
	}
	exists := func(node string) bool {
		return slices.ContainsFunc(fakeapi.Seen[*corev1.Node](p.nodes),
			func(n *corev1.Node) bool { return n.Name == node })
	}
	s := volume.ForLocalClaim(volume.LocalInput{Claim: c, Class: view.Class(*c.Spec.StorageClassName),
		Volume: view.Volume(name), Node: n, Bases: []string{base}, NodeExists: exists})
	switch {
	case s.Make != nil:
		disk := p.disks[n.Name]
		if disk[s.Make.Name] == nil {
			disk[s.Make.Name] = &directory{claim: c.UID}
		}
		_, err := p.client.Create(volume.Into(s.Volume, base+"/"+s.Make.Name, "none"), func(o fakeapi.Object) bool {
			_, ok := o.(*corev1.PersistentVolume)
			return ok
		})
		if errors.Is(err, fakeapi.ErrExists) {
			return nil // the watch does not show it yet
		}
		return err
	case s.Claim != nil:
		return p.stale(view.Write(p.client, volume.Write{Claim: s.Claim, Status: s.Status}))
	}
	return nil
}

// stale returns no error if a newer version is stored: the watch shows it.
func (p *provisioner) stale(err error) error {
	if fakeapi.Stale(err) {
		return nil
	}
	return err
}

// volume deletes a volume without a claim, after its data.
func (p *provisioner) volume(n *corev1.Node, v *corev1.PersistentVolume) error {
	removed := false
	for v != nil {
		known := v
		if p.sabotage.Eager {
			known = v.DeepCopy()
			known.Status.Phase = corev1.VolumeReleased
		}
		s := volume.ForLocalVolume(known, n.Name, []string{base}, removed)
		switch {
		case s.Remove != nil:
			// As the controller, which reads the volume again before it deletes its data.
			if now, ok := p.api.Get(v.UID).(*corev1.PersistentVolume); !ok {
				return nil
			} else if now.ResourceVersion != v.ResourceVersion {
				v = now
				continue
			}
			p.removes(v)
			delete(p.disks[n.Name], s.Remove.Name)
			removed = true
		case s.Delete:
			if _, err := p.client.Delete(v.UID, 0); err != nil {
				return p.stale(err)
			}
			v, _ = p.api.Get(v.UID).(*corev1.PersistentVolume)
		case s.Update != nil:
			return p.stale(p.NewView(p.claims, p.volumes).Write(p.client, volume.Write{Volume: s.Update}))
		default:
			return nil
		}
	}
	return nil
}

// sweep removes empty directories for which there is neither a volume nor a claim.
func (p *provisioner) sweep(node string) {
	known := map[types.UID]bool{}
	for _, c := range fakeapi.Seen[*corev1.PersistentVolumeClaim](p.claims) {
		known[c.UID] = true
	}
	for _, name := range slices.Sorted(maps.Keys(p.disks[node])) {
		d := p.disks[node][name]
		owner, _, _ := strings.Cut(name, "_")
		if !d.used && !known[d.claim] && p.NewView(p.claims, p.volumes).Volume(owner) == nil {
			delete(p.disks[node], name)
		}
	}
}
