// Package statuses stores the statuses of Ingresses and of the objects of the Gateway API and its inference extension.
// Package gateway drives it with plans of core/gatewayplan.
package statuses

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
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/record"
	"k8s.io/klog/v2"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"carob/internal/base/backoff"
	"carob/internal/base/confirm"
	"carob/internal/core/gatewayplan"
	"carob/internal/core/gatewayplan/inferenceapi"
	"carob/internal/core/httproute"
)

// Config is the configuration of a Writer.
type Config struct {
	Client kubernetes.Interface // for Ingresses
	REST   *rest.Config         // for the rest; nil: only Ingresses are written
	Events record.EventRecorder
	Now    func() time.Time
}

type name = types.NamespacedName

func nameOf(o metav1.Object) name { return name{Namespace: o.GetNamespace(), Name: o.GetName()} }

func poke(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// Writer stores statuses and events, one after the other. If there are several for one object it stores the newest; a
// conflict is not an error if the object has changed, because the change leads to another status.
type Writer struct {
	cfg  Config
	rest rest.Interface
	pool map[string]rest.Interface // clients of the inference extension, by group
	wake chan struct{}             // capacity 1

	mu     sync.Mutex
	queue  []objectKey // each once
	jobs   map[objectKey]job
	failed map[objectKey]delayed // to be repeated; none of an object that is in jobs
	tries  map[objectKey]int     // failures since the last success

	reported map[types.UID]string // problems of the Ingresses of the last plan for which there are events
}

// objectKey names an object.
type objectKey struct {
	resource string
	name
}

// job stores the status of one object if it differs from the stored one. It returns false if it must be tried again.
type job func(ctx context.Context, now metav1.Time) bool

// delayed is a job that is repeated.
type delayed struct {
	do  job
	due time.Time
}

// New returns a writer that does nothing before Run.
func New(cfg Config) *Writer {
	return &Writer{cfg: cfg, wake: make(chan struct{}, 1), jobs: map[objectKey]job{}, failed: map[objectKey]delayed{},
		tries: map[objectKey]int{}, reported: map[types.UID]string{}}
}

// All stores the statuses of all objects, and no others.
func (w *Writer) All(world *gatewayplan.World, plan *gatewayplan.Plan) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.queue = nil
	clear(w.jobs)
	clear(w.failed)
	clear(w.tries)
	for _, c := range world.GatewayClasses {
		w.class(c, plan)
	}
	reported := map[types.UID]string{}
	for _, in := range world.Ingresses {
		w.ingress(in, world.Classes, plan)
		if text, ok := w.reported[in.UID]; ok {
			reported[in.UID] = text
		}
	}
	w.reported = reported // those that are gone are dropped
	w.objects(&gatewayplan.Touched{Gateways: world.Gateways, ListenerSets: world.ListenerSets,
		HTTPRoutes: world.HTTPRoutes, GRPCRoutes: world.GRPCRoutes, TLSRoutes: world.TLSRoutes,
		TCPRoutes: world.TCPRoutes, UDPRoutes: world.UDPRoutes, Policies: world.Policies}, plan)
	w.inference(world.Inference, plan)
	poke(w.wake)
}

// inference stores the statuses of the objects of the inference extension; nil: there are none. A plan replaces these
// statuses, it does not change them. The lock is held.
func (w *Writer) inference(in *gatewayplan.Inference, plan *gatewayplan.Plan) {
	if in == nil {
		return
	}
	now := *plan
	w.add("inference", &metav1.ObjectMeta{}, func(ctx context.Context, at metav1.Time) bool {
		return w.storePools(ctx, in, &now, at)
	})
}

// Some stores the statuses of affected objects.
func (w *Writer) Some(t *gatewayplan.Touched, plan *gatewayplan.Live) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, in := range t.Ingresses {
		w.ingress(in, plan.IngressClasses(), plan.Plan)
	}
	for _, c := range t.GatewayClasses {
		w.class(c, plan.Plan)
	}
	w.objects(t, plan.Plan)
	w.inference(t.Inference, plan.Plan)
	poke(w.wake)
}

