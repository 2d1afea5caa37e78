package gateway

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"time"

	"k8s.io/klog/v2"

	"carob/internal/core/gatewayplan"
	"carob/internal/core/gatewayplan/inferenceapi"
	"carob/internal/core/modelbody"
	"carob/internal/core/routing"
	"carob/internal/gateway/extproc"
	"carob/internal/inference"
)

// offer serves carob's picker to other gateways until ctx is done.
func (g *Gateway) offer(ctx context.Context) {
	before := ""
	for {
		ln, err := net.Listen("tcp", g.cfg.Picker.String())
		if err == nil {
			err = (&extproc.Server{Begin: g.beginPick}).Serve(ctx, ln, g.cfg.PickerTLS)
		}
		if ctx.Err() != nil {
			return
		}
		now := fmt.Sprint(err)
		if now != before { // the address may be in use for ever
			klog.FromContext(ctx).Error(err, "Cannot serve the endpoint picker; trying again", "every", retryAfter)
		}
		before = now
		select {
		case <-ctx.Done():
			return
		case <-time.After(retryAfter):
		}
	}
}

// offers are the pools for which other gateways may call the picker. It is replaced, never changed.
type offers struct {
	byName    map[string]*pool // by NAME.NAMESPACE; of two versions v1
	byService map[name]*pool   // by the Service in endpointPickerRef; nil: several pools name it
}

// announce offers the pools of carob's picker to other gateways, if it shall, and to metrics. The lock is held.
func (g *Gateway) announce(plan *gatewayplan.Plan, pools poolMap) {
	g.measure(plan)
	if g.cfg.Picker.IsValid() {
		g.offers.Store(newOffers(plan, pools))
	}
}

func newOffers(plan *gatewayplan.Plan, pools poolMap) *offers {
	o := &offers{byName: map[string]*pool{}, byService: map[name]*pool{}}
	for ref, p := range plan.Pools { // any order: into maps
		if p.Picker != nil {
			continue
		}
		of, _ := pools.Get(ref)
		key := ref.Name + "." + ref.Namespace
		if o.byName[key] == nil || ref.Pool == inferenceapi.Group {
			o.byName[key] = of
		}
		if p.OfferedAs == (name{}) {
			continue
		}
		if _, several := o.byService[p.OfferedAs]; several {
			o.byService[p.OfferedAs] = nil
		} else {
			o.byService[p.OfferedAs] = of
		}
	}
	return o
}

// find finds a pool by its name NAME.NAMESPACE, or, without one, by the authority: SERVICE.NAMESPACE with or without
// .svc and the cluster's domain, a port, or Istio's cluster name before it; or NAME.NAMESPACE of the pool.
func (o *offers) find(pool, authority string) *pool {
	if o == nil {
		return nil
	}
	if pool != "" {
		return o.byName[pool]
	}
	authority = authority[strings.LastIndexByte(authority, '|')+1:]
	host, _, _ := strings.Cut(authority, ":")
	if labels := strings.Split(host, "."); len(labels) == 2 || len(labels) > 2 && labels[2] == "svc" {
		if p, ok := o.byService[name{Namespace: labels[1], Name: labels[0]}]; ok {
			return p
		}
	}
	return o.byName[host]
}

// beginPick begins a request for which another gateway calls the picker.
func (g *Gateway) beginPick(poolName, authority string, h http.Header,
	subset []netip.AddrPort) (extproc.Request, bool) {
	p := g.offers.Load().find(poolName, authority)
	if p == nil {
		return nil, false
	}
	s := p.served.Load()
	if s == nil || s.own == nil {
		return nil, false
	}
	return &pickRequest{pool: p, served: s, header: h, subset: subset}, true
}

// pickRequest is a request that another gateway proxies. It implements extproc.Request.
type pickRequest struct {
	pool   *pool
	served *served
	header http.Header
	subset []netip.AddrPort

	scan   modelbody.Scanner
	buffer []byte
	held   int64 // bytes, of all that requests may hold
	choice *inference.Pick
	target *Target // it has the request: its pod is not stopped yet
	status int
	usage  modelbody.Answer
}

// Whole implements extproc.Request.
func (a *pickRequest) Whole() bool { return !inference.Passes(a.header) }

func refusing(status int, reason, text string) error {
	return &extproc.Refused{Status: status, Name: routing.ReasonHeader, Reason: reason, Text: text}
}

// Body implements extproc.Request.
func (a *pickRequest) Body(part []byte) error {
	if e := a.header.Get("Content-Encoding"); e != "" && e != "identity" {
		return refusing(http.StatusUnsupportedMediaType, badBody, "the body of an inference request is compressed")
	}
	need := len(a.buffer) + len(part)
	if need > inferenceBody {
		return refusing(http.StatusRequestEntityTooLarge, largeBody, errTooLarge.Error())
	}
	if need > cap(a.buffer) {
		size := int64(min(max(need, 2*cap(a.buffer), firstBody), inferenceBody))
		if !a.served.bodies.Reserve(size - a.held) {
			return refusing(http.StatusTooManyRequests, string(routing.Saturated), "too many large requests at once")
		}
		a.held = size
		a.buffer = append(make([]byte, 0, size), a.buffer...)
	}
	a.buffer = append(a.buffer, part...)
	if err := a.scan.Scan(a.buffer); err != nil {
		return refusing(http.StatusBadRequest, badBody, err.Error())
	}
	return nil
}

