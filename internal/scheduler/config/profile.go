package config

import (
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1validation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"
	configv1 "k8s.io/kube-scheduler/config/v1"

	"carob/internal/core/placement"
	"carob/internal/core/resources"
)

func profile(path *field.Path, in *configv1.KubeSchedulerProfile, all *int32, only bool) (*placement.Profile,
	field.ErrorList) {
	p := placement.DefaultProfile()
	var errs field.ErrorList
	switch name := in.SchedulerName; {
	case name != nil && *name != "":
		p.Name = *name
		for _, message := range validation.IsDNS1123Subdomain(p.Name) {
			errs = append(errs, field.Invalid(path.Child("schedulerName"), p.Name, message))
		}
	case name != nil || !only:
		errs = append(errs, field.Required(path.Child("schedulerName"), "each profile needs a name of its own"))
	}
	errs = append(errs, percentage(path.Child("percentageOfNodesToScore"), in.PercentageOfNodesToScore)...)
	for _, percent := range []*int32{all, in.PercentageOfNodesToScore} {
		if percent != nil {
			p.PercentageOfNodes = int(*percent)
		}
	}
	s := switches{path.Child("plugins"), in.Plugins}
	errs = append(errs, s.check()...)
	p.Off = s.off()
	p.Gated = s.at("SchedulingGates", preEnqueue)
	p.Preempts = s.at("DefaultPreemption", postFilter)
	w := p.Weights
	p.Weights = placement.Weights{
		Taints: s.weight("TaintToleration", w.Taints), NodeAffinity: s.weight("NodeAffinity", w.NodeAffinity),
		Fit:    s.weight("NodeResourcesFit", w.Fit),
		Spread: s.weight("PodTopologySpread", w.Spread), PodAffinity: s.weight("InterPodAffinity", w.PodAffinity),
		Balanced: s.weight("NodeResourcesBalancedAllocation", w.Balanced), Images: s.weight("ImageLocality", w.Images),
		Devices: s.weight("DynamicResources", w.Devices),
	}
	seen := map[string]bool{}
	for i := range in.PluginConfig {
		at := path.Child("pluginConfig").Index(i)
		name := in.PluginConfig[i].Name
		if seen[name] {
			errs = append(errs, field.Duplicate(at.Child("name"), name))
		}
		seen[name] = true
		if in.PluginConfig[i].Args.Object == nil {
			errs = append(errs,
				field.NotSupported(at.Child("name"), name,
					[]string{"DefaultPreemption", "DynamicResources", "InterPodAffinity",
						"NodeAffinity", "NodeResourcesBalancedAllocation", "NodeResourcesFit", "PodTopologySpread",
						"VolumeBinding"}))
			continue
		}
		errs = append(errs, configure(p, at.Child("args"), in.PluginConfig[i].Args.Object)...)
	}
	return p, errs
}

// configure applies the arguments of one plugin.
func configure(p *placement.Profile, path *field.Path, args runtime.Object) field.ErrorList {
	switch args := args.(type) {
	case *configv1.NodeResourcesFitArgs:
		return fit(&p.Fit, path, args)
	case *configv1.NodeResourcesBalancedAllocationArgs:
		if len(args.Resources) == 0 {
			return nil
		}
		var errs field.ErrorList
		p.Balanced, errs = weighted(path.Child("resources"), args.Resources)
		for i, r := range p.Balanced {
			if r.Weight != 1 {
				errs = append(errs,
					field.Invalid(path.Child("resources").Index(i).Child("weight"), r.Weight, "must be 1"))
			}
		}
		return errs
	case *configv1.InterPodAffinityArgs:
		p.IgnoreOthersPreferences = args.IgnorePreferredTermsOfExistingPods
		if weight := args.HardPodAffinityWeight; weight != nil {
			if p.HardPodAffinityWeight = int64(*weight); *weight < 0 || *weight > 100 {
				return field.ErrorList{field.Invalid(path.Child("hardPodAffinityWeight"), *weight,
					"must be between 0 and 100")}
			}
		}
	case *configv1.PodTopologySpreadArgs:
		return spread(p, path, args)
	case *configv1.NodeAffinityArgs:
		return added(p, path.Child("addedAffinity"), args.AddedAffinity)
	case *configv1.DefaultPreemptionArgs:
		return preemption(p, path, args)
	case *configv1.VolumeBindingArgs:
		var errs field.ErrorList
		if t := args.BindTimeoutSeconds; t != nil && *t < 0 {
			errs = append(errs, field.Invalid(path.Child("bindTimeoutSeconds"), *t, "must not be negative"))
		}
		if args.Shape != nil {
			errs = append(errs,
				field.Forbidden(path.Child("shape"), "needs a feature gate that is off in Kubernetes 1.37"))
		}
		return errs
	case *configv1.DynamicResourcesArgs:
		if t := args.FilterTimeout; t != nil && t.Duration < 0 {
			return field.ErrorList{field.Invalid(path.Child("filterTimeout"), t.Duration.String(),
				"must not be negative")}
		}
		if args.FilterTimeout != nil {
			p.DeviceFilter = args.FilterTimeout.Duration
		}
		if t := args.BindingTimeout; t != nil {
			if t.Duration < time.Second {
				return field.ErrorList{field.Invalid(path.Child("bindingTimeout"), t.Duration.String(),
					"must be at least 1 second")}
			}
			p.DeviceBinding = t.Duration
		}
	}
	return nil
}

