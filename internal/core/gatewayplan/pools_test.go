package gatewayplan

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"carob/internal/core/gatewayplan/inferenceapi"
	"carob/internal/core/gatewayplan/modelrules"
	"carob/internal/core/httproute"
	"carob/internal/core/routing"
)

// poolWorld has a Gateway g, and a route to a pool of a group in the namespace a.
func poolWorld(group, namespace, pool string) *World {
	w := world()
	w.Inference = &Inference{}
	w.Gateways = []*gatewayv1.Gateway{gatewayOf("g", 0, plain("http", 80, ""))}
	ref := backendOf(pool, "")
	ref.Group, ref.Kind = new(gatewayv1.Group(group)), new(gatewayv1.Kind("InferencePool"))
	if namespace != "" {
		ref.Namespace = new(gatewayv1.Namespace(namespace))
	}
	ref.Port = new(int32(4711)) // ignored
	w.HTTPRoutes = []*gatewayv1.HTTPRoute{{ObjectMeta: meta("a", "r", 0), Spec: gatewayv1.HTTPRouteSpec{
		CommonRouteSpec: gatewayv1.CommonRouteSpec{ParentRefs: []gatewayv1.ParentReference{{Name: "g"}}},
		Rules:           []gatewayv1.HTTPRouteRule{{BackendRefs: []gatewayv1.HTTPBackendRef{ref}}}}}}
	return w
}

func poolOf(namespace, name string, picker *inferenceapi.Picker) *inferenceapi.Pool {
	p := &inferenceapi.Pool{ObjectMeta: meta(namespace, name, 0), Spec: inferenceapi.PoolSpec{
		TargetPorts: []inferenceapi.Port{{Number: 8000}, {Number: 8002}}, EndpointPickerRef: picker}}
	p.Spec.Selector.MatchLabels = map[string]string{"app": name}
	return p
}

func oldPoolOf(name string, picker *inferenceapi.OldPicker) *inferenceapi.OldPool {
	return &inferenceapi.OldPool{ObjectMeta: meta("a", name, 0), Spec: inferenceapi.OldPoolSpec{
		Selector: map[string]string{"app": name}, TargetPortNumber: 8000, ExtensionRef: picker}}
}

