package volume

import (
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"
)

// Names of the built-in local class, as in k3s and kind (S3.1 to S3.3).
const (
	LocalProvisioner = "rancher.io/local-path"
	LocalClass       = "local-path"
	LocalClassOfKind = "standard"
	// LocalNode is the annotation of a volume that names its node.
	LocalNode = "local.path.provisioner/selected-node"
	// LocalLimit is the annotation of a volume with the mechanism that enforces its size.
	LocalLimit = "carob.dev/size-limit"
	// LocalFinalizer keeps a volume until its data is gone (S1.29).
	LocalFinalizer = "external-provisioner.volume.kubernetes.io/finalizer"

	localTypeOfClass = "defaultVolumeType" // annotation of a class: local or hostPath
	localTypeOfClaim = "volumeType"        // annotation of a claim, the same
	parameterPath    = "nodePath"
	parameterKey     = "nodeAffinityKey"
)

// LocalClasses are the classes that a cluster starts with. The first is the default.
func LocalClasses() []*storagev1.StorageClass {
	class := func(name string, annotations map[string]string) *storagev1.StorageClass {
		return &storagev1.StorageClass{
			ObjectMeta:           metav1.ObjectMeta{Name: name, Annotations: annotations},
			Provisioner:          LocalProvisioner,
			ReclaimPolicy:        new(corev1.PersistentVolumeReclaimDelete),
			VolumeBindingMode:    new(storagev1.VolumeBindingWaitForFirstConsumer),
			AllowVolumeExpansion: new(true),
		}
	}
	return []*storagev1.StorageClass{
		class(LocalClass, map[string]string{localTypeOfClass: "local", DefaultClass: "true"}),
		class(LocalClassOfKind, map[string]string{localTypeOfClass: "local"}),
	}
}

// LocalInput holds the facts for the local provisioner of a node about a claim.
type LocalInput struct {
	Claim  *corev1.PersistentVolumeClaim
	Class  *storagev1.StorageClass  // of the claim; nil if there is none
	Volume *corev1.PersistentVolume // that the claim is bound to, or LocalName of it; nil if there is none
	// Node is the node of the provisioner.
	Node *corev1.Node
	// NodeExists reports whether the node that the claim selected exists.
	NodeExists func(name string) bool
	// Bases are the directories that may contain volumes.
	Bases []string
}

// LocalStep holds the actions of the provisioner for a claim: those that are not nil, in this
// order.
type LocalStep struct {
	Events []Event // before anything else
	// Make is the directory or file to create before the volume is created: Into adds its path to Volume.
	Make *LocalPlace
	// Volume is to be created, or, with Resize, updated.
	Volume *corev1.PersistentVolume
	Resize *LocalPlace // to be resized before Volume is updated
	Claim  *corev1.PersistentVolumeClaim
	Status bool // of the claim; otherwise everything else
	// Done is the event to record when all of it is done.
	Done []Event
}

// Nothing reports whether there is nothing to do.
func (s LocalStep) Nothing() bool {
	return s.Make == nil && s.Volume == nil && s.Resize == nil && s.Claim == nil && len(s.Events) == 0
}

// LocalPlace is the location of the data of a volume.
type LocalPlace struct {
	Base string // "": any of the provisioner's
	Name string // one step of a path
	Size int64  // bytes
	// Block means that it is a file for a block device, not a directory.
	Block bool
}

// LocalName is the name of the volume of a claim.
func LocalName(c *corev1.PersistentVolumeClaim) string { return "pvc-" + string(c.UID) }

// maxName is the longest name of a file.
const maxName = 255

// placeName names a directory after its volume and claim (S3.2). The volume's name, which comes first, is
// unique, so the rest may be truncated.
func placeName(c *corev1.PersistentVolumeClaim) (string, error) {
	name := LocalName(c) + "_" + c.Namespace + "_" + c.Name
	if len(name) > maxName {
		name = name[:maxName]
	}
	if strings.ContainsAny(name, "/\x00\n") || len(validation.IsDNS1123Subdomain(LocalName(c))) > 0 {
		return "", fmt.Errorf("claim %q in namespace %q has a name or UID that no directory may have", c.Name, c.Namespace)
	}
	return name, nil
}

