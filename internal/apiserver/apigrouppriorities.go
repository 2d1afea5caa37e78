package apiserver

import (
	"k8s.io/apimachinery/pkg/runtime/schema"

	"carob/internal/kinds/apiregistration"
)

// priorities are the order of the built-in groups and versions in discovery, as upstream.
var priorities = map[schema.GroupVersion][2]int32{
	{Version: "v1"}: {18000, 1}, {Group: "apps", Version: "v1"}: {17800, 15},
	{Group: "events.k8s.io", Version: "v1"}:         {17750, 15},
	{Group: "authentication.k8s.io", Version: "v1"}: {17700, 15},
	{Group: "authorization.k8s.io", Version: "v1"}:  {17600, 15},
	{Group: "autoscaling", Version: "v1"}:           {17500, 15}, {Group: "autoscaling", Version: "v2"}: {17500, 30},
	{Group: "batch", Version: "v1"}:               {17400, 15},
	{Group: "certificates.k8s.io", Version: "v1"}: {17300, 15},
	{Group: "networking.k8s.io", Version: "v1"}:   {17200, 15}, {Group: "policy", Version: "v1"}: {17100, 15},
	{Group: "rbac.authorization.k8s.io", Version: "v1"}:         {17000, 15},
	{Group: "storage.k8s.io", Version: "v1"}:                    {16800, 15},
	{Group: "apiextensions.k8s.io", Version: "v1"}:              {16700, 15},
	{Group: "admissionregistration.k8s.io", Version: "v1"}:      {16700, 15},
	{Group: "scheduling.k8s.io", Version: "v1"}:                 {16600, 15},
	{Group: "coordination.k8s.io", Version: "v1"}:               {16500, 15},
	{Group: "node.k8s.io", Version: "v1"}:                       {16300, 15},
	{Group: "discovery.k8s.io", Version: "v1"}:                  {16200, 15},
	{Group: "resource.k8s.io", Version: "v1"}:                   {16200, 21},
	{Group: "flowcontrol.apiserver.k8s.io", Version: "v1"}:      {16100, 21},
	{Group: "storagemigration.k8s.io", Version: "v1"}:           {15800, 15},
	{Group: apiregistration.GroupResource.Group, Version: "v1"}: {20000, 9},
}

func priority(gv schema.GroupVersion) (group, version int32) {
	if p, ok := priorities[gv]; ok {
		return p[0], p[1]
	}
	return 15000, 9
}
