package apps

import (
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"carob/internal/kinds/pods"
	"carob/internal/kinds/rules"
)

// Rules are the validation of the kinds of apps and of ReplicationController; read only.
var Rules = map[schema.GroupKind]func() rules.Rules{
	rules.Kind(corev1.GroupName, "ReplicationController"): func() rules.Rules {
		return pods.WithWorkloadWarnings(rules.WithStatus(rules.Of(nil, validateReplicationController, nil),
			validateReplicationControllerStatusUpdate),
			func(r *corev1.ReplicationController) *corev1.PodTemplateSpec { return r.Spec.Template })
	},
	rules.Kind(appsv1.GroupName, "Deployment"): func() rules.Rules {
		return pods.WithWorkloadWarnings(rules.WithStatus(rules.Of(nil, validateDeployment, validateDeploymentUpdate),
			validateDeploymentStatusUpdate),
			func(d *appsv1.Deployment) *corev1.PodTemplateSpec { return &d.Spec.Template })
	},
	rules.Kind(appsv1.GroupName, "ReplicaSet"): func() rules.Rules {
		return pods.WithWorkloadWarnings(rules.WithStatus(rules.Of(nil, validateReplicaSet, validateReplicaSetUpdate),
			validateReplicaSetStatusUpdate),
			func(r *appsv1.ReplicaSet) *corev1.PodTemplateSpec { return &r.Spec.Template })
	},
	rules.Kind(appsv1.GroupName, "StatefulSet"): func() rules.Rules {
		return pods.WithWorkloadWarnings(
			rules.WithWarnings(rules.WithStatus(rules.Of(apivalidation.NameIsDNSLabel, validateStatefulSet,
				validateStatefulSetUpdate), validateStatefulSetStatusUpdate), statefulSetWarnings),
			func(s *appsv1.StatefulSet) *corev1.PodTemplateSpec { return &s.Spec.Template })
	},
	rules.Kind(appsv1.GroupName, "DaemonSet"): func() rules.Rules {
		return pods.WithTemplateWarnings(rules.WithStatus(rules.Of(nil, validateDaemonSet, validateDaemonSetUpdate),
			validateDaemonSetStatusUpdate),
			func(d *appsv1.DaemonSet) *corev1.PodTemplateSpec { return &d.Spec.Template })
	},
	rules.Kind(appsv1.GroupName,
		"ControllerRevision"): func() rules.Rules {
		return rules.Of(nil, validateControllerRevision, validateControllerRevisionUpdate)
	},
}