// ForLocalClaim decides about a claim for the provisioner (S3.B).
func ForLocalClaim(in LocalInput) LocalStep {
	c := in.Claim
	if in.Class == nil || in.Class.Provisioner != LocalProvisioner {
		return LocalStep{}
	}
	if Completed(c) {
		return expandLocal(in)
	}
	if c.Spec.VolumeName != "" || c.DeletionTimestamp != nil || in.Volume != nil ||
		c.Annotations[StorageProvisioner] != LocalProvisioner {
		return LocalStep{}
	}
	selected, ok := c.Annotations[SelectedNode]
	if !ok {
		if DelayedClass(in.Class) {
			return LocalStep{}
		}
		selected = in.Node.Name // for immediate binding, any node can be chosen
	}
	if selected != in.Node.Name {
		if in.NodeExists(selected) {
			return LocalStep{} // another node's provisioner handles it
		}
		// Without it, the scheduler chooses again (S1.93).
		again := c.DeepCopy()
		delete(again.Annotations, SelectedNode)
		return LocalStep{Claim: again, Done: []Event{LocalFailed(in.Class, fmt.Errorf("node %q not found", selected))}}
	}
	v, place, err := newLocal(in)
	if err != nil {
		return LocalStep{Events: []Event{LocalFailed(in.Class, err)}}
	}
	return LocalStep{
		Events: []Event{normal("Provisioning", "External provisioner is provisioning volume for claim %q",
			c.Namespace+"/"+c.Name)},
		Make: place, Volume: v,
		Done: []Event{normal("ProvisioningSucceeded", "Successfully provisioned volume %s", v.Name)},
	}
}

// LocalFailed returns the event about a claim whose volume could not be created.
func LocalFailed(class *storagev1.StorageClass, err error) Event {
	return warning("ProvisioningFailed", "failed to provision volume with StorageClass %q: %v", class.Name, err)
}

// newLocal returns the volume of a claim, without its path, and the location of its data.
func newLocal(in LocalInput) (*corev1.PersistentVolume, *LocalPlace, error) {
	c, class := in.Claim, in.Class
	if c.Spec.Selector != nil {
		return nil, nil, errors.New("claim.Spec.Selector is not supported")
	}
	if c.Spec.DataSource != nil || c.Spec.DataSourceRef != nil {
		return nil, nil, errors.New("data sources are not supported by this class")
	}
	if c.Spec.VolumeAttributesClassName != nil && *c.Spec.VolumeAttributesClassName != "" {
		return nil, nil, errors.New("volume attributes classes are not supported by this class")
	}
	for _, m := range c.Spec.AccessModes {
		if m != corev1.ReadWriteOnce && m != corev1.ReadWriteOncePod {
			return nil, nil, errors.New("NodePath only supports ReadWriteOnce and ReadWriteOncePod (1.22+) access modes")
		}
	}
	key := corev1.LabelHostname
	for _, p := range slices.Sorted(maps.Keys(class.Parameters)) {
		switch p {
		case parameterPath:
			if !slices.Contains(in.Bases, class.Parameters[p]) {
				return nil, nil, fmt.Errorf("parameter nodePath: %q is none of this node's storage paths: %s",
					class.Parameters[p], strings.Join(in.Bases, ", "))
			}
		case parameterKey:
			key = class.Parameters[p]
		default:
			return nil, nil, fmt.Errorf("parameter %q of the class is not supported", p)
		}
	}
	value, ok := in.Node.Labels[key]
	if !ok && key == corev1.LabelHostname {
		value, ok = in.Node.Name, true
	}
	if !ok {
		return nil, nil, fmt.Errorf("node %q has no label %q", in.Node.Name, key)
	}
	name, err := placeName(c)
	if err != nil {
		return nil, nil, err
	}
	size := c.Spec.Resources.Requests[corev1.ResourceStorage]
	if err := tooLarge(size); err != nil {
		return nil, nil, err
	}
	v := &corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: LocalName(c),
			Annotations: map[string]string{ProvisionedBy: LocalProvisioner, LocalNode: in.Node.Name}},
		Spec: corev1.PersistentVolumeSpec{
			Capacity:                      corev1.ResourceList{corev1.ResourceStorage: size},
			AccessModes:                   c.Spec.AccessModes,
			ClaimRef:                      Ref(c),
			PersistentVolumeReclaimPolicy: corev1.PersistentVolumeReclaimDelete,
			StorageClassName:              class.Name,
			MountOptions:                  class.MountOptions,
			VolumeMode:                    new(modeOfClaim(c)),
			NodeAffinity: &corev1.VolumeNodeAffinity{Required: &corev1.NodeSelector{
				NodeSelectorTerms: []corev1.NodeSelectorTerm{{MatchExpressions: []corev1.NodeSelectorRequirement{
					{Key: key, Operator: corev1.NodeSelectorOpIn, Values: []string{value}}}}}}},
		},
	}
	if class.ReclaimPolicy != nil {
		v.Spec.PersistentVolumeReclaimPolicy = *class.ReclaimPolicy
	}
	if v.Spec.PersistentVolumeReclaimPolicy == corev1.PersistentVolumeReclaimDelete {
		v.Finalizers = []string{LocalFinalizer}
	}
	block := ModeOf(v) == corev1.PersistentVolumeBlock
	kind := c.Annotations[localTypeOfClaim]
	if kind == "" {
		kind = class.Annotations[localTypeOfClass]
	}
	switch {
	case kind == "hostPath" && !block:
		v.Spec.HostPath = &corev1.HostPathVolumeSource{Type: new(corev1.HostPathDirectoryOrCreate)}
	case kind == "" || kind == "local" || kind == "hostPath":
		v.Spec.Local = &corev1.LocalVolumeSource{}
	default:
		return nil, nil, fmt.Errorf("volume type %q is none of local and hostPath", kind)
	}
	return v, &LocalPlace{Base: class.Parameters[parameterPath], Name: name, Size: size.Value(), Block: block}, nil
}

