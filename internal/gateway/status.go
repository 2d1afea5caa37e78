package gateway

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"carob/internal/core/gatewayplan"
)

func schemaVersion() schema.GroupVersion { return schema.GroupVersion(gatewayv1.GroupVersion) }

// writer stores statuses and events. It always writes for the newest plan; a conflict is no error, because the change
// that it stands for leads to another plan.
type writer struct {
	cfg  Config
	rest rest.Interface
	pool map[string]rest.Interface // clients of the inference extension, by group
	wake chan struct{}             // capacity 1

	mu   sync.Mutex
	next *work

	told map[types.UID]string // problems of Ingresses
}

type work struct {
	world *snapshot
	plan  *gatewayplan.Plan
}

func newWriter(cfg Config) *writer {
	return &writer{cfg: cfg, wake: make(chan struct{}, 1), told: map[types.UID]string{}}
}

func (w *writer) write(world *snapshot, plan *gatewayplan.Plan) {
	w.mu.Lock()
	w.next = &work{world, plan}
	w.mu.Unlock()
	poke(w.wake)
}

func (w *writer) newest() *work {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.next
}

// again is the wait after a status could not be stored.
const again = time.Second

func (w *writer) run(ctx context.Context) {
	if w.cfg.REST != nil {
		w.rest, _ = gatewayClient(w.cfg.REST) // the feed has logged what is wrong
		w.pool, _ = inferenceClients(w.cfg.REST)
	}
	retry := time.NewTimer(0)
	defer retry.Stop()
	retry.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-w.wake:
		case <-retry.C:
		}
		now := w.newest()
		if now == nil {
			continue
		}
		if !w.store(ctx, now) {
			retry.Reset(again)
		}
	}
}

// store writes the statuses that differ. It stops when there is a newer plan.
func (w *writer) store(ctx context.Context, job *work) (ok bool) {
	ok = true
	now := metav1.NewTime(w.cfg.Now().Truncate(time.Second))
	world, plan := &job.world.World, job.plan
	put := func(o runtime.Object, resource string, meta metav1.Object) {
		if w.newest() != job || ctx.Err() != nil {
			return
		}
		req := w.rest.Put().Resource(resource).Name(meta.GetName()).SubResource("status").Body(o)
		if meta.GetNamespace() != "" {
			req = req.Namespace(meta.GetNamespace())
		}
		ok = w.done(ctx, req.Do(ctx).Error(), resource, meta) && ok
	}
	for _, in := range world.Ingresses {
		ok = w.ingress(ctx, job, in, plan.Ingresses[nameOf(in)]) && ok
	}
	if w.rest == nil {
		return ok
	}
	for _, c := range world.GatewayClasses {
		conditions, known := plan.Classes[c.Name]
		if !known {
			continue
		}
		conditions = gatewayplan.Conditions(c.Status.Conditions, conditions, now)
		features := supported()
		if !equality.Semantic.DeepEqual(conditions, c.Status.Conditions) ||
			!slices.Equal(features, c.Status.SupportedFeatures) {
			c = c.DeepCopy()
			c.Status.Conditions, c.Status.SupportedFeatures = conditions, features
			put(c, "gatewayclasses", c)
		}
	}
	for _, g := range world.Gateways {
		if s, known := plan.Gateways[nameOf(g)]; known {
			if s, changed := gatewayplan.GatewayStatus(&g.Status, s, now); changed {
				g = g.DeepCopy()
				g.Status = s
				put(g, "gateways", g)
			}
		}
	}
	for _, l := range world.ListenerSets {
		if s, known := plan.ListenerSets[nameOf(l)]; known {
			if s, changed := gatewayplan.ListenerSetStatus(&l.Status, s, now); changed {
				l = l.DeepCopy()
				l.Status = s
				put(l, "listenersets", l)
			}
		}
	}
	for _, r := range world.HTTPRoutes {
		if parents, known := plan.HTTPRoutes[nameOf(r)]; known {
			if parents, changed := gatewayplan.Parents(r.Status.Parents, parents, now); changed {
				r = r.DeepCopy()
				r.Status.Parents = parents
				put(r, "httproutes", r)
			}
		}
	}
	for _, r := range world.GRPCRoutes {
		if parents, known := plan.GRPCRoutes[nameOf(r)]; known {
			if parents, changed := gatewayplan.Parents(r.Status.Parents, parents, now); changed {
				r = r.DeepCopy()
				r.Status.Parents = parents
				put(r, "grpcroutes", r)
			}
		}
	}
	for _, r := range world.TLSRoutes {
		if parents, known := plan.TLSRoutes[nameOf(r)]; known {
			if parents, changed := gatewayplan.Parents(r.Status.Parents, parents, now); changed {
				r = r.DeepCopy()
				r.Status.Parents = parents
				put(r, "tlsroutes", r)
			}
		}
	}
	for _, p := range world.Policies {
		if ancestors, known := plan.Policies[nameOf(p)]; known {
			if ancestors, changed := gatewayplan.Ancestors(p.Status.Ancestors, ancestors, now); changed {
				p = p.DeepCopy()
				p.Status.Ancestors = ancestors
				put(p, "backendtlspolicies", p)
			}
		}
	}
	return w.storePools(ctx, job, now) && ok
}

