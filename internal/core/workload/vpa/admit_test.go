package vpa

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	autoscalingv1 "k8s.io/api/autoscaling/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

func ofType(kind corev1.LimitType, low, high, standard corev1.ResourceList) *corev1.LimitRange {
	return &corev1.LimitRange{Spec: corev1.LimitRangeSpec{Limits: []corev1.LimitRangeItem{
		{Type: kind, Min: low, Max: high, Default: standard}}}}
}

// shown formats the requests of the containers of a pod, and its annotations.
func shown(p *corev1.Pod) string {
	text := func(l corev1.ResourceList) string {
		var out []string
		for _, name := range slices.Sorted(maps.Keys(l)) {
			q := l[name]
			out = append(out, string(name)+"="+q.String())
		}
		return strings.Join(out, ",")
	}
	var out []string
	for i := range p.Spec.Containers {
		r := p.Spec.Containers[i].Resources
		out = append(out, fmt.Sprintf("%s %s limits %s", p.Spec.Containers[i].Name, text(r.Requests), text(r.Limits)))
	}
	return strings.Join(append(out, p.Annotations[UpdatesAnnotation]), "\n")
}

// W9.11, W9.71–W9.73: the requests and limits of a new pod, by the policy, limit ranges, and what it has.
func TestAdmit(t *testing.T) {
	policy := func(p ContainerPolicy) func(*VerticalPodAutoscaler) {
		return func(v *VerticalPodAutoscaler) {
			if p.ContainerName == "" {
				p.ContainerName = "*"
			}
			v.Spec.ResourcePolicy = &ResourcePolicy{ContainerPolicies: []ContainerPolicy{p}}
		}
	}
	for _, c := range []struct {
		what             string
		requests, limits corev1.ResourceList
		ranges           []*corev1.LimitRange
		change           func(*VerticalPodAutoscaler)
		pod              func(*corev1.Pod)
		want             string
	}{
		{what: "nothing asked for", want: `c0 cpu=200m,memory=100Mi limits 
Pod resources updated by v: container 0: cpu request, memory request`},
		{what: "limits in proportion", requests: list("100m", "50Mi"), limits: list("250m", "50Mi"),
			want: `c0 cpu=200m,memory=100Mi limits cpu=500m,memory=100Mi
Pod resources updated by v: container 0: cpu request, memory request, cpu limit, memory limit`},
		{what: "a limit without request", limits: list("1", ""), want: `c0 cpu=200m,memory=100Mi limits cpu=200m
Pod resources updated by v: container 0: memory: limit NOT set since originalLimit is nil or 0, ` +
			`cpu request, memory request, cpu limit`},
		{what: "requests only, below the limit", requests: list("100m", "50Mi"), limits: list("150m", "64Mi"),
			change: policy(ContainerPolicy{ControlledValues: new(RequestsOnly)}),
			want: `c0 cpu=150m,memory=64Mi limits cpu=150m,memory=64Mi
Pod resources updated by v: container 0: cpu capped to container limit, memory capped to container limit, ` +
				`cpu request, memory request`},
		{what: "policy", change: policy(ContainerPolicy{MinAllowed: list("300m", ""), MaxAllowed: list("", "64Mi")}),
			want: `c0 cpu=300m,memory=64Mi limits 
Pod resources updated by v: container 0: cpu capped to minAllowed, memory capped to maxAllowed, ` +
				`cpu request, memory request`},
		{what: "limit range of containers", requests: list("100m", "50Mi"), limits: list("200m", "50Mi"),
			ranges: []*corev1.LimitRange{ofType(corev1.LimitTypeContainer, list("", "200Mi"), list("300m", ""), nil)},
			want: `c0 cpu=150m,memory=200Mi limits cpu=300m,memory=200Mi
Pod resources updated by v: container 0: cpu capped to fit Max in container LimitRange, ` +
				`memory capped to fit Min in container LimitRange, ` +
				`cpu request, memory request, cpu limit, memory limit`},
		{what: "the default limit", requests: list("100m", "50Mi"),
			ranges: []*corev1.LimitRange{ofType(corev1.LimitTypeContainer, nil, nil, list("200m", ""))},
			want: `c0 cpu=200m,memory=100Mi limits cpu=400m
Pod resources updated by v: container 0: memory: limit NOT set since originalLimit is nil or 0, ` +
				`cpu request, memory request, cpu limit`},
		{what: "limit range of pods", requests: list("100m", "50Mi"), limits: list("200m", "50Mi"),
			ranges: []*corev1.LimitRange{ofType(corev1.LimitTypePod, nil, list("200m", "80Mi"), nil)},
			want: `c0 cpu=100m,memory=80Mi limits cpu=200m,memory=80Mi
Pod resources updated by v: container 0: cpu request, memory request, cpu limit, memory limit`},
		{what: "limit range of pods, one resource scaled", requests: list("100m", "50Mi"), limits: list("200m", "50Mi"),
			ranges: []*corev1.LimitRange{ofType(corev1.LimitTypePod, nil, list("200m", "20Mi"), nil)},
			change: func(v *VerticalPodAutoscaler) {
				c := &v.Status.Recommendation.Containers[0]
				c.Target, c.LowerBound, c.UpperBound = list("200m", ""), nil, nil
			},
			want: `c0 cpu=100m,memory=50Mi limits cpu=200m,memory=50Mi
Pod resources updated by v: container 0: memory: limit NOT set since recommendedRequest is nil or 0, ` +
				`cpu request, cpu limit`},
		{what: "resources of the pod", pod: func(p *corev1.Pod) {
			p.Spec.Resources = &corev1.ResourceRequirements{Limits: list("100m", "")}
		}, want: "c0  limits \n"},
		{what: "no recommendation", change: func(v *VerticalPodAutoscaler) { v.Status.Recommendation = nil },
			want: "c0  limits \n"},
		{what: "a limit too large", requests: list("1m", "1"),
			limits: list("9223372036854775807m", "9223372036854775807"),
			want: `c0 cpu=200m,memory=100Mi limits cpu=9223372036854775807m,memory=9223372036854775807
Pod resources updated by v: container 0: cpu: failed to keep limit to request ratio; capping limit to int64, ` +
				`memory: failed to keep limit to request ratio; capping limit to int64, ` +
				`cpu request, memory request, cpu limit, memory limit`},
	} {
		v := autoscaler(recommends("100m", "200m", "500m"))
		if c.change != nil {
			c.change(v)
		}
		p := podOf("p", 1, 0)
		p.Spec.Containers[0].Resources = corev1.ResourceRequirements{Requests: c.requests, Limits: c.limits}
		if c.pod != nil {
			c.pod(p)
		}
		before := jsonOf(v)
		Admit(p, v, RangesOf(c.ranges))
		if got := shown(p); got != c.want {
			t.Errorf("%s:\n%s\nwant\n%s", c.what, got, c.want)
		}
		if p.Annotations[ObservedAnnotation] != "c0" {
			t.Errorf("%s: observed %q", c.what, p.Annotations[ObservedAnnotation])
		}
		if jsonOf(v) != before {
			t.Errorf("%s: the autoscaler itself is changed", c.what)
		}
	}
}

