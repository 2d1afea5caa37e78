package gatewayplan

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"reflect"
	"slices"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"carob/internal/core/gatewayplan/inferenceapi"
	"carob/internal/core/httproute"
	"carob/internal/core/podlife"
	"carob/internal/core/routing"
)

// inferenceObjects are the objects of the inference extension by kind and name.
type inferenceObjects map[string]any

// copied returns the objects as a World has them, in any order.
func (o inferenceObjects) copied() *Inference {
	out := &Inference{Configs: map[Name]PickerConfig{}}
	for key, in := range o {
		switch in := in.(type) {
		case *inferenceapi.Pool:
			out.Pools = append(out.Pools, in)
		case *inferenceapi.OldPool:
			out.OldPools = append(out.OldPools, in)
		case *inferenceapi.Model:
			out.Models = append(out.Models, in)
		case *inferenceapi.Objective:
			if key[0] == 'n' {
				out.RouterObjectives = append(out.RouterObjectives, in)
			} else {
				out.Objectives = append(out.Objectives, in)
			}
		case *inferenceapi.Rewrite:
			if key[0] == 'n' {
				out.RouterRewrites = append(out.RouterRewrites, in)
			} else {
				out.Rewrites = append(out.Rewrites, in)
			}
		case PickerConfig:
			out.Configs[Name{Namespace: "a", Name: "config"}] = in
		}
	}
	return out
}

func poolBackendOf(r *rand.Rand) gatewayv1.HTTPBackendRef {
	b := backendOf(pick(r, "p0", "p1", "p1", "p12"), pick(r, "", "", "a", "b"))
	b.Kind, b.Group = new(gatewayv1.Kind("InferencePool")), new(gatewayv1.Group(pick(r, inferenceapi.Group,
		inferenceapi.Group, inferenceapi.OldGroup)))
	return b
}

// randomPicker is carob's, with or without a configuration, or behind a Service that may not exist.
func randomPicker(r *rand.Rand) *inferenceapi.Picker {
	switch r.IntN(3) {
	case 0:
		return nil
	case 1:
		return &inferenceapi.Picker{Group: PickerGroup, Kind: PickerKind, Name: "config"}
	}
	return &inferenceapi.Picker{Kind: pick(r, "", "Service", "Other"), Name: pick(r, "web", "tls", "none"),
		Port: &inferenceapi.Port{Number: 80}}
}

// changeInference adds, changes, or deletes one object of the inference extension.
func (o *objects) changeInference(r *rand.Rand) {
	all, ns := o.inference, pick(r, "a", "a", "b")
	name := pick(r, "p0", "p1", "p12")
	ref := inferenceapi.PoolRef{Group: pick(r, inferenceapi.Group, inferenceapi.OldGroup), Name: name}
	age, there := r.IntN(3), r.IntN(4) > 0
	put := func(kind, name string, in any) {
		key := kind + " " + ns + "/" + name
		if delete(all, key); there {
			all[key] = in
		}
	}
	own := meta(ns, fmt.Sprint("m", age), age)
	switch r.IntN(9) {
	case 0, 1, 2:
		in := poolOf(ns, name, randomPicker(r))
		in.Spec.AppProtocol = pick(r, "", "", "kubernetes.io/h2c")
		in.Generation = r.Int64N(3)
		if r.IntN(4) == 0 {
			in.Annotations = map[string]string{podlife.DrainAnnotation: pick(r, "5s", "never")}
		}
		put("pool", name, in)
	case 3:
		in := &inferenceapi.OldPool{ObjectMeta: meta(ns, name, age)}
		in.Spec.Selector, in.Spec.TargetPortNumber = map[string]string{"app": "x"}, 8000+r.Int32N(2)
		put("old pool", name, in)
	case 4:
		in := &inferenceapi.Model{ObjectMeta: own}
		in.Spec.PoolRef, in.Spec.ModelName, in.Spec.Criticality = ref, pick(r, "x", "y"), pick(r, "", "Critical")
		put("model", own.Name, in)
	case 5:
		in := &inferenceapi.Objective{ObjectMeta: own}
		in.Spec.PoolRef, in.Spec.Priority = ref, new(r.Int32N(3))
		put(pick(r, "objective", "newer objective"), own.Name, in)
	case 6:
		in := &inferenceapi.Rewrite{ObjectMeta: own}
		in.Spec.PoolRef = ref
		in.Spec.Rules = []inferenceapi.RewriteRule{{Targets: []inferenceapi.RewriteTarget{{ModelRewrite: pick(r, "x",
			"y")}}}}
		put(pick(r, "rewrite", "newer rewrite"), own.Name, in)
	case 7:
		ns = "a"
		put("config", "config", PickerConfig{Config: pick(r, routing.DefaultConfig(), nil),
			Problem: pick(r, "", "", "it is bad")})
	default: // a status
		for _, key := range slices.Sorted(maps.Keys(all)) {
			if p, ok := all[key].(*inferenceapi.Pool); ok {
				p = p.DeepCopy()
				p.Status.Parents = []inferenceapi.Parent{{Conditions: []metav1.Condition{{Type: fmt.Sprint("T", age)}}}}
				all[key] = p
				return
			}
		}
	}
}

