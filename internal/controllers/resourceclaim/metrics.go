package resourceclaim

import (
	"slices"
	"strconv"

	resourcev1 "k8s.io/api/resource/v1"

	"carob/internal/controllers/metrics"
)

// adminAccess reports whether a claim requests admin access to devices (S9.4).
func adminAccess(c *resourcev1.ResourceClaim) string {
	return strconv.FormatBool(slices.ContainsFunc(c.Spec.Devices.Requests, func(r resourcev1.DeviceRequest) bool {
		return r.Exactly != nil && r.Exactly.AdminAccess != nil && *r.Exactly.AdminAccess
	}))
}

// measure counts the creation of a pod's claim (S9.18).
func measure(c *resourcev1.ResourceClaim, err error) {
	status := "success"
	if err != nil {
		status = "failure"
	}
	metrics.ResourceClaimsMade.WithLabelValues(status, adminAccess(c), "", "Pod").Inc()
}

// measureAll counts the existing claims.
func (c *Controller) measureAll() {
	metrics.ResourceClaims.Reset()
	for _, obj := range c.in.Claims.Objects().List() {
		claim, ok := obj.(*resourcev1.ResourceClaim)
		if !ok {
			continue
		}
		source := ""
		switch {
		case claim.Annotations[resourcev1.ExtendedResourceClaimAnnotation] == "true":
			source = "extended_resource"
		case claim.Annotations[resourcev1.PodResourceClaimAnnotation] != "":
			source = "resource_claim_template"
		}
		metrics.ResourceClaims.WithLabelValues(strconv.FormatBool(claim.Status.Allocation != nil), adminAccess(claim),
			source).Inc()
	}
}
