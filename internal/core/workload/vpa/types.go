package vpa

import (
	"slices"

	autoscalingv1 "k8s.io/api/autoscaling/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Group and Version of the API (W9.1).
const (
	Group   = "autoscaling.k8s.io"
	Version = "v1"
)

// VerticalPodAutoscaler is the API's object (W9.2, W9.3).
type VerticalPodAutoscaler struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`
	Spec              Spec   `json:"spec"`
	Status            Status `json:"status"`
}

// Spec defines the target pods, and how they are changed.
type Spec struct {
	TargetRef      *autoscalingv1.CrossVersionObjectReference `json:"targetRef"`
	UpdatePolicy   *UpdatePolicy                              `json:"updatePolicy,omitempty"`
	ResourcePolicy *ResourcePolicy                            `json:"resourcePolicy,omitempty"`
	Recommenders   []Recommender                              `json:"recommenders,omitempty"`
	StartupBoost   *StartupBoost                              `json:"startupBoost,omitempty"`
}

// Recommender is the name of a recommender; carob's is DefaultRecommender.
type Recommender struct {
	Name string `json:"name"`
}

// DefaultRecommender is the name of the recommender that is part of carob.
const DefaultRecommender = "default"

// UpdateMode defines how recommendations are applied to pods (W9.5 to W9.9).
type UpdateMode string

// The modes. Auto is Recreate under an old name; InPlace is alpha.
const (
	ModeOff               UpdateMode = "Off"
	ModeInitial           UpdateMode = "Initial"
	ModeRecreate          UpdateMode = "Recreate"
	ModeAuto              UpdateMode = "Auto"
	ModeInPlaceOrRecreate UpdateMode = "InPlaceOrRecreate"
	ModeInPlace           UpdateMode = "InPlace"
)

// UpdatePolicy defines how and when running pods change.
type UpdatePolicy struct {
	UpdateMode           *UpdateMode           `json:"updateMode,omitempty"`
	MinReplicas          *int32                `json:"minReplicas,omitempty"`
	EvictionRequirements []EvictionRequirement `json:"evictionRequirements,omitempty"`
	EvictAfterOOMSeconds *int32                `json:"evictAfterOOMSeconds,omitempty"`
}

// EvictionRequirement must hold for a pod to change; it holds if it holds for one of its resources
// (W9.56).
type EvictionRequirement struct {
	Resources         []corev1.ResourceName `json:"resources"`
	ChangeRequirement string                `json:"changeRequirement"`
}

// Values of EvictionRequirement.ChangeRequirement.
const (
	TargetHigherThanRequests = "TargetHigherThanRequests"
	TargetLowerThanRequests  = "TargetLowerThanRequests"
)

// ResourcePolicy limits the recommendations, for each container.
type ResourcePolicy struct {
	ContainerPolicies []ContainerPolicy `json:"containerPolicies,omitempty"`
}

// AllContainers is the name of the policy of containers that have none of their own (W9.11).
const AllContainers = "*"

// ContainerPolicy limits the recommendation for one container.
type ContainerPolicy struct {
	ContainerName                    string                 `json:"containerName,omitempty"`
	Mode                             *string                `json:"mode,omitempty"`
	MinAllowed                       corev1.ResourceList    `json:"minAllowed,omitempty"`
	MaxAllowed                       corev1.ResourceList    `json:"maxAllowed,omitempty"`
	ControlledResources              *[]corev1.ResourceName `json:"controlledResources,omitempty"`
	ControlledValues                 *string                `json:"controlledValues,omitempty"`
	OOMBumpUpRatio                   *resource.Quantity     `json:"oomBumpUpRatio,omitempty"`
	OOMMinBumpUp                     *resource.Quantity     `json:"oomMinBumpUp,omitempty"`
	MemoryAggregationIntervalSeconds *int32                 `json:"memoryAggregationIntervalSeconds,omitempty"`
	MemoryAggregationIntervalCount   *int64                 `json:"memoryAggregationIntervalCount,omitempty"`
	StartupBoost                     *StartupBoost          `json:"startupBoost,omitempty"`
}

// Values of ContainerPolicy.Mode and ControlledValues.
const (
	ScalingAuto       = "Auto"
	ScalingOff        = "Off"
	RequestsAndLimits = "RequestsAndLimits"
	RequestsOnly      = "RequestsOnly"
)

// StartupBoost is alpha: carob rejects it (W9.4).
type StartupBoost struct {
	CPU map[string]any `json:"cpu,omitempty"`
}

// Status is the result of the recommender (W9.3).
type Status struct {
	Recommendation     *Recommendation `json:"recommendation,omitempty"`
	Conditions         []Condition     `json:"conditions,omitempty"`
	ObservedGeneration *int64          `json:"observedGeneration,omitempty"`
}

// Recommendation has one entry for each container that is scaled, by name.
type Recommendation struct {
	Containers []ContainerRecommendation `json:"containerRecommendations,omitempty"`
}

// ContainerRecommendation holds the recommended requests of a container. A pod whose requests are
// outside of the bounds is changed; UncappedTarget is Target before any policy.
type ContainerRecommendation struct {
	ContainerName  string              `json:"containerName,omitempty"`
	Target         corev1.ResourceList `json:"target"`
	LowerBound     corev1.ResourceList `json:"lowerBound,omitempty"`
	UpperBound     corev1.ResourceList `json:"upperBound,omitempty"`
	UncappedTarget corev1.ResourceList `json:"uncappedTarget,omitempty"`
}

// Condition is one condition of a status, by type.
type Condition struct {
	Type               string                 `json:"type"`
	Status             corev1.ConditionStatus `json:"status"`
	LastTransitionTime metav1.Time            `json:"lastTransitionTime"`
	Reason             string                 `json:"reason,omitempty"`
	Message            string                 `json:"message,omitempty"`
	ObservedGeneration int64                  `json:"observedGeneration,omitempty"`
}

// The types of conditions (W9.34).
const (
	RecommendationProvided = "RecommendationProvided"
	NoPodsMatched          = "NoPodsMatched"
	ConfigUnsupported      = "ConfigUnsupported"
	ConfigDeprecated       = "ConfigDeprecated"
)

// Checkpoint keeps the histograms of one container over a restart (W9.37).
type Checkpoint struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`
	Spec              CheckpointSpec   `json:"spec"`
	Status            CheckpointStatus `json:"status"`
}

