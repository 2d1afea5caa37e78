package storage

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"carob/internal/core/volume"
	"carob/internal/sim/fakeapi"
)

// Stored checks a change of the API.
func (s *Storage) Stored(before fakeapi.Object, after fakeapi.Entry) {
	switch o := after.Object.(type) {
	case *corev1.PersistentVolumeClaim:
		s.claimStored(before, o, after.Gone)
	case *corev1.PersistentVolume:
		if after.Gone && o.Spec.ClaimRef != nil {
			s.checkUnused(o.Spec.ClaimRef.UID, "volume "+o.Name)
		}
	case *appsv1.StatefulSet:
		s.setStored(o, after.Gone)
	case *corev1.Pod:
		if after.Gone {
			s.checkEnded(o)
		}
	}
}

func (s *Storage) claimStored(before fakeapi.Object, c *corev1.PersistentVolumeClaim, gone bool) {
	known := s.claims[c.UID]
	if known == nil {
		known = &claim{name: c.Name}
		s.claims[c.UID] = known
		s.mayGo(known)
	}
	known.mayGo = known.mayGo || s.byUser
	if old, ok := before.(*corev1.PersistentVolumeClaim); ok && old.Spec.VolumeName != "" &&
		old.Spec.VolumeName != c.Spec.VolumeName {
		fakeapi.Break(One, "the volume of claim %s changes from %s to %s", c.Name, old.Spec.VolumeName,
			c.Spec.VolumeName)
	}
	if c.DeletionTimestamp != nil && !known.deleted {
		known.deleted = true
		if !known.mayGo {
			fakeapi.Break(Retained, "claim %s is deleted", c.Name)
		}
	}
	if gone {
		s.checkUnused(c.UID, "claim "+c.Name)
		return
	}
	if !volume.FullyBound(c) {
		return
	}
	known.volume = c.Spec.VolumeName
	for _, other := range fakeapi.All[*corev1.PersistentVolumeClaim](s.api) {
		if other.UID != c.UID && volume.FullyBound(other) && other.Spec.VolumeName == c.Spec.VolumeName {
			fakeapi.Break(One, "claims %s and %s are bound to volume %s", other.Name, c.Name, c.Spec.VolumeName)
		}
	}
}

// setStored records which claims the policy of a set may delete from now on. A controller that sees the set late may
// act on an earlier version, so that this never ends.
func (s *Storage) setStored(set *appsv1.StatefulSet, gone bool) {
	whenDeleted, _ := policyOf(set)
	s.deletes[set.Name] = s.deletes[set.Name] || whenDeleted
	for _, c := range s.claims { // any order: each by itself
		s.mayGo(c)
		if _, of := ordinalOf(c.name, set.Name); of && (gone || set.DeletionTimestamp != nil) && s.deletes[set.Name] {
			c.mayGo = true
		}
	}
}

// mayGo records whether a policy may delete a claim by what is stored now: its set is gone, or its ordinal is out of
// range.
func (s *Storage) mayGo(c *claim) {
	exists := false
	for _, set := range fakeapi.All[*appsv1.StatefulSet](s.api) {
		ordinal, of := ordinalOf(c.name, set.Name)
		if !of {
			continue
		}
		exists = true
		_, whenScaled := policyOf(set)
		c.mayGo = c.mayGo || whenScaled && ordinal >= int(*set.Spec.Replicas)
	}
	if name, _, ok := strings.Cut(setOf(c.name), "/"); !exists && ok {
		c.mayGo = c.mayGo || s.deletes[name]
	}
}

// setOf returns "SET/ORDINAL" of a claim "TEMPLATE-SET-ORDINAL"; names of templates and sets have no hyphens here.
func setOf(claim string) string {
	parts := strings.Split(claim, "-")
	if len(parts) != 3 {
		return claim
	}
	return parts[1] + "/" + parts[2]
}

// ordinalOf returns the ordinal of a claim of a set; false for another claim.
func ordinalOf(claim, set string) (int, bool) {
	name, ordinal, ok := strings.Cut(setOf(claim), "/")
	n, err := strconv.Atoi(ordinal)
	return n, ok && err == nil && name == set
}

// checkUnused checks that no container uses the claim of something that goes.
func (s *Storage) checkUnused(uid types.UID, what string) {
	running := s.running()
	for _, pod := range slices.Sorted(maps.Keys(s.mounts)) {
		if running[pod] && slices.ContainsFunc(s.mounts[pod], func(m mount) bool { return m.claim == uid }) {
			fakeapi.Break(Used, "%s is gone, and pod %s runs with it", what, pod)
		}
	}
}

