package volume

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strconv"
	"testing"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// world is an API server with claims and volumes, the disk of one node, and users, a binder and a provisioner
// that crash between any two of their writes, see the API late, and lose responses.
type world struct {
	t         *testing.T
	rand      *rand.Rand
	version   int
	made      int
	claims    map[string]*corev1.PersistentVolumeClaim
	volumes   map[string]*corev1.PersistentVolume
	classes   []*storagev1.StorageClass
	disk      map[string]int64 // the sizes of directories, by path
	seen      *view            // the last state that the binder saw
	faultless bool
	log       []string
}

// view is a copy of the world at a moment.
type view struct {
	claims  map[string]*corev1.PersistentVolumeClaim
	volumes map[string]*corev1.PersistentVolume
	classes []*storagev1.StorageClass
}

func (v *view) Claim(ns, name string) *corev1.PersistentVolumeClaim { return v.claims[ns+"/"+name] }
func (v *view) Volume(name string) *corev1.PersistentVolume         { return v.volumes[name] }
func (v *view) Volumes() []*corev1.PersistentVolume {
	list := slices.Collect(maps.Values(v.volumes))
	SortVolumes(list)
	return list
}
func (v *view) Class(name string) *storagev1.StorageClass {
	for _, c := range v.classes {
		if c.Name == name {
			return c
		}
	}
	return nil
}
func (v *view) Classes() []*storagev1.StorageClass { return v.classes }

func (w *world) look() *view {
	return &view{maps.Clone(w.claims), maps.Clone(w.volumes), w.classes}
}

func (w *world) failf(format string, args ...any) {
	w.t.Helper()
	for _, l := range w.log[max(0, len(w.log)-40):] {
		w.t.Log(l)
	}
	w.t.Fatalf(format, args...)
}

func (w *world) note(format string, args ...any) { w.log = append(w.log, fmt.Sprintf(format, args...)) }

func (w *world) one(n int) bool { return !w.faultless && w.rand.IntN(n) == 0 }

func (w *world) stamp(o metav1.Object) {
	w.version++
	o.SetResourceVersion(strconv.Itoa(w.version))
	if o.GetUID() == "" {
		w.made++
		o.SetUID(types.UID("uid-" + strconv.Itoa(w.made)))
	}
}

// update stores an object if it has not changed. ok is false after a conflict, a lost answer, or a
// crash.
func (w *world) update(wr Write) (ok bool) {
	if w.one(8) {
		return false // the process ends before the write
	}
	switch {
	case wr.Claim != nil:
		key := wr.Claim.Namespace + "/" + wr.Claim.Name
		old := w.claims[key]
		if old == nil || old.ResourceVersion != wr.Claim.ResourceVersion {
			return false
		}
		c := old.DeepCopy()
		if wr.Status {
			c.Status = wr.Claim.Status
		} else {
			if old.Spec.VolumeName != "" && old.Spec.VolumeName != wr.Claim.Spec.VolumeName {
				w.failf("volumeName of %s changes from %s to %s (S1.5)", key, old.Spec.VolumeName, wr.Claim.Spec.VolumeName)
			}
			c.Spec, c.Annotations = wr.Claim.Spec, wr.Claim.Annotations
		}
		if equality.Semantic.DeepEqual(old, c) {
			w.failf("a write of claim %s that changes nothing: it would never end", key)
		}
		w.stamp(c)
		w.claims[key] = c
		w.note("claim %s: volume %q phase %s annotations %v", key, c.Spec.VolumeName, c.Status.Phase, c.Annotations)
	case wr.Volume != nil:
		old := w.volumes[wr.Volume.Name]
		if old == nil || old.ResourceVersion != wr.Volume.ResourceVersion {
			return false
		}
		v := old.DeepCopy()
		if wr.Status {
			v.Status = wr.Volume.Status
		} else {
			v.Spec, v.Annotations, v.Finalizers = wr.Volume.Spec, wr.Volume.Annotations, wr.Volume.Finalizers
		}
		if equality.Semantic.DeepEqual(old, v) {
			w.failf("a write of volume %s that changes nothing: it would never end", v.Name)
		}
		w.stamp(v)
		w.volumes[v.Name] = v
		w.note("volume %s: claim %v phase %s finalizers %v", v.Name, v.Spec.ClaimRef, v.Status.Phase, v.Finalizers)
		w.collect(v.Name)
	}
	w.check()
	return !w.one(8)
}

