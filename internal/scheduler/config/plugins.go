package config

import (
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation/field"
	configv1 "k8s.io/kube-scheduler/config/v1"

	"carob/internal/core/placement"
)

// The extension points at which plugins can be enabled or disabled.
const (
	preEnqueue = "preEnqueue"
	queueSort  = "queueSort"
	preFilter  = "preFilter"
	filter     = "filter"
	postFilter = "postFilter"
	preScore   = "preScore"
	score      = "score"
	reserve    = "reserve"
	permit     = "permit"
	preBind    = "preBind"
	bind       = "bind"
	postBind   = "postBind"
	multiPoint = "multiPoint"
)

// known are the plugins and the extension points at which upstream runs them.
func known() map[string][]string {
	return map[string][]string{
		"SchedulingGates":                 {preEnqueue},
		"PrioritySort":                    {queueSort},
		"NodeName":                        {preFilter, filter},
		"NodeUnschedulable":               {preFilter, filter},
		"TaintToleration":                 {preFilter, filter, preScore, score},
		"NodeAffinity":                    {preFilter, filter, preScore, score},
		"NodePorts":                       {preFilter, filter},
		"NodeResourcesFit":                {preFilter, filter, preScore, score},
		"VolumeRestrictions":              {preFilter, filter},
		"NodeVolumeLimits":                {preFilter, filter},
		"VolumeBinding":                   {preFilter, filter, preScore, score, reserve, preBind},
		"VolumeZone":                      {preFilter, filter},
		"PodTopologySpread":               {preFilter, filter, preScore, score},
		"InterPodAffinity":                {preFilter, filter, preScore, score},
		"DynamicResources":                {preEnqueue, preFilter, filter, postFilter, score, reserve, preBind},
		"DefaultPreemption":               {preEnqueue, postFilter},
		"NodeResourcesBalancedAllocation": {preScore, score},
		"ImageLocality":                   {score},
		"DefaultBinder":                   {bind},
		"NodeDeclaredFeatures":            {preFilter, filter},
	}
}

type point struct {
	name string
	set  *configv1.PluginSet
}

// points lists the extension points, multiPoint first.
func points(p *configv1.Plugins) []point {
	return []point{
		{multiPoint, &p.MultiPoint},
		{preEnqueue, &p.PreEnqueue}, {queueSort, &p.QueueSort},
		{preFilter, &p.PreFilter}, {filter, &p.Filter}, {postFilter, &p.PostFilter},
		{preScore, &p.PreScore}, {score, &p.Score},
		{reserve, &p.Reserve}, {permit, &p.Permit}, {preBind, &p.PreBind}, {bind, &p.Bind}, {postBind, &p.PostBind},
	}
}

// switches records which plugins of a profile are enabled, and the weights of their scores.
type switches struct {
	path    *field.Path
	plugins *configv1.Plugins
}

func has(list []configv1.Plugin, name string) *configv1.Plugin {
	if i := slices.IndexFunc(list, func(p configv1.Plugin) bool { return p.Name == name }); i >= 0 {
		return &list[i]
	}
	return nil
}

// at reports whether a plugin is on at an extension point: enabled takes precedence over disabled,
// the point itself over multiPoint, both over the default.
func (s switches) at(name, where string) bool {
	if s.plugins == nil {
		return true
	}
	var own *configv1.PluginSet
	for _, p := range points(s.plugins) {
		if p.name == where {
			own = p.set
		}
	}
	if has(own.Enabled, name) != nil {
		return true
	}
	if has(own.Disabled, name) != nil || has(own.Disabled, "*") != nil {
		return false
	}
	multi := &s.plugins.MultiPoint
	return has(multi.Enabled, name) != nil || has(multi.Disabled, name) == nil && has(multi.Disabled, "*") == nil
}

// weight returns the weight of a plugin's score, 0 when it is disabled.
func (s switches) weight(name string, standard int64) int64 {
	if !s.at(name, score) {
		return 0
	}
	if s.plugins == nil {
		return standard
	}
	for _, set := range []*configv1.PluginSet{&s.plugins.Score, &s.plugins.MultiPoint} {
		p := has(set.Enabled, name)
		if p == nil {
			continue
		}
		if p.Weight == nil || *p.Weight == 0 {
			return 1
		}
		return int64(*p.Weight)
	}
	if has(s.plugins.MultiPoint.Disabled, "*") != nil {
		return 1
	}
	return standard
}