// add puts a job into the queue. The lock is held.
func (w *Writer) add(resource string, o metav1.Object, do job) {
	key := objectKey{resource, nameOf(o)}
	if _, queued := w.jobs[key]; !queued {
		w.queue = append(w.queue, key)
	}
	w.jobs[key] = do
	delete(w.failed, key)
}

// next removes a job from the queue and returns it.
func (w *Writer) next() (objectKey, job) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.queue) == 0 {
		w.queue = nil
		return objectKey{}, nil
	}
	key := w.queue[0]
	w.queue = w.queue[1:]
	do := w.jobs[key]
	delete(w.jobs, key)
	return key, do
}

// again are the waits after a status could not be stored. One that the API server always refuses, because a policy
// denies it or others have filled the status, is tried at most once a minute.
var again = backoff.Exponential{Initial: time.Second, Max: time.Minute}

// Run stores statuses until ctx ends.
func (w *Writer) Run(ctx context.Context) {
	if w.cfg.REST != nil {
		w.rest, _ = GatewayClient(w.cfg.REST) // the feed has logged the error
		w.pool, _ = PoolClients(w.cfg.REST)
	}
	retry := time.NewTimer(again.Max)
	retry.Stop()
	defer retry.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-w.wake:
		case <-retry.C:
			w.repeat(time.Now())
		}
		if next := w.store(ctx); !next.IsZero() {
			retry.Reset(time.Until(next))
		}
	}
}

// store runs the jobs in the queue, and returns when one has to be repeated; zero: none has.
func (w *Writer) store(ctx context.Context) (next time.Time) {
	for ctx.Err() == nil {
		key, do := w.next()
		if do == nil {
			break
		}
		w.ended(key, do, do(ctx, metav1.NewTime(w.cfg.Now().Truncate(time.Second))))
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, d := range w.failed { // any order: the smallest
		if next.IsZero() || d.due.Before(next) {
			next = d.due
		}
	}
	return next
}

// ended notes a job that has to be repeated, unless there is a newer one for its object.
func (w *Writer) ended(key objectKey, do job, ok bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if ok {
		delete(w.tries, key)
		return
	}
	if _, newer := w.jobs[key]; !newer {
		w.tries[key]++
		w.failed[key] = delayed{do, time.Now().Add(again.Delay(w.tries[key]))}
	}
}

// repeat puts what has failed into the queue, when it is due.
func (w *Writer) repeat(now time.Time) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for key, d := range w.failed { // any order: each for itself
		if d.due.After(now) {
			continue
		}
		w.queue = append(w.queue, key)
		w.jobs[key] = d.do
		delete(w.failed, key)
	}
}

// put stores the status of an object of the Gateway API.
func (w *Writer) put(ctx context.Context, o runtime.Object, resource string, meta metav1.Object) bool {
	if w.rest == nil {
		return true
	}
	req := w.rest.Put().Resource(resource).Name(meta.GetName()).SubResource("status").Body(o)
	if meta.GetNamespace() != "" {
		req = req.Namespace(meta.GetNamespace())
	}
	return w.done(ctx, req.Do(ctx).Error(), resource, meta, storedIn(w.rest, resource, meta))
}

// storedIn reads an object.
func storedIn(c rest.Interface, resource string, of metav1.Object) confirm.Live {
	return func(ctx context.Context) (metav1.Object, error) {
		req := c.Get().Resource(resource).Name(of.GetName())
		if of.GetNamespace() != "" {
			req = req.Namespace(of.GetNamespace())
		}
		got, err := req.Do(ctx).Get()
		if err != nil {
			return nil, fmt.Errorf("read it again: %w", err)
		}
		o, ok := got.(metav1.Object)
		if !ok {
			return nil, fmt.Errorf("read it again: unexpected %T", got)
		}
		return o, nil
	}
}