// collect removes a volume that is deleted and has no finalizers.
func (w *world) collect(name string) {
	v := w.volumes[name]
	if v != nil && v.DeletionTimestamp != nil && len(v.Finalizers) == 0 && v.Status.Phase != corev1.VolumeBound {
		delete(w.volumes, name)
		w.note("volume %s is gone", name)
	}
}

// binder processes all objects once, in any order.
func (w *world) binder() {
	var keys []string
	for key := range w.claims {
		keys = append(keys, "c"+key)
	}
	for key := range w.volumes {
		keys = append(keys, "v"+key)
	}
	slices.Sort(keys)
	w.rand.Shuffle(len(keys), func(i, j int) { keys[i], keys[j] = keys[j], keys[i] })
	if w.seen == nil || !w.one(3) {
		w.seen = w.look()
	}
	for _, key := range keys {
		for range 10 {
			var s Step
			if key[0] == 'c' {
				c := w.seen.claims[key[1:]]
				if c == nil {
					break
				}
				s = ForClaim(ClaimInput{Claim: c, View: w.seen})
			} else {
				v := w.seen.volumes[key[1:]]
				if v == nil {
					break
				}
				s = ForVolume(w.volumeInput(v))
			}
			if s.Err != nil || s.Write.Nothing() {
				break
			}
			if !w.update(s.Write) {
				w.seen = w.look()
				return // it starts anew
			}
			w.seen = w.look() // it sees its own writes
		}
	}
}

func (w *world) volumeInput(v *corev1.PersistentVolume) PVInput {
	in := PVInput{Volume: v}
	if r := v.Spec.ClaimRef; r != nil {
		in.Claim = w.seen.claims[r.Namespace+"/"+r.Name]
		if ForVolume(in).Confirm {
			in.Claim, in.Confirmed = w.claims[r.Namespace+"/"+r.Name], true
		}
	}
	return in
}

var theNode = &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1",
	Labels: map[string]string{corev1.LabelHostname: "n1"}}}

// provisioner does the work of one node.
func (w *world) provisioner() {
	v := w.look()
	for _, key := range slices.Sorted(maps.Keys(w.claims)) {
		c := w.claims[key]
		name, _ := ClassOf(c)
		bound := v.Volume(c.Spec.VolumeName)
		if c.Spec.VolumeName == "" {
			bound = v.Volume(LocalName(c))
		}
		s := ForLocalClaim(LocalInput{Claim: c, Class: v.Class(name), Volume: bound, Node: theNode,
			NodeExists: func(n string) bool { return n == "n1" }, Bases: []string{"/base"}})
		if s.Make != nil {
			path := "/base/" + s.Make.Name
			if w.one(8) {
				return
			}
			if _, there := w.disk[path]; !there {
				w.disk[path] = s.Make.Size
				w.note("mkdir %s", path)
			}
			if w.one(8) {
				return
			}
			if w.volumes[s.Volume.Name] == nil {
				made := Into(s.Volume, path, "none")
				made.Status.Phase = corev1.VolumePending
				w.stamp(made)
				w.volumes[made.Name] = made
				w.note("volume %s is made", made.Name)
			}
			continue
		}
		if s.Resize != nil {
			w.disk[s.Resize.Base+"/"+s.Resize.Name] = s.Resize.Size
			if !w.update(Write{Volume: s.Volume}) {
				return
			}
		}
		if s.Claim != nil && !w.update(Write{Claim: s.Claim, Status: s.Status}) {
			return
		}
	}
	for _, name := range slices.Sorted(maps.Keys(w.volumes)) {
		removed := false
		for range 5 {
			v := w.volumes[name]
			if v == nil {
				break
			}
			s := ForLocalVolume(v, "n1", []string{"/base"}, removed)
			switch {
			case s.Remove != nil:
				path := s.Remove.Base + "/" + s.Remove.Name
				for key, c := range w.claims {
					if c.UID == v.Spec.ClaimRef.UID && w.used(c) {
						w.failf("the data of claim %s in use is deleted", key)
					}
				}
				delete(w.disk, path)
				w.note("rm %s", path)
				removed = true
			case s.Delete:
				deleted := v.DeepCopy()
				deleted.DeletionTimestamp = new(metav1.Now())
				w.stamp(deleted)
				w.volumes[name] = deleted
			case s.Update != nil:
				if !w.update(Write{Volume: s.Update}) {
					return
				}
			}
			if w.one(8) {
				return
			}
		}
	}
	w.sweep()
}