func fit(f *placement.Fit, path *field.Path, args *configv1.NodeResourcesFitArgs) field.ErrorList {
	var errs field.ErrorList
	for i, name := range args.IgnoredResources {
		errs = append(errs, metav1validation.ValidateLabelName(name, path.Child("ignoredResources").Index(i))...)
		f.Ignored = append(f.Ignored, corev1.ResourceName(name))
	}
	for i, group := range args.IgnoredResourceGroups {
		at := path.Child("ignoredResourceGroups").Index(i)
		if strings.Contains(group, "/") {
			errs = append(errs, field.Invalid(at, group, "must be a domain, without \"/\""))
		}
		errs = append(errs, metav1validation.ValidateLabelName(group, at)...)
		f.IgnoredGroups = append(f.IgnoredGroups, group)
	}
	s := args.ScoringStrategy
	if s == nil {
		return errs
	}
	at := path.Child("scoringStrategy")
	all := []string{string(placement.LeastAllocated), string(placement.MostAllocated),
		string(placement.RequestedToCapacityRatio)}
	if f.Strategy = placement.Strategy(s.Type); !slices.Contains(all, string(s.Type)) {
		errs = append(errs, field.NotSupported(at.Child("type"), string(s.Type), all))
	}
	if len(s.Resources) > 0 {
		var more field.ErrorList
		f.Resources, more = weighted(at.Child("resources"), s.Resources)
		errs = append(errs, more...)
	}
	ratio := at.Child("requestedToCapacityRatio")
	switch {
	case f.Strategy != placement.RequestedToCapacityRatio:
		if s.RequestedToCapacityRatio != nil {
			errs = append(errs, field.Forbidden(ratio, "belongs to type RequestedToCapacityRatio only"))
		}
	case s.RequestedToCapacityRatio == nil || len(s.RequestedToCapacityRatio.Shape) == 0:
		errs = append(errs, field.Required(ratio.Child("shape"),
			"type RequestedToCapacityRatio needs at least one point"))
	default:
		for i, point := range s.RequestedToCapacityRatio.Shape {
			here := ratio.Child("shape").Index(i)
			if point.Utilization < 0 || point.Utilization > 100 {
				errs = append(errs,
					field.Invalid(here.Child("utilization"), point.Utilization, "must be between 0 and 100"))
			}
			if point.Score < 0 || point.Score > 10 {
				errs = append(errs, field.Invalid(here.Child("score"), point.Score, "must be between 0 and 10"))
			}
			if i > 0 && point.Utilization <= s.RequestedToCapacityRatio.Shape[i-1].Utilization {
				errs = append(errs,
					field.Invalid(here.Child("utilization"), point.Utilization,
						"must be greater than that of the point before"))
			}
			f.Shape = append(f.Shape,
				resources.Point{Utilization: int64(point.Utilization), Score: 10 * int64(point.Score)})
		}
	}
	return errs
}

// weighted reads resources with weights; no weight is 1.
func weighted(path *field.Path, in []configv1.ResourceSpec) ([]resources.Weighted, field.ErrorList) {
	var errs field.ErrorList
	var out []resources.Weighted
	seen := map[string]bool{}
	for i, r := range in {
		weight := r.Weight
		if weight == 0 {
			weight = 1
		}
		switch {
		case r.Name == "":
			errs = append(errs, field.Required(path.Index(i).Child("name"), ""))
		case seen[r.Name]:
			errs = append(errs, field.Duplicate(path.Index(i).Child("name"), r.Name))
		case weight < 1 || weight > 100:
			errs = append(errs, field.Invalid(path.Index(i).Child("weight"), r.Weight, "must be between 1 and 100"))
		}
		seen[r.Name] = true
		out = append(out, resources.Weighted{Name: corev1.ResourceName(r.Name), Weight: weight})
	}
	return out, errs
}