// Which pools a route may refer to, which picker is used, and the resulting statuses.
func TestPools(t *testing.T) {
	service := func(port int32) *inferenceapi.Picker {
		return &inferenceapi.Picker{Kind: "Service", Name: "web", Port: &inferenceapi.Port{Number: port}}
	}
	for name, c := range map[string]struct {
		group, namespace string
		pool             *inferenceapi.Pool
		old              *inferenceapi.OldPool
		grant            bool
		route, status    string // conditions
		served           bool
		picker           string
	}{
		"without a picker": {group: inferenceapi.Group, pool: poolOf("a", "p", nil), served: true,
			route: "ResolvedRefs=True/ResolvedRefs", status: "Accepted=True/Accepted ResolvedRefs=True/ResolvedRefs"},
		"carob's own picker": {group: inferenceapi.Group, served: true,
			pool:  poolOf("a", "p", &inferenceapi.Picker{Group: PickerGroup, Kind: PickerKind, Name: "default"}),
			route: "ResolvedRefs=True/ResolvedRefs", status: "Accepted=True/Accepted ResolvedRefs=True/ResolvedRefs"},
		"a picker": {group: inferenceapi.Group, pool: poolOf("a", "p", service(80)), served: true, picker: "a/web:80",
			route: "ResolvedRefs=True/ResolvedRefs", status: "Accepted=True/Accepted ResolvedRefs=True/ResolvedRefs"},
		"a picker at no port of the Service": {group: inferenceapi.Group, pool: poolOf("a", "p", service(81)),
			route:  "ResolvedRefs=True/ResolvedRefs",
			status: "Accepted=True/Accepted ResolvedRefs=False/InvalidExtensionRef"},
		"a picker that is not there": {group: inferenceapi.Group, route: "ResolvedRefs=True/ResolvedRefs",
			pool: poolOf("a", "p", &inferenceapi.Picker{Kind: "Service", Name: "no",
				Port: &inferenceapi.Port{Number: 80}}),
			status: "Accepted=True/Accepted ResolvedRefs=False/InvalidExtensionRef"},
		"a picker of another kind": {group: inferenceapi.Group, route: "ResolvedRefs=True/ResolvedRefs",
			pool:   poolOf("a", "p", &inferenceapi.Picker{Group: "x.io", Kind: "Picker", Name: "no"}),
			status: "Accepted=True/Accepted ResolvedRefs=False/InvalidExtensionRef"},
		"no pool": {group: inferenceapi.Group, pool: poolOf("a", "p-pool", nil),
			route: `ResolvedRefs=False/BackendNotFound`},
		"a pool of the other group": {group: inferenceapi.OldGroup, pool: poolOf("a", "p", nil),
			route: "ResolvedRefs=False/BackendNotFound"},
		"no grant": {group: inferenceapi.Group, namespace: "b", pool: poolOf("b", "p", nil),
			route: "ResolvedRefs=False/RefNotPermitted"},
		"a grant": {group: inferenceapi.Group, namespace: "b", pool: poolOf("b", "p", nil), grant: true, served: true,
			route: "ResolvedRefs=True/ResolvedRefs", status: "Accepted=True/Accepted ResolvedRefs=True/ResolvedRefs"},
		"v1alpha2, a picker that is not there": {group: inferenceapi.OldGroup, served: true,
			old:   oldPoolOf("p", &inferenceapi.OldPicker{Kind: "Service", Name: "no", FailureMode: "FailClose"}),
			route: "ResolvedRefs=True/ResolvedRefs", status: "Accepted=True/Accepted ResolvedRefs=True/ResolvedRefs"},
		"v1alpha2, a picker": {group: inferenceapi.OldGroup, served: true, picker: "a/web:80",
			old: oldPoolOf("p", &inferenceapi.OldPicker{Kind: "Service", Name: "web",
				PortNumber: new(int32(80))}),
			route: "ResolvedRefs=True/ResolvedRefs", status: "Accepted=True/Accepted ResolvedRefs=True/ResolvedRefs"},
	} {
		t.Run(name, func(t *testing.T) {
			w := poolWorld(c.group, c.namespace, "p")
			if c.pool != nil {
				w.Inference.Pools = append(w.Inference.Pools, c.pool)
			}
			if c.old != nil {
				w.Inference.OldPools = append(w.Inference.OldPools, c.old)
			}
			if c.grant {
				w.Grants = []*gatewayv1.ReferenceGrant{{ObjectMeta: meta("b", "g", 0),
					Spec: gatewayv1.ReferenceGrantSpec{
						From: []gatewayv1.ReferenceGrantFrom{{Group: group, Kind: "HTTPRoute", Namespace: "a"}},
						To: []gatewayv1.ReferenceGrantTo{{Group: gatewayv1.Group(c.group),
							Kind: "InferencePool"}}}}}
			}
			p := makePlan(w).Plan
			parents := p.HTTPRoutes[Name{Namespace: "a", Name: "r"}]
			if len(parents) != 1 || !strings.Contains(textOf(parents[0].Conditions), c.route) ||
				!strings.Contains(textOf(parents[0].Conditions), "Accepted=True") {
				t.Errorf("the route: %+v", parents)
			}
			ns := "a"
			if c.namespace != "" {
				ns = c.namespace
			}
			ref := httproute.Ref{Namespace: ns, Name: "p", Pool: c.group}
			status := ""
			if s := p.PoolStatus[ref]; len(s) == 1 {
				status = textOf(s[0].Conditions)
				parent := inferenceapi.ParentRef{Group: group, Kind: "Gateway", Namespace: "a", Name: "g"}
				if s[0].ParentRef != parent || s[0].Conditions[0].ObservedGeneration != 3 {
					t.Errorf("%+v", s[0])
				}
			}
			if status != c.status {
				t.Errorf("the pool: %q, not %q", status, c.status)
			}
			pool := p.Pools[ref]
			if p.Refs[ref] != c.served || (pool != nil) != c.served {
				t.Errorf("served: %v", p.Refs)
			}
			if pool != nil && (pool.Picker == nil) != (c.picker == "") ||
				pool != nil && pool.Picker != nil && pool.Picker.Service.String() != c.picker {
				t.Errorf("the picker: %+v", pool.Picker)
			}
		})
	}
	w := poolWorld(inferenceapi.Group, "", "p")
	w.Inference.Pools = []*inferenceapi.Pool{poolOf("a", "p",
		&inferenceapi.Picker{Group: PickerGroup, Kind: PickerKind, Name: "mine"})}
	config := routing.DefaultConfig()
	ref := httproute.Ref{Namespace: "a", Name: "p", Pool: inferenceapi.Group}
	w.Inference.Configs = map[Name]PickerConfig{{Namespace: "a", Name: "mine"}: {Config: config},
		{Namespace: "b", Name: "mine"}: {Problem: "of another namespace"}}
	if p := makePlan(w).Plan.Pools[ref]; p.Config != config || p.Broken {
		t.Errorf("a configuration: %+v", p)
	}
	w.Inference.Configs[Name{Namespace: "a", Name: "mine"}] = PickerConfig{Problem: strings.Repeat("é", 40_000)}
	plan := makePlan(w).Plan
	if p := plan.Pools[ref]; p == nil || p.Config != nil || !p.Broken {
		t.Errorf("a configuration that cannot be used: %+v", p)
	}
	if c := plan.PoolStatus[ref][0].Conditions[1]; c.Status != "False" || c.Reason != "InvalidExtensionRef" ||
		len(c.Message) > 2<<10 || !utf8.ValidString(c.Message) {
		t.Errorf("its condition: %+v", c)
	}
	w = poolWorld(inferenceapi.OldGroup, "", "llama2")
	w.Inference.OldPools = []*inferenceapi.OldPool{oldPoolOf("llama2-pool", nil)}
	if c := makePlan(w).Plan.HTTPRoutes[Name{Namespace: "a", Name: "r"}][0].Conditions[1]; !strings.Contains(c.Message,
		`did you mean "llama2-pool"?`) {
		t.Error(c.Message)
	}
	w.Inference = nil
	conditions := makePlan(w).Plan.HTTPRoutes[Name{Namespace: "a", Name: "r"}][0].Conditions
	if s := textOf(conditions); !strings.Contains(s, "InvalidKind") {
		t.Error(s)
	}
	for group, want := range map[string]string{"": "kind InferencePool is not a backend; the group of InferencePool is " +
		inferenceapi.Group, "x.io": "kind InferencePool of group x.io is not a backend; the group of InferencePool is " +
		inferenceapi.Group} {
		if got := notBackend(group, "InferencePool"); got != want {
			t.Errorf("%q: %s", group, got)
		}
	}
}

