package apiserver

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/sets"
	genericapifilters "k8s.io/apiserver/pkg/endpoints/filters"
	apirequest "k8s.io/apiserver/pkg/endpoints/request"
)

// Only requests that create an object of a kind without effect get a warning.
func TestStoredOnly(t *testing.T) {
	kinds := map[schema.GroupResource]string{{Group: "apps", Resource: "deployments"}: "nobody makes pods of it"}
	var h http.Handler = http.HandlerFunc(func(w http.ResponseWriter,
		_ *http.Request) {
		w.WriteHeader(http.StatusCreated)
	})
	h = genericapifilters.WithWarningRecorder(warnStoredOnly(kinds, h))
	h = genericapifilters.WithRequestInfo(h,
		&apirequest.RequestInfoFactory{APIPrefixes: sets.NewString("apis", "api"),
			GrouplessAPIPrefixes: sets.NewString("api")})
	for _, c := range []struct {
		method, path, content string
		warned                bool
	}{
		{"POST", "/apis/apps/v1/namespaces/default/deployments", "application/json", true},
		{"PATCH", "/apis/apps/v1/namespaces/default/deployments/web", "application/apply-patch+yaml", true},
		{"PATCH", "/apis/apps/v1/namespaces/default/deployments/web", "application/merge-patch+json", false},
		{"PUT", "/apis/apps/v1/namespaces/default/deployments/web", "application/json", false},
		{"GET", "/apis/apps/v1/namespaces/default/deployments", "", false},
		{"POST", "/apis/apps/v1/namespaces/default/replicasets", "application/json", false},
		{"PATCH", "/apis/apps/v1/namespaces/default/deployments/web/scale", "application/apply-patch+yaml", false},
		{"POST", "/apis/extensions/v1/namespaces/default/deployments", "application/json", false},
	} {
		r := httptest.NewRequest(c.method, c.path, nil)
		r.Header.Set("Content-Type", c.content)
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		if got := w.Header().Get("Warning"); strings.Contains(got, "nobody makes pods of it") != c.warned {
			t.Errorf("%s %s: warning %q", c.method, c.path, got)
		}
	}
}
