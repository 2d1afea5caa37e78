package apps

import (
	"maps"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/intstr"

	"carob/internal/kinds/defaulting"
	"carob/internal/kinds/pods"
	"carob/internal/kinds/volumes"
)

// RegisterDefaults adds the defaults of this package's kinds to s.
func RegisterDefaults(s *runtime.Scheme) {
	defaulting.Add(s, defaultReplicationController)
	defaulting.Add(s, defaultDeployment)
	defaulting.Add(s, defaultReplicaSet)
	defaulting.Add(s, DefaultStatefulSet)
	defaulting.Add(s, defaultDaemonSet)
}

const (
	revisionHistory  int32 = 10
	progressDeadline int32 = 600
)

func defaultDeployment(d *appsv1.Deployment) {
	defaulting.OrNew(&d.Spec.Replicas, 1)
	defaulting.OrDefault(&d.Spec.Strategy.Type, appsv1.RollingUpdateDeploymentStrategyType)
	if d.Spec.Strategy.Type == appsv1.RollingUpdateDeploymentStrategyType {
		if d.Spec.Strategy.RollingUpdate == nil {
			d.Spec.Strategy.RollingUpdate = &appsv1.RollingUpdateDeployment{}
		}
		defaulting.OrNew(&d.Spec.Strategy.RollingUpdate.MaxUnavailable, intstr.FromString("25%"))
		defaulting.OrNew(&d.Spec.Strategy.RollingUpdate.MaxSurge, intstr.FromString("25%"))
	}
	defaulting.OrNew(&d.Spec.RevisionHistoryLimit, revisionHistory)
	defaulting.OrNew(&d.Spec.ProgressDeadlineSeconds, progressDeadline)
	pods.DefaultPodTemplate(&d.Spec.Template)
}

func defaultReplicaSet(r *appsv1.ReplicaSet) {
	defaulting.OrNew(&r.Spec.Replicas, 1)
	pods.DefaultPodTemplate(&r.Spec.Template)
}

// DefaultStatefulSet sets the default fields of a StatefulSet. Its controller calls it, too, to
// compare revisions of older releases.
func DefaultStatefulSet(s *appsv1.StatefulSet) {
	defaulting.OrDefault(&s.Spec.PodManagementPolicy, appsv1.OrderedReadyPodManagement)
	if s.Spec.UpdateStrategy.Type == "" {
		s.Spec.UpdateStrategy.Type = appsv1.RollingUpdateStatefulSetStrategyType
		defaulting.OrNew(&s.Spec.UpdateStrategy.RollingUpdate, appsv1.RollingUpdateStatefulSetStrategy{})
	}
	if s.Spec.UpdateStrategy.Type == appsv1.RollingUpdateStatefulSetStrategyType &&
		s.Spec.UpdateStrategy.RollingUpdate != nil {
		defaulting.OrNew(&s.Spec.UpdateStrategy.RollingUpdate.Partition, 0)
		defaulting.OrNew(&s.Spec.UpdateStrategy.RollingUpdate.MaxUnavailable, intstr.FromInt32(1))
	}
	if s.Spec.PersistentVolumeClaimRetentionPolicy == nil {
		s.Spec.PersistentVolumeClaimRetentionPolicy = &appsv1.StatefulSetPersistentVolumeClaimRetentionPolicy{}
	}
	defaulting.OrDefault(&s.Spec.PersistentVolumeClaimRetentionPolicy.WhenDeleted,
		appsv1.RetainPersistentVolumeClaimRetentionPolicyType)
	defaulting.OrDefault(&s.Spec.PersistentVolumeClaimRetentionPolicy.WhenScaled,
		appsv1.RetainPersistentVolumeClaimRetentionPolicyType)
	defaulting.OrNew(&s.Spec.Replicas, 1)
	defaulting.OrNew(&s.Spec.RevisionHistoryLimit, revisionHistory)
	pods.DefaultPodTemplate(&s.Spec.Template)
	for i := range s.Spec.VolumeClaimTemplates {
		c := &s.Spec.VolumeClaimTemplates[i]
		c.APIVersion, c.Kind = "v1", "PersistentVolumeClaim" // whatever else the object says
		volumes.DefaultPersistentVolumeClaim(c)
	}
}

func defaultDaemonSet(d *appsv1.DaemonSet) {
	if _, ok := d.Annotations[appsv1.DeprecatedTemplateGeneration]; !ok {
		setTemplateGeneration(d, 0) // before ownership is recorded: who writes the object owns the annotation
	}
	defaulting.OrDefault(&d.Spec.UpdateStrategy.Type, appsv1.RollingUpdateDaemonSetStrategyType)
	if d.Spec.UpdateStrategy.Type == appsv1.RollingUpdateDaemonSetStrategyType {
		if d.Spec.UpdateStrategy.RollingUpdate == nil {
			d.Spec.UpdateStrategy.RollingUpdate = &appsv1.RollingUpdateDaemonSet{}
		}
		defaulting.OrNew(&d.Spec.UpdateStrategy.RollingUpdate.MaxUnavailable, intstr.FromInt32(1))
		defaulting.OrNew(&d.Spec.UpdateStrategy.RollingUpdate.MaxSurge, intstr.FromInt32(0))
	}
	defaulting.OrNew(&d.Spec.RevisionHistoryLimit, revisionHistory)
	pods.DefaultPodTemplate(&d.Spec.Template)
}

// defaultReplicationController copies labels and selector from the template, which only this oldest
// kind allows.
func defaultReplicationController(r *corev1.ReplicationController) {
	defaulting.OrNew(&r.Spec.Replicas, 1)
	if r.Spec.Template == nil {
		return
	}
	pods.DefaultPodTemplate(r.Spec.Template)
	if len(r.Spec.Template.Labels) == 0 {
		return
	}
	if len(r.Spec.Selector) == 0 {
		r.Spec.Selector = maps.Clone(r.Spec.Template.Labels)
	}
	if len(r.Labels) == 0 {
		r.Labels = maps.Clone(r.Spec.Template.Labels)
	}
}