func (w *Writer) class(c *gatewayv1.GatewayClass, plan *gatewayplan.Plan) {
	conditions, known := plan.Classes[c.Name]
	if !known {
		return
	}
	w.add("gatewayclasses", c, func(ctx context.Context, now metav1.Time) bool {
		conditions := gatewayplan.Conditions(c.Status.Conditions, conditions, now)
		features := Features()
		if equality.Semantic.DeepEqual(conditions, c.Status.Conditions) &&
			slices.Equal(features, c.Status.SupportedFeatures) {
			return true
		}
		c := c.DeepCopy()
		c.Status.Conditions, c.Status.SupportedFeatures = conditions, features
		return w.put(ctx, c, "gatewayclasses", c)
	})
}

// objects adds the statuses of objects of the Gateway API. The lock is held.
func (w *Writer) objects(t *gatewayplan.Touched, plan *gatewayplan.Plan) {
	addEach(w, "gateways", t.Gateways, plan.Gateways,
		func(stored, now gatewayv1.GatewayStatus, at metav1.Time) (gatewayv1.GatewayStatus, bool) {
			return gatewayplan.GatewayStatus(&stored, now, at)
		}, func(g *gatewayv1.Gateway) *gatewayv1.GatewayStatus { return &g.Status })
	addEach(w, "listenersets", t.ListenerSets, plan.ListenerSets,
		func(stored, now gatewayv1.ListenerSetStatus, at metav1.Time) (gatewayv1.ListenerSetStatus, bool) {
			return gatewayplan.ListenerSetStatus(&stored, now, at)
		}, func(l *gatewayv1.ListenerSet) *gatewayv1.ListenerSetStatus { return &l.Status })
	addEach(w, "httproutes", t.HTTPRoutes, plan.HTTPRoutes, gatewayplan.Parents,
		func(r *gatewayv1.HTTPRoute) *[]gatewayv1.RouteParentStatus { return &r.Status.Parents })
	addEach(w, "grpcroutes", t.GRPCRoutes, plan.GRPCRoutes, gatewayplan.Parents,
		func(r *gatewayv1.GRPCRoute) *[]gatewayv1.RouteParentStatus { return &r.Status.Parents })
	addEach(w, "tlsroutes", t.TLSRoutes, plan.TLSRoutes, gatewayplan.Parents,
		func(r *gatewayv1.TLSRoute) *[]gatewayv1.RouteParentStatus { return &r.Status.Parents })
	addEach(w, "tcproutes", t.TCPRoutes, plan.TCPRoutes, gatewayplan.Parents,
		func(r *gatewayv1.TCPRoute) *[]gatewayv1.RouteParentStatus { return &r.Status.Parents })
	addEach(w, "udproutes", t.UDPRoutes, plan.UDPRoutes, gatewayplan.Parents,
		func(r *gatewayv1.UDPRoute) *[]gatewayv1.RouteParentStatus { return &r.Status.Parents })
	addEach(w, "backendtlspolicies", t.Policies, plan.Policies, gatewayplan.Ancestors,
		func(p *gatewayv1.BackendTLSPolicy) *[]gatewayv1.PolicyAncestorStatus { return &p.Status.Ancestors })
}

// object is an object of the API, of type O.
type object[O any] interface {
	metav1.Object
	runtime.Object
	DeepCopy() O
}

// addEach adds the statuses of the objects of one kind that the plan has a status for. merge returns the status to
// store, from the stored and the planned one, and whether it differs; status is the relevant part of an object. The
// lock is held.
func addEach[O object[O], S any](w *Writer, resource string, objects []O, plan map[gatewayplan.Name]S,
	merge func(stored, now S, at metav1.Time) (S, bool), status func(O) *S) {
	for _, o := range objects {
		now, known := plan[nameOf(o)]
		if !known {
			continue
		}
		w.add(resource, o, func(ctx context.Context, at metav1.Time) bool {
			next, changed := merge(*status(o), now, at)
			if !changed {
				return true
			}
			o := o.DeepCopy()
			*status(o) = next
			return w.put(ctx, o, resource, o)
		})
	}
}

