package apiserver

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/emicklei/go-restful/v3"
)

// Routes work after trimming: parameters, the choice by method, unknown paths.
func TestTrimmedRoutes(t *testing.T) {
	c := restful.NewContainer()
	c.Router(restful.CurlyRouter{}) // like the library
	ws := new(restful.WebService)
	ws.Path("/api/v1")
	answer := func(format string, params ...string) restful.RouteFunction {
		return func(req *restful.Request, resp *restful.Response) {
			var values []any
			for _, p := range params {
				values = append(values, req.PathParameter(p))
			}
			fmt.Fprintf(resp, format, values...)
		}
	}
	item := "namespaces/{namespace}/pods/{name}"
	ws.Route(ws.GET(item).To(answer("get %s/%s", "namespace", "name")).Doc("read").Param(ws.PathParameter("name",
		"the name")).Returns(200, "OK", ""))
	ws.Route(ws.DELETE(item).To(answer("delete %s/%s", "namespace", "name")))
	ws.Route(ws.GET(item + "/proxy/{path:*}").To(answer("proxy %s %s", "name", "path")))
	c.Add(ws)
	trimRoutes(c)
	if r := ws.Routes()[0]; r.ParameterDocs != nil || r.Doc != "" || r.ResponseErrors != nil {
		t.Errorf("documentation is left: %+v", r)
	}
	for _, tc := range []struct {
		method, path, want string
		code               int
	}{
		{"GET", "/namespaces/a/pods/b", "get a/b", http.StatusOK},
		{"DELETE", "/namespaces/a/pods/b", "delete a/b", http.StatusOK},
		{"GET", "/namespaces/a/pods/b/proxy/x/y", "proxy b x/y", http.StatusOK},
		{"PUT", "/namespaces/a/pods/b", "", http.StatusMethodNotAllowed},
		{"GET", "/namespaces/a/nothing/b", "", http.StatusNotFound},
	} {
		w := httptest.NewRecorder()
		c.ServeHTTP(w, httptest.NewRequest(tc.method, "/api/v1"+tc.path, nil))
		if w.Code != tc.code || tc.want != "" && w.Body.String() != tc.want {
			t.Errorf("%s %s: %d %q, want %d %q", tc.method, tc.path, w.Code, w.Body, tc.code, tc.want)
		}
	}
}