// Entries of other controllers stay in their places, also when the status is full.
func TestPoolParents(t *testing.T) {
	at := metav1.NewTime(time.Unix(77, 0))
	theirs := inferenceapi.Parent{ControllerName: "istio.io/gateway", ParentRef: inferenceapi.ParentRef{Name: "x"},
		Conditions: []metav1.Condition{{Type: "Accepted", Status: "False", Message: "no"}}}
	placeholder := inferenceapi.Parent{ParentRef: inferenceapi.ParentRef{Group: group, Kind: "Status", Name: "default"},
		Conditions: []metav1.Condition{{Type: "Accepted", Status: "Unknown", Message: "Waiting for controller"}}}
	for _, c := range []struct {
		group string
		pool  func(*World)
	}{
		{inferenceapi.Group, func(w *World) { w.Inference.Pools = append(w.Inference.Pools, poolOf("a", "p", nil)) }},
		{inferenceapi.OldGroup, func(w *World) {
			w.Inference.OldPools = append(w.Inference.OldPools, oldPoolOf("p", nil))
		}},
	} {
		w := poolWorld(c.group, "", "p")
		c.pool(w)
		ref := httproute.Ref{Namespace: "a", Name: "p", Pool: c.group}
		ours := makePlan(w).Plan.PoolStatus[ref]
		stored := []inferenceapi.Parent{theirs}
		if c.group == inferenceapi.OldGroup {
			stored[0].ControllerName = ""
			stored = append(stored, placeholder)
		}
		got, changed := PoolParents(ref, stored, ours, at)
		if !changed || len(got) != 2 || fmt.Sprint(got[0]) != fmt.Sprint(stored[0]) ||
			got[1].Conditions[0].LastTransitionTime != at {
			t.Fatalf("%s: %+v", c.group, got)
		}
		if again, changed := PoolParents(ref, got, ours, metav1.Now()); changed {
			t.Errorf("%s: not stable: %+v", c.group, again)
		}
		w.HTTPRoutes = nil
		left, changed := PoolParents(ref, got, makePlan(w).Plan.PoolStatus[ref], at)
		if !changed || len(left) != 1 || fmt.Sprint(left[0]) != fmt.Sprint(stored[0]) {
			t.Errorf("%s: without routes: %+v", c.group, left)
		}
		full := slices.Repeat([]inferenceapi.Parent{stored[0]}, maxPoolParents)
		if got, changed := PoolParents(ref, full, ours, at); changed || len(got) != maxPoolParents {
			t.Errorf("%s: a full status: %d entries, changed: %v", c.group, len(got), changed)
		}
	}
	w := poolWorld(inferenceapi.OldGroup, "", "p")
	w.Inference.OldPools = []*inferenceapi.OldPool{oldPoolOf("p", nil)}
	ref := httproute.Ref{Namespace: "a", Name: "p", Pool: inferenceapi.OldGroup}
	got, _ := PoolParents(ref, []inferenceapi.Parent{placeholder}, makePlan(w).Plan.PoolStatus[ref], at)
	if len(got) != 1 || got[0].ParentRef.Kind != "Gateway" {
		t.Errorf("the placeholder stays: %+v", got)
	}
	if got, _ = PoolParents(ref, got, nil, at); len(got) != 1 || got[0].ParentRef.Kind != "Status" {
		t.Errorf("the placeholder is not back: %+v", got)
	}
	if _, changed := PoolParents(ref, got, nil, at); changed {
		t.Error("the placeholder is not stable")
	}
}