// checkEnded drops the mounts of a pod that is gone, with its containers.
func (s *Storage) checkEnded(p *corev1.Pod) {
	if !s.running()[p.UID] {
		delete(s.mounts, p.UID)
	}
}

// removes checks the removal of the data of a volume.
func (s *Storage) removes(v *corev1.PersistentVolume) {
	r := v.Spec.ClaimRef
	if r == nil {
		return
	}
	c, ok := s.api.Get(r.UID).(*corev1.PersistentVolumeClaim)
	if ok && volume.FullyBound(c) && c.Spec.VolumeName == v.Name {
		fakeapi.Break(Data, "the data of claim %s is removed, which exists", c.Name)
	}
}

// Started checks a pod of which a container runs on a node.
func (s *Storage) Started(uid types.UID, node string) {
	p, ok := s.api.Get(uid).(*corev1.Pod)
	if !ok {
		return
	}
	for _, pc := range volume.PodClaims(p) {
		if len(s.mounts[p.UID]) == 0 {
			fakeapi.Break(Place, "%s runs on %s without claim %s", p.Name, node, pc.Name)
		}
	}
	for _, m := range s.mounts[p.UID] {
		if m.directory == "" {
			continue
		}
		if d := s.disks[node][m.directory]; d == nil || d.claim != m.claim {
			fakeapi.Break(Place, "%s runs on %s without the data of volume %s", p.Name, node, m.volume)
		}
	}
}

// expectation is what must become of a claim.
type expectation struct {
	claim types.UID
	stays bool
}

// Expect records what must become of the claims of a set that is as wanted, when its size changes, or with -1 when it
// is deleted (W3.91 to W3.94). Claims of ordinals without a pod are left as they are unless their set is deleted: then
// they may have a reference to it or not.
func (s *Storage) Expect(set *appsv1.StatefulSet, size int) {
	whenDeleted, whenScaled := policyOf(set)
	s.expected = map[string]expectation{}
	for _, c := range fakeapi.All[*corev1.PersistentVolumeClaim](s.api) {
		ordinal, of := ordinalOf(c.Name, set.Name)
		of = of && slices.ContainsFunc(set.Spec.VolumeClaimTemplates, func(t corev1.PersistentVolumeClaim) bool {
			return strings.HasPrefix(c.Name, t.Name+"-")
		}) // otherwise it is of an earlier set, and stays
		switch inRange := ordinal < int(*set.Spec.Replicas); {
		case !of || !inRange && size < 0:
		case size < 0:
			s.expected[c.Name] = expectation{c.UID, !whenDeleted}
		case inRange && ordinal >= size:
			s.expected[c.Name] = expectation{c.UID, !whenScaled}
		default:
			s.expected[c.Name] = expectation{c.UID, true}
		}
	}
}

// Missing returns differences from the state that must be reached, nil for none.
func (s *Storage) Missing() *fakeapi.Broken {
	for _, name := range slices.Sorted(maps.Keys(s.expected)) {
		if e := s.expected[name]; (s.api.Get(e.claim) != nil) != e.stays {
			return broken("claim %s: stays is %v, and should be %v", name, !e.stays, e.stays)
		}
	}
	for _, c := range fakeapi.All[*corev1.PersistentVolumeClaim](s.api) {
		if v := s.volumeOf(c); c.Spec.VolumeName != "" && (v == nil || c.Status.Phase != corev1.ClaimBound ||
			v.Status.Phase != corev1.VolumeBound) {
			return broken("claim %s is %s, its volume %s", c.Name, c.Status.Phase, c.Spec.VolumeName)
		}
	}
	names := map[string]bool{}
	for _, v := range fakeapi.All[*corev1.PersistentVolume](s.api) {
		names[v.Name] = true
		r := v.Spec.ClaimRef
		if v.Spec.StorageClassName != Local || s.lost(v) || r == nil {
			continue
		}
		if s.api.Get(r.UID) == nil {
			return broken("volume %s of claim %s is left, in phase %s", v.Name, r.Name, v.Status.Phase)
		}
	}
	for _, node := range slices.Sorted(maps.Keys(s.disks)) {
		for _, name := range slices.Sorted(maps.Keys(s.disks[node])) {
			if owner, _, _ := strings.Cut(name, "_"); !names[owner] {
				return broken("directory %s is left on %s", name, node)
			}
		}
	}
	return nil
}

func broken(format string, args ...any) *fakeapi.Broken {
	return &fakeapi.Broken{Invariant: Deleted, How: fmt.Sprintf(format, args...)}
}
