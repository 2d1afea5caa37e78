package explain

import (
	"encoding/json"
	"fmt"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// StatusParents are the parents in the status of a pool or a route, as they are stored.
type StatusParents []struct {
	ParentRef struct {
		Kind string `json:"kind"`
		Name string `json:"name"`
	} `json:"parentRef"`
	Conditions []metav1.Condition `json:"conditions"`
}

// Parents returns them without the placeholder of v1alpha2.
func (all StatusParents) Parents() (out []Parent) {
	for _, p := range all {
		if p.ParentRef.Kind != "Status" {
			out = append(out, Parent{Name: p.ParentRef.Name, Conditions: p.Conditions})
		}
	}
	return out
}

// PoolGroup is the API group of InferencePool v1, whose selector has another form than that of v1alpha2.
const PoolGroup = "inference.networking.k8s.io"

// PoolFacts reads what explains a pool from its stored form.
func PoolFacts(text []byte, group string) (Pool, error) {
	var object struct {
		Spec struct {
			Selector json.RawMessage `json:"selector"`
		} `json:"spec"`
		Status struct {
			Parents StatusParents `json:"parents"`
			Old     StatusParents `json:"parent"`
		} `json:"status"`
	}
	if err := json.Unmarshal(text, &object); err != nil {
		return Pool{}, fmt.Errorf("read the InferencePool: %w", err)
	}
	selector := struct {
		MatchLabels map[string]string `json:"matchLabels"`
	}{}
	var into any = &selector
	if group != PoolGroup {
		into = &selector.MatchLabels
	}
	out := Pool{Parents: slices.Concat(object.Status.Parents, object.Status.Old).Parents()}
	if err := json.Unmarshal(object.Spec.Selector, into); err != nil {
		return out, fmt.Errorf("read the selector of the InferencePool: %w", err)
	}
	out.Selector = selector.MatchLabels
	return out, nil
}
