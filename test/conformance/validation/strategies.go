package main

import (
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/registry/rest"

	_ "k8s.io/kubernetes/pkg/apis/apps/install"
	_ "k8s.io/kubernetes/pkg/apis/autoscaling/install"
	_ "k8s.io/kubernetes/pkg/apis/batch/install"
	_ "k8s.io/kubernetes/pkg/apis/certificates/install"
	_ "k8s.io/kubernetes/pkg/apis/coordination/install"
	_ "k8s.io/kubernetes/pkg/apis/core/install"
	_ "k8s.io/kubernetes/pkg/apis/discovery/install"
	_ "k8s.io/kubernetes/pkg/apis/networking/install"
	_ "k8s.io/kubernetes/pkg/apis/node/install"
	_ "k8s.io/kubernetes/pkg/apis/policy/install"
	_ "k8s.io/kubernetes/pkg/apis/rbac/install"
	_ "k8s.io/kubernetes/pkg/apis/scheduling/install"
	_ "k8s.io/kubernetes/pkg/apis/storage/install"

	"k8s.io/kubernetes/pkg/registry/apps/controllerrevision"
	"k8s.io/kubernetes/pkg/registry/apps/daemonset"
	"k8s.io/kubernetes/pkg/registry/apps/deployment"
	"k8s.io/kubernetes/pkg/registry/apps/replicaset"
	"k8s.io/kubernetes/pkg/registry/apps/statefulset"
	"k8s.io/kubernetes/pkg/registry/autoscaling/horizontalpodautoscaler"
	"k8s.io/kubernetes/pkg/registry/batch/cronjob"
	"k8s.io/kubernetes/pkg/registry/batch/job"
	"k8s.io/kubernetes/pkg/registry/coordination/lease"
	"k8s.io/kubernetes/pkg/registry/core/configmap"
	"k8s.io/kubernetes/pkg/registry/core/endpoint"
	"k8s.io/kubernetes/pkg/registry/core/limitrange"
	"k8s.io/kubernetes/pkg/registry/core/namespace"
	"k8s.io/kubernetes/pkg/registry/core/node"
	"k8s.io/kubernetes/pkg/registry/core/persistentvolume"
	"k8s.io/kubernetes/pkg/registry/core/persistentvolumeclaim"
	"k8s.io/kubernetes/pkg/registry/core/pod"
	"k8s.io/kubernetes/pkg/registry/core/podtemplate"
	"k8s.io/kubernetes/pkg/registry/core/replicationcontroller"
	"k8s.io/kubernetes/pkg/registry/core/resourcequota"
	"k8s.io/kubernetes/pkg/registry/core/secret"
	"k8s.io/kubernetes/pkg/registry/core/serviceaccount"
	"k8s.io/kubernetes/pkg/registry/discovery/endpointslice"
	"k8s.io/kubernetes/pkg/registry/networking/ingress"
	"k8s.io/kubernetes/pkg/registry/networking/ingressclass"
	"k8s.io/kubernetes/pkg/registry/networking/networkpolicy"
	"k8s.io/kubernetes/pkg/registry/node/runtimeclass"
	"k8s.io/kubernetes/pkg/registry/policy/poddisruptionbudget"
	"k8s.io/kubernetes/pkg/registry/rbac/clusterrole"
	"k8s.io/kubernetes/pkg/registry/rbac/clusterrolebinding"
	"k8s.io/kubernetes/pkg/registry/rbac/role"
	"k8s.io/kubernetes/pkg/registry/rbac/rolebinding"
	"k8s.io/kubernetes/pkg/registry/scheduling/priorityclass"
	"k8s.io/kubernetes/pkg/registry/storage/csidriver"
	"k8s.io/kubernetes/pkg/registry/storage/csinode"
	"k8s.io/kubernetes/pkg/registry/storage/storageclass"
	"k8s.io/kubernetes/pkg/registry/storage/volumeattachment"
)

// strategy is how upstream's registry treats a kind.
type strategy interface {
	rest.RESTCreateStrategy
	rest.RESTUpdateStrategy
}

func kind(group, name string) schema.GroupKind { return schema.GroupKind{Group: group, Kind: name} }

const (
	apps       = "apps"
	batch      = "batch"
	networking = "networking.k8s.io"
	rbac       = "rbac.authorization.k8s.io"
	storage    = "storage.k8s.io"
)

var strategies = map[schema.GroupKind]strategy{
	kind("", "Pod"):                                pod.Strategy,
	kind("", "ReplicationController"):              replicationcontroller.Strategy,
	kind("", "ConfigMap"):                          configmap.Strategy,
	kind("", "Secret"):                             secret.Strategy,
	kind("", "ServiceAccount"):                     serviceaccount.Strategy,
	kind("", "PersistentVolume"):                   persistentvolume.Strategy,
	kind("", "PersistentVolumeClaim"):              persistentvolumeclaim.Strategy,
	kind("", "LimitRange"):                         limitrange.Strategy,
	kind("", "ResourceQuota"):                      resourcequota.Strategy,
	kind("", "PodTemplate"):                        podtemplate.Strategy,
	kind("", "Namespace"):                          namespace.Strategy,
	kind("", "Node"):                               node.Strategy,
	kind("", "Endpoints"):                          endpoint.Strategy,
	kind(apps, "Deployment"):                       deployment.Strategy,
	kind(apps, "ReplicaSet"):                       replicaset.Strategy,
	kind(apps, "StatefulSet"):                      statefulset.Strategy,
	kind(apps, "DaemonSet"):                        daemonset.Strategy,
	kind(apps, "ControllerRevision"):               controllerrevision.Strategy,
	kind(batch, "Job"):                             job.Strategy,
	kind(batch, "CronJob"):                         cronjob.Strategy,
	kind("autoscaling", "HorizontalPodAutoscaler"): horizontalpodautoscaler.Strategy,
	kind("policy", "PodDisruptionBudget"):          poddisruptionbudget.Strategy,
	kind(networking, "Ingress"):                    ingress.Strategy,
	kind(networking, "IngressClass"):               ingressclass.Strategy,
	kind(networking, "NetworkPolicy"):              networkpolicy.Strategy,
	kind(rbac, "Role"):                             role.Strategy,
	kind(rbac, "ClusterRole"):                      clusterrole.Strategy,
	kind(rbac, "RoleBinding"):                      rolebinding.Strategy,
	kind(rbac, "ClusterRoleBinding"):               clusterrolebinding.Strategy,
	kind(storage, "StorageClass"):                  storageclass.Strategy,
	kind(storage, "CSIDriver"):                     csidriver.Strategy,
	kind(storage, "CSINode"):                       csinode.Strategy,
	kind(storage, "VolumeAttachment"):              volumeattachment.Strategy,
	kind("scheduling.k8s.io", "PriorityClass"):     priorityclass.Strategy,
	kind("node.k8s.io", "RuntimeClass"):            runtimeclass.Strategy,
	kind("coordination.k8s.io", "Lease"):           lease.Strategy,
	kind("discovery.k8s.io", "EndpointSlice"):      endpointslice.Strategy,
}