func spread(p *placement.Profile, path *field.Path, args *configv1.PodTopologySpreadArgs) field.ErrorList {
	switch args.DefaultingType {
	case "", configv1.SystemDefaulting:
		if len(args.DefaultConstraints) > 0 {
			return field.ErrorList{field.Invalid(path.Child("defaultingType"), string(configv1.SystemDefaulting),
				"must be List when there are defaultConstraints")}
		}
		return nil
	case configv1.ListDefaulting:
	default:
		return field.ErrorList{field.NotSupported(path.Child("defaultingType"), args.DefaultingType,
			[]configv1.PodTopologySpreadConstraintsDefaulting{configv1.SystemDefaulting, configv1.ListDefaulting})}
	}
	var errs field.ErrorList
	p.DefaultSpread, p.SpreadUnlabelled = args.DefaultConstraints, false
	type constraint struct {
		key  string
		when corev1.UnsatisfiableConstraintAction
	}
	seen := map[constraint]bool{}
	for i := range args.DefaultConstraints {
		c := &args.DefaultConstraints[i]
		at := path.Child("defaultConstraints").Index(i)
		if c.MaxSkew <= 0 {
			errs = append(errs, field.Invalid(at.Child("maxSkew"), c.MaxSkew, "must be greater than 0"))
		}
		if c.TopologyKey == "" {
			errs = append(errs, field.Required(at.Child("topologyKey"), ""))
		} else {
			errs = append(errs, metav1validation.ValidateLabelName(c.TopologyKey, at.Child("topologyKey"))...)
		}
		if c.WhenUnsatisfiable != corev1.DoNotSchedule && c.WhenUnsatisfiable != corev1.ScheduleAnyway {
			errs = append(errs,
				field.NotSupported(at.Child("whenUnsatisfiable"), c.WhenUnsatisfiable,
					[]corev1.UnsatisfiableConstraintAction{corev1.DoNotSchedule, corev1.ScheduleAnyway}))
		}
		if c.LabelSelector != nil {
			errs = append(errs,
				field.Forbidden(at.Child("labelSelector"),
					"follows from the Services and the controller of each pod; remove it"))
		}
		if key := (constraint{c.TopologyKey, c.WhenUnsatisfiable}); seen[key] {
			errs = append(errs, field.Duplicate(at, c.TopologyKey+", "+string(c.WhenUnsatisfiable)))
		} else {
			seen[key] = true
		}
	}
	return errs
}

func added(p *placement.Profile, path *field.Path, a *corev1.NodeAffinity) field.ErrorList {
	if a == nil {
		return nil
	}
	var errs field.ErrorList
	if required := a.RequiredDuringSchedulingIgnoredDuringExecution; required != nil {
		at := path.Child("requiredDuringSchedulingIgnoredDuringExecution")
		selector, err := nodeaffinity.NewNodeSelector(required, field.WithPath(at))
		if err != nil {
			errs = append(errs, field.Invalid(at, "", err.Error()))
		}
		p.AddedRequired = selector
	}
	if preferred := a.PreferredDuringSchedulingIgnoredDuringExecution; len(preferred) > 0 {
		at := path.Child("preferredDuringSchedulingIgnoredDuringExecution")
		terms, err := nodeaffinity.NewPreferredSchedulingTerms(preferred, field.WithPath(at))
		if err != nil {
			errs = append(errs, field.Invalid(at, "", err.Error()))
		}
		p.AddedPreferred = terms
	}
	return errs
}

func preemption(p *placement.Profile, path *field.Path, args *configv1.DefaultPreemptionArgs) field.ErrorList {
	var errs field.ErrorList
	if v := args.MinCandidateNodesPercentage; v != nil {
		if p.MinCandidatesPercentage = int(*v); *v < 0 || *v > 100 {
			errs = append(errs,
				field.Invalid(path.Child("minCandidateNodesPercentage"), *v, "must be between 0 and 100"))
		}
	}
	if v := args.MinCandidateNodesAbsolute; v != nil {
		if p.MinCandidates = int(*v); *v < 0 {
			errs = append(errs, field.Invalid(path.Child("minCandidateNodesAbsolute"), *v, "must not be negative"))
		}
	}
	if p.MinCandidates == 0 && p.MinCandidatesPercentage == 0 {
		errs = append(errs, field.Invalid(path.Child("minCandidateNodesAbsolute"), 0,
			"cannot be 0 together with minCandidateNodesPercentage"))
	}
	return errs
}

// extenders validates the HTTP extenders.
func extenders(path *field.Path, list []configv1.Extender) field.ErrorList {
	var errs field.ErrorList
	binders := 0
	managed := map[string]bool{}
	for i := range list {
		e, at := &list[i], path.Index(i)
		if err := checkURL(e); err != nil {
			errs = append(errs, field.Invalid(at.Child("urlPrefix"), e.URLPrefix, err.Error()))
		}
		if e.PrioritizeVerb != "" && e.Weight <= 0 {
			errs = append(errs,
				field.Invalid(at.Child("weight"), e.Weight, "must be greater than 0 when there is a prioritizeVerb"))
		}
		if e.HTTPTimeout.Duration < 0 {
			errs = append(errs,
				field.Invalid(at.Child("httpTimeout"), e.HTTPTimeout.Duration.String(), "must not be negative"))
		}
		if e.BindVerb != "" {
			binders++
		}
		for j, r := range e.ManagedResources {
			here := at.Child("managedResources").Index(j).Child("name")
			for _, message := range validation.IsQualifiedName(r.Name) {
				errs = append(errs, field.Invalid(here, r.Name, message))
			}
			if !resources.IsExtended(corev1.ResourceName(r.Name)) {
				errs = append(errs,
					field.Invalid(here, r.Name, "must be an extended resource, such as example.com/gpu"))
			}
			if managed[r.Name] {
				errs = append(errs, field.Duplicate(here, r.Name))
			}
			managed[r.Name] = true
		}
	}
	if binders > 1 {
		errs = append(errs, field.Invalid(path, binders, "only one extender can have a bindVerb"))
	}
	return errs
}
