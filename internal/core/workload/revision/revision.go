// Package revision builds and reads ControllerRevisions: their data, from which a pod template can be restored, hash,
// name, and order. statefulset and daemonset use it. Everything is a function of the arguments.
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

// HashLabel is the label with the hash of the data on revisions of StatefulSets (W3.20).
const HashLabel = "controller.kubernetes.io/hash"

// longestPrefix is the longest part of the owner's name in the name of a revision (W3.20).
const longestPrefix = 223

// document is the structure of the data.
type document[T any] struct {
	Spec struct {
		Template T `json:"template"`
	} `json:"spec"`
}

// Data returns the data of a revision (W3.21): a strategic merge patch that replaces the template. Equal templates give
// equal bytes, because kubectl compares them.
func Data(t *corev1.PodTemplateSpec) ([]byte, error) {
	text, err := json.Marshal(t)
	if err != nil {
		return nil, fmt.Errorf("encode the template of a revision: %w", err)
	}
	var d document[map[string]any]
	numbers := json.NewDecoder(bytes.NewReader(text))
	numbers.UseNumber() // float64 would change large integers
	if err := numbers.Decode(&d.Spec.Template); err != nil {
		return nil, fmt.Errorf("encode the template of a revision: %w", err)
	}
	d.Spec.Template["$patch"] = "replace"
	return json.Marshal(d)
}

// Restore applies the data of a revision to the template t of its owner. It fails if the data is not a patch of a
// template.
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

// Hash returns the hash of a StatefulSet's revision (W3.22), from its data and the collision count if not nil.
func Hash(data []byte, collisions *int32) string {
	h := fnv.New32()
	h.Write(data)
	if collisions != nil {
		h.Write(strconv.AppendInt(nil, int64(*collisions), 10))
	}
	return workload.SafeName(strconv.FormatUint(uint64(h.Sum32()), 10))
}

// Name returns the name of the owner's revision with this hash.
func Name(owner, hash string) string {
	return owner[:min(len(owner), longestPrefix)] + "-" + hash
}

// New returns a new revision of the owner. hashLabel is the label for the hash.
func New(owner metav1.Object, kind schema.GroupVersionKind, t *corev1.PodTemplateSpec, data []byte, number int64,
	hashLabel, hash string) *appsv1.ControllerRevision {
	labels := maps.Clone(t.Labels)
	if labels == nil {
		labels = map[string]string{}
	}
	labels[hashLabel] = hash
	return &appsv1.ControllerRevision{
		ObjectMeta: metav1.ObjectMeta{
			Name: Name(owner.GetName(), hash), Namespace: owner.GetNamespace(), Labels: labels,
			Annotations:     maps.Clone(owner.GetAnnotations()),
			OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(owner, kind)},
		},
		Data:     runtime.RawExtension{Raw: data},
		Revision: number,
	}
}

// Holds reports whether a revision has exactly this data (W3.24).
func Holds(r *appsv1.ControllerRevision, data []byte) bool { return bytes.Equal(r.Data.Raw, data) }

// Sorted returns the revisions in ascending order of revision number, then age, then name.
func Sorted(list []*appsv1.ControllerRevision) []*appsv1.ControllerRevision {
	list = slices.Clone(list)
	slices.SortStableFunc(list, func(a, b *appsv1.ControllerRevision) int {
		return cmp.Or(cmp.Compare(a.Revision, b.Revision), a.CreationTimestamp.Compare(b.CreationTimestamp.Time),
			cmp.Compare(a.Name, b.Name))
	})
	return list
}

// Highest returns the highest revision number, or 0.
func Highest(list []*appsv1.ControllerRevision) int64 {
	n := int64(0)
	for _, r := range list {
		n = max(n, r.Revision)
	}
	return n
}
