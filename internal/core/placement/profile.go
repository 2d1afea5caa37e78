package placement

import (
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"

	"carob/internal/core/resources"
)

// Profile defines how the pods of one scheduler name are placed. A KubeSchedulerConfiguration can
// change it. A Profile is a value: it must not change once a pod is prepared with it.
type Profile struct {
	Name    string   // of the scheduler, as pods give it; a Cluster identifies profiles by it
	Off     []Filter // disabled filters
	Weights Weights

	// Gated means that scheduling gates hold pods back.
	Gated bool

	Fit      Fit
	Balanced []resources.Weighted // that are to be used evenly

	// how strongly a required affinity of a pod that runs attracts pods that it selects, 0–100
	HardPodAffinityWeight int64
	// IgnoreOthersPreferences means that preferred affinity of running pods counts only for pods
	// that have affinity themselves.
	IgnoreOthersPreferences bool

	// DefaultSpread are the constraints, without selectors, of pods that have none of
	// their own but belong to a Service or a workload.
	DefaultSpread []corev1.TopologySpreadConstraint
	// SpreadUnlabelled means that, under DefaultSpread, nodes without one of the keys are
	// counted by the others.
	SpreadUnlabelled bool

	// that nodes must match in addition to the pod's; nil for none
	AddedRequired  *nodeaffinity.NodeSelector
	AddedPreferred *nodeaffinity.PreferredSchedulingTerms // in addition to the pod's preferences

	// PercentageOfNodes limits the search: it ends once this share of all nodes, and at
	// least 100, were found to fit. 0 chooses by the size of the cluster (L2.11).
	PercentageOfNodes int

	// DeviceFilter is how long the search for devices on one node may take; 0: without end. DeviceBinding is how long
	// devices that were allocated may take to be ready.
	DeviceFilter, DeviceBinding time.Duration

	Preempts                bool // whether pods may preempt others
	MinCandidatesPercentage int  // of the refused nodes, to look at for a preemption
	MinCandidates           int
}

// Weights are the weights of the scores, each 0–100. 0 disables a score.
type Weights struct {
	Taints, NodeAffinity, Fit, Spread, PodAffinity, Balanced, Images, Devices int64
}

// Strategy is how a node's free resources score.
type Strategy string

// The strategies.
const (
	LeastAllocated           Strategy = "LeastAllocated"
	MostAllocated            Strategy = "MostAllocated"
	RequestedToCapacityRatio Strategy = "RequestedToCapacityRatio"
)

// Fit configures the check of resources.
type Fit struct {
	Ignored       []corev1.ResourceName // further resources that are not checked
	IgnoredGroups []string              // domains of further resources that are not checked
	Strategy      Strategy
	Resources     []resources.Weighted
	Shape         []resources.Point // of RequestedToCapacityRatio
}

// DefaultProfile is upstream's default configuration (L2.10).
func DefaultProfile() *Profile {
	cpuAndMemory := []resources.Weighted{{Name: corev1.ResourceCPU, Weight: 1},
		{Name: corev1.ResourceMemory, Weight: 1}}
	return &Profile{
		Name: corev1.DefaultSchedulerName,
		Weights: Weights{Taints: 3, NodeAffinity: 2, Fit: 1, Spread: 2, PodAffinity: 2, Balanced: 1,
			Images: 1, Devices: 2},
		Gated:                 true,
		Fit:                   Fit{Strategy: LeastAllocated, Resources: cpuAndMemory},
		Balanced:              cpuAndMemory,
		HardPodAffinityWeight: 1,
		DefaultSpread: []corev1.TopologySpreadConstraint{
			{TopologyKey: corev1.LabelHostname, MaxSkew: 3, WhenUnsatisfiable: corev1.ScheduleAnyway},
			{TopologyKey: corev1.LabelTopologyZone, MaxSkew: 5, WhenUnsatisfiable: corev1.ScheduleAnyway},
		},
		SpreadUnlabelled:        true,
		DeviceFilter:            10 * time.Second, // S9.23
		DeviceBinding:           10 * time.Minute, // S9.28
		Preempts:                true,
		MinCandidatesPercentage: 10,
		MinCandidates:           100,
	}
}

// Enables reports whether the profile enables a filter of the scheduler.
func (f *Profile) Enables(filter Filter) bool { return f.enables(filter) }

// enables reports whether the profile enables a filter.
func (f *Profile) enables(filter Filter) bool {
	return len(f.Off) == 0 || !slices.Contains(f.Off, filter)
}

// demand returns the part of a pod's demand that is checked.
func (f *Profile) demand(d resources.Demand) resources.Demand {
	if len(f.Fit.Ignored) == 0 && len(f.Fit.IgnoredGroups) == 0 {
		return d
	}
	d.Scalars = slices.DeleteFunc(slices.Clone(d.Scalars), func(s resources.Scalar) bool {
		return resources.IsExtended(s.Name) &&
			(slices.Contains(f.Fit.Ignored, s.Name) || slices.Contains(f.Fit.IgnoredGroups, groupOf(s.Name)))
	})
	return d
}

// groupOf is the domain of an extended resource.
func groupOf(name corev1.ResourceName) string {
	group, _, _ := strings.Cut(string(name), "/")
	return group
}

// score rates what the node would have left, 0–100.
func (f *Fit) score(l *resources.Ledger, d resources.Demand) int64 {
	switch f.Strategy {
	case MostAllocated:
		return resources.MostAllocated(l, d, f.Resources)
	case RequestedToCapacityRatio:
		return resources.RequestedToCapacityRatio(l, d, f.Resources, f.Shape)
	default:
		return resources.LeastAllocated(l, d, f.Resources)
	}
}