// A pool that is to be exported gets a condition, until its annotation is removed.
func TestExportedPool(t *testing.T) {
	w := poolWorld(inferenceapi.Group, "", "p")
	pool := poolOf("a", "p", nil)
	w.Inference.Pools = []*inferenceapi.Pool{pool}
	ref := httproute.Ref{Namespace: "a", Name: "p", Pool: inferenceapi.Group}
	at := metav1.Unix(1, 0)
	var stored []inferenceapi.Parent
	for _, c := range []struct {
		annotations map[string]string
		want        string
	}{{nil, ""}, {map[string]string{exportAnnotation: "ClusterSet"}, "NotSupported"}, {nil, ""},
		{map[string]string{exportAnnotation: "x"}, "NotSupported"}} {
		pool.Annotations = c.annotations
		stored, _ = PoolParents(ref, stored, makePlan(w).Plan.PoolStatus[ref], at)
		if len(stored) != 1 {
			t.Fatalf("%+v", stored)
		}
		got := ""
		exported := apimeta.FindStatusCondition(stored[0].Conditions, "Exported")
		if exported != nil && exported.Status == metav1.ConditionFalse {
			got = exported.Reason
		}
		if got != c.want || !apimeta.IsStatusConditionTrue(stored[0].Conditions, "Accepted") {
			t.Errorf("%v: %q, not %q: %+v", c.annotations, got, c.want, stored[0].Conditions)
		}
	}
}