// poolsDiffer returns how pools, or which of them are touched, differ from a fresh plan; empty: they do not. before are
// the pools before the change.
func poolsDiffer(before map[httproute.Ref]*Pool, live, fresh *Plan, touched *Touched) string {
	if len(live.Pools) != len(fresh.Pools) {
		return fmt.Sprintf("pools %v, afresh %v", live.Pools, fresh.Pools)
	}
	for ref, p := range fresh.Pools {
		if !reflect.DeepEqual(live.Pools[ref], p) {
			return fmt.Sprintf("pool %v:\n%+v\nafresh:\n%+v", ref, live.Pools[ref], p)
		}
		if was := before[ref]; was != live.Pools[ref] && !touched.Pools[ref] {
			return fmt.Sprintf("pool %v is not touched", ref)
		} else if reflect.DeepEqual(was, p) && touched.Pools[ref] && was.routedAs(p) && was.policy == p.policy {
			return fmt.Sprintf("pool %v is touched, but the same", ref)
		}
	}
	for ref := range before {
		if fresh.Pools[ref] == nil && !touched.Pools[ref] {
			return fmt.Sprintf("pool %v has gone and is not touched", ref)
		}
	}
	return ""
}

// A policy for the Service of a picker, and the Service itself, are followed.
func TestPickersAreFollowed(t *testing.T) {
	o := liveFrame()
	o.inference["pool"] = poolOf("a", "p", &inferenceapi.Picker{Kind: "Service", Name: "web",
		Port: &inferenceapi.Port{Number: 80}})
	in := routeOf("a", "r", gatewayv1.ParentReference{Name: "g0"})
	b := backendOf("p", "")
	b.Kind, b.Group = new(gatewayv1.Kind("InferencePool")), new(gatewayv1.Group(inferenceapi.Group))
	in.Spec.Rules = []gatewayv1.HTTPRouteRule{{BackendRefs: []gatewayv1.HTTPBackendRef{b}}}
	o.now.HTTPRoutes[nameOf(in)] = in
	live := NewLive(o.world())
	ref := httproute.Ref{Namespace: "a", Name: "p", Pool: inferenceapi.Group}
	service := o.now.Services[Name{Namespace: "a", Name: "web"}]
	for i, picker := range []string{"plain", "tls", "other", "invalid", "plain", "missing", "plain"} {
		c := changes()
		pol := policyOf("a", "own", 0, "web", "")
		pol.Spec.Validation.Hostname = gatewayv1.PreciseHostname(picker)
		pol.Spec.Validation.WellKnownCACertificates = new(gatewayv1.WellKnownCACertificatesSystem)
		switch picker {
		case "plain":
			set(o.now.Policies, c.Policies, nameOf(pol), nil, false)
			set(o.now.Services, c.Services, nameOf(service), service, true)
		case "missing":
			set(o.now.Services, c.Services, nameOf(service), nil, false)
		case "invalid":
			pol.Spec.Validation.WellKnownCACertificates = nil
			fallthrough
		default:
			set(o.now.Policies, c.Policies, nameOf(pol), pol, true)
		}
		before := live.Pools
		touched, ok := live.Change(c)
		fresh := NewLive(o.world())
		if !ok || !reflect.DeepEqual(statuses(live.Plan), statuses(fresh.Plan)) {
			t.Fatalf("%d, %s: followed %v, statuses %v, afresh %v", i, picker, ok, statuses(live.Plan), statuses(fresh.Plan))
		}
		if diff := poolsDiffer(before, live.Plan, fresh.Plan, touched); diff != "" {
			t.Fatalf("%d, %s: %s", i, picker, diff)
		}
		if p := live.Pools[ref]; (p != nil) != (picker != "invalid" && picker != "missing") ||
			p != nil && (p.Picker.TLS != nil) != (picker == "tls" || picker == "other") {
			t.Fatalf("%d, %s: the pool is %+v", i, picker, p)
		}
	}
}