// tooLarge refuses a size that is more bytes than a number can be: as a number it would be another one, or none.
func tooLarge(size resource.Quantity) error {
	if size.CmpInt64(math.MaxInt64) > 0 {
		return fmt.Errorf("a size of %s is more than any disk can have", size.String())
	}
	return nil
}

// Into completes a volume whose data is at path. limit is the mechanism that enforces its size.
func Into(v *corev1.PersistentVolume, path, limit string) *corev1.PersistentVolume {
	v = v.DeepCopy()
	annotate(&v.Annotations, LocalLimit, limit)
	if v.Spec.Local != nil {
		v.Spec.Local.Path = path
	} else {
		v.Spec.HostPath.Path = path
	}
	return v
}

// LocalPath returns the location of the data of a volume; "" for another kind of volume.
func LocalPath(v *corev1.PersistentVolume) string {
	switch {
	case v.Spec.Local != nil:
		return v.Spec.Local.Path
	case v.Spec.HostPath != nil:
		return v.Spec.HostPath.Path
	}
	return ""
}

// placeOf returns the location of the data of a volume: directly below one of the bases, with a name that
// begins with the volume's. Other locations were not created by this provisioner, even if the volume's
// annotations claim it (S3.27).
func placeOf(v *corev1.PersistentVolume, bases []string) (*LocalPlace, error) {
	path := LocalPath(v)
	i := strings.LastIndexByte(path, '/')
	if i < 0 || !slices.Contains(bases, path[:i]) || !strings.HasPrefix(path[i+1:], v.Name+"_") {
		return nil, fmt.Errorf("path %q of volume %q is not a directory that the provisioner of this node makes below %s",
			path, v.Name, strings.Join(bases, ", "))
	}
	size := v.Spec.Capacity[corev1.ResourceStorage]
	return &LocalPlace{Base: path[:i], Name: path[i+1:], Size: size.Value(),
		Block: ModeOf(v) == corev1.PersistentVolumeBlock}, nil
}

// mine reports whether this node's provisioner made a volume.
func mine(v *corev1.PersistentVolume, node string) bool {
	return v.Annotations[ProvisionedBy] == LocalProvisioner && v.Annotations[LocalNode] == node
}

// expandLocal expands a claim to its requested size: first the data, then the volume, then the claim's status
// (S3.26). After an error the size may be lowered again, as long as the claim does not have it (S5.18).
func expandLocal(in LocalInput) LocalStep {
	c, v := in.Claim, in.Volume
	want, have := c.Spec.Resources.Requests[corev1.ResourceStorage], c.Status.Capacity[corev1.ResourceStorage]
	if v == nil || !mine(v, in.Node.Name) || v.Spec.ClaimRef == nil || v.Spec.ClaimRef.UID != c.UID ||
		c.Status.Phase != corev1.ClaimBound || want.Cmp(have) <= 0 {
		return LocalStep{}
	}
	size := v.Spec.Capacity[corev1.ResourceStorage]
	if size.Cmp(want) < 0 {
		place, err := placeOf(v, in.Bases)
		if err == nil {
			err = tooLarge(want)
		}
		if err != nil {
			return LocalStep{Events: []Event{resizeFailed(v, err)}}
		}
		place.Size = want.Value()
		v = v.DeepCopy()
		v.Spec.Capacity = maps.Clone(v.Spec.Capacity)
		v.Spec.Capacity[corev1.ResourceStorage] = want
		return LocalStep{Resize: place, Volume: v,
			Events: []Event{normal("Resizing", "External resizer is resizing volume %s", v.Name)}}
	}
	c = c.DeepCopy()
	c.Status.Capacity = corev1.ResourceList{corev1.ResourceStorage: size}
	c.Status.AllocatedResources = corev1.ResourceList{corev1.ResourceStorage: want}
	c.Status.AllocatedResourceStatuses = nil
	c.Status.Conditions = withoutResize(c.Status.Conditions)
	return LocalStep{Claim: c, Status: true,
		Done: []Event{normal("VolumeResizeSuccessful", "Resize volume succeeded")}}
}

