package apiserver

import (
	"fmt"
	"net/http"
	"reflect"

	"github.com/emicklei/go-restful/v3"
	"k8s.io/apiserver/pkg/endpoints"

	"carob/internal/apiserver/compression"
)

// trimRoutes frees what the routes hold and no request needs: the documentation, which is served
// from documents generated at build time, and a regular expression each, for a router that the
// library does not use. That is a third of all objects in an idle process.
func trimRoutes(c *restful.Container) {
	for _, ws := range c.RegisteredWebServices() {
		routes := ws.Routes() // the service's own, not a copy
		for i := range routes {
			r := &routes[i]
			r.Doc, r.Notes, r.ParameterDocs, r.ResponseErrors = "", "", nil, nil
			r.ReadSample, r.WriteSample, r.WriteSamples, r.Metadata = nil, nil, nil, nil
			expression := reflect.ValueOf(r).Elem().FieldByName("pathExpr")
			if !expression.IsValid() || expression.Kind() != reflect.Pointer {
				panic(fmt.Sprintf("apiserver: a route has no expression: %+v", r))
			}
			reflect.NewAt(expression.Type(), expression.Addr().UnsafePointer()).Elem().SetZero()
		}
	}
}

// compressLists compresses long lists of all routes. It is called before trimRoutes.
func compressLists(c *restful.Container) {
	for _, ws := range c.RegisteredWebServices() {
		routes := ws.Routes() // the service's own, not a copy
		for i := range routes {
			if routes[i].Metadata[endpoints.RouteMetaAction] == "list" {
				routes[i].Function = compressed(routes[i].Function)
			}
		}
	}
}

// compressed compresses the answers of f to list requests. The same route serves watches.
func compressed(f restful.RouteFunction) restful.RouteFunction {
	return func(req *restful.Request, resp *restful.Response) {
		if !compression.IsList(req.Request) {
			f(req, resp)
			return
		}
		compression.Serve(resp.ResponseWriter, req.Request, func(w http.ResponseWriter, r *http.Request) {
			resp.ResponseWriter, req.Request = w, r
			f(req, resp)
		})
	}
}