// sweep removes directories without a volume and a claim, as the driver does.
func (w *world) sweep() {
	for path := range w.disk {
		known := false
		for name := range w.volumes {
			known = known || len(path) > 6+len(name) && path[6:6+len(name)+1] == name+"_"
		}
		for _, c := range w.claims {
			name := LocalName(c)
			known = known || len(path) > 6+len(name) && path[6:6+len(name)+1] == name+"_"
		}
		if !known {
			delete(w.disk, path)
		}
	}
}

// used reports whether the pod of a claim may write to it.
func (w *world) used(c *corev1.PersistentVolumeClaim) bool { return FullyBound(c) }

// scheduler selects nodes, and binds volumes that were there before, as PreBind does.
func (w *world) scheduler() {
	for _, key := range slices.Sorted(maps.Keys(w.claims)) {
		c := w.claims[key]
		name, _ := ClassOf(c)
		if c.Spec.VolumeName != "" || !DelayedClass(w.look().Class(name)) || has(c.Annotations, SelectedNode) ||
			w.one(2) {
			continue
		}
		if v := findOn(w.look().Volumes(), c, theNode, nil); v != nil {
			if claimed, changed := claimedBy(v, c); changed {
				w.update(Write{Volume: claimed})
			}
			continue
		}
		c = c.DeepCopy()
		annotate(&c.Annotations, SelectedNode, "n1")
		w.update(Write{Claim: c})
	}
}

