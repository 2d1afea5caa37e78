package kinds

import (
	"bufio"
	"bytes"
	"encoding/json"
	"os"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/kubernetes/scheme"

	"carob/internal/kinds/pods"
)

// FuzzKinds validates arbitrary objects: every object that can be decoded is validated without a
// panic, as a new object and as an update of itself.
func FuzzKinds(f *testing.F) {
	text, err := os.ReadFile("../apiserver/testdata/validation/bases.yaml")
	if err != nil {
		f.Fatal(err)
	}
	for docs := utilyaml.NewYAMLReader(bufio.NewReader(bytes.NewReader(text))); ; {
		doc, err := docs.Read()
		if err != nil {
			break // the end
		}
		seed, err := utilyaml.ToJSON(doc)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		var id metav1.TypeMeta
		if json.Unmarshal(data, &id) != nil {
			return
		}
		obj, err := scheme.Scheme.New(id.GroupVersionKind())
		if err != nil || json.Unmarshal(data, obj) != nil {
			return
		}
		if p, ok := obj.(*corev1.Pod); ok {
			_ = pods.ValidatePod(p)
		}
		r, ok := RulesOf(id.GroupVersionKind().GroupKind())
		if !ok {
			return
		}
		if r.Create != nil {
			_ = r.Create(t.Context(), obj)
		}
		if r.Update != nil {
			_ = r.Update(t.Context(), obj, obj.DeepCopyObject())
		}
	})
}
