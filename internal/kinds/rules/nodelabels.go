package rules

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// OldNodeLabels are node labels that have been replaced, and the warning about selecting by them.
var OldNodeLabels = map[string]string{
	"beta.kubernetes.io/arch":                       `deprecated since v1.14; use "kubernetes.io/arch" instead`,
	"beta.kubernetes.io/os":                         `deprecated since v1.14; use "kubernetes.io/os" instead`,
	corev1.LabelFailureDomainBetaRegion:             `deprecated since v1.17; use "topology.kubernetes.io/region" instead`,
	corev1.LabelFailureDomainBetaZone:               `deprecated since v1.17; use "topology.kubernetes.io/zone" instead`,
	corev1.LabelInstanceType:                        `deprecated since v1.17; use "node.kubernetes.io/instance-type" instead`,
	"app.kubernetes.io/created-by":                  "deprecated since v1.9",
	"scheduler.alpha.kubernetes.io/preferAvoidPods": "deprecated since v1.22; use Taints and Tolerations instead",
	"node-role.kubernetes.io/master":                `use "node-role.kubernetes.io/control-plane" instead`,
}

// TermWarnings are the warnings about a node selector; with values, also about values that are
// invalid as labels.
func TermWarnings(t *corev1.NodeSelectorTerm, values bool, at *field.Path) []string {
	var out Warnings
	for i, e := range t.MatchExpressions {
		at := at.Child("matchExpressions").Index(i)
		if old, ok := OldNodeLabels[e.Key]; ok {
			out.Add(at.Child("key"), "%s is %s", e.Key, old)
		}
		if !values {
			continue
		}
		for j, v := range e.Values {
			for _, msg := range validation.IsValidLabelValue(v) {
				out.Add(at.Child("values").Index(j), "%s is invalid, %s", v, msg)
			}
		}
	}
	return out
}
