package config

import (
	"slices"
	"strings"
	"testing"
	"time"

	"carob/internal/core/placement"
	"carob/internal/core/resources"
)

const head = "apiVersion: kubescheduler.config.k8s.io/v1\nkind: KubeSchedulerConfiguration\n"

// one parses a configuration with one profile, given as YAML of the profile.
func one(t *testing.T, profile string) *placement.Profile {
	t.Helper()
	c, err := Parse([]byte(head + "profiles:\n- " + strings.ReplaceAll(strings.TrimSpace(profile), "\n", "\n  ")))
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range c.Profiles {
		return p
	}
	return nil
}

func TestEmptyIsDefault(t *testing.T) {
	c, err := Parse([]byte(head))
	if err != nil {
		t.Fatal(err)
	}
	p := c.Profiles["default-scheduler"]
	if len(c.Profiles) != 1 || p == nil || p.Weights != placement.DefaultProfile().Weights || len(p.Off) != 0 ||
		!p.Gated || !p.Preempts ||
		c.InitialBackoff != time.Second || c.MaxBackoff != 10*time.Second {
		t.Errorf("%+v, %+v", c, p)
	}
}

// enabled takes precedence over disabled, an extension point over multiPoint, both over the
// defaults.
func TestPluginSets(t *testing.T) {
	all := placement.DefaultProfile().Weights
	for name, test := range map[string]struct {
		profile string
		off     []placement.Filter
		weights func(w *placement.Weights)
	}{
		"a filter": {"plugins: {preFilter: {disabled: [{name: NodePorts}]}, filter: {disabled: [{name: NodePorts}]}}",
			[]placement.Filter{placement.NodePorts}, nil},
		"everywhere": {"plugins: {multiPoint: {disabled: [{name: TaintToleration}]}}",
			[]placement.Filter{placement.TaintToleration}, func(w *placement.Weights) { w.Taints = 0 }},
		"a weight": {"plugins: {score: {enabled: [{name: ImageLocality, weight: 7}]}}", nil,
			func(w *placement.Weights) { w.Images = 7 }},
		"a weight, everywhere": {"plugins: {multiPoint: {enabled: [{name: ImageLocality, weight: 7}]}}",
			nil, func(w *placement.Weights) { w.Images = 7 }},
		"the point wins": {"plugins: {multiPoint: {enabled: [{name: ImageLocality, weight: 7}]}, score: {enabled: [{name: ImageLocality, weight: 9}]}}", nil, func(w *placement.Weights) {
			w.Images = 9
		}},
		"enabled without weight counts one": {"plugins: {score: {enabled: [{name: TaintToleration}]}}", nil,
			func(w *placement.Weights) { w.Taints = 1 }},
		"one score only": {"plugins: {preScore: {disabled: [{name: '*'}]}, score: {disabled: [{name: '*'}], enabled: [{name: ImageLocality, weight: 2}]}}", nil,
			func(w *placement.Weights) { *w = placement.Weights{Images: 2} }},
		"enabled after all": {"plugins: {multiPoint: {disabled: [{name: NodePorts}]}, preFilter: {enabled: [{name: NodePorts}]}, filter: {enabled: [{name: NodePorts}]}}", nil, nil},
	} {
		t.Run(name, func(t *testing.T) {
			p := one(t, test.profile)
			want := all
			if test.weights != nil {
				test.weights(&want)
			}
			if p.Weights != want {
				t.Errorf("weights %+v, want %+v", p.Weights, want)
			}
			if !slices.Equal(p.Off, test.off) {
				t.Errorf("off %v, want %v", p.Off, test.off)
			}
		})
	}
}

func TestArguments(t *testing.T) {
	p := one(t, `
percentageOfNodesToScore: 40
pluginConfig:
- name: NodeResourcesFit
  args:
    ignoredResources: [example.com/a]
    ignoredResourceGroups: [example.org]
    scoringStrategy:
      type: RequestedToCapacityRatio
      resources: [{name: cpu, weight: 3}, {name: memory}]
      requestedToCapacityRatio: {shape: [{utilization: 0, score: 0}, {utilization: 100, score: 10}]}
- name: InterPodAffinity
  args: {hardPodAffinityWeight: 50, ignorePreferredTermsOfExistingPods: true}
- name: PodTopologySpread
  args:
    apiVersion: kubescheduler.config.k8s.io/v1
    kind: PodTopologySpreadArgs
    defaultingType: List
    defaultConstraints: [{maxSkew: 1, topologyKey: rack, whenUnsatisfiable: DoNotSchedule}]
- name: NodeAffinity
  args:
    addedAffinity:
      requiredDuringSchedulingIgnoredDuringExecution: {nodeSelectorTerms: [{matchExpressions: [{key: a, operator: Exists}]}]}
      preferredDuringSchedulingIgnoredDuringExecution: [{weight: 5, preference: {matchExpressions: [{key: b, operator: Exists}]}}]
- name: DefaultPreemption
  args: {minCandidateNodesPercentage: 5, minCandidateNodesAbsolute: 7}
- name: NodeResourcesBalancedAllocation
  args: {resources: [{name: cpu}, {name: example.com/gpu}]}
- name: VolumeBinding
  args: {bindTimeoutSeconds: 60}
`)
	if p.PercentageOfNodes != 40 || p.HardPodAffinityWeight != 50 || !p.IgnoreOthersPreferences ||
		p.MinCandidates != 7 || p.MinCandidatesPercentage != 5 ||
		p.AddedRequired == nil || p.AddedPreferred == nil || len(p.DefaultSpread) != 1 || p.SpreadUnlabelled ||
		len(p.Balanced) != 2 {
		t.Errorf("%+v", p)
	}
	f := p.Fit
	if f.Strategy != placement.RequestedToCapacityRatio ||
		!slices.Equal(f.Resources, []resources.Weighted{{Name: "cpu", Weight: 3}, {Name: "memory", Weight: 1}}) ||
		!slices.Equal(f.Shape, []resources.Point{{}, {Utilization: 100, Score: 100}}) || len(f.Ignored) != 1 ||
		len(f.IgnoredGroups) != 1 {
		t.Errorf("%+v", f)
	}
}