// check rejects settings that carob does not support.
func (s switches) check() field.ErrorList {
	var errs field.ErrorList
	if s.plugins == nil {
		return nil
	}
	all := known()
	names := make([]string, 0, len(all))
	for name := range all {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, p := range points(s.plugins) {
		for _, list := range []struct {
			name    string
			plugins []configv1.Plugin
		}{{"enabled", p.set.Enabled}, {"disabled", p.set.Disabled}} {
			seen := map[string]bool{}
			for i := range list.plugins {
				plugin := &list.plugins[i]
				path := s.path.Child(p.name, list.name).Index(i)
				at, ok := all[plugin.Name]
				switch {
				case seen[plugin.Name]:
					errs = append(errs, field.Duplicate(path, plugin.Name))
				case plugin.Name == "*" && list.name == "disabled":
				case !ok:
					errs = append(errs, field.NotSupported(path.Child("name"), plugin.Name, names))
				case p.name != multiPoint && list.name == "enabled" && !slices.Contains(at, p.name):
					errs = append(errs,
						field.Invalid(path.Child("name"), plugin.Name, "runs at "+strings.Join(at, ", ")+" only"))
				case plugin.Weight != nil && (*plugin.Weight < 0 || *plugin.Weight > 1<<20):
					errs = append(errs,
						field.Invalid(path.Child("weight"), *plugin.Weight, "must be between 0 and 1048576"))
				}
				seen[plugin.Name] = true
			}
		}
	}
	for _, p := range []struct {
		name string
		set  *configv1.PluginSet
	}{{"placementGenerate", &s.plugins.PlacementGenerate}, {"placementScore", &s.plugins.PlacementScore},
		{"podGroupPostFilter", &s.plugins.PodGroupPostFilter}} {
		if len(p.set.Enabled) > 0 {
			errs = append(errs,
				field.Forbidden(s.path.Child(p.name),
					"pod groups are behind a feature gate that is off in Kubernetes 1.37"))
		}
	}
	if !s.at("PrioritySort", queueSort) {
		errs = append(errs, field.Required(s.path.Child(queueSort, "enabled"),
			"pods are always sorted by PrioritySort"))
	}
	// The preparation and the main step of a plugin are one step in carob.
	for _, pair := range [][2]string{{preFilter, filter}, {preScore, score}} {
		for _, name := range names {
			if slices.Contains(all[name], pair[0]) && slices.Contains(all[name], pair[1]) && s.at(name, pair[1]) &&
				!s.at(name, pair[0]) {
				errs = append(errs,
					field.Invalid(s.path.Child(pair[0], "disabled"), name,
						"cannot be disabled here while it is enabled at "+pair[1]+": disable it at both"))
			}
		}
	}
	return errs
}

// binder requires that a plugin or an extender binds pods.
func binder(path *field.Path, plugins *configv1.Plugins, extenders []configv1.Extender) field.ErrorList {
	binds := slices.ContainsFunc(extenders, func(e configv1.Extender) bool { return e.BindVerb != "" })
	if binds || (switches{path, plugins}).at("DefaultBinder", bind) {
		return nil
	}
	return field.ErrorList{field.Required(path.Child("plugins", bind, "enabled"),
		"without DefaultBinder no plugin binds pods: enable it, or give an extender a bindVerb")}
}

// filters lists the filters that are off.
func (s switches) off() []placement.Filter {
	var off []placement.Filter
	for _, f := range []placement.Filter{placement.NodeName, placement.NodeUnschedulable, placement.TaintToleration,
		placement.NodeAffinity, placement.NodePorts,
		placement.NodeResourcesFit, placement.PodTopologySpread, placement.InterPodAffinity,
		placement.NodeDeclaredFeatures, placement.DynamicResources, placement.VolumeBinding} {
		if !s.at(string(f), filter) {
			off = append(off, f)
		}
	}
	return off
}