// CheckpointSpec names the owner of the histograms.
type CheckpointSpec struct {
	VPAObjectName string `json:"vpaObjectName,omitempty"`
	ContainerName string `json:"containerName,omitempty"`
}

// CheckpointStatus are the histograms.
type CheckpointStatus struct {
	LastUpdateTime    metav1.Time         `json:"lastUpdateTime"`
	Version           string              `json:"version,omitempty"`
	CPUHistogram      HistogramCheckpoint `json:"cpuHistogram"`
	MemoryHistogram   HistogramCheckpoint `json:"memoryHistogram"`
	FirstSampleStart  metav1.Time         `json:"firstSampleStart"`
	LastSampleStart   metav1.Time         `json:"lastSampleStart"`
	TotalSamplesCount int                 `json:"totalSamplesCount,omitempty"`
}

// HistogramCheckpoint is a histogram: weights by the index of their bucket, 1 to 10,000, which
// together are TotalWeight.
type HistogramCheckpoint struct {
	ReferenceTimestamp metav1.Time    `json:"referenceTimestamp"`
	BucketWeights      map[int]uint32 `json:"bucketWeights,omitempty"`
	TotalWeight        float64        `json:"totalWeight,omitempty"`
}

// Mode returns the update mode, Recreate by default.
func (v *VerticalPodAutoscaler) Mode() UpdateMode {
	if p := v.Spec.UpdatePolicy; p != nil && p.UpdateMode != nil && *p.UpdateMode != "" {
		return *p.UpdateMode
	}
	return ModeRecreate
}

// Ours reports whether carob's recommender handles the autoscaler.
func (v *VerticalPodAutoscaler) Ours() bool {
	for _, r := range v.Spec.Recommenders {
		if r.Name == DefaultRecommender {
			return true
		}
	}
	return len(v.Spec.Recommenders) == 0
}

// Policy returns the policy of a container: the one with its name, else the one of all, else nil.
func (p *ResourcePolicy) Policy(container string) *ContainerPolicy {
	if p == nil {
		return nil
	}
	var all *ContainerPolicy
	for i := range p.ContainerPolicies {
		switch p.ContainerPolicies[i].ContainerName {
		case container:
			return &p.ContainerPolicies[i]
		case AllContainers:
			all = &p.ContainerPolicies[i]
		}
	}
	return all
}

// off reports whether the container is not scaled.
func (p *ContainerPolicy) off() bool { return p != nil && p.Mode != nil && *p.Mode == ScalingOff }

// controls reports whether a resource of the container is scaled.
func (p *ContainerPolicy) controls(name corev1.ResourceName) bool {
	return p == nil || p.ControlledResources == nil || slices.Contains(*p.ControlledResources, name)
}

// requestsOnly reports whether limits do not change.
func (p *ContainerPolicy) requestsOnly() bool {
	return p != nil && p.ControlledValues != nil && *p.ControlledValues == RequestsOnly
}

// For returns the recommendation for a container; nil for none.
func (r *Recommendation) For(container string) *ContainerRecommendation {
	if r == nil {
		return nil
	}
	for i := range r.Containers {
		if r.Containers[i].ContainerName == container {
			return &r.Containers[i]
		}
	}
	return nil
}

// clone copies a recommendation; its lists may be changed.
func (r *Recommendation) clone() *Recommendation {
	out := &Recommendation{}
	for _, c := range r.Containers {
		c.Target, c.LowerBound, c.UpperBound, c.UncappedTarget = c.Target.DeepCopy(), c.LowerBound.DeepCopy(),
			c.UpperBound.DeepCopy(), c.UncappedTarget.DeepCopy()
		out.Containers = append(out.Containers, c)
	}
	return out
}
