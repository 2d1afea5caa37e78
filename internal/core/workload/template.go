package workload

import (
	"encoding/binary"
	"hash/fnv"
	"maps"
	"strconv"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/utils/dump"
)

// SameTemplate reports whether two templates are equal except for the label with their hash (W0.64,
// W2.28).
func SameTemplate(a, b *corev1.PodTemplateSpec) bool {
	return equality.Semantic.DeepEqual(withoutHash(a), withoutHash(b))
}

func withoutHash(t *corev1.PodTemplateSpec) *corev1.PodTemplateSpec {
	if _, ok := t.Labels[appsv1.DefaultDeploymentUniqueLabelKey]; !ok {
		return t
	}
	c := *t
	c.Labels = maps.Clone(t.Labels)
	delete(c.Labels, appsv1.DefaultDeploymentUniqueLabelKey)
	return &c
}

// TemplateHash returns the hash of a pod template for names and labels (W0.62), equal to
// upstream's.
func TemplateHash(template *corev1.PodTemplateSpec, collisions *int32) string {
	h := fnv.New32a()
	h.Write([]byte(dump.ForHash(*template)))
	if collisions != nil {
		var b [8]byte
		binary.LittleEndian.PutUint32(b[:], uint32(*collisions)) //nolint:gosec // only the bits matter
		h.Write(b[:])
	}
	return SafeName(strconv.FormatUint(uint64(h.Sum32()), 10))
}

// SafeName encodes a text with the letters of generated names, which avoid words (W0.62): each byte
// is encoded as one of them.
func SafeName(s string) string {
	const letters = "bcdfghjklmnpqrstvwxz2456789"
	var b strings.Builder
	for i := range len(s) {
		b.WriteByte(letters[int(s[i])%len(letters)])
	}
	return b.String()
}