// Pick implements extproc.Request.
func (a *pickRequest) Pick(ctx context.Context) (*extproc.Choice, error) {
	if len(a.buffer) > 0 {
		if err := a.scan.Close(); err != nil {
			return nil, refusing(http.StatusBadRequest, badBody, err.Error())
		}
	}
	facts := &a.scan.Facts
	if a.held > 0 && a.served.plan.Models.Rewrites() && !facts.HasModel {
		return nil, refusing(http.StatusBadRequest, badBody, errNoModel.Error())
	}
	r, choice, err := a.choose(ctx)
	for errors.Is(err, inference.ErrReplaced) {
		now := a.pool.served.Load()
		if now.own == nil || now.own == a.served.own {
			return a.chooseAny(ctx, r)
		}
		a.served = now
		r, choice, err = a.choose(ctx)
	}
	if err != nil {
		if no, ok := errors.AsType[*inference.Refused](err); ok {
			return nil, refusing(no.Status(), string(no.Reason), http.StatusText(no.Status()))
		}
		return nil, err
	}
	a.choice = choice
	a.hold(choice.Address())
	out := &extproc.Choice{Endpoints: choice.Endpoints(), Body: a.body(r)}
	if choice.Prefill.IsValid() {
		out.Headers = map[string]string{"x-prefiller-host-port": choice.Prefill.String()}
	}
	return out, nil
}

// choose calls carob's picker.
func (a *pickRequest) choose(ctx context.Context) (*routing.Request, *inference.Pick, error) {
	r := a.served.request(a.header, &a.scan.Facts, a.buffer)
	r.Subset = a.subset
	path, _, _ := strings.Cut(a.header.Get(":path"), "?")
	a.served.own.Tokens(ctx, r, &inference.Prompt{Path: path, Body: a.buffer, Salt: a.scan.Facts.Salt})
	choice, err := a.served.own.Pick(ctx, r)
	return r, choice, err
}

// chooseAny chooses any endpoints, for a request that was held when the pool got a picker that is not carob's: the
// gateway calls that one for the next request.
func (a *pickRequest) chooseAny(ctx context.Context, r *routing.Request) (*extproc.Choice, error) {
	all := slices.DeleteFunc(slices.Clone(*a.pool.endpoints.Load()), func(t *Target) bool {
		return a.subset != nil && !routing.InSubset(a.subset, t.Address)
	})
	targets, err := a.pool.pick.Pick(ctx, &Facts{}, all)
	if err != nil || len(targets) == 0 {
		return nil, refusing(http.StatusServiceUnavailable, string(routing.NoEndpoints), errNoEndpoints.Error())
	}
	out := &extproc.Choice{Body: a.body(r)}
	for _, t := range targets {
		out.Endpoints = append(out.Endpoints, t.Address)
	}
	a.hold(targets[0].Address)
	return out, nil
}

// body is the body that the server gets.
func (a *pickRequest) body(r *routing.Request) [][]byte {
	if facts := &a.scan.Facts; facts.HasModel && r.Target != facts.Model {
		before, model, rest := facts.Rewritten(a.buffer, r.Target)
		return [][]byte{before, model, rest}
	}
	return [][]byte{a.buffer}
}

// hold delays the end of the pod at an address until the request has ended.
func (a *pickRequest) hold(at netip.AddrPort) {
	if a.target != nil {
		a.target.end()
		a.target = nil
	}
	for _, t := range *a.pool.endpoints.Load() {
		if t.Address == at && t.begin() {
			a.target = t
			return
		}
	}
}

// Sent implements extproc.Request.
func (a *pickRequest) Sent() {
	a.served.bodies.Reserve(-a.held)
	a.buffer, a.held = nil, 0
}

// Answered implements extproc.Request.
func (a *pickRequest) Answered(code int, served netip.AddrPort) map[string]string {
	a.status = code
	if a.choice == nil { // chooseAny
		return nil
	}
	if before := a.choice.Address(); served != before && slices.Contains(a.choice.Endpoints(), served) {
		for at, ok := before, true; ok && at != served; {
			at, ok = a.choice.Failed(false)
		}
		a.hold(a.choice.Address())
	}
	a.choice.FirstByte()
	if name, session := a.choice.Session(); name != "" {
		return map[string]string{name: session}
	}
	return nil
}

// AnswerPart implements extproc.Request.
func (a *pickRequest) AnswerPart(part []byte) { a.usage.Write(part) }

// End implements extproc.Request.
func (a *pickRequest) End(complete bool) {
	a.Sent()
	if a.target != nil {
		defer a.target.end()
	}
	if a.choice == nil {
		return
	}
	how := routing.Aborted
	if complete {
		how = routing.Answered
	}
	u := a.usage.Usage()
	a.choice.End(inference.Result{Outcome: how, Status: a.status, AnswerBytes: a.usage.Bytes,
		InputTokens: u.Input, OutputTokens: u.Output, CachedTokens: u.Cached})
}