// withoutResize returns the conditions except those of a resize.
func withoutResize(list []corev1.PersistentVolumeClaimCondition) []corev1.PersistentVolumeClaimCondition {
	return slices.DeleteFunc(list, func(c corev1.PersistentVolumeClaimCondition) bool {
		switch c.Type {
		case corev1.PersistentVolumeClaimResizing, corev1.PersistentVolumeClaimFileSystemResizePending,
			corev1.PersistentVolumeClaimControllerResizeError, corev1.PersistentVolumeClaimNodeResizeError:
			return true
		}
		return false
	})
}

// ResizeFailed returns a claim whose volume could not be expanded, at a time (S5.4).
func ResizeFailed(c *corev1.PersistentVolumeClaim, v *corev1.PersistentVolume, err error,
	now metav1.Time) (*corev1.PersistentVolumeClaim, Event) {
	c = c.DeepCopy()
	want := c.Spec.Resources.Requests[corev1.ResourceStorage]
	c.Status.AllocatedResources = corev1.ResourceList{corev1.ResourceStorage: want}
	c.Status.AllocatedResourceStatuses = map[corev1.ResourceName]corev1.ClaimResourceStatus{
		corev1.ResourceStorage: corev1.PersistentVolumeClaimControllerResizeInfeasible}
	condition := corev1.PersistentVolumeClaimCondition{Type: corev1.PersistentVolumeClaimControllerResizeError,
		Status: corev1.ConditionTrue, LastTransitionTime: now, Message: fmt.Sprintf("failed to expand pvc with %v",
			err)}
	for _, old := range c.Status.Conditions {
		if old.Type == condition.Type && old.Message == condition.Message {
			condition.LastTransitionTime = old.LastTransitionTime
		}
	}
	c.Status.Conditions = append(withoutResize(c.Status.Conditions), condition)
	return c, resizeFailed(v, err)
}

func resizeFailed(v *corev1.PersistentVolume, err error) Event {
	return warning("VolumeResizeFailed", "resize volume %q by resizer %q failed: %v", v.Name, LocalProvisioner, err)
}

// LocalVolumeStep is the next action of the provisioner for a volume that it created: one at a
// time.
type LocalVolumeStep struct {
	Remove *LocalPlace              // the data, before anything else
	Delete bool                     // the object
	Update *corev1.PersistentVolume // its finalizers
	Events []Event
}

// abandoned reports whether a volume has no claim: it has lost its claim, or is deleted before it had
// one.
func abandoned(v *corev1.PersistentVolume) bool {
	switch v.Status.Phase {
	case corev1.VolumeReleased, corev1.VolumeFailed:
		return true
	case corev1.VolumeBound:
		return false
	default:
		return v.DeletionTimestamp != nil
	}
}

// ForLocalVolume decides about a volume (S3.21): when it has no claim and is to be deleted, first its data is
// removed, then the object is deleted, and last the finalizer is removed. removed: the data has been removed.
func ForLocalVolume(v *corev1.PersistentVolume, node string, bases []string, removed bool) LocalVolumeStep {
	if !mine(v, node) {
		return LocalVolumeStep{}
	}
	held := slices.Contains(v.Finalizers, LocalFinalizer)
	deletes := v.Spec.PersistentVolumeReclaimPolicy == corev1.PersistentVolumeReclaimDelete
	switch {
	case !deletes && held: // S1.87
		v = v.DeepCopy()
		v.Finalizers = slices.DeleteFunc(v.Finalizers, func(f string) bool { return f == LocalFinalizer })
		return LocalVolumeStep{Update: v}
	case deletes && !held && v.DeletionTimestamp == nil:
		v = v.DeepCopy()
		v.Finalizers = append(v.Finalizers, LocalFinalizer)
		return LocalVolumeStep{Update: v}
	case !deletes || !held || !abandoned(v):
		return LocalVolumeStep{}
	}
	if !removed {
		place, err := placeOf(v, bases)
		if err != nil {
			return LocalVolumeStep{Events: []Event{warning("VolumeFailedDelete", "%v", err)}}
		}
		return LocalVolumeStep{Remove: place}
	}
	if v.DeletionTimestamp == nil {
		return LocalVolumeStep{Delete: true}
	}
	v = v.DeepCopy()
	v.Finalizers = slices.DeleteFunc(v.Finalizers, func(f string) bool { return f == LocalFinalizer })
	return LocalVolumeStep{Update: v}
}