// done reports whether an error needs no other try.
func (w *Writer) done(ctx context.Context, err error, resource string, o metav1.Object, stored confirm.Live) bool {
	if err = confirm.Overtaken(ctx, o, err, stored); err == nil || ctx.Err() != nil {
		return true
	}
	klog.FromContext(ctx).Error(err, "Cannot store a status; trying again", "resource", resource, "object", nameOf(o))
	return false
}

// ingress stores the status of an Ingress, and records an event for each problem once. It does not change Ingresses of
// other classes. The lock is held.
func (w *Writer) ingress(in *networkingv1.Ingress, classes []*networkingv1.IngressClass, plan *gatewayplan.Plan) {
	if !gatewayplan.Serves(in, classes) {
		return
	}
	r := plan.Ingresses[nameOf(in)]
	w.add("ingresses", in, func(ctx context.Context, _ metav1.Time) bool {
		var text strings.Builder
		for _, p := range r.Problems {
			fmt.Fprintf(&text, "%s: %s\n", p.Reason, p.Message)
		}
		if w.report(in.UID, text.String()) {
			for _, p := range r.Problems {
				w.cfg.Events.Event(in, corev1.EventTypeWarning, p.Reason, p.Message)
			}
		}
		if equality.Semantic.DeepEqual(in.Status.LoadBalancer.Ingress, r.Addresses) {
			return true
		}
		in := in.DeepCopy()
		in.Status.LoadBalancer.Ingress = r.Addresses
		api := w.cfg.Client.NetworkingV1().Ingresses(in.Namespace)
		_, err := api.UpdateStatus(ctx, in, metav1.UpdateOptions{})
		return w.done(ctx, err, "ingresses", in, confirm.By(api.Get, in.Name))
	})
}

// report records the problems of an Ingress. It returns false if they are the same as those reported last.
func (w *Writer) report(ingress types.UID, problems string) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.reported[ingress] == problems {
		return false
	}
	w.reported[ingress] = problems
	return true
}

// Features are the supported features of the Gateway API, which the conformance tests verify, in order.
func Features() []gatewayv1.SupportedFeature {
	names := []gatewayv1.FeatureName{"BackendTLSPolicy", "BackendTLSPolicySANValidation", "GRPCRoute",
		"GRPCRouteNamedRouteRule", "Gateway", "GatewayAddressEmpty", "GatewayBackendClientCertificate",
		"GatewayFrontendClientCertificateValidation",
		"GatewayFrontendClientCertificateValidationInsecureFallback", "GatewayHTTPListenerIsolation",
		"GatewayHTTPSListenerDetectMisdirectedRequests", "GatewayPort8080", "GatewayStaticAddresses",
		"HTTPRoute", "HTTPRoute303RedirectStatusCode", "HTTPRoute307RedirectStatusCode",
		"HTTPRoute308RedirectStatusCode",
		"HTTPRouteBackendProtocolH2C", "HTTPRouteBackendProtocolWebSocket", "HTTPRouteBackendRequestHeaderModification",
		"HTTPRouteBackendTimeout", "HTTPRouteCORS", "HTTPRouteDestinationPortMatching", "HTTPRouteHostRewrite",
		"HTTPRouteMethodMatching", "HTTPRouteNamedRouteRule", "HTTPRouteParentRefPort", "HTTPRoutePathRedirect",
		"HTTPRoutePathRewrite", "HTTPRoutePortRedirect", "HTTPRouteQueryParamMatching", "HTTPRouteRequestMirror",
		"HTTPRouteRequestMultipleMirrors", "HTTPRouteRequestPercentageMirror", "HTTPRouteRequestTimeout",
		"HTTPRouteResponseHeaderModification", "HTTPRouteSchemeRedirect", "ListenerSet", "ReferenceGrant", "TCPRoute",
		"TLSRoute", "TLSRouteModeMixed", "TLSRouteModeTerminate", "UDPRoute"}
	out := make([]gatewayv1.SupportedFeature, 0, len(names))
	for _, n := range names {
		out = append(out, gatewayv1.SupportedFeature{Name: n})
	}
	return out
}

