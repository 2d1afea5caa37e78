package validation

import (
	"fmt"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	nodev1 "k8s.io/api/node/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// oldNodeLabels are labels of nodes that have successors, and what is said to those who select by them.
var oldNodeLabels = map[string]string{
	"beta.kubernetes.io/arch":                       `deprecated since v1.14; use "kubernetes.io/arch" instead`,
	"beta.kubernetes.io/os":                         `deprecated since v1.14; use "kubernetes.io/os" instead`,
	corev1.LabelFailureDomainBetaRegion:             `deprecated since v1.17; use "topology.kubernetes.io/region" instead`,
	corev1.LabelFailureDomainBetaZone:               `deprecated since v1.17; use "topology.kubernetes.io/zone" instead`,
	corev1.LabelInstanceType:                        `deprecated since v1.17; use "node.kubernetes.io/instance-type" instead`,
	"app.kubernetes.io/created-by":                  "deprecated since v1.9",
	"scheduler.alpha.kubernetes.io/preferAvoidPods": "deprecated since v1.22; use Taints and Tolerations instead",
	"node-role.kubernetes.io/master":                `use "node-role.kubernetes.io/control-plane" instead`,
}

// termWarnings are the hints about a selection of nodes; with values also about those that no label can have.
func termWarnings(t *corev1.NodeSelectorTerm, values bool, at *field.Path) []string {
	var out hints
	for i, e := range t.MatchExpressions {
		at := at.Child("matchExpressions").Index(i)
		if old, ok := oldNodeLabels[e.Key]; ok {
			out.say(at.Child("key"), "%s is %s", e.Key, old)
		}
		if !values {
			continue
		}
		for j, v := range e.Values {
			for _, msg := range validation.IsValidLabelValue(v) {
				out.say(at.Child("values").Index(j), "%s is invalid, %s", v, msg)
			}
		}
	}
	return out
}

func storageClassWarnings(c *storagev1.StorageClass) []string {
	var out hints
	for i, t := range c.AllowedTopologies {
		for j, e := range t.MatchLabelExpressions {
			if old, ok := oldNodeLabels[e.Key]; ok {
				out.say(field.NewPath("allowedTopologies").Index(i).Child("matchLabelExpressions").Index(j).Child("key"), "%s", old)
			}
		}
	}
	return out
}

func csiStorageCapacityWarnings(c *storagev1.CSIStorageCapacity) []string {
	if c.NodeTopology == nil {
		return nil
	}
	var out hints
	at := field.NewPath("nodeTopology")
	for i, e := range c.NodeTopology.MatchExpressions {
		if old, ok := oldNodeLabels[e.Key]; ok {
			out.say(at.Child("matchExpressions").Index(i).Child("key"), "%s is %s", e.Key, old)
		}
	}
	for _, label := range slices.Sorted(maps.Keys(c.NodeTopology.MatchLabels)) {
		if old, ok := oldNodeLabels[label]; ok {
			out.say(at.Child("matchLabels").Child(label), "%s", old)
		}
	}
	return out
}

func runtimeClassWarnings(c *nodev1.RuntimeClass) []string {
	if c.Scheduling == nil {
		return nil
	}
	var out []string
	for _, label := range slices.Sorted(maps.Keys(c.Scheduling.NodeSelector)) {
		if old, ok := oldNodeLabels[label]; ok {
			out = append(out, fmt.Sprintf("scheduling.nodeSelector: %s", old))
		}
	}
	return out
}
