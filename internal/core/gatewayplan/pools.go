package gatewayplan

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"carob/internal/core/gatewayplan/inferenceapi"
	"carob/internal/core/gatewayplan/modelrules"
	"carob/internal/core/httproute"
	"carob/internal/core/podlife"
	"carob/internal/core/routing"
)

// Inference has the objects of the Gateway API inference extension.
type Inference struct {
	Pools      []*inferenceapi.Pool
	OldPools   []*inferenceapi.OldPool
	Models     []*inferenceapi.Model
	Objectives []*inferenceapi.Objective
	Rewrites   []*inferenceapi.Rewrite
	// RouterObjectives and RouterRewrites are those of RouterGroup.
	RouterObjectives []*inferenceapi.Objective
	RouterRewrites   []*inferenceapi.Rewrite
	// Configs are EndpointPickerConfigs for carob's picker, by the names of their ConfigMaps.
	Configs map[Name]PickerConfig
}

// PickerConfig is an EndpointPickerConfig that was read.
type PickerConfig struct {
	Config  *routing.Config
	Problem string // why it cannot be used; empty when it can
}

// PickerGroup and PickerKind in endpointPickerRef select carob's picker. The name is that of a ConfigMap with its
// configuration; without such a ConfigMap, the default configuration applies. A pool of v1 without a reference has
// carob's picker, too.
const (
	PickerGroup = "carob.dev"
	PickerKind  = "EndpointPicker"
)

// PickerAnnotation marks, with the value "true", a Service of carob's own picker: other gateways
// call it there with ext-proc, and carob's Gateways use the picker directly.
const PickerAnnotation = "carob.dev/endpoint-picker"

// pickerPort is the port of the Service of a picker that names none (v1alpha2).
const pickerPort = 9002

// exportAnnotation requests that a pool is exported to the clusters of a ClusterSet (1.6).
const exportAnnotation = "inference.networking.x-k8s.io/export"

// Pool is an InferencePool of any version.
type Pool struct {
	Ref        httproute.Ref
	Generation int64
	Selector   map[string]string
	Ports      []int32 // of each pod; each is an endpoint
	H2C        bool    // what the pods speak; else HTTP/1.1
	Picker     *PoolPicker
	Models     *modelrules.Rules
	// Config is the configuration of carob's picker; nil means the default, or the previous one if Broken.
	Config *routing.Config
	Broken bool // the configuration cannot be used
	// Unconfigured is the ConfigMap that the pool names for carob's picker, which has no configuration; empty: it has.
	Unconfigured string

	// Drain is how long deleted pods of the pool wait for their requests at most (podlife.DrainAnnotation); nil: the
	// annotation is missing, or invalid, for the reason in DrainProblem.
	Drain        *time.Duration
	DrainProblem string
	// PickerProblem is why the annotation PickerTimeout has no effect; empty: there is none, or it has.
	PickerProblem string

	// OfferedAs is the Service through which other gateways call carob's picker; empty: the pool names none.
	OfferedAs Name

	policy     *policy // of the Service of the picker; nil: none
	problem    string  // of the configuration
	export     bool    // to other clusters, as an annotation requests
	old        bool    // v1alpha2
	unresolved string  // why the picker cannot be used: every request fails
}

// PoolPicker is an endpoint picker behind a Service, called by ext-proc. A pool without one uses carob's picker.
type PoolPicker struct {
	Service httproute.Ref
	// Plain means that the connection has no TLS. With TLS, the server is verified only if a BackendTLSPolicy
	// configures it (2.1).
	Plain bool
	TLS   *httproute.BackendTLS
	// FailOpen means that any endpoint of the pool gets the request when the picker does not respond; otherwise the
	// request fails.
	FailOpen bool
	Timeout  time.Duration // of a decision
}

// Same reports whether two pickers are called in the same way; nil is none.
func (p *PoolPicker) Same(other *PoolPicker) bool {
	return p != nil && other != nil && p.Service == other.Service && p.Plain == other.Plain &&
		(p.TLS == nil) == (other.TLS == nil) && (p.TLS == nil || *p.TLS == *other.TLS)
}

