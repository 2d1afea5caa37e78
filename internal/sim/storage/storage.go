// Package storage is the part of the simulated cluster that has to do with persistent volumes: it drives core/volume as
// the controllers volumes (the binder), localpath (the provisioner of each node) and protection do, keeps the data of
// the volumes, and checks the invariants about claims, volumes and data. Package cluster runs it with the scheduler,
// StatefulSets with claim templates, and nodes; it must never touch a real cluster.
//
// Contract: docs/spec/storage-and-node.md and docs/spec/workloads.md.
package storage

import (
	"fmt"
	"slices"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"carob/internal/core/volume"
	"carob/internal/sim/fakeapi"
)

// The invariants.
const (
	One      fakeapi.Invariant = "a volume is bound to one claim, and a claim to one volume (S1.5, S1.63)"
	Used     fakeapi.Invariant = "no claim and no volume goes while a container uses it (S7.2, S7.6)"
	Data     fakeapi.Invariant = "the data of a claim stays as long as the claim (S1.74, S3.21)"
	Place    fakeapi.Invariant = "containers run where the data of their claims is (S2.11)"
	Retained fakeapi.Invariant = "a claim goes only as the retention policy of its set says, or by a user (W3.90, W3.97)"
	Deleted  fakeapi.Invariant = "after a scale-down or a deletion of a set, claims stay or go as its policy says, " +
		"and data with them (W3.91, W3.92, W3.93, W3.94, S3.21)"
)

// The classes of the world. All but the first have volumes that users create.
const (
	Local     = "local" // core/volume makes them on the selected node
	Late      = "late"  // bound when a pod uses the claim
	Immediate = "now"   // bound at once
)

// The finalizers that admission adds (S7.1).
const (
	claimFinalizer  = "kubernetes.io/pvc-protection"
	volumeFinalizer = "kubernetes.io/pv-protection"
)

// Sabotage breaks a part; the zero value breaks nothing.
type Sabotage struct {
	IgnoresBindings bool // the binder does not see to which claims volumes are bound
	Unprotected     bool // claims are released while pods use them
	Eager           bool // the provisioner takes volumes for released
	Anywhere        bool // pods do not wait for their volumes, neither in the scheduler nor on nodes
}

// directory is the data of a volume on a node.
type directory struct {
	claim types.UID
	used  bool // a container has written to it
}

// claim holds the facts about a claim for the checks.
type claim struct {
	name    string
	volume  string // that it was bound to
	mayGo   bool   // a user deleted it, or a policy says so
	deleted bool
}

// Storage is what the processes do not keep: the data on the nodes, and the facts for the checks.
type Storage struct {
	api      *fakeapi.API
	sabotage Sabotage
	// running returns the pods that have a running container.
	running func() map[types.UID]bool
	classes []*storagev1.StorageClass

	disks    map[string]map[string]*directory // by node and name
	claims   map[types.UID]*claim
	mounts   map[types.UID][]mount // by pod
	deletes  map[string]bool       // names of sets whose policy has ever deleted the claims of deleted sets
	byUser   bool                  // a user deletes something
	expected map[string]expectation
	made     int // volumes of users
}

// mount is a claim that a pod uses on its node.
type mount struct {
	claim     types.UID
	volume    string
	directory string // "" for a volume without a place
}

// New returns the storage of a world without nodes. It must be given each change of the API.
func New(api *fakeapi.API, sabotage Sabotage, running func() map[types.UID]bool) *Storage {
	local := volume.LocalClasses()[0]
	local.Name = Local
	static := func(name string, mode storagev1.VolumeBindingMode) *storagev1.StorageClass {
		return &storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: name},
			Provisioner: "kubernetes.io/no-provisioner", VolumeBindingMode: &mode}
	}
	return &Storage{api: api, sabotage: sabotage, running: running,
		classes: []*storagev1.StorageClass{local, static(Late, storagev1.VolumeBindingWaitForFirstConsumer),
			static(Immediate, storagev1.VolumeBindingImmediate)},
		disks: map[string]map[string]*directory{}, claims: map[types.UID]*claim{}, mounts: map[types.UID][]mount{},
		deletes: map[string]bool{}}
}