// users do something.
func (w *world) users() {
	class := []*string{nil, new(""), new("local"), new("late"), new("missing")}[w.rand.IntN(5)]
	size := resource.MustParse(strconv.Itoa(1+w.rand.IntN(4)) + "Gi")
	modes := [][]corev1.PersistentVolumeAccessMode{{corev1.ReadWriteOnce}, {corev1.ReadWriteOncePod},
		{corev1.ReadWriteOnce, corev1.ReadOnlyMany}}[w.rand.IntN(3)]
	switch w.rand.IntN(7) {
	case 0, 1:
		name := "c" + strconv.Itoa(w.rand.IntN(5))
		if w.claims["ns/"+name] != nil {
			return
		}
		c := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name},
			Spec: corev1.PersistentVolumeClaimSpec{StorageClassName: class, AccessModes: modes,
				Resources: corev1.VolumeResourceRequirements{
					Requests: corev1.ResourceList{corev1.ResourceStorage: size}}},
			Status: corev1.PersistentVolumeClaimStatus{Phase: corev1.ClaimPending}}
		if w.rand.IntN(4) == 0 {
			c.Spec.VolumeName = "v" + strconv.Itoa(w.rand.IntN(4))
		}
		w.stamp(c)
		w.claims["ns/"+name] = c
		w.note("claim %s is made: %v", name, c.Spec)
	case 2:
		name := "v" + strconv.Itoa(w.rand.IntN(4))
		if w.volumes[name] != nil {
			return
		}
		v := &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: name},
			Spec: corev1.PersistentVolumeSpec{AccessModes: modes,
				Capacity:                      corev1.ResourceList{corev1.ResourceStorage: size},
				PersistentVolumeReclaimPolicy: corev1.PersistentVolumeReclaimRetain,
				PersistentVolumeSource:        corev1.PersistentVolumeSource{NFS: &corev1.NFSVolumeSource{}}}}
		if class != nil {
			v.Spec.StorageClassName = *class
		}
		if w.rand.IntN(3) == 0 {
			v.Spec.ClaimRef = &corev1.ObjectReference{Namespace: "ns", Name: "c" + strconv.Itoa(w.rand.IntN(5))}
		}
		v.Status.Phase = corev1.VolumePending
		w.stamp(v)
		w.volumes[name] = v
		w.note("volume %s is made: %v", name, v.Spec.ClaimRef)
	case 3, 4: // a claim whose pods have ended is deleted
		for _, key := range slices.Sorted(maps.Keys(w.claims)) {
			delete(w.claims, key)
			w.note("claim %s is deleted", key)
			return
		}
	case 5: // a volume is deleted, used or not
		names := slices.Sorted(maps.Keys(w.volumes))
		if len(names) == 0 {
			return
		}
		v := w.volumes[names[w.rand.IntN(len(names))]].DeepCopy()
		if v.DeletionTimestamp == nil {
			v.DeletionTimestamp = new(metav1.Now())
		}
		w.stamp(v)
		w.volumes[v.Name] = v
		w.note("volume %s is being deleted", v.Name)
		w.collect(v.Name)
	case 6: // a user requests a larger volume
		for _, key := range slices.Sorted(maps.Keys(w.claims)) {
			if c := w.claims[key].DeepCopy(); c.Status.Phase == corev1.ClaimBound {
				have := c.Spec.Resources.Requests[corev1.ResourceStorage]
				have.Add(resource.MustParse("1Gi"))
				c.Spec.Resources.Requests[corev1.ResourceStorage] = have
				w.stamp(c)
				w.claims[key] = c
				return
			}
		}
	}
}

// check checks the invariants.
func (w *world) check() {
	owner := map[string]string{}
	for _, key := range slices.Sorted(maps.Keys(w.claims)) {
		c := w.claims[key]
		if !FullyBound(c) || c.Status.Phase != corev1.ClaimBound {
			continue
		}
		v := w.volumes[c.Spec.VolumeName]
		if v == nil || v.Spec.ClaimRef == nil {
			continue // lost, and about to be reported
		}
		if v.Spec.ClaimRef.UID != c.UID {
			w.failf("claim %s has volume %s, which is that of %v", key, v.Name, v.Spec.ClaimRef)
		}
		if other := owner[v.Name]; other != "" {
			w.failf("volume %s is bound to %s and %s", v.Name, other, key)
		}
		owner[v.Name] = key
		if path := LocalPath(v); path != "" {
			if _, there := w.disk[path]; !there {
				w.failf("the directory %s of claim %s is gone", path, key)
			}
		}
	}
}

// settle lets all parts work without failures, and checks the final state.
func (w *world) settle() {
	w.faultless = true
	for range 12 {
		w.scheduler()
		w.binder()
		w.provisioner()
	}
	before := w.version
	w.binder()
	w.provisioner()
	if w.version != before {
		w.failf("the writes never end")
	}
	paths := map[string]bool{}
	for _, v := range w.volumes {
		if p := LocalPath(v); p != "" {
			paths[p] = true
		}
		c := (*corev1.PersistentVolumeClaim)(nil)
		if v.Spec.ClaimRef != nil {
			c = w.claims["ns/"+v.Spec.ClaimRef.Name]
		}
		alive := c != nil && v.Spec.ClaimRef.UID == c.UID
		switch {
		case !alive && mine(v, "n1"):
			w.failf("volume %s is leaked: %v %s", v.Name, v.Spec.ClaimRef, v.Status.Phase)
		case alive && v.Status.Phase != corev1.VolumeBound && c.Spec.VolumeName == v.Name:
			w.failf("volume %s of claim %s is %s", v.Name, c.Name, v.Status.Phase)
		}
	}
	for path := range w.disk {
		if !paths[path] {
			w.failf("directory %s is leaked", path)
		}
	}
	for key, c := range w.claims {
		name, _ := ClassOf(c)
		if name == "local" && c.Spec.VolumeName == "" && len(c.Spec.AccessModes) == 1 {
			w.failf("claim %s of the local class is not bound: %+v", key, c)
		}
		if v := w.volumes[c.Spec.VolumeName]; v != nil && mine(v, "n1") && FullyBound(c) {
			want, have := c.Spec.Resources.Requests[corev1.ResourceStorage], c.Status.Capacity[corev1.ResourceStorage]
			if want.Cmp(have) > 0 || w.disk[LocalPath(v)] != have.Value() {
				w.failf("claim %s has %v of %v, on disk %d", key, have.String(), want.String(), w.disk[LocalPath(v)])
			}
		}
	}
}