func isPool(group, kind string) bool {
	return kind == "InferencePool" && (group == inferenceapi.Group || group == inferenceapi.OldGroup)
}

// readPools converts the pools of both versions into one form.
func (p *planner) readPools() {
	p.pools, p.pickers = map[httproute.Ref]*Pool{}, map[Name]bool{}
	if p.Inference == nil {
		return
	}
	for _, in := range p.Inference.Pools {
		pool := &Pool{Ref: poolRef(inferenceapi.Group, in), Generation: in.Generation,
			Selector: in.Spec.Selector.MatchLabels, H2C: in.Spec.AppProtocol == "kubernetes.io/h2c"}
		for _, port := range in.Spec.TargetPorts {
			pool.Ports = append(pool.Ports, port.Number)
		}
		if ref := in.Spec.EndpointPickerRef; ref != nil {
			port := int32(0)
			if ref.Port != nil {
				port = ref.Port.Number
			}
			p.picker(pool, ref.Group, ref.Kind, ref.Name, port, ref.FailureMode)
		}
		pool.readDrain(in.Annotations)
		pool.readTimeout(in.Annotations)
		_, pool.export = in.Annotations[exportAnnotation]
		p.pools[pool.Ref] = pool
	}
	for _, in := range p.Inference.OldPools {
		pool := &Pool{Ref: poolRef(inferenceapi.OldGroup, in), Generation: in.Generation, Selector: in.Spec.Selector,
			Ports: []int32{in.Spec.TargetPortNumber}, old: true}
		if ref := in.Spec.ExtensionRef; ref != nil {
			p.picker(pool, ref.Group, ref.Kind, ref.Name, or(ref.PortNumber, pickerPort), ref.FailureMode)
		}
		pool.readDrain(in.Annotations)
		pool.readTimeout(in.Annotations)
		p.pools[pool.Ref] = pool
	}
	p.readModels()
}

// readDrain reads how long deleted pods of the pool wait for their requests.
func (p *Pool) readDrain(annotations map[string]string) {
	d, ok, err := podlife.DrainTimeout(annotations)
	switch {
	case err != nil:
		p.DrainProblem = fmt.Sprintf("the annotation %s has no effect: %v", podlife.DrainAnnotation, err)
	case ok:
		p.Drain = &d
	}
}

func poolRef(group string, o metav1.Object) httproute.Ref {
	return httproute.Ref{Namespace: o.GetNamespace(), Name: o.GetName(), Pool: group}
}

// picker resolves the reference to a pool's picker.
func (p *planner) picker(pool *Pool, group, kind, name string, port int32, mode string) {
	if group == PickerGroup && kind == PickerKind {
		config := p.Inference.Configs[Name{Namespace: pool.Ref.Namespace, Name: name}]
		if config == (PickerConfig{}) {
			pool.Unconfigured = name
		}
		if pool.Config = config.Config; config.Problem != "" {
			pool.Broken = true
			pool.problem = fmt.Sprintf("ConfigMap %s: %s; the picker still uses its previous configuration", name,
				config.Problem)
		}
		return
	}
	if group != "" || cmp.Or(kind, "Service") != "Service" {
		pool.unresolved = fmt.Sprintf("%s.%s is not an endpoint picker", kind, group)
		return
	}
	of := Name{Namespace: pool.Ref.Namespace, Name: name}
	p.pickers[of] = true
	if p.Services[of] == nil && pool.old {
		// In v1alpha2 the reference is required, and manifests name a picker that an operator installs. Without that
		// picker, the pool uses carob's.
		return
	}
	if s := p.Services[of]; s != nil && s.Annotations[PickerAnnotation] == "true" {
		pool.OfferedAs = of
		return
	}
	found, problem := p.service(nil, of, port, false)
	if problem != nil {
		pool.unresolved = problem.message
		return
	}
	pool.Picker = &PoolPicker{Service: httproute.Ref{Namespace: of.Namespace, Name: of.Name, Port: port},
		Plain: or(found.AppProtocol, "") == "kubernetes.io/h2c", FailOpen: mode == "FailOpen"}
	if pool.policy = p.policyFor(of, found.Name); pool.policy != nil && pool.policy.problem == "" {
		tls := pool.policy.tls
		tls.H2 = true
		pool.Picker.TLS, pool.Picker.Plain = &tls, false
	}
}