// Of two InferenceModels with one modelName the older one holds; one of another group's pool is pending.
func TestModels(t *testing.T) {
	w := poolWorld(inferenceapi.OldGroup, "", "p")
	pool := inferenceapi.PoolRef{Group: inferenceapi.OldGroup, Kind: "InferencePool", Name: "p"}
	w.Inference.OldPools = []*inferenceapi.OldPool{oldPoolOf("p", nil)}
	w.Inference.Models = []*inferenceapi.Model{
		{ObjectMeta: meta("a", "younger", 1), Spec: inferenceapi.ModelSpec{ModelName: "llama2", PoolRef: pool}},
		{ObjectMeta: meta("a", "older", 2), Spec: inferenceapi.ModelSpec{ModelName: "llama2", PoolRef: pool,
			TargetModels: []inferenceapi.TargetModel{{Name: "old"}}}},
		{ObjectMeta: meta("a", "elsewhere", 0), Spec: inferenceapi.ModelSpec{ModelName: "e",
			PoolRef: inferenceapi.PoolRef{Group: inferenceapi.Group, Name: "p"}}}}
	w.Inference.Objectives = []*inferenceapi.Objective{{ObjectMeta: meta("a", "urgent", 0),
		Spec: inferenceapi.ObjectiveSpec{Priority: new(int32(9)), PoolRef: pool}}}
	p := makePlan(w).Plan
	m := p.Pools[httproute.Ref{Namespace: "a", Name: "p", Pool: inferenceapi.OldGroup}].Models
	if got := m.Resolve("llama2", "urgent", 0); got != (modelrules.Resolved{Target: "old", Priority: 9, Known: true}) {
		t.Errorf("%+v", got)
	}
	for name, want := range map[string]string{"older": "Accepted=True/Accepted",
		"younger": "Accepted=False/ModelNameInUse", "elsewhere": ""} {
		if got := textOf(p.Models[Name{Namespace: "a", Name: name}]); got != want {
			t.Errorf("%s: %s, not %s", name, got, want)
		}
	}
}

func TestRewrites(t *testing.T) {
	w := poolWorld(inferenceapi.Group, "", "p")
	pool := inferenceapi.PoolRef{Group: inferenceapi.Group, Kind: "InferencePool", Name: "p"}
	w.Inference.Pools = []*inferenceapi.Pool{poolOf("a", "p", nil)}
	rule := func(match string, targets ...inferenceapi.RewriteTarget) inferenceapi.RewriteRule {
		r := inferenceapi.RewriteRule{Targets: targets}
		if match != "" {
			m := inferenceapi.RewriteMatch{}
			m.Model = &struct {
				Type  string `json:"type,omitempty"`
				Value string `json:"value,omitempty"`
			}{"Exact", match}
			r.Matches = append(r.Matches, m)
		}
		return r
	}
	to := func(name string, weight int32) inferenceapi.RewriteTarget {
		t := inferenceapi.RewriteTarget{ModelRewrite: name}
		if weight > 0 {
			t.Weight = &weight
		}
		return t
	}
	w.Inference.Rewrites = []*inferenceapi.Rewrite{
		{ObjectMeta: meta("a", "young", 1), Spec: inferenceapi.RewriteSpec{PoolRef: pool,
			Rules: []inferenceapi.RewriteRule{rule("a", to("lost", 0)),
				rule("b", to("b1", 3), to("never", 0), to("b2", 1))}}},
		{ObjectMeta: meta("a", "old", 2), Spec: inferenceapi.RewriteSpec{PoolRef: pool,
			Rules: []inferenceapi.RewriteRule{rule("", to("rest", 0)), rule("a", to("a1", 0), to("a2", 0))}}}}
	m := makePlan(w).Plan.Pools[httproute.Ref{Namespace: "a", Name: "p", Pool: inferenceapi.Group}].Models
	for name, want := range map[string]map[string]int{"a": {"a1": 50, "a2": 50}, "b": {"b1": 75, "b2": 25},
		"any": {"rest": 100}} {
		got := map[string]int{}
		for n := range uint64(100) {
			r := m.Resolve(name, "", n)
			got[r.Target]++
			if r.Priority != 0 || !r.Known {
				t.Fatalf("%+v", r)
			}
		}
		if fmt.Sprint(got) != fmt.Sprint(want) {
			t.Errorf("%s: %v, not %v", name, got, want)
		}
	}
}

// Other gateways may use carob's picker for each pool that names it, with or without a route; an annotated Service
// leads to carob's picker.
func TestOfferedPools(t *testing.T) {
	service := &inferenceapi.Picker{Kind: "Service", Name: "web", Port: &inferenceapi.Port{Number: 80}}
	for _, c := range []struct {
		offered bool
		mark    string
		want    string
	}{{false, "true", "[]"}, {true, "true", "[asks own]"}, {true, "yes", "[own]"}, {true, "", "[own]"}} {
		w := world()
		w.Offered = c.offered
		web := w.Services[Name{Namespace: "a", Name: "web"}]
		web.Annotations = map[string]string{PickerAnnotation: c.mark}
		broken := &inferenceapi.Picker{Kind: "Service", Name: "nobody", Port: &inferenceapi.Port{Number: 80}}
		w.Inference = &Inference{Pools: []*inferenceapi.Pool{poolOf("a", "own", nil), poolOf("a", "asks", service),
			poolOf("a", "broken", broken)}}
		plan := makePlan(w).Plan
		got := []string{}
		for ref, p := range plan.Pools {
			got = append(got, ref.Name)
			if offered := p.OfferedAs == (Name{Namespace: "a", Name: "web"}); offered !=
				(ref.Name == "asks") || !plan.Refs[ref] {
				t.Errorf("%+v: %s is offered by %v", c, ref.Name, p.OfferedAs)
			}
		}
		slices.Sort(got)
		if fmt.Sprint(got) != c.want {
			t.Errorf("%+v: %v", c, got)
		}
	}
}

