package quotas

import (
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	quotav1 "k8s.io/apiserver/pkg/quota/v1"

	"carob/internal/sim/fakeapi"
)

// Stored checks a change of the API. before is nil for a new object.
func Stored(api *fakeapi.API, before fakeapi.Object, after fakeapi.Entry) {
	_, isQuota := after.Object.(*corev1.ResourceQuota)
	used := Usage(after.Object, api.Now)
	if !isQuota && (before != nil || len(used) == 0) {
		return // existing objects use less and less
	}
	for _, q := range fakeapi.All[*corev1.ResourceQuota](api) {
		if q.Namespace != after.Object.GetNamespace() || len(q.Status.Hard) < len(q.Spec.Hard) {
			continue // not counted yet
		}
		exists := count(api, q)
		if ok, over := quotav1.LessThanOrEqual(exists, q.Status.Used); !ok {
			fakeapi.Break(Charged, "%s: %v of %s exist, status.used is %s", q.Name, text(exists), over,
				text(q.Status.Used))
		}
		if isQuota {
			continue
		}
		fits, over := quotav1.LessThanOrEqual(exists, q.Status.Hard)
		if mine := quotav1.Intersection(over, quotav1.ResourceNames(used)); !fits && len(mine) > 0 {
			fakeapi.Break(Within, "%s: %s exist, with the new %s more than %s", q.Name, text(exists),
				after.Object.GetName(), text(q.Status.Hard))
		}
	}
}

// Missing returns a quota whose status is not what exists, nil for none.
func Missing(api *fakeapi.API) *fakeapi.Broken {
	for _, q := range fakeapi.All[*corev1.ResourceQuota](api) {
		if exists := count(api, q); !quotav1.Equals(exists, q.Status.Used) {
			return &fakeapi.Broken{Invariant: Released, How: fmt.Sprintf("%s: %s exist, status.used is %s", q.Name,
				text(exists), text(q.Status.Used))}
		}
	}
	return nil
}

// text returns the values of the resources of Quota.
func text(list corev1.ResourceList) string {
	var out strings.Builder
	for _, name := range []corev1.ResourceName{corev1.ResourcePods, corev1.ResourceRequestsCPU,
		"count/resourceclaims.resource.k8s.io"} {
		q := list[name]
		fmt.Fprintf(&out, "%s=%s ", name, q.String())
	}
	return out.String()
}