// offers reports whether other gateways may call carob's picker for a pool; nil is no pool.
func (p *planner) offers(pool *Pool) bool {
	return p.Offered && pool != nil && pool.Picker == nil && pool.unresolved == ""
}

// offerPools adds to the backends the pools for which other gateways may call carob's picker.
func (p *planner) offerPools() {
	for ref, pool := range p.pools { // any order: into maps
		if p.offers(pool) {
			p.refer(ref, 1)
		}
	}
}

// servedPools are the pools to which routes lead, or which are offered.
func (p *planner) servedPools() map[httproute.Ref]*Pool {
	out := map[httproute.Ref]*Pool{}
	for ref, pool := range p.pools { // any order: into a map
		if p.refs[ref] > 0 {
			out[ref] = pool
		}
	}
	return out
}

// poolBackend resolves a reference to a pool. The reference's port is ignored (1.1).
func (p *planner) poolBackend(r *route, out httproute.Backend, apiGroup string, name Name,
	fail func(*backendProblem) httproute.Backend) httproute.Backend {
	r.pooling = append(r.pooling, name.Namespace)
	if p.Inference == nil {
		return fail(&backendProblem{gatewayv1.RouteReasonInvalidKind,
			"InferencePools are not served: `carob addon enable inference`"})
	}
	if !p.granted(r.kind, r.meta.GetNamespace(), gatewayv1.Group(apiGroup), "InferencePool", name) {
		return fail(&backendProblem{gatewayv1.RouteReasonRefNotPermitted,
			fmt.Sprintf("no ReferenceGrant permits the use of InferencePool %s", name)})
	}
	ref := httproute.Ref{Namespace: name.Namespace, Name: name.Name, Pool: apiGroup}
	pool := p.pools[ref]
	if pool == nil {
		return fail(&backendProblem{gatewayv1.RouteReasonBackendNotFound,
			fmt.Sprintf("InferencePool %s of %s does not exist%s", name, apiGroup, p.similar(ref))})
	}
	if r.pools == nil {
		r.pools = map[httproute.Ref]bool{}
	}
	r.pools[ref] = true
	if pool.unresolved != "" { // the route is valid, the pool is not
		out.Invalid = pool.unresolved
		return out
	}
	out.Ref = ref
	if pool.H2C || r.kind == "GRPCRoute" {
		out.Protocol = httproute.H2C
	}
	if pool.Picker != nil {
		r.refs = append(r.refs, pool.Picker.Service)
		if pol := pool.policy; pol != nil {
			r.policies[pol] = true
			if pol.problem != "" {
				out.Invalid = pol.problem
				return out
			}
		}
	}
	r.refs = append(r.refs, ref)
	return out
}

// notBackend is about a backend of another kind. Without a group, an InferencePool is one.
func notBackend(group, kind string) string {
	text := "kind " + kind
	if group != "" {
		text += " of group " + group
	}
	text += " is not a backend"
	if kind == "InferencePool" {
		text += "; the group of InferencePool is " + inferenceapi.Group
	}
	return text
}

// similar suggests another pool: one of the same name in the other group, or one whose name is a prefix of the missing
// name or begins with it.
func (p *planner) similar(ref httproute.Ref) string {
	best := ""
	for other := range p.pools { // any order: the smallest text is used
		if other.Namespace != ref.Namespace {
			continue
		}
		text := ""
		switch {
		case other.Name == ref.Name:
			text = fmt.Sprintf("; group %s has one", other.Pool)
		case strings.HasPrefix(other.Name, ref.Name) || strings.HasPrefix(ref.Name, other.Name):
			text = fmt.Sprintf("; did you mean %q?", other.Name)
		}
		if text != "" && (best == "" || text < best) {
			best = text
		}
	}
	return best
}