// storePools writes the statuses of the inference extension that differ.
func (w *Writer) storePools(ctx context.Context, in *gatewayplan.Inference, plan *gatewayplan.Plan,
	now metav1.Time) (ok bool) {
	if w.pool == nil {
		return true
	}
	ok = true
	put := func(o runtime.Object, group, resource string, meta metav1.Object) {
		if ctx.Err() != nil {
			return
		}
		err := w.pool[group].Put().Resource(resource).Namespace(meta.GetNamespace()).Name(meta.GetName()).
			SubResource("status").Body(o).Do(ctx).Error()
		ok = w.done(ctx, err, resource, meta, storedIn(w.pool[group], resource, meta)) && ok
	}
	for _, p := range in.Pools {
		ref := httproute.Ref{Namespace: p.Namespace, Name: p.Name, Pool: inferenceapi.Group}
		if s, changed := gatewayplan.PoolParents(ref, p.Status.Parents, plan.PoolStatus[ref], now); changed {
			p = p.DeepCopy()
			p.Status.Parents = s
			put(p, inferenceapi.Group, "inferencepools", p)
		}
	}
	for _, p := range in.OldPools {
		ref := httproute.Ref{Namespace: p.Namespace, Name: p.Name, Pool: inferenceapi.OldGroup}
		if s, changed := gatewayplan.PoolParents(ref, p.Status.Parents, plan.PoolStatus[ref], now); changed {
			p = p.DeepCopy()
			p.Status.Parents = s
			put(p, inferenceapi.OldGroup, "inferencepools", p)
		}
	}
	model := func(o *inferenceapi.Model) *[]metav1.Condition { return &o.Status.Conditions }
	objective := func(o *inferenceapi.Objective) *[]metav1.Condition { return &o.Status.Conditions }
	rewrite := func(o *inferenceapi.Rewrite) *[]metav1.Condition { return &o.Status.Conditions }
	for _, o := range differing(in.Models, plan.Models, now, model) {
		put(o, inferenceapi.OldGroup, "inferencemodels", o)
	}
	for _, o := range differing(in.Objectives, plan.Objectives, now, objective) {
		put(o, inferenceapi.OldGroup, "inferenceobjectives", o)
	}
	for _, o := range differing(in.RouterObjectives, plan.RouterObjectives, now, objective) {
		put(o, inferenceapi.RouterGroup, "inferenceobjectives", o)
	}
	for _, o := range differing(in.Rewrites, plan.Rewrites, now, rewrite) {
		put(o, inferenceapi.OldGroup, "inferencemodelrewrites", o)
	}
	for _, o := range differing(in.RouterRewrites, plan.RouterRewrites, now, rewrite) {
		put(o, inferenceapi.RouterGroup, "inferencemodelrewrites", o)
	}
	return ok
}

// differing returns copies, with the conditions of the plan, of those objects whose conditions differ.
func differing[O object[O]](all []O, planned map[name][]metav1.Condition, now metav1.Time,
	conditions func(O) *[]metav1.Condition) (out []O) {
	for _, o := range all {
		if next, changed := poolConditions(*conditions(o), planned[nameOf(o)], now); changed {
			o = o.DeepCopy()
			*conditions(o) = next
			out = append(out, o)
		}
	}
	return out
}

// poolConditions are those to store. Objects whose pool does not exist get none.
func poolConditions(stored, now []metav1.Condition, at metav1.Time) ([]metav1.Condition, bool) {
	if now == nil {
		return stored, false
	}
	out := gatewayplan.Conditions(stored, now, at)
	return out, !equality.Semantic.DeepEqual(out, stored)
}
