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
	"carob/internal/base/goroutinestack"
)

// chain puts the filters around the API. It makes two handlers: the returned one is for the
// network; s.inner is for carob's own parts, whose requests carry their identity in the context,
// never impersonate, set their own deadlines, and must not be rejected by the limit on requests in
// flight. A request from the network passes the filters in the order below; each line lists those
// that surround what follows:
//
//	audit ID, panics, unauthenticated connections ─ time, request info, latency, cache control ─ deadline ─ authentication ─
//	limit of the user ─ traces ─ warnings ─ audit ─ impersonation ─ priority and fairness ─ authorization ─ API
//
// The filters before authentication never wait for another request.
func (s *Server) chain(api http.Handler, c *genericapiserver.Config) http.Handler {
	c.RequestInfoResolver = notFoundResolver{c.RequestInfoResolver}
	authorized := genericapifilters.WithAuthorization(s.measured(api), c.Authorization.Authorizer, c.Serializer)

	in := s.traced(genericapifilters.WithWarningRecorder(s.auditor.Requests(authorized, c.LongRunningFunc)))
	in = genericapifilters.WithRequestInfo(in, c.RequestInfoResolver)
	in = inprocess.WithUser(in)
	in = genericapifilters.WithRequestReceivedTimestamp(in)
	in = genericfilters.WithPanicRecovery(in, c.RequestInfoResolver)
	s.inner = genericapifilters.WithAuditInit(in) // the handlers need what it puts into the context

	h := s.ext.flow.Filter(inOrder(warnStoredOnly(s.cfg.StoredOnly, s.measured(api)),
		filter{"authorization", func(next http.Handler) http.Handler {
			return genericapifilters.WithAuthorization(next, c.Authorization.Authorizer, c.Serializer)
		}}))
	h = inOrder(h, filter{"constrainedimpersonation", func(next http.Handler) http.Handler {
		return impersonation.WithConstrainedImpersonation(next, c.Authorization.Authorizer, c.Serializer)
	}})
	h = inOrder(s.auditor.Requests(h, c.LongRunningFunc), filter{"", genericapifilters.WithWarningRecorder})
	h = s.traced(h) // who is authenticated may ask for a trace
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

// notFoundResolver treats an incomplete resource path (/api/v1/watch) as an unknown path, which is
// a 404 instead of a server error.
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

// unless passes requests for which skip is true to next, and all others to the same handler behind
// a filter that would only pass the former on. A filter's stack frame stays as long as a watch:
// each watch of pods used 16 KB more.
func unless(skip func(*http.Request) bool, next, filtered http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if skip(r) {
			next.ServeHTTP(w, r)
			return
		}
		filtered.ServeHTTP(w, r)
	})
}

// maxHandled is how many requests of one user are handled at once, apart from long-running ones.
// Behind it, priority and fairness executes few of them.
const maxHandled = 2 * maxStreams

// growStack grows the stack: the filter before it continues each request in a goroutine of its own.
func growStack(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		goroutinestack.Grow()
		h.ServeHTTP(w, r)
	})
}

// growStackCreater does the same for the last handler of a request that is not long-running:
// creating an object is the first code of carob there.
type growStackCreater struct{ runtime.ObjectCreater }

// New implements runtime.ObjectCreater.
func (c growStackCreater) New(kind schema.GroupVersionKind) (runtime.Object, error) {
	goroutinestack.Grow()
	return c.ObjectCreater.New(kind)
}

func lasts(r *http.Request) bool {
	info, ok := apirequest.RequestInfoFrom(r.Context())
	return ok && longRunning(r, info)
}

// longRunning reports whether a request may last long: watches, and the streams to nodes.
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