// poolStatus computes the status entries of each pool, one for each Gateway of carob's that serves it.
func (p *planner) poolStatus() {
	p.PoolStatus = map[httproute.Ref][]inferenceapi.Parent{}
	for ref, pool := range p.pools { // any order: into a map
		out := []inferenceapi.Parent{}
		for _, g := range slices.SortedFunc(maps.Keys(p.through[ref]), func(a, b Name) int {
			return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
		}) {
			parent := inferenceapi.Parent{ControllerName: string(GatewayController),
				ParentRef: inferenceapi.ParentRef{Group: group, Kind: "Gateway", Namespace: g.Namespace, Name: g.Name}}
			resolved := condition("ResolvedRefs", true, "ResolvedRefs", "carob's own endpoint picker serves"+ownMark,
				pool.Generation)
			switch {
			case pool.unresolved != "":
				resolved = condition("ResolvedRefs", false, "InvalidExtensionRef", pool.unresolved+ownMark,
					pool.Generation)
			case pool.problem != "":
				resolved = condition("ResolvedRefs", false, "InvalidExtensionRef", cut(pool.problem)+ownMark,
					pool.Generation)
			case pool.Picker != nil:
				resolved.Message = "the endpoint picker is Service " + pool.Picker.Service.String() + ownMark
			}
			parent.Conditions = []metav1.Condition{condition("Accepted", true, "Accepted",
				"the Gateway serves the pool"+ownMark, pool.Generation), resolved}
			if pool.export {
				parent.Conditions = append(parent.Conditions, condition("Exported", false, "NotSupported",
					"the pool is served in this cluster only: carob exports no pools to other clusters"+ownMark,
					pool.Generation))
			}
			if pool.old {
				parent.ControllerName = ""
			}
			out = append(out, parent)
		}
		p.PoolStatus[ref] = out
	}
}

// cut shortens a message that quotes a user's text: a condition holds 32 KiB.
func cut(text string) string {
	const most = 1 << 10
	if len(text) <= most {
		return text
	}
	return strings.ToValidUTF8(text[:most], "") + "…"
}

// ownMark ends the messages of carob's conditions: entries of v1alpha2 do not name their controller.
const ownMark = " (" + string(GatewayController) + ")"

// maxPoolParents is the maximum number of entries in a pool's status.
const maxPoolParents = 32

// PoolParents returns the entries to store in a pool's status: those of other controllers stay as they are.
func PoolParents(ref httproute.Ref, stored, now []inferenceapi.Parent, at metav1.Time) ([]inferenceapi.Parent, bool) {
	out := []inferenceapi.Parent{}
	old := ref.Pool == inferenceapi.OldGroup
	placeholder := -1
	own := func(e *inferenceapi.Parent) bool {
		if !old {
			return e.ControllerName == string(GatewayController)
		}
		return slices.ContainsFunc(e.Conditions, func(c metav1.Condition) bool {
			return strings.HasSuffix(c.Message, ownMark)
		})
	}
	now = slices.Clone(now)
	for i := range stored { // all keep their places, as in merged
		switch e := &stored[i]; {
		case own(e):
			place := slices.IndexFunc(now, func(n inferenceapi.Parent) bool { return n.ParentRef == e.ParentRef })
			if place < 0 {
				continue
			}
			next := now[place]
			now = slices.Delete(now, place, place+1)
			next.Conditions = Conditions(e.Conditions, next.Conditions, at)
			out = append(out, next)
		case old && e.ParentRef.Kind == "Status" && e.ParentRef.Name == "default":
			placeholder = i
		default:
			out = append(out, *e)
		}
	}
	for _, n := range now[:max(0, min(len(now), maxPoolParents-len(out)))] {
		n.Conditions = Conditions(nil, n.Conditions, at)
		out = append(out, n)
	}
	if old && len(out) == 0 { // no Gateway serves the pool: restore the entry that it was created with
		if placeholder >= 0 {
			return stored, false
		}
		if len(stored) > 0 {
			out = append(out, inferenceapi.Parent{ParentRef: inferenceapi.ParentRef{Group: group, Kind: "Status",
				Name: "default"}, Conditions: []metav1.Condition{{Type: "Accepted", Status: metav1.ConditionUnknown,
				Reason: "Pending", Message: "Waiting for controller", LastTransitionTime: at}}})
		}
	}
	return out, !equality.Semantic.DeepEqual(stored, out) && (len(stored) > 0 || len(out) > 0)
}
