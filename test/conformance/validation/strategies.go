package main

import (
	"context"
	"fmt"
	"regexp"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/utils/clock"

	_ "k8s.io/kubernetes/pkg/apis/admissionregistration/install"
	_ "k8s.io/kubernetes/pkg/apis/apps/install"
	_ "k8s.io/kubernetes/pkg/apis/autoscaling/install"
	_ "k8s.io/kubernetes/pkg/apis/batch/install"
	_ "k8s.io/kubernetes/pkg/apis/certificates/install"
	_ "k8s.io/kubernetes/pkg/apis/coordination/install"
	_ "k8s.io/kubernetes/pkg/apis/core/install"
	_ "k8s.io/kubernetes/pkg/apis/discovery/install"
	_ "k8s.io/kubernetes/pkg/apis/flowcontrol/install"
	_ "k8s.io/kubernetes/pkg/apis/networking/install"
	_ "k8s.io/kubernetes/pkg/apis/node/install"
	_ "k8s.io/kubernetes/pkg/apis/policy/install"
	_ "k8s.io/kubernetes/pkg/apis/rbac/install"
	_ "k8s.io/kubernetes/pkg/apis/resource/install"
	_ "k8s.io/kubernetes/pkg/apis/scheduling/install"
	_ "k8s.io/kubernetes/pkg/apis/storage/install"
	_ "k8s.io/kubernetes/pkg/apis/storagemigration/install"

	"k8s.io/kubernetes/pkg/registry/admissionregistration/mutatingadmissionpolicy"
	"k8s.io/kubernetes/pkg/registry/admissionregistration/mutatingadmissionpolicybinding"
	"k8s.io/kubernetes/pkg/registry/admissionregistration/mutatingwebhookconfiguration"
	"k8s.io/kubernetes/pkg/registry/admissionregistration/validatingadmissionpolicy"
	"k8s.io/kubernetes/pkg/registry/admissionregistration/validatingadmissionpolicybinding"
	"k8s.io/kubernetes/pkg/registry/admissionregistration/validatingwebhookconfiguration"
	"k8s.io/kubernetes/pkg/registry/apps/controllerrevision"
	"k8s.io/kubernetes/pkg/registry/apps/daemonset"
	"k8s.io/kubernetes/pkg/registry/apps/deployment"
	"k8s.io/kubernetes/pkg/registry/apps/replicaset"
	"k8s.io/kubernetes/pkg/registry/apps/statefulset"
	"k8s.io/kubernetes/pkg/registry/autoscaling/horizontalpodautoscaler"
	"k8s.io/kubernetes/pkg/registry/batch/cronjob"
	"k8s.io/kubernetes/pkg/registry/batch/job"
	"k8s.io/kubernetes/pkg/registry/certificates/certificates"
	"k8s.io/kubernetes/pkg/registry/certificates/clustertrustbundle"
	"k8s.io/kubernetes/pkg/registry/certificates/podcertificaterequest"
	"k8s.io/kubernetes/pkg/registry/coordination/lease"
	"k8s.io/kubernetes/pkg/registry/core/configmap"
	"k8s.io/kubernetes/pkg/registry/core/endpoint"
	"k8s.io/kubernetes/pkg/registry/core/event"
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
	"k8s.io/kubernetes/pkg/registry/core/service"
	"k8s.io/kubernetes/pkg/registry/core/serviceaccount"
	"k8s.io/kubernetes/pkg/registry/discovery/endpointslice"
	"k8s.io/kubernetes/pkg/registry/flowcontrol/flowschema"
	"k8s.io/kubernetes/pkg/registry/flowcontrol/prioritylevelconfiguration"
	"k8s.io/kubernetes/pkg/registry/networking/ingress"
	"k8s.io/kubernetes/pkg/registry/networking/ingressclass"
	"k8s.io/kubernetes/pkg/registry/networking/ipaddress"
	"k8s.io/kubernetes/pkg/registry/networking/networkpolicy"
	"k8s.io/kubernetes/pkg/registry/networking/servicecidr"
	"k8s.io/kubernetes/pkg/registry/node/runtimeclass"
	"k8s.io/kubernetes/pkg/registry/policy/poddisruptionbudget"
	"k8s.io/kubernetes/pkg/registry/rbac/clusterrole"
	"k8s.io/kubernetes/pkg/registry/rbac/clusterrolebinding"
	"k8s.io/kubernetes/pkg/registry/rbac/role"
	"k8s.io/kubernetes/pkg/registry/rbac/rolebinding"
	"k8s.io/kubernetes/pkg/registry/resource/deviceclass"
	"k8s.io/kubernetes/pkg/registry/resource/devicetaintrule"
	"k8s.io/kubernetes/pkg/registry/resource/resourceclaim"
	"k8s.io/kubernetes/pkg/registry/resource/resourceclaimtemplate"
	"k8s.io/kubernetes/pkg/registry/resource/resourceslice"
	"k8s.io/kubernetes/pkg/registry/scheduling/priorityclass"
	"k8s.io/kubernetes/pkg/registry/storage/csidriver"
	"k8s.io/kubernetes/pkg/registry/storage/csinode"
	"k8s.io/kubernetes/pkg/registry/storage/csistoragecapacity"
	"k8s.io/kubernetes/pkg/registry/storage/storageclass"
	"k8s.io/kubernetes/pkg/registry/storage/volumeattachment"
	"k8s.io/kubernetes/pkg/registry/storage/volumeattributesclass"
	"k8s.io/kubernetes/pkg/registry/storagemigration/storagemigration"
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

const (
	certificate = "certificates.k8s.io"
	dra         = "resource.k8s.io"
	flow        = "flowcontrol.apiserver.k8s.io"
	admission   = "admissionregistration.k8s.io"
)

var strategies = map[schema.GroupKind]strategy{
	kind("", "Pod"):                                            pod.Strategy,
	kind("", "Service"):                                        service.Strategy,
	kind("", "Event"):                                          event.Strategy,
	kind(networking, "ServiceCIDR"):                            servicecidr.Strategy,
	kind(networking, "IPAddress"):                              ipaddress.Strategy,
	kind(storage, "CSIStorageCapacity"):                        csistoragecapacity.Strategy,
	kind(storage, "VolumeAttributesClass"):                     volumeattributesclass.Strategy,
	kind(certificate, "CertificateSigningRequest"):             certificates.Strategy,
	kind(certificate, "ClusterTrustBundle"):                    clustertrustbundle.Strategy,
	kind(certificate, "PodCertificateRequest"):                 podcertificaterequest.NewStrategy(),
	kind(dra, "DeviceClass"):                                   deviceclass.Strategy,
	kind(dra, "DeviceTaintRule"):                               devicetaintrule.Strategy,
	kind(dra, "ResourceClaim"):                                 claims,
	kind(dra, "ResourceClaimTemplate"):                         resourceclaimtemplate.NewStrategy(nil),
	kind(dra, "ResourceSlice"):                                 resourceslice.Strategy,
	kind("storagemigration.k8s.io", "StorageVersionMigration"): storagemigration.Strategy,
	kind(flow, "FlowSchema"):                                   flowschema.Strategy,
	kind(flow, "PriorityLevelConfiguration"):                   prioritylevelconfiguration.Strategy,
	kind(admission, "MutatingWebhookConfiguration"):            mutatingwebhookconfiguration.Strategy,
	kind(admission, "ValidatingWebhookConfiguration"):          validatingwebhookconfiguration.Strategy,
	kind(admission, "MutatingAdmissionPolicy"):                 mutatingadmissionpolicy.NewStrategy(nil, noResources{}),
	kind(admission, "MutatingAdmissionPolicyBinding"): mutatingadmissionpolicybinding.NewStrategy(nil, nil,
		noResources{}),
	kind(admission, "ValidatingAdmissionPolicy"): validatingPolicies,
	kind(admission, "ValidatingAdmissionPolicyBinding"): validatingadmissionpolicybinding.NewStrategy(nil, nil,
		noResources{}),
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

var validatingPolicies = validatingadmissionpolicy.NewStrategy(nil, noResources{})

// noResources has no resource of a kind: it is used only to authorize users.
type noResources struct{}

func (noResources) Resolve(gvk schema.GroupVersionKind) (schema.GroupVersionResource, error) {
	return schema.GroupVersionResource{}, fmt.Errorf("no resource of %v", gvk)
}

var claims = resourceclaim.NewStrategy(nil, allowAll{})

// allowAll permits everything: what a user may do is no part of the corpus.
type allowAll struct{}

func (allowAll) Authorize(context.Context, authorizer.Attributes) (authorizer.Decision, string, error) {
	return authorizer.DecisionAllow, "", nil
}

// part is a subresource, and which fields are changed through it.
type part struct {
	strategy rest.RESTUpdateStrategy
	fields   *regexp.Regexp
}

var ofStatus = regexp.MustCompile(`^/status(/|$)`)

// parts are the subresources that have a strategy of their own.
var parts = map[schema.GroupKind]map[string]part{
	kind("", "Pod"): {
		"status":              {pod.StatusStrategy, ofStatus},
		"ephemeralcontainers": {pod.EphemeralContainersStrategy, regexp.MustCompile(`^/spec/ephemeralContainers(/|$)`)},
		"resize": {pod.ResizeStrategy,
			regexp.MustCompile(`^/spec/((initC|c)ontainers(/[0-9]+(/name|/res.*)?)?|resources.*|nodeName)$`)},
	},
	kind("", "Service"): {"status": {service.StatusStrategy, ofStatus}},
	kind("", "Node"):    {"status": {node.StatusStrategy, ofStatus}},
	kind("", "Namespace"): {"status": {namespace.StatusStrategy, ofStatus},
		"finalize": {namespace.FinalizeStrategy, regexp.MustCompile(`^/spec(/|$)`)}},
	kind("", "PersistentVolume"): {"status": {persistentvolume.StatusStrategy, ofStatus}},
	kind("", "PersistentVolumeClaim"): {"status": {persistentvolumeclaim.StatusStrategy,
		ofStatus}},
	kind("", "ResourceQuota"): {"status": {resourcequota.StatusStrategy, ofStatus}},
	kind("", "ReplicationController"): {"status": {replicationcontroller.StatusStrategy,
		ofStatus}},
	kind(apps, "Deployment"):  {"status": {deployment.StatusStrategy, ofStatus}},
	kind(apps, "ReplicaSet"):  {"status": {replicaset.StatusStrategy, ofStatus}},
	kind(apps, "StatefulSet"): {"status": {statefulset.StatusStrategy, ofStatus}},
	kind(apps, "DaemonSet"):   {"status": {daemonset.StatusStrategy, ofStatus}},
	kind(batch, "Job"):        {"status": {job.StatusStrategy, ofStatus}},
	kind(batch, "CronJob"):    {"status": {cronjob.StatusStrategy, ofStatus}},
	kind("autoscaling", "HorizontalPodAutoscaler"): {"status": {horizontalpodautoscaler.StatusStrategy,
		ofStatus}},
	kind("policy", "PodDisruptionBudget"): {"status": {poddisruptionbudget.StatusStrategy,
		ofStatus}},
	kind(networking, "Ingress"):       {"status": {ingress.StatusStrategy, ofStatus}},
	kind(networking, "ServiceCIDR"):   {"status": {servicecidr.StatusStrategy, ofStatus}},
	kind(storage, "VolumeAttachment"): {"status": {volumeattachment.StatusStrategy, ofStatus}},
	kind(certificate, "CertificateSigningRequest"): {"status": {certificates.StatusStrategy, ofStatus},
		"approval": {certificates.ApprovalStrategy, ofStatus}},
	kind(certificate,
		"PodCertificateRequest"): {"status": {podcertificaterequest.NewStatusStrategy(
		podcertificaterequest.NewStrategy(), allowAll{}, clock.RealClock{}), ofStatus}},
	kind(dra, "DeviceTaintRule"): {"status": {devicetaintrule.StatusStrategy, ofStatus}},
	kind(storage, "CSINode"):     {"status": {csinode.StatusStrategy, ofStatus}},
	kind(admission,
		"ValidatingAdmissionPolicy"): {"status": {validatingadmissionpolicy.NewStatusStrategy(validatingPolicies),
		ofStatus}},
	kind(dra, "ResourceClaim"): {"status": {resourceclaim.NewStatusStrategy(claims),
		ofStatus}},
	kind("storagemigration.k8s.io", "StorageVersionMigration"): {"status": {storagemigration.StatusStrategy, ofStatus}},
	kind(flow, "FlowSchema"):                                   {"status": {flowschema.StatusStrategy, ofStatus}},
	kind(flow, "PriorityLevelConfiguration"): {"status": {prioritylevelconfiguration.StatusStrategy,
		ofStatus}},
}