// A container without request or recommendation beside one that has both, under a limit range of pods:
// upstream's updater crashes here.
func TestLimitRangeOfUnscaledContainers(t *testing.T) {
	v, p := autoscaler(recommends("100m", "200m", "500m")), podOf("p", 3, 0)
	p.Spec.Containers[0].Resources = corev1.ResourceRequirements{Requests: list("100m", ""), Limits: list("1", "")}
	p.Spec.Containers[2].Resources = corev1.ResourceRequirements{Requests: list("", "1Mi"), Limits: list("", "1Mi")}
	r, _ := Fit(v, p, RangesOf([]*corev1.LimitRange{ofType(corev1.LimitTypePod, nil, list("500m", "10Mi"), nil)}))
	if c := r.For("c0"); c == nil || c.Target.Cpu().MilliValue() != 50 || r.For("c1") != nil {
		t.Errorf("%s", jsonOf(r))
	}
}

// W9.10, W9.4.
func TestValidate(t *testing.T) {
	inPlace, strange, none := ModeInPlace, UpdateMode("Sometimes\x00"), UpdateMode("")
	off, auto := ScalingOff, ModeAuto
	with := func(p ContainerPolicy) func(*VerticalPodAutoscaler) {
		return func(v *VerticalPodAutoscaler) {
			v.Spec.ResourcePolicy = &ResourcePolicy{ContainerPolicies: []ContainerPolicy{p}}
		}
	}
	seconds := int32(5)
	for _, c := range []struct {
		what   string
		change func(*VerticalPodAutoscaler)
		want   string
	}{
		{"good", func(*VerticalPodAutoscaler) {}, ""},
		{"no target", func(v *VerticalPodAutoscaler) { v.Spec.TargetRef = nil }, "spec.targetRef: Required value"},
		{"no mode", func(v *VerticalPodAutoscaler) { v.Spec.UpdatePolicy = &UpdatePolicy{} },
			"spec.updatePolicy.updateMode: Required value: updateMode is required if UpdatePolicy is used"},
		{"unknown mode", func(v *VerticalPodAutoscaler) { v.Spec.UpdatePolicy = &UpdatePolicy{UpdateMode: &strange} },
			"spec.updatePolicy.updateMode: Unsupported value"},
		{"empty mode", func(v *VerticalPodAutoscaler) { v.Spec.UpdatePolicy = &UpdatePolicy{UpdateMode: &none} },
			"spec.updatePolicy.updateMode: Unsupported value"},
		{"alpha mode", func(v *VerticalPodAutoscaler) { v.Spec.UpdatePolicy = &UpdatePolicy{UpdateMode: &inPlace} },
			"spec.updatePolicy.updateMode: Forbidden"},
		{"replicas", mode(ModeRecreate, 0), "minReplicas has to be positive"},
		{"unnamed", with(ContainerPolicy{}), "spec.resourcePolicy.containerPolicies[0].containerName: Required value"},
		{"min over max", with(ContainerPolicy{ContainerName: "../..", MinAllowed: list("2", ""),
			MaxAllowed: list("1", "")}), `max resource for cpu is lower than min of "2"`},
		{"half a milli-core", with(ContainerPolicy{ContainerName: "*", MinAllowed: list("500u", "")}),
			"must be a whole number of milli CPUs"},
		{"half a byte", with(ContainerPolicy{ContainerName: "*", MaxAllowed: list("", "500m")}),
			"must be a whole number of bytes"},
		{"less than nothing", with(ContainerPolicy{ContainerName: "*", MaxAllowed: list("-1", "")}),
			"must be greater than or equal to 0"},
		{"scaling mode", with(ContainerPolicy{ContainerName: "*", Mode: new("On")}), "mode: Unsupported value"},
		{"off and controlled", with(ContainerPolicy{ContainerName: "*", Mode: &off,
			ControlledValues: new(RequestsAndLimits)}), "controlledValues: Forbidden"},
		{"another resource", with(ContainerPolicy{ContainerName: "*",
			ControlledResources: &[]corev1.ResourceName{"example.com/gpu"}}),
			"controlledResources[0]: Unsupported value"},
		{"ratio", with(ContainerPolicy{ContainerName: "*", OOMBumpUpRatio: new(resource.MustParse("2"))}),
			"not supported when feature flag PerVPAConfig is disabled"},
		{"boost", func(v *VerticalPodAutoscaler) { v.Spec.StartupBoost = &StartupBoost{} },
			"spec.startupBoost: Forbidden"},
		{"recommenders", func(v *VerticalPodAutoscaler) { v.Spec.Recommenders = make([]Recommender, 2) },
			"spec.recommenders: Too many"},
	} {
		v := autoscaler()
		c.change(v)
		_, errs := Validate(v, nil)
		if got := errText(errs); (got == "") != (c.want == "") || !strings.Contains(got, c.want) {
			t.Errorf("%s: %q, want %q", c.what, got, c.want)
		}
	}
	// Alpha fields of stored objects stay allowed.
	old := autoscaler(func(v *VerticalPodAutoscaler) {
		v.Spec.UpdatePolicy = &UpdatePolicy{UpdateMode: &inPlace, EvictAfterOOMSeconds: &seconds}
	})
	if _, errs := Validate(old, old); len(errs) > 0 {
		t.Errorf("an update of an object with allowed alpha fields: %v", errs)
	}
	v := autoscaler(func(v *VerticalPodAutoscaler) { v.Spec.UpdatePolicy = &UpdatePolicy{UpdateMode: &auto} })
	if w, errs := Validate(v, nil); len(w) != 1 || len(errs) > 0 {
		t.Errorf("Auto: %q, %v", w, errs)
	}
}

