// Package revision decides what a ControllerRevision holds: the data from which a template comes back, its name and
// hash, its number, and which ones an owner keeps. StatefulSets and DaemonSets use it. It is a function of its
// arguments.
//
// Contract: docs/spec/workloads.md.
package revision

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"hash/fnv"
	"maps"
	"slices"
	"strconv"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/strategicpatch"

	"carob/internal/core/workload"
)

// HashLabel carries the hash of the data on revisions of StatefulSets (W3.20).
const HashLabel = "controller.kubernetes.io/hash"

// longestPrefix of the owner's name in the name of a revision, so that any hash fits behind it (W3.20).
const longestPrefix = 223

// document is where the template is within the data.
type document[T any] struct {
	Spec struct {
		Template T `json:"template"`
	} `json:"spec"`
}

// Data returns what a revision of the template holds (W3.21): a strategic merge patch that puts the template back as
// a whole. The same template gives the same bytes, for kubectl compares them.
func Data(t *corev1.PodTemplateSpec) ([]byte, error) {
	text, err := json.Marshal(t)
	if err != nil {
		return nil, fmt.Errorf("encode the template of a revision: %w", err)
	}
	var d document[map[string]any]
	numbers := json.NewDecoder(bytes.NewReader(text))
	numbers.UseNumber() // an int64 is not a float64
	if err := numbers.Decode(&d.Spec.Template); err != nil {
		return nil, fmt.Errorf("encode the template of a revision: %w", err)
	}
	d.Spec.Template["$patch"] = "replace"
	return json.Marshal(d)
}

// Restore returns the template to which a revision's data takes an owner that has t. It fails when the data is no
// patch of a template.
func Restore(t *corev1.PodTemplateSpec, data []byte) (*corev1.PodTemplateSpec, error) {
	var before document[*corev1.PodTemplateSpec]
	before.Spec.Template = t
	text, err := json.Marshal(before)
	if err != nil {
		return nil, fmt.Errorf("encode a template: %w", err)
	}
	text, err = strategicpatch.StrategicMergePatch(text, data, document[corev1.PodTemplateSpec]{})
	if err != nil {
		return nil, fmt.Errorf("apply the data of a revision: %w", err)
	}
	var after document[corev1.PodTemplateSpec]
	if err := json.Unmarshal(text, &after); err != nil {
		return nil, fmt.Errorf("read what the data of a revision makes: %w", err)
	}
	return &after.Spec.Template, nil
}

// Hash is the hash of a StatefulSet's revision (W3.22): of its data and, when given, how often names were taken.
func Hash(data []byte, collisions *int32) string {
	h := fnv.New32()
	h.Write(data)
	if collisions != nil {
		h.Write(strconv.AppendInt(nil, int64(*collisions), 10))
	}
	return workload.SafeName(strconv.FormatUint(uint64(h.Sum32()), 10))
}

// Name is the name of the owner's revision with that hash.
func Name(owner, hash string) string {
	return owner[:min(len(owner), longestPrefix)] + "-" + hash
}

// New returns a revision of the owner, to be created. hashLabel is the label that carries the hash.
func New(owner metav1.Object, kind schema.GroupVersionKind, t *corev1.PodTemplateSpec, data []byte, number int64, hashLabel, hash string) *appsv1.ControllerRevision {
	labels := maps.Clone(t.Labels)
	if labels == nil {
		labels = map[string]string{}
	}
	labels[hashLabel] = hash
	return &appsv1.ControllerRevision{
		ObjectMeta: metav1.ObjectMeta{
			Name: Name(owner.GetName(), hash), Namespace: owner.GetNamespace(), Labels: labels, Annotations: maps.Clone(owner.GetAnnotations()),
			OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(owner, kind)},
		},
		Data:     runtime.RawExtension{Raw: data},
		Revision: number,
	}
}

// Holds reports whether a revision has that data, byte by byte (W3.24).
func Holds(r *appsv1.ControllerRevision, data []byte) bool { return bytes.Equal(r.Data.Raw, data) }

// Sorted returns the revisions from the lowest number to the highest; of equal ones the older comes first.
func Sorted(list []*appsv1.ControllerRevision) []*appsv1.ControllerRevision {
	list = slices.Clone(list)
	slices.SortStableFunc(list, func(a, b *appsv1.ControllerRevision) int {
		return cmp.Or(cmp.Compare(a.Revision, b.Revision), a.CreationTimestamp.Compare(b.CreationTimestamp.Time), cmp.Compare(a.Name, b.Name))
	})
	return list
}

// Highest is the highest number of the revisions, 0 when there is none.
func Highest(list []*appsv1.ControllerRevision) int64 {
	n := int64(0)
	for _, r := range list {
		n = max(n, r.Revision)
	}
	return n
}