// Objectives and rewrites of llm-d.ai have the same effect as those of the older group; each has its own conditions
// and generation. Of two objectives with the same name, the one of llm-d.ai applies; of rewrites, the oldest.
func TestRouterKinds(t *testing.T) {
	w := poolWorld(inferenceapi.Group, "", "p")
	pool := inferenceapi.PoolRef{Group: inferenceapi.Group, Kind: "InferencePool", Name: "p"}
	w.Inference.Pools = []*inferenceapi.Pool{poolOf("a", "p", nil)}
	objective := func(priority int32, generation int64) []*inferenceapi.Objective {
		o := &inferenceapi.Objective{ObjectMeta: meta("a", "same", 0),
			Spec: inferenceapi.ObjectiveSpec{Priority: &priority, PoolRef: pool}}
		o.Generation = generation
		return []*inferenceapi.Objective{o}
	}
	rewrite := func(name, to string, age int) *inferenceapi.Rewrite {
		return &inferenceapi.Rewrite{ObjectMeta: meta("a", name, age), Spec: inferenceapi.RewriteSpec{PoolRef: pool,
			Rules: []inferenceapi.RewriteRule{{Targets: []inferenceapi.RewriteTarget{{ModelRewrite: to}}}}}}
	}
	w.Inference.Objectives, w.Inference.RouterObjectives = objective(1, 5), objective(7, 6)
	w.Inference.Rewrites = []*inferenceapi.Rewrite{rewrite("same", "older group", 1), rewrite("young", "no", 0)}
	w.Inference.RouterRewrites = []*inferenceapi.Rewrite{rewrite("same", "llm-d", 2)}
	p := makePlan(w).Plan
	m := p.Pools[httproute.Ref{Namespace: "a", Name: "p", Pool: inferenceapi.Group}].Models
	if got := m.Resolve("x", "same", 1); got.Priority != 7 || got.Target != "llm-d" {
		t.Errorf("%+v", got)
	}
	at := Name{Namespace: "a", Name: "same"}
	if p.Objectives[at][0].ObservedGeneration != 5 || p.RouterObjectives[at][0].ObservedGeneration != 6 ||
		len(p.Rewrites) != 2 || len(p.RouterRewrites) != 1 {
		t.Errorf("%+v %+v %+v %+v", p.Objectives, p.RouterObjectives, p.Rewrites, p.RouterRewrites)
	}
}

// Entries of pools keep their places, as those of routes (TestSharedStatuses).
func TestSharedPoolStatus(t *testing.T) {
	entry := func(controller, gateway string) inferenceapi.Parent {
		return inferenceapi.Parent{ControllerName: controller, ParentRef: inferenceapi.ParentRef{Name: gateway}}
	}
	ours, theirs := entry(string(GatewayController), "a"), entry("example.com/other", "a")
	more := entry(string(GatewayController), "b")
	ref := httproute.Ref{Pool: inferenceapi.Group}
	for _, stored := range [][]inferenceapi.Parent{{ours, theirs}, {theirs, ours}} {
		if got, changed := PoolParents(ref, stored, []inferenceapi.Parent{ours}, metav1.Time{}); changed {
			t.Errorf("%v became %v", stored, got)
		}
		got, changed := PoolParents(ref, stored, []inferenceapi.Parent{more, ours}, metav1.Time{})
		if !changed || len(got) != 3 || got[2].ParentRef != more.ParentRef {
			t.Errorf("with one more, %v became %v", stored, got)
		}
	}
}
