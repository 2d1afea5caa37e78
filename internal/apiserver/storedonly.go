package apiserver

import (
	"net/http"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	apirequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/warning"
)

// warnStoredOnly warns clients that create an object without any effect (Config.StoredOnly): it is only
// stored.
func warnStoredOnly(kinds map[schema.GroupResource]string, next http.Handler) http.Handler {
	if len(kinds) == 0 {
		return next
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if info, ok := apirequest.RequestInfoFrom(r.Context()); ok && makes(info, r) {
			if text := kinds[schema.GroupResource{Group: info.APIGroup, Resource: info.Resource}]; text != "" {
				warning.AddWarning(r.Context(), "", text)
			}
		}
		next.ServeHTTP(w, r)
	})
}

// makes reports whether a request may create an object: a create or a server-side apply.
func makes(info *apirequest.RequestInfo, r *http.Request) bool {
	if !info.IsResourceRequest || info.Subresource != "" {
		return false
	}
	return info.Verb == "create" || info.Verb == "patch" &&
		r.Header.Get("Content-Type") == string(types.ApplyYAMLPatchType)
}