// Admit sets what the API server sets in new objects.
func Admit(o fakeapi.Object) {
	switch o := o.(type) {
	case *corev1.PersistentVolumeClaim:
		o.Finalizers = append(o.Finalizers, claimFinalizer)
		o.Status.Phase = corev1.ClaimPending
	case *corev1.PersistentVolume:
		o.Finalizers = append(o.Finalizers, volumeFinalizer)
		o.Status.Phase = corev1.VolumePending
	}
}

// AddNode adds the empty disk of a node.
func (s *Storage) AddNode(node string) { s.disks[node] = map[string]*directory{} }

// LoseNode destroys a node with its data.
func (s *Storage) LoseNode(node string) { delete(s.disks, node) }

// Template returns a claim template of a set, of a class.
func Template(name, class string) corev1.PersistentVolumeClaim {
	return corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: corev1.PersistentVolumeClaimSpec{StorageClassName: &class,
			AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
			Resources: corev1.VolumeResourceRequirements{
				Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")}}}}
}

// Supply lets a user add volumes until some of each class are available: those of deleted claims are kept.
func (s *Storage) Supply(some int) {
	for _, class := range []string{Late, Immediate} {
		free := 0
		for _, v := range fakeapi.All[*corev1.PersistentVolume](s.api) {
			if v.Spec.StorageClassName == class && v.Spec.ClaimRef == nil && v.DeletionTimestamp == nil {
				free++
			}
		}
		for ; free < some; free++ {
			s.made++
			size := resource.NewQuantity(int64(1+s.api.IntN(3))<<30, resource.BinarySI)
			name := fmt.Sprintf("%s-%d", class, s.made)
			s.api.Create(&corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: name},
				Spec: corev1.PersistentVolumeSpec{StorageClassName: class,
					AccessModes:                   []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
					Capacity:                      corev1.ResourceList{corev1.ResourceStorage: *size},
					PersistentVolumeReclaimPolicy: corev1.PersistentVolumeReclaimRetain,
					PersistentVolumeSource:        corev1.PersistentVolumeSource{NFS: &corev1.NFSVolumeSource{}}}})
		}
	}
}

// Delete lets a user delete a claim or a volume.
func (s *Storage) Delete(o fakeapi.Object) {
	s.byUser = true
	s.api.Delete(o.GetUID(), 0)
	s.byUser = false
}

// DeleteSome lets a user delete any claim or volume, used or not.
func (s *Storage) DeleteSome() {
	var all []fakeapi.Object
	for _, c := range fakeapi.All[*corev1.PersistentVolumeClaim](s.api) {
		all = append(all, c)
	}
	for _, v := range fakeapi.All[*corev1.PersistentVolume](s.api) {
		all = append(all, v)
	}
	if len(all) > 0 {
		s.Delete(all[s.api.IntN(len(all))])
	}
}

// Repair lets a user delete what can never work again: claims whose data was on a node that is gone, pods that use a
// claim that is being deleted (S7.2), and pods that were bound to a node before their claim was deleted (the new claim
// waits for a pod without a node, as upstream). Two pods of a set in order that is scaled down wait for each other when
// neither can be scheduled (W3.45): those without their claims are deleted, too.
func (s *Storage) Repair() {
	for _, c := range fakeapi.All[*corev1.PersistentVolumeClaim](s.api) {
		if v := s.volumeOf(c); c.DeletionTimestamp == nil && c.Spec.VolumeName != "" && (v == nil || s.lost(v)) {
			s.Delete(c)
		}
	}
	for _, p := range fakeapi.All[*corev1.Pod](s.api) {
		if p.DeletionTimestamp != nil {
			continue
		}
		for _, pc := range volume.PodClaims(p) {
			c := s.claimOf(p.Namespace, pc.Name)
			bound := p.Spec.NodeName != ""
			wedged := c != nil && p.Status.Phase == corev1.PodPending && c.Spec.VolumeName == "" &&
				*c.Spec.StorageClassName != Immediate
			if c == nil && !bound || c != nil && bound && (c.DeletionTimestamp != nil || wedged) {
				s.api.Delete(p.UID, grace)
				break
			}
		}
	}
}