func errText(errs field.ErrorList) string {
	if len(errs) == 0 {
		return ""
	}
	return errs.ToAggregate().Error()
}

// W9.12, W9.13.
func TestTargets(t *testing.T) {
	parent := func(kind, name string) *metav1.OwnerReference {
		return &metav1.OwnerReference{APIVersion: "apps/v1", Kind: kind, Name: name, Controller: new(true)}
	}
	x := labels.SelectorFromSet(labels.Set{"app": "x"})
	known := map[string]Controller{
		"Deployment/d":    {WellKnown: true, Selector: x},
		"ReplicaSet/r":    {WellKnown: true, Selector: x, Parent: parent("Deployment", "d")},
		"ReplicaSet/odd":  {WellKnown: true, Selector: x, Parent: parent("Unknown", "u")},
		"ReplicaSet/a":    {WellKnown: true, Selector: x, Parent: parent("ReplicaSet", "b")},
		"ReplicaSet/b":    {WellKnown: true, Selector: x, Parent: parent("ReplicaSet", "a")},
		"Rollout/scaled":  {Scalable: true, Selector: x},
		"Rollout/blank":   {Scalable: true, Unselected: errors.New("it has an empty selector")},
		"ReplicaSet/node": {WellKnown: true, Selector: x, Parent: parent("Node", "n")},
	}
	of := Controllers(func(r Ref) (Controller, error) {
		c, there := known[r.Kind+"/"+r.Name]
		if !there {
			return c, fmt.Errorf("%s %s/%s does not exist", r.Kind, r.Namespace, r.Name)
		}
		return c, nil
	})
	refers := func(kind, name string) *VerticalPodAutoscaler {
		return autoscaler(func(v *VerticalPodAutoscaler) {
			v.Spec.TargetRef = &autoscalingv1.CrossVersionObjectReference{APIVersion: "apps/v1", Kind: kind, Name: name}
		})
	}
	for _, c := range []struct {
		v    *VerticalPodAutoscaler
		want string
	}{
		{refers("Deployment", "d"), ""},
		{refers("Rollout", "scaled"), ""},
		{refers("ReplicaSet", "odd"), ""},
		{refers("Deployment", "none"), "Cannot read targetRef. Reason: Deployment ns/none does not exist"},
		{refers("Rollout", "blank"), "Cannot read targetRef. Reason: it has an empty selector"},
		{refers("ReplicaSet", "r"), "The target apps/v1.ReplicaSet/r has a parent controller but it should point to " +
			"a topmost well-known or scalable controller"},
		{refers("ReplicaSet", "a"), "Error checking if target apps/v1.ReplicaSet/a is a topmost well-known or " +
			"scalable controller: cycle detected in ownership chain"},
		{autoscaler(func(v *VerticalPodAutoscaler) { v.Spec.TargetRef = nil }), "Cannot read targetRef. Reason: " +
			"targetRef not defined. If this is a v1beta1 object, switch to v1"},
	} {
		got := Resolve(of, c.v)
		if got.Problem != c.want || (got.Selector == nil) != (c.want != "") {
			t.Errorf("%v: %q, want %q", c.v.Spec.TargetRef, got.Problem, c.want)
		}
	}
	// Of two autoscalers, the older one controls the pod; of two of one age, the one with the
	// smaller name.
	made := func(name string, at time.Time) *VerticalPodAutoscaler {
		v := refers("Deployment", "d")
		v.Name, v.CreationTimestamp = name, metav1.NewTime(at)
		return v
	}
	p := owned("p", "", "")
	targets := func(all ...*VerticalPodAutoscaler) (out []Target) {
		for _, v := range all {
			out = append(out, Resolve(of, v))
		}
		return out
	}
	old, same, younger := made("z", traceStart), made("y", traceStart), made("a", traceStart.Add(time.Second))
	if v := Controlling(of, p, targets(younger, old)); v != old {
		t.Errorf("the older of two: %v", v)
	}
	if v := Controlling(of, p, targets(younger, old, same)); v != same {
		t.Errorf("the smaller name of one age: %v", v)
	}
	for what, change := range map[string]func(*corev1.Pod){
		"labels":     func(p *corev1.Pod) { p.Labels = nil },
		"namespace":  func(p *corev1.Pod) { p.Namespace = "other" },
		"no owner":   func(p *corev1.Pod) { p.OwnerReferences = nil },
		"of another": func(p *corev1.Pod) { p.OwnerReferences[0].Name = "odd" },
		"of a node":  func(p *corev1.Pod) { p.OwnerReferences[0].Kind = "Node" },
	} {
		p := owned("p", "", "")
		change(p)
		if v := Controlling(of, p, targets(old)); v != nil {
			t.Errorf("%s: it is controlled", what)
		}
	}
}
