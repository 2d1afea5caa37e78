package apiserver

import (
	"net/http"
	"strings"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	genericapifilters "k8s.io/apiserver/pkg/endpoints/filters"
	"k8s.io/apiserver/pkg/endpoints/filters/impersonation"
	apirequest "k8s.io/apiserver/pkg/endpoints/request"
	genericapiserver "k8s.io/apiserver/pkg/server"
	genericfilters "k8s.io/apiserver/pkg/server/filters"

	"carob/internal/apiserver/inprocess"
	"carob/internal/base/stack"
)

// chain puts the filters around the API. It makes two handlers: the returned one
// is for the network; s.inner is for carob's own parts, who come with their
// identity in the context, never impersonate, set their own deadlines and may
// not be turned away by the limit on requests in flight. On the way from the network
// come one after the other, those that surround what follows first in each line:
//
//	audit ID, panics, unauthenticated connections ─ time, request info, latency, cache control ─ deadline ─ authentication ─
//	limit of the user ─ warnings ─ audit ─ impersonation ─ priority and fairness ─ authorization ─ API
//
// What comes before authentication waits for nobody else's request.
func (s *Server) chain(api http.Handler, c *genericapiserver.Config) http.Handler {
	c.RequestInfoResolver = notFoundResolver{c.RequestInfoResolver}
	authorized := genericapifilters.WithAuthorization(s.measured(api), c.Authorization.Authorizer, c.Serializer)

	in := genericapifilters.WithWarningRecorder(s.auditor.Requests(authorized, c.LongRunningFunc))
	in = genericapifilters.WithRequestInfo(in, c.RequestInfoResolver)
	in = inprocess.WithUser(in)
	in = genericapifilters.WithRequestReceivedTimestamp(in)
	in = genericfilters.WithPanicRecovery(in, c.RequestInfoResolver)
	s.inner = genericapifilters.WithAuditInit(in) // the handlers expect what it puts into the context

	h := s.ext.flow.Filter(inOrder(undriven(s.cfg.Undriven, s.measured(api)),
		filter{"authorization", func(next http.Handler) http.Handler {
			return genericapifilters.WithAuthorization(next, c.Authorization.Authorizer, c.Serializer)
		}}))
	h = inOrder(h, filter{"constrainedimpersonation", func(next http.Handler) http.Handler {
		return impersonation.WithConstrainedImpersonation(next, c.Authorization.Authorizer, c.Serializer)
	}})
	h = inOrder(s.auditor.Requests(h, c.LongRunningFunc), filter{"", genericapifilters.WithWarningRecorder})
	taken := newUserLimits(maxHandled)
	timed := taken.take(genericfilters.WithTimeoutForNonLongRunningRequests(taken.free(growStack(h)),
		c.LongRunningFunc))
	refuse := s.auditor.Refused(genericapifilters.Unauthorized(c.Serializer))
	h = inOrder(limitAnonymous(unless(lasts, h, timed), h), filter{"", genericapifilters.WithWarningRecorder},
		filter{"authentication", func(next http.Handler) http.Handler {
			return genericapifilters.WithAuthentication(next, c.Authentication.Authenticator, refuse,
				c.Authentication.APIAudiences, nil)
		}})
	bounded := genericapifilters.WithRequestDeadline(h, nil, nil, c.LongRunningFunc, c.Serializer, c.RequestTimeout)
	h = inOrder(unless(lasts, h, bounded), filter{"", genericapifilters.WithRequestReceivedTimestamp},
		filter{"", func(next http.Handler) http.Handler {
			return genericapifilters.WithRequestInfo(next, c.RequestInfoResolver)
		}}, filter{"", genericapifilters.WithLatencyTrackers}, filter{"", genericapifilters.WithCacheControl})
	h = genericfilters.WithPanicRecovery(s.unauthenticated.watched(h), c.RequestInfoResolver)
	return genericapifilters.WithAuditInit(h)
}

// notFoundResolver takes an address that is half of a resource's (/api/v1/watch) for that of
// nothing, which is not found, instead of an error of the server.
type notFoundResolver struct{ apirequest.RequestInfoResolver }

// NewRequestInfo implements apirequest.RequestInfoResolver.
func (l notFoundResolver) NewRequestInfo(r *http.Request) (*apirequest.RequestInfo, error) {
	info, err := l.RequestInfoResolver.NewRequestInfo(r)
	if err != nil {
		nothing := &apirequest.RequestInfo{Path: r.URL.Path, Verb: strings.ToLower(r.Method)}
		return nothing, nil //nolint:nilerr // as any other path that means nothing
	}
	return info, nil
}

// unless hands requests for which skip holds to next, all others to the same
// behind a filter that would only pass the former on. What a filter has on the
// stack stays there as long as a watch lasts: each watch of pods took 16 KB more.
func unless(skip func(*http.Request) bool, next, filtered http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if skip(r) {
			next.ServeHTTP(w, r)
			return
		}
		filtered.ServeHTTP(w, r)
	})
}

// maxHandled is how many requests of one user with a limit in time are handled at once.
// Priority and fairness, behind it, has few of them executed.
const maxHandled = 2 * maxStreams

// growStack makes room on the stack: the filter before it has each request go on in a
// goroutine of its own.
func growStack(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		stack.Grow()
		h.ServeHTTP(w, r)
	})
}

// growStackCreater does so for what a handler does last, with a limit in time: to make
// an object is the first that is ours there.
type growStackCreater struct{ runtime.ObjectCreater }

// New implements runtime.ObjectCreater.
func (c growStackCreater) New(kind schema.GroupVersionKind) (runtime.Object, error) {
	stack.Grow()
	return c.ObjectCreater.New(kind)
}

func lasts(r *http.Request) bool {
	info, ok := apirequest.RequestInfoFrom(r.Context())
	return ok && longRunning(r, info)
}

// longRunning reports whether a request may last: watches, and the streams to nodes.
func longRunning(_ *http.Request, info *apirequest.RequestInfo) bool {
	if info.Verb == "watch" || info.Verb == "proxy" {
		return true
	}
	if !info.IsResourceRequest {
		return strings.HasPrefix(info.Path, "/debug/pprof/")
	}
	switch info.Subresource {
	case "attach", "exec", "log", "portforward", "proxy":
		return true
	}
	return false
}