// done reports whether nothing has to be tried again.
func (w *writer) done(ctx context.Context, err error, resource string, o metav1.Object) bool {
	if err == nil || apierrors.IsConflict(err) || apierrors.IsNotFound(err) || ctx.Err() != nil {
		return true
	}
	klog.FromContext(ctx).Error(err, "Cannot store a status; trying again", "resource", resource, "object", nameOf(o))
	return false
}

// ingress stores the status of an Ingress, and tells its problems once. An Ingress of another class is left alone.
func (w *writer) ingress(ctx context.Context, job *work, in *networkingv1.Ingress, r gatewayplan.IngressResult) bool {
	if !gatewayplan.Serves(in, job.world.World.Classes) || w.newest() != job || ctx.Err() != nil {
		return true
	}
	var text strings.Builder
	for _, p := range r.Problems {
		fmt.Fprintf(&text, "%s: %s\n", p.Reason, p.Message)
	}
	if w.told[in.UID] != text.String() {
		w.told[in.UID] = text.String()
		for _, p := range r.Problems {
			w.cfg.Events.Event(in, corev1.EventTypeWarning, p.Reason, p.Message)
		}
	}
	if equality.Semantic.DeepEqual(in.Status.LoadBalancer.Ingress, r.Addresses) {
		return true
	}
	in = in.DeepCopy()
	in.Status.LoadBalancer.Ingress = r.Addresses
	_, err := w.cfg.Client.NetworkingV1().Ingresses(in.Namespace).UpdateStatus(ctx, in, metav1.UpdateOptions{})
	return w.done(ctx, err, "ingresses", in)
}

// supported are the features of the Gateway API that the conformance tests show, in order.
func supported() []gatewayv1.SupportedFeature {
	names := []gatewayv1.FeatureName{"BackendTLSPolicy", "BackendTLSPolicySANValidation", "GRPCRoute",
		"GRPCRouteNamedRouteRule", "Gateway", "GatewayAddressEmpty", "GatewayBackendClientCertificate", "GatewayFrontendClientCertificateValidation",
		"GatewayFrontendClientCertificateValidationInsecureFallback", "GatewayHTTPListenerIsolation",
		"GatewayHTTPSListenerDetectMisdirectedRequests", "GatewayPort8080", "GatewayStaticAddresses",
		"HTTPRoute", "HTTPRoute303RedirectStatusCode", "HTTPRoute307RedirectStatusCode",
		"HTTPRoute308RedirectStatusCode",
		"HTTPRouteBackendProtocolH2C", "HTTPRouteBackendProtocolWebSocket", "HTTPRouteBackendRequestHeaderModification",
		"HTTPRouteBackendTimeout", "HTTPRouteCORS", "HTTPRouteDestinationPortMatching", "HTTPRouteHostRewrite",
		"HTTPRouteMethodMatching", "HTTPRouteNamedRouteRule", "HTTPRouteParentRefPort", "HTTPRoutePathRedirect",
		"HTTPRoutePathRewrite", "HTTPRoutePortRedirect", "HTTPRouteQueryParamMatching", "HTTPRouteRequestMirror",
		"HTTPRouteRequestMultipleMirrors", "HTTPRouteRequestPercentageMirror", "HTTPRouteRequestTimeout",
		"HTTPRouteResponseHeaderModification", "HTTPRouteSchemeRedirect", "ListenerSet", "ReferenceGrant", "TLSRoute",
		"TLSRouteModeMixed", "TLSRouteModeTerminate"}
	out := make([]gatewayv1.SupportedFeature, 0, len(names))
	for _, n := range names {
		out = append(out, gatewayv1.SupportedFeature{Name: n})
	}
	return out
}