// grace is the grace period of pods that users delete, in seconds.
const grace = 30

// Stays reports whether an object that is being deleted stays: a volume with a claim (S7.6), or of a lost node.
func (s *Storage) Stays(o fakeapi.Object) bool {
	v, ok := o.(*corev1.PersistentVolume)
	switch {
	case !ok:
		return false
	case s.lost(v):
		return true
	}
	return v.Status.Phase == corev1.VolumeBound && v.Spec.ClaimRef != nil && s.api.Get(v.Spec.ClaimRef.UID) != nil
}

// lost reports whether the data of a volume was on a node that is gone.
func (s *Storage) lost(v *corev1.PersistentVolume) bool {
	node, placed := v.Annotations[volume.LocalNode]
	return placed && s.disks[node] == nil
}

func (s *Storage) claimOf(namespace, name string) *corev1.PersistentVolumeClaim {
	for _, c := range fakeapi.All[*corev1.PersistentVolumeClaim](s.api) {
		if c.Name == name && c.Namespace == namespace {
			return c
		}
	}
	return nil
}

// volumeOf returns the volume that a claim is bound to, nil for none.
func (s *Storage) volumeOf(c *corev1.PersistentVolumeClaim) *corev1.PersistentVolume {
	for _, v := range fakeapi.All[*corev1.PersistentVolume](s.api) {
		if v.Name == c.Spec.VolumeName && v.Spec.ClaimRef != nil && v.Spec.ClaimRef.UID == c.UID {
			return v
		}
	}
	return nil
}

// Mount does what the agent of a node does before the containers of a pod start: it finds the volumes of its claims.
// The error is what the pod waits for.
func (s *Storage) Mount(p *corev1.Pod, node string) error {
	if s.sabotage.Anywhere {
		return nil
	}
	var all []mount
	for _, pc := range volume.PodClaims(p) {
		c := s.claimOf(p.Namespace, pc.Name)
		if c == nil || !volume.FullyBound(c) {
			return fmt.Errorf("claim %s is not bound", pc.Name)
		}
		v := s.volumeOf(c)
		if v == nil {
			return fmt.Errorf("claim %s has no volume", pc.Name)
		}
		m := mount{claim: c.UID, volume: v.Name}
		if path := volume.LocalPath(v); path != "" {
			m.directory = path[len(base)+1:]
			d := s.disks[node][m.directory]
			if d == nil {
				return fmt.Errorf("volume %s is not on node %s", v.Name, node)
			}
			d.used = true
		}
		all = append(all, m)
	}
	s.mounts[p.UID] = all
	return nil
}

// Parts returns the binder, the provisioners, and the protection of claims and volumes of a process.
func (s *Storage) Parts(client *fakeapi.Client, caches *fakeapi.Caches) []Part {
	return []Part{s.newBinder(client, caches), s.newProvisioner(client, caches), s.newProtection(client, caches)}
}

// Part is a controller of a process.
type Part interface {
	// Turn handles what has changed; false means that the process has ended.
	Turn() bool
	// Due returns whether there is something to do now; it never requests a time.
	Due() (now bool, at time.Time)
}

// controller is common to the parts.
type controller struct {
	*Storage
	client *fakeapi.Client
	dirty  bool
}

func (c *controller) changed() { c.dirty = true }

// Due implements Part.
func (c *controller) Due() (now bool, at time.Time) { return c.dirty, time.Time{} }

// ended reports whether an error means that the process has ended; after another one, there is another turn.
func (c *controller) ended(err error) bool {
	c.dirty = c.dirty || err != nil
	return err != nil && isCrash(err)
}

// policyOf returns the retention policy of a set with its defaults.
func policyOf(set *appsv1.StatefulSet) (whenDeleted, whenScaled bool) {
	const deletes = appsv1.DeletePersistentVolumeClaimRetentionPolicyType
	p := set.Spec.PersistentVolumeClaimRetentionPolicy
	return p != nil && p.WhenDeleted == deletes, p != nil && p.WhenScaled == deletes
}

func without(all []string, one string) []string {
	return slices.DeleteFunc(slices.Clone(all), func(f string) bool { return f == one })
}
