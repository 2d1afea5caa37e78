package storage

import (
	"maps"
	"slices"

	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"carob/internal/kinds/rules"
)

func storageClassWarnings(c *storagev1.StorageClass) []string {
	var out rules.Warnings
	for i, t := range c.AllowedTopologies {
		for j, e := range t.MatchLabelExpressions {
			if old, ok := rules.OldNodeLabels[e.Key]; ok {
				out.Add(field.NewPath("allowedTopologies").Index(i).Child("matchLabelExpressions").Index(j).Child(
					"key"), "%s", old)
			}
		}
	}
	return out
}

func csiStorageCapacityWarnings(c *storagev1.CSIStorageCapacity) []string {
	if c.NodeTopology == nil {
		return nil
	}
	var out rules.Warnings
	at := field.NewPath("nodeTopology")
	for i, e := range c.NodeTopology.MatchExpressions {
		if old, ok := rules.OldNodeLabels[e.Key]; ok {
			out.Add(at.Child("matchExpressions").Index(i).Child("key"), "%s is %s", e.Key, old)
		}
	}
	for _, label := range slices.Sorted(maps.Keys(c.NodeTopology.MatchLabels)) {
		if old, ok := rules.OldNodeLabels[label]; ok {
			out.Add(at.Child("matchLabels").Child(label), "%s", old)
		}
	}
	return out
}