func runWorld(t *testing.T, seed uint64) {
	w := &world{t: t, rand: rand.New(rand.NewPCG(seed, 1)), claims: map[string]*corev1.PersistentVolumeClaim{},
		volumes: map[string]*corev1.PersistentVolume{}, disk: map[string]int64{}}
	local := LocalClasses()[0]
	local.Name = "local"
	w.classes = []*storagev1.StorageClass{local, {ObjectMeta: metav1.ObjectMeta{Name: "late"},
		Provisioner:       "kubernetes.io/no-provisioner",
		VolumeBindingMode: new(storagev1.VolumeBindingWaitForFirstConsumer)}}
	for range 60 {
		switch w.rand.IntN(4) {
		case 0:
			w.users()
		case 1:
			w.scheduler()
		case 2:
			w.binder()
		case 3:
			w.provisioner()
		}
		w.check()
	}
	w.settle()
}

// With random users, and crashes of binder and provisioner at any write: no volume has two claims, no data of a
// claim is removed, no unowned data stays, and every claim that can be bound is bound.
func TestInvariantsUnderFaults(t *testing.T) {
	for seed := range uint64(600) {
		runWorld(t, seed)
		if t.Failed() {
			t.Fatalf("seed %d", seed)
		}
	}
}

// The events and the phase of a claim in each situation of S1.E and S1.G.
func TestClaimEvents(t *testing.T) {
	size := func(s string) corev1.ResourceList {
		return corev1.ResourceList{corev1.ResourceStorage: resource.MustParse(s)}
	}
	rwo := []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}
	other := &corev1.ObjectReference{Namespace: "ns", Name: "other", UID: "u2"}
	for name, c := range map[string]struct {
		class, volume string
		completed     bool
		pods          []string
		change        func(*corev1.PersistentVolume)
		capacity      string // of the claim's status, if it stays bound
		want          string
	}{
		"no class": {want: "FailedBinding no persistent volumes available for this claim and no storage class is set"},
		"late":     {class: "late", want: "WaitForFirstConsumer waiting for first consumer to be created before binding"},
		"late, a pod": {class: "late", pods: []string{"p"},
			want: "WaitForPodScheduled waiting for pod p to be scheduled"},
		"late, pods": {class: "late", pods: []string{"p", "q"},
			want: "WaitForPodScheduled waiting for pods p,q to be scheduled"},
		"no such class":  {class: "x", want: `ProvisioningFailed storageclass.storage.k8s.io "x" not found`},
		"in tree":        {class: "static", want: "ProvisioningFailed no volume plugin matched name: kubernetes.io/no-provisioner"},
		"volume missing": {volume: "none"},
		"too small": {volume: "v", change: func(v *corev1.PersistentVolume) { v.Spec.Capacity = size("1Mi") },
			want: `VolumeMismatch Cannot bind to requested volume "v": requested PV is too small`},
		"other class": {volume: "v", change: func(v *corev1.PersistentVolume) { v.Spec.StorageClassName = "x" },
			want: `VolumeMismatch Cannot bind to requested volume "v": storageClassName does not match`},
		"block": {volume: "v", change: func(v *corev1.PersistentVolume) {
			v.Spec.VolumeMode = new(corev1.PersistentVolumeBlock)
		}, want: `VolumeMismatch Cannot bind to requested volume "v": incompatible volumeMode`},
		"modes": {volume: "v", change: func(v *corev1.PersistentVolume) {
			v.Spec.AccessModes = []corev1.PersistentVolumeAccessMode{corev1.ReadOnlyMany}
		}, want: `VolumeMismatch Cannot bind to requested volume "v": incompatible accessMode`},
		"taken": {volume: "v", change: func(v *corev1.PersistentVolume) { v.Spec.ClaimRef = other },
			want: `FailedBinding volume "v" already bound to a different claim.`},
		"lost": {volume: "none", completed: true,
			want: "ClaimLost Bound claim has lost its PersistentVolume. Data on the volume is lost!"},
		"lost its name": {completed: true,
			want: "ClaimLost Bound claim has lost reference to PersistentVolume. Data on the volume is lost!"},
		"misbound": {volume: "v", completed: true, change: func(v *corev1.PersistentVolume) { v.Spec.ClaimRef = other },
			want: "ClaimMisbound Two claims are bound to the same volume, this one is bound incorrectly"},
		"grows": {volume: "v", completed: true, change: func(v *corev1.PersistentVolume) {
			v.Spec.ClaimRef = &corev1.ObjectReference{Namespace: "ns", Name: "c", UID: "u"}
			v.Spec.Capacity, v.Status.Phase = size("512Mi"), corev1.VolumeBound
		}, capacity: "512Mi", want: "ExternalExpanding waiting for an external controller to expand this PVC"},
		"has grown": {volume: "v", completed: true, change: func(v *corev1.PersistentVolume) {
			v.Spec.ClaimRef = &corev1.ObjectReference{Namespace: "ns", Name: "c", UID: "u"}
			v.Status.Phase = corev1.VolumeBound
		}, capacity: "1Gi"},
	} {
		v := &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "v"}, Spec: corev1.PersistentVolumeSpec{
			Capacity: size("1Gi"), AccessModes: rwo},
			Status: corev1.PersistentVolumeStatus{Phase: corev1.VolumePending}}
		if c.change != nil {
			c.change(v)
		}
		claim := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "c", UID: "u"},
			Spec: corev1.PersistentVolumeClaimSpec{StorageClassName: &c.class, VolumeName: c.volume, AccessModes: rwo,
				Resources: corev1.VolumeResourceRequirements{Requests: size("1Gi")}},
			Status: corev1.PersistentVolumeClaimStatus{Phase: corev1.ClaimPending}}
		if c.completed {
			claim.Annotations = map[string]string{BindCompleted: "yes"}
			claim.Status.Phase = corev1.ClaimBound
		}
		if c.capacity != "" {
			claim.Status.Capacity = size(c.capacity)
		}
		static := storagev1.VolumeBindingImmediate
		late := LocalClasses()[0]
		late.Name = "late"
		view := &view{volumes: map[string]*corev1.PersistentVolume{"v": v}, classes: []*storagev1.StorageClass{late,
			{ObjectMeta: metav1.ObjectMeta{Name: "static"}, Provisioner: "kubernetes.io/no-provisioner",
				VolumeBindingMode: &static}}}
		s := ForClaim(ClaimInput{Claim: claim, View: view, Unscheduled: c.pods})
		got := ""
		for _, e := range s.Events {
			got += e.Reason + " " + e.Message
		}
		if got != c.want || s.Err != nil {
			t.Errorf("%s: %q, %v, want %q", name, got, s.Err, c.want)
		}
		if c.completed && c.capacity == "" && (s.Write.Claim == nil || s.Write.Claim.Status.Phase != corev1.ClaimLost) {
			t.Errorf("%s: %+v", name, s.Write)
		}
	}
}
