package apiserver

import (
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/emicklei/go-restful/v3"
	apirequest "k8s.io/apiserver/pkg/endpoints/request"
)

// router is the library's router, which examines each route of an API group and sorts the matching
// ones for every request, with a cache of its choices by kind of request.
type router struct {
	restful.CurlyRouter
	kept  sync.Map // request → choice
	count atomic.Int64
}

// mostKept limits how many entries clients can create with their headers, and longestKept how long these may be: a
// client may send headers of a megabyte, and entries stay.
const mostKept, longestKept = 2000, 512

// request is everything in a request that the choice of a route depends on: neither the namespace
// nor the name, for which every route has a parameter.
type request struct {
	method, accept, contentType           string
	prefix, group, version, resource, sub string
	parts, tokens, services               int
}

// requestOf returns what the route of r depends on. It returns false for requests that are rare or
// have paths of their own: watches, lists, paths below a subresource, empty parts, long headers.
func requestOf(r *http.Request) (request, bool) {
	info, ok := apirequest.RequestInfoFrom(r.Context())
	if !ok || !info.IsResourceRequest || len(info.Parts) > 3 ||
		!slices.Contains([]string{"create", "update", "patch", "delete", "get"}, info.Verb) {
		return request{}, false
	}
	accept, contentType := r.Header.Get("Accept"), r.Header.Get("Content-Type")
	if len(accept)+len(contentType) > longestKept {
		return request{}, false
	}
	path := r.URL.Path
	if strings.Contains(path, "//") || strings.HasSuffix(path, "/") {
		return request{}, false
	}
	return request{method: r.Method, accept: accept, contentType: contentType,
		prefix: info.APIPrefix, group: info.APIGroup,
		version: info.APIVersion, resource: info.Resource, sub: info.Subresource, parts: len(info.Parts),
		tokens: strings.Count(path, "/")}, true
}

type choice struct {
	service *restful.WebService
	route   *restful.Route
}

// SelectRoute implements restful.RouteSelector.
func (c *router) SelectRoute(services []*restful.WebService, r *http.Request) (*restful.WebService, *restful.Route,
	error) {
	key, ok := requestOf(r)
	key.services = len(services)
	if !ok {
		return c.CurlyRouter.SelectRoute(services, r)
	}
	if kept, ok := c.kept.Load(key); ok {
		// A route may have been removed and another one added.
		if kept := kept.(choice); slices.Contains(services, kept.service) {
			return kept.service, kept.route, nil
		}
	}
	service, route, err := c.CurlyRouter.SelectRoute(services, r)
	if err == nil && route != nil && c.count.Add(1) <= mostKept {
		c.kept.Store(key, choice{service, route})
	}
	return service, route, err
}
