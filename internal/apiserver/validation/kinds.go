package validation

import (
	"context"
	"fmt"

	appsv1 "k8s.io/api/apps/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	batchv1 "k8s.io/api/batch/v1"
	certificatesv1 "k8s.io/api/certificates/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	nodev1 "k8s.io/api/node/v1"
	policyv1 "k8s.io/api/policy/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	resourcev1 "k8s.io/api/resource/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	storagev1 "k8s.io/api/storage/v1"
	storagemigrationv1 "k8s.io/api/storagemigration/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// kinds lists the rules by kind, group by group. Nothing writes to it.
var kinds = []map[schema.GroupKind]func() Rules{
	coreRules,
	servicesRules,
	volumesRules,
	appsRules,
	batchRules,
	discoveryRules,
	coordinationRules,
	policyRules,
	schedulingRules,
	nodeRules,
	networkingRules,
	storageRules,
	certificatesRules,
	autoscalingRules,
	migrationRules,
	devicesRules,
	rbacRules,
}

var coreRules = map[schema.GroupKind]func() Rules{
	of(corev1.GroupName, "Namespace"): func() Rules {
		r := rulesOf(apivalidation.ValidateNamespaceName, namespace, nil)
		r.StatusUpdate = typedUpdate(namespaceStatusUpdate)
		return r
	},
	of(corev1.GroupName, "Node"): func() Rules {
		return hinted(withStatus(rulesOf(nil, node, nodeUpdate), nodeStatusUpdate), nodeWarnings)
	},
	of(corev1.GroupName, "ServiceAccount"): func() Rules { return Rules{Name: apivalidation.ValidateServiceAccountName} },
	of(corev1.GroupName, "ConfigMap"):      func() Rules { return rulesOf(nil, configMap, configMapUpdate) },
	of(corev1.GroupName, "Secret"):         func() Rules { return hinted(rulesOf(nil, secret, secretUpdate), secretWarnings) },
	of(corev1.GroupName, "Endpoints"):      func() Rules { return hinted(rulesOf(nil, endpoints, endpointsUpdate), endpointsWarnings) },
	of(corev1.GroupName, "Event"): func() Rules {
		return Rules{Name: noName, Create: eventCreate, Update: eventUpdate}
	},
	of(corev1.GroupName, "LimitRange"): func() Rules { return rulesOf(nil, limitRange, nil) },
	of(corev1.GroupName, "ResourceQuota"): func() Rules {
		return withStatus(rulesOf(nil, resourceQuota, resourceQuotaUpdate), resourceQuotaStatusUpdate)
	},
	of(corev1.GroupName, "PodTemplate"): func() Rules {
		r := rulesOf(nil, func(t *corev1.PodTemplate) field.ErrorList {
			return podTemplate(&t.Template, field.NewPath("template"))
		}, nil)
		r.Warnings = func(_ context.Context, obj, old runtime.Object) []string {
			if sameGeneration(obj, old) {
				return nil
			}
			return templateWarnings(&obj.(*corev1.PodTemplate).Template, field.NewPath("template"))
		}
		return r
	},
}

var servicesRules = map[schema.GroupKind]func() Rules{
	of(corev1.GroupName, "Service"): func() Rules {
		r := rulesOf(apivalidation.NameIsDNSLabel, service, serviceUpdate)
		r.StatusUpdate, r.Warnings = typedUpdate(serviceStatusUpdate), serviceWarnings
		r.StatusWarnings = func(obj runtime.Object) []string {
			var out []string
			for i, b := range obj.(*corev1.Service).Status.LoadBalancer.Ingress {
				out = append(out, balancerWarnings(i, b.IP)...)
			}
			return out
		}
		return r
	},
}

var volumesRules = map[schema.GroupKind]func() Rules{
	of(corev1.GroupName, "PersistentVolume"): func() Rules {
		return hinted(rulesOf(nil, persistentVolume, persistentVolumeUpdate), persistentVolumeWarnings)
	},
	of(corev1.GroupName, "PersistentVolumeClaim"): func() Rules {
		return hinted(withStatus(rulesOf(nil, persistentVolumeClaim, persistentVolumeClaimUpdate), persistentVolumeClaimStatusUpdate), persistentVolumeClaimWarnings)
	},
}

// appsRules are those of apps, and of the oldest of its kind.
var appsRules = map[schema.GroupKind]func() Rules{
	of(corev1.GroupName, "ReplicationController"): func() Rules {
		return warned(withStatus(rulesOf(nil, replicationController, nil), replicationControllerStatusUpdate), func(r *corev1.ReplicationController) *corev1.PodTemplateSpec { return r.Spec.Template })
	},
	of(appsv1.GroupName, "Deployment"): func() Rules {
		return warned(withStatus(rulesOf(nil, deployment, deploymentUpdate), deploymentStatusUpdate), func(d *appsv1.Deployment) *corev1.PodTemplateSpec { return &d.Spec.Template })
	},
	of(appsv1.GroupName, "ReplicaSet"): func() Rules {
		return warned(withStatus(rulesOf(nil, replicaSet, replicaSetUpdate), replicaSetStatusUpdate), func(r *appsv1.ReplicaSet) *corev1.PodTemplateSpec { return &r.Spec.Template })
	},
	of(appsv1.GroupName, "StatefulSet"): func() Rules {
		return warned(hinted(withStatus(rulesOf(apivalidation.NameIsDNSLabel, statefulSet, statefulSetUpdate), statefulSetStatusUpdate), statefulSetWarnings), func(s *appsv1.StatefulSet) *corev1.PodTemplateSpec { return &s.Spec.Template })
	},
	of(appsv1.GroupName, "DaemonSet"): func() Rules {
		return warned(withStatus(rulesOf(nil, daemonSet, daemonSetUpdate), daemonSetStatusUpdate), func(d *appsv1.DaemonSet) *corev1.PodTemplateSpec { return &d.Spec.Template })
	},
	of(appsv1.GroupName, "ControllerRevision"): func() Rules { return rulesOf(nil, controllerRevision, controllerRevisionUpdate) },
}

var batchRules = map[schema.GroupKind]func() Rules{
	of(batchv1.GroupName, "Job"): func() Rules {
		r := withStatus(rulesOf(nil, job, jobUpdate), jobStatusUpdate)
		r.Warnings = func(_ context.Context, obj, old runtime.Object) []string {
			if sameGeneration(obj, old) {
				return nil
			}
			return jobSpecWarnings(&obj.(*batchv1.Job).Spec, specPath)
		}
		return warned(r, func(j *batchv1.Job) *corev1.PodTemplateSpec { return &j.Spec.Template })
	},
	of(batchv1.GroupName, "CronJob"): func() Rules {
		r := rulesOf(nil, cronJob, cronJobUpdate)
		r.Warnings = cronJobWarnings
		return warned(r, func(*batchv1.CronJob) *corev1.PodTemplateSpec { return nil })
	},
}

var discoveryRules = map[schema.GroupKind]func() Rules{
	of(discoveryv1.GroupName, "EndpointSlice"): func() Rules {
		r := rulesOf(nil, endpointSlice, endpointSliceUpdate)
		r.Warnings = endpointSliceWarnings
		return r
	},
}

var coordinationRules = map[schema.GroupKind]func() Rules{
	of(coordinationv1.GroupName, "Lease"): func() Rules { return rulesOf(nil, lease, leaseUpdate) },
}

var policyRules = map[schema.GroupKind]func() Rules{
	of(policyv1.GroupName, "PodDisruptionBudget"): func() Rules {
		return withStatus(rulesOf(noName, disruptionBudget, disruptionBudgetUpdate), disruptionBudgetStatusUpdate)
	},
}

var schedulingRules = map[schema.GroupKind]func() Rules{
	of(schedulingv1.GroupName, "PriorityClass"): func() Rules { return rulesOf(nil, priorityClass, priorityClassUpdate) },
}

var nodeRules = map[schema.GroupKind]func() Rules{
	of(nodev1.GroupName, "RuntimeClass"): func() Rules {
		return hinted(rulesOf(nil, runtimeClass, runtimeClassUpdate), runtimeClassWarnings)
	},
}

var networkingRules = map[schema.GroupKind]func() Rules{
	of(networkingv1.GroupName, "Ingress"): func() Rules {
		r := rulesOf(nil, ingress, ingressUpdate)
		r.StatusUpdate, r.Warnings = typedUpdate(ingressStatusUpdate), ingressWarnings
		r.StatusWarnings = func(obj runtime.Object) []string {
			var out []string
			for i, b := range obj.(*networkingv1.Ingress).Status.LoadBalancer.Ingress {
				out = append(out, balancerWarnings(i, b.IP)...)
			}
			return out
		}
		return r
	},
	of(networkingv1.GroupName, "IngressClass"): func() Rules { return rulesOf(nil, ingressClass, ingressClassUpdate) },
	of(networkingv1.GroupName, "NetworkPolicy"): func() Rules {
		r := rulesOf(nil, networkPolicy, networkPolicyUpdate)
		r.Warnings = networkPolicyWarnings
		return r
	},
	of(networkingv1.GroupName, "ServiceCIDR"): func() Rules { return rulesOf(nil, serviceCIDR, serviceCIDRUpdate) },
	of(networkingv1.GroupName, "IPAddress"):   func() Rules { return rulesOf(ipAddressName, ipAddress, ipAddressUpdate) },
}

var storageRules = map[schema.GroupKind]func() Rules{
	of(storagev1.GroupName, "StorageClass"): func() Rules {
		return hinted(rulesOf(nil, storageClass, storageClassUpdate), storageClassWarnings)
	},
	of(storagev1.GroupName, "VolumeAttachment"): func() Rules {
		r := rulesOf(nil, volumeAttachment, volumeAttachmentUpdate)
		r.StatusUpdate = typedUpdate(func(a, _ *storagev1.VolumeAttachment) field.ErrorList { return attachmentStatus(&a.Status) })
		return r
	},
	of(storagev1.GroupName, "CSIDriver"): func() Rules {
		r := rulesOf(nil, csiDriver, csiDriverUpdate)
		r.Warnings = csiDriverWarnings
		return r
	},
	of(storagev1.GroupName, "CSINode"): func() Rules { return rulesOf(nil, csiNode, csiNodeUpdate) },
	of(storagev1.GroupName, "CSIStorageCapacity"): func() Rules {
		return hinted(rulesOf(nil, csiStorageCapacity, csiStorageCapacityUpdate), csiStorageCapacityWarnings)
	},
	of(storagev1.GroupName, "VolumeAttributesClass"): func() Rules { return rulesOf(nil, volumeAttributesClass, volumeAttributesClassUpdate) },
}

var certificatesRules = map[schema.GroupKind]func() Rules{
	of(certificatesv1.GroupName, "CertificateSigningRequest"): func() Rules {
		r := rulesOf(anyName, signingRequest, signingRequestUpdate(signingObject))
		r.StatusUpdate, r.Subresource = typedUpdate(signingRequestUpdate(signingStatus)), signingRequestApproval
		return r
	},
	of(certificatesv1.GroupName, "ClusterTrustBundle"): func() Rules { return rulesOf(anyName, trustBundle, trustBundleUpdate) },
	of(certificatesv1.GroupName, "PodCertificateRequest"): func() Rules {
		r := rulesOf(nil, podCertificateRequest, podCertificateRequestUpdate)
		r.StatusUpdate = typedUpdate(podCertificateRequestStatusUpdate)
		return r
	},
}

var autoscalingRules = map[schema.GroupKind]func() Rules{
	of(autoscalingv2.GroupName, "HorizontalPodAutoscaler"): func() Rules {
		r := rulesOf(nil, autoscaler, autoscalerUpdate)
		r.StatusUpdate = typedUpdate(autoscalerStatusUpdate)
		return r
	},
}

var migrationRules = map[schema.GroupKind]func() Rules{
	of(storagemigrationv1.GroupName, "StorageVersionMigration"): func() Rules {
		r := rulesOf(nil, migration, migrationUpdate)
		r.StatusUpdate = typedUpdate(migrationStatusUpdate)
		return r
	},
}

var devicesRules = map[schema.GroupKind]func() Rules{
	of(resourcev1.GroupName, "DeviceClass"): func() Rules { return rulesOf(nil, deviceClass, deviceClassBeside) },
	of(resourcev1.GroupName, "DeviceTaintRule"): func() Rules {
		return withStatus(rulesOf(nil, deviceTaintRule, deviceTaintRuleUpdate), deviceTaintRuleStatusUpdate)
	},
	of(resourcev1.GroupName, "ResourceClaim"): func() Rules {
		r := rulesOf(nil, resourceClaim, resourceClaimUpdate)
		r.StatusUpdate = typedUpdate(resourceClaimStatusUpdate)
		return r
	},
	of(resourcev1.GroupName, "ResourceClaimTemplate"): func() Rules { return rulesOf(nil, resourceClaimTemplate, resourceClaimTemplateUpdate) },
	of(resourcev1.GroupName, "ResourceSlice"):         func() Rules { return rulesOf(nil, resourceSlice, resourceSliceUpdate) },
}

var rbacRules = map[schema.GroupKind]func() Rules{
	of(rbacv1.GroupName, "Role"):               func() Rules { return rulesOf(rbacName, namespacedRole, nil) },
	of(rbacv1.GroupName, "ClusterRole"):        func() Rules { return rulesOf(rbacName, clusterRole, nil) },
	of(rbacv1.GroupName, "RoleBinding"):        func() Rules { return rulesOf(rbacName, roleBinding, roleBindingUpdate) },
	of(rbacv1.GroupName, "ClusterRoleBinding"): func() Rules { return rulesOf(rbacName, clusterRoleBinding, clusterRoleBindingUpdate) },
}

func of(group, kind string) schema.GroupKind { return schema.GroupKind{Group: group, Kind: kind} }

// rulesOf makes rules from checks of one Go type. Without an update check of its own a changed object is checked like a
// new one.
func rulesOf[T any](name func(string, bool) []string, create func(*T) field.ErrorList, update func(obj, old *T) field.ErrorList) Rules {
	if update == nil {
		update = func(obj, _ *T) field.ErrorList { return create(obj) }
	}
	return Rules{Name: name, Create: typed(create), Update: typedUpdate(update)}
}

// warned adds the hints about a workload: about its name, which those of its pods begin with, and about their template.
func warned[T any](r Rules, template func(*T) *corev1.PodTemplateSpec) Rules {
	before := r.Warnings
	r.Warnings = func(ctx context.Context, obj, old runtime.Object) []string {
		var out []string
		if m, err := meta.Accessor(obj); err == nil && old == nil {
			if msgs := validation.IsDNS1123Label(m.GetName()); m.GetName() != "" && len(msgs) > 0 {
				out = append(out, fmt.Sprintf("metadata.name: this is used in Pod names and hostnames, which can result in surprising behavior; a DNS label is recommended: %v", msgs))
			}
		}
		if before != nil {
			out = append(out, before(ctx, obj, old)...)
		}
		if t := template(any(obj).(*T)); t != nil && !sameGeneration(obj, old) {
			out = append(out, templateWarnings(t, field.NewPath("spec", "template"))...)
		}
		return out
	}
	return r
}

// sameGeneration tells whether an update changes nothing that pods are made of; false for a new object.
func sameGeneration(obj, old runtime.Object) bool {
	if old == nil {
		return false
	}
	is, err := meta.Accessor(obj)
	was, errOld := meta.Accessor(old)
	return err == nil && errOld == nil && is.GetGeneration() == was.GetGeneration()
}

// hinted adds hints to rules.
func hinted[T any](r Rules, hints func(*T) []string) Rules {
	r.Warnings = func(_ context.Context, obj, _ runtime.Object) []string { return hints(any(obj).(*T)) }
	return r
}

// noName asks nothing of a name beyond what every name must be: a segment of a path.
func noName(string, bool) []string { return nil }

// withStatus adds the check of a status to rules.
func withStatus[T any](r Rules, check func(obj, old *T) field.ErrorList) Rules {
	r.StatusUpdate = typedUpdate(check)
	return r
}
