package apiserver

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/emicklei/go-restful/v3"
	"k8s.io/apimachinery/pkg/util/sets"
	apirequest "k8s.io/apiserver/pkg/endpoints/request"
)

// Whatever was requested before, a request gets the route that the library finds.
func TestRouterAsLibrary(t *testing.T) {
	s := start(t, t.TempDir())
	services := s.generic.Handler.GoRestfulContainer.RegisteredWebServices()
	infos := &apirequest.RequestInfoFactory{APIPrefixes: sets.NewString("api", "apis"),
		GrouplessAPIPrefixes: sets.NewString("api")}
	ours := &router{}
	var paths []string
	for _, base := range []string{"/api/v1", "/apis/apps/v1", "/apis/nothing/v1", "/apis/apps/v2"} {
		for _, resource := range []string{"pods", "deployments", "namespaces", "watch", "none", "", "bindings"} {
			for _, at := range []string{"/", "/namespaces/a/", "/namespaces/watch/", "/namespaces/namespaces/",
				"/watch/", "/watch/namespaces/a/", "/namespaces//", "//"} {
				for _, rest := range []string{"", "/", "/x", "/watch", "/pods", "/status", "/x/status", "/pods/status",
					"/x/log", "/x/proxy", "/x/proxy/a/b", "/x/none", "//", "/x/"} {
					paths = append(paths, base+at+resource+rest)
				}
			}
		}
	}
	hits := 0
	for range 2 {
		for _, path := range paths {
			for _, method := range []string{"GET", "POST", "PUT", "PATCH", "DELETE", "HEAD"} {
				for _, media := range []string{"application/json", "application/vnd.kubernetes.protobuf",
					"application/merge-patch+json", "text/none"} {
					r := httptest.NewRequest(method, "http://x", nil)
					r.URL.Path = path
					r.Header.Set("Accept", media)
					r.Header.Set("Content-Type", media)
					if info, err := infos.NewRequestInfo(r); err == nil {
						r = r.WithContext(apirequest.WithRequestInfo(r.Context(), info))
					}
					if key, ok := requestOf(r); ok {
						key.services = len(services)
						if _, ok := ours.kept.Load(key); ok {
							hits++
						}
					}
					wantService, want, wantErr := restful.CurlyRouter{}.SelectRoute(services, r)
					service, got, err := ours.SelectRoute(services, r)
					if service != wantService || (got == nil) != (want == nil) || got != nil &&
						got.String() != want.String() || code(err) != code(wantErr) {
						t.Fatalf("%s %s (%s): %v %v, want %v %v", method, path, media, got, err, want, wantErr)
					}
				}
			}
		}
	}
	if hits < 500 {
		t.Errorf("%d answers from what was kept", hits)
	}
}

// Long headers select a route, and are not kept: each of 2,000 entries would keep up to a megabyte for ever.
func TestRouterKeepsNoLongHeaders(t *testing.T) {
	s := start(t, t.TempDir())
	services := s.generic.Handler.GoRestfulContainer.RegisteredWebServices()
	infos := &apirequest.RequestInfoFactory{APIPrefixes: sets.NewString("api", "apis"),
		GrouplessAPIPrefixes: sets.NewString("api")}
	ours := &router{}
	for _, header := range []string{"Accept", "Content-Type"} {
		r := httptest.NewRequest(http.MethodPost, "http://x/api/v1/namespaces/a/pods", nil)
		r.Header.Set("Accept", "application/json")
		r.Header.Set("Content-Type", "application/json")
		r.Header.Set(header, "application/json;x="+strings.Repeat("y", maxHeader/2))
		info, err := infos.NewRequestInfo(r)
		if err != nil {
			t.Fatal(err)
		}
		r = r.WithContext(apirequest.WithRequestInfo(r.Context(), info))
		if _, route, err := ours.SelectRoute(services, r); err != nil || route == nil {
			t.Fatalf("%s: %v %v", header, route, err)
		}
	}
	ours.kept.Range(func(key, _ any) bool {
		k, _ := key.(request)
		t.Errorf("an entry with headers of %d bytes is kept", len(k.accept)+len(k.contentType))
		return true
	})
}

func code(err error) int {
	if e, ok := errors.AsType[restful.ServiceError](err); ok {
		return e.Code
	}
	return http.StatusOK
}