// Every error names its path and the remedy.
func TestErrors(t *testing.T) {
	for name, test := range map[string]struct{ config, want string }{
		"no kind": {"profiles: []",
			"apiVersion must be kubescheduler.config.k8s.io/v1 and kind KubeSchedulerConfiguration"},
		"an old version": {"apiVersion: kubescheduler.config.k8s.io/v1beta3\nkind: KubeSchedulerConfiguration",
			"only the kind KubeSchedulerConfiguration of kubescheduler.config.k8s.io/v1 is supported"},
		"another kind": {"apiVersion: kubescheduler.config.k8s.io/v1\nkind: NodeAffinityArgs",
			"want KubeSchedulerConfiguration"},
		"not YAML":        {"{", "unexpected end of JSON input"},
		"unknown field":   {head + "profils: []", `unknown field "profils"`},
		"duplicate field": {head + "parallelism: 1\nparallelism: 2", "already set"},
		"unknown argument": {head +
			"profiles: [{pluginConfig: [{name: InterPodAffinity, args: {hardPodAffinityWait: 1}}]}]",
			`decoding .profiles[0].pluginConfig[0]: strict decoding error: decoding args for plugin InterPodAffinity: strict decoding error: unknown field "hardPodAffinityWait"`},
		"unknown plugin": {head + "profiles: [{plugins: {filter: {enabled: [{name: Mine}]}}}]",
			`profiles[0].plugins.filter.enabled[0].name: Unsupported value: "Mine"`},
		"unknown, disabled": {head + "profiles: [{plugins: {filter: {disabled: [{name: NodePort}]}}}]",
			`profiles[0].plugins.filter.disabled[0].name: Unsupported value: "NodePort"`},
		"unknown, arguments": {head + "profiles: [{pluginConfig: [{name: Mine, args: {a: 1}}]}]",
			`profiles[0].pluginConfig[0].name: Unsupported value: "Mine"`},
		"wrong point": {head + "profiles: [{plugins: {score: {enabled: [{name: NodeName}]}}}]",
			"runs at preFilter, filter only"},
		"half a plugin": {head + "profiles: [{plugins: {preFilter: {disabled: [{name: NodePorts}]}}}]",
			"disable it at both"},
		"nobody binds": {head + "profiles: [{plugins: {bind: {disabled: [{name: '*'}]}}}]",
			"without DefaultBinder no plugin binds pods"},
		"no order": {head + "profiles: [{plugins: {queueSort: {disabled: [{name: PrioritySort}]}}}]",
			"pods are always sorted by PrioritySort"},
		"pod groups": {head + "profiles: [{plugins: {placementScore: {enabled: [{name: A}]}}}]",
			"off in Kubernetes 1.37"},
		"weight": {head +
			"profiles: [{plugins: {score: {enabled: [{name: ImageLocality, weight: -1}]}}}]",
			"must be between 0 and 1048576"},
		"twice": {head + "profiles: [{schedulerName: a}, {schedulerName: a}]",
			`profiles[1].schedulerName: Duplicate value: "a"`},
		"no name": {head + "profiles: [{schedulerName: a}, {}]",
			"profiles[1].schedulerName: Required value"},
		"a bad name": {head + "profiles: [{schedulerName: 'A B'}]",
			"profiles[0].schedulerName: Invalid value"},
		"percentage": {head + "percentageOfNodesToScore: 101",
			"percentageOfNodesToScore: Invalid value: 101: must be between 0 and 100"},
		"own percentage": {head + "profiles: [{percentageOfNodesToScore: -1}]",
			"profiles[0].percentageOfNodesToScore: Invalid value: -1"},
		"back-off": {head + "podInitialBackoffSeconds: 0",
			"podInitialBackoffSeconds: Invalid value: 0: must be between 1"},
		"back-off, reversed": {head + "podInitialBackoffSeconds: 20",
			"podMaxBackoffSeconds: Invalid value: 10: must not be less than podInitialBackoffSeconds"},
		"kubeconfig": {head + "clientConnection: {kubeconfig: /etc/k}",
			"carob's scheduler always uses carob's own API server; remove this field"},
		"parallelism": {head + "parallelism: 0", "parallelism: Invalid value: 0"},
		"hard weight": {head +
			"profiles: [{pluginConfig: [{name: InterPodAffinity, args: {hardPodAffinityWeight: 101}}]}]",
			"profiles[0].pluginConfig[0].args.hardPodAffinityWeight: Invalid value: 101"},
		"strategy": {head +
			"profiles: [{pluginConfig: [{name: NodeResourcesFit, args: {scoringStrategy: {type: Best}}}]}]",
			`scoringStrategy.type: Unsupported value: "Best"`},
		"no shape": {head +
			"profiles: [{pluginConfig: [{name: NodeResourcesFit, args: {scoringStrategy: {type: RequestedToCapacityRatio}}}]}]", "requestedToCapacityRatio.shape: Required value"},
		"shape that goes back": {head +
			"profiles: [{pluginConfig: [{name: NodeResourcesFit, args: {scoringStrategy: {type: RequestedToCapacityRatio, requestedToCapacityRatio: {shape: [{utilization: 5, score: 1}, {utilization: 5, score: 2}]}}}}]}]", "shape[1].utilization: Invalid value: 5: must be greater"},
		"a shape for nothing": {head +
			"profiles: [{pluginConfig: [{name: NodeResourcesFit, args: {scoringStrategy: {type: MostAllocated, requestedToCapacityRatio: {}}}}]}]", "belongs to type RequestedToCapacityRatio only"},
		"resource weight": {head +
			"profiles: [{pluginConfig: [{name: NodeResourcesFit, args: {scoringStrategy: {type: MostAllocated, resources: [{name: cpu, weight: 101}]}}}]}]", "resources[0].weight: Invalid value: 101"},
		"a group with a slash": {head +
			"profiles: [{pluginConfig: [{name: NodeResourcesFit, args: {ignoredResourceGroups: [a/b]}}]}]",
			`must be a domain, without "/"`},
		"constraint, selector": {head +
			"profiles: [{pluginConfig: [{name: PodTopologySpread, args: {defaultingType: List, defaultConstraints: [{maxSkew: 1, topologyKey: a, whenUnsatisfiable: DoNotSchedule, labelSelector: {}}]}}]}]", "labelSelector: Forbidden"},
		"constraint of system": {head +
			"profiles: [{pluginConfig: [{name: PodTopologySpread, args: {defaultConstraints: [{maxSkew: 1, topologyKey: a, whenUnsatisfiable: DoNotSchedule}]}}]}]", "must be List when there are defaultConstraints"},
		"constraint, skew": {head +
			"profiles: [{pluginConfig: [{name: PodTopologySpread, args: {defaultingType: List, defaultConstraints: [{topologyKey: a, whenUnsatisfiable: DoNotSchedule}]}}]}]", "maxSkew: Invalid value: 0"},
		"added affinity": {head +
			"profiles: [{pluginConfig: [{name: NodeAffinity, args: {addedAffinity: {requiredDuringSchedulingIgnoredDuringExecution: {nodeSelectorTerms: [{matchExpressions: [{key: a, operator: Like}]}]}}}}]}]", "addedAffinity.requiredDuringSchedulingIgnoredDuringExecution"},
		"no candidate": {head +
			"profiles: [{pluginConfig: [{name: DefaultPreemption, args: {minCandidateNodesPercentage: 0, " +
			"minCandidateNodesAbsolute: 0}}]}]",
			"cannot be 0 together"},
		"arguments twice": {head + "profiles: [{pluginConfig: [{name: NodeAffinity}, {name: NodeAffinity}]}]",
			`pluginConfig[1].name: Duplicate value: "NodeAffinity"`},
		"arguments of another": {head +
			"profiles: [{pluginConfig: [{name: NodeAffinity, args: {kind: InterPodAffinityArgs, apiVersion: kubescheduler.config.k8s.io/v1}}]}]", "args for plugin NodeAffinity were not of type NodeAffinityArgs"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := Parse([]byte(test.config))
			if err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("%v, want %q", err, test.want)
			}
		})
	}
}

// All errors are reported at once.
func TestErrorsTogether(t *testing.T) {
	_, err := Parse([]byte(head +
		"parallelism: 0\npercentageOfNodesToScore: 101\nprofiles: [{plugins: {filter: {enabled: [{name: Mine}]}}}]"))
	for _, want := range []string{"parallelism", "percentageOfNodesToScore", "Mine"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v: %s is missing", err, want)
		}
	}
}

func FuzzParse(f *testing.F) {
	f.Add([]byte(head))
	f.Add([]byte(head +
		"profiles: [{schedulerName: a, pluginConfig: [{name: NodeResourcesFit, args: {scoringStrategy: {type: MostAllocated}}}]}]"))
	f.Add([]byte(head + "extenders: [{urlPrefix: 'http://a', filterVerb: f}]"))
	f.Fuzz(func(t *testing.T, data []byte) {
		if c, err := Parse(data); err == nil && len(c.Profiles) == 0 {
			t.Error("accepted without any profile")
		}
	})
}
