package auth

import rbacv1 "k8s.io/api/rbac/v1"

const controllerPrefix = "system:controller:"

// controllers are the roles of the built-in controllers. Each is bound to the service account of the same name in
// kube-system.
func controllers() []struct {
	name  string
	rules []rbacv1.PolicyRule
} {
	type c = struct {
		name  string
		rules []rbacv1.PolicyRule
	}
	r := func(name string, rules ...rbacv1.PolicyRule) c { return c{name, rules} }
	return []c{
		r("attachdetach-controller", rule("list watch", "core", "persistentvolumeclaims persistentvolumes"),
			rule(read, "core", "nodes"), rule("list watch", "core", "pods"),
			rule("create delete get list watch", "storage.k8s.io", "volumeattachments"),
			rule("patch update", "core", "nodes/status"), eventsRule,
			rule("get list watch", "storage.k8s.io", "csidrivers csinodes")),
		r("clusterrole-aggregation-controller",
			rule("escalate get list patch update watch", "rbac.authorization.k8s.io", "clusterroles")),
		r("cronjob-controller", rule("get list update watch", "batch", "cronjobs"),
			rule("create delete get list patch update watch", "batch", "jobs"),
			rule("update", "batch", "cronjobs/status"), rule("update", "batch", "cronjobs/finalizers"),
			rule("delete list watch", "core", "pods"), eventsRule),
		r("daemon-set-controller", rule(read, "extensions apps", "daemonsets"),
			rule("update", "extensions apps", "daemonsets/status"),
			rule("update", "extensions apps", "daemonsets/finalizers"), rule("list watch", "core", "nodes"),
			rule("create delete list patch watch", "core", "pods"),
			rule("create", "core", "pods/binding"),
			rule("create delete get list patch update watch", "apps", "controllerrevisions"), eventsRule),
		r("device-taint-eviction-controller", rule("delete get list watch", "core", "pods"),
			rule("patch update", "core", "pods/status"),
			rule(read, "resource.k8s.io", "resourceclaims resourceslices deviceclasses devicetaintrules"),
			rule("patch update", "resource.k8s.io", "devicetaintrules/status"), eventsRule),
		r("kube-apiserver-serving-clustertrustbundle-publisher",
			rule("attest", "certificates.k8s.io", "signers", "kubernetes.io/kube-apiserver-serving"),
			rule("create delete list update watch", "certificates.k8s.io", "clustertrustbundles"), eventsRule),
		r("podcertificaterequestcleaner",
			rule("delete get list watch", "certificates.k8s.io", "podcertificaterequests")),
		r("storage-version-migrator-controller", rule("list patch", "*", "*"),
			rule("get", "apiextensions.k8s.io", "customresourcedefinitions"),
			rule("patch", "apiextensions.k8s.io", "customresourcedefinitions/status"),
			rule("update", "storagemigration.k8s.io", "storageversionmigrations/status")),
		r("volumeattributesclass-protection-controller", rule(read, "core", "persistentvolumeclaims persistentvolumes"),
			rule("get list update watch", "storage.k8s.io", "volumeattributesclasses"), eventsRule),
		r("deployment-controller", rule("get list update watch", "extensions apps", "deployments"),
			rule("update", "extensions apps", "deployments/status"),
			rule("update", "extensions apps", "deployments/finalizers"),
			rule("create delete get list patch update watch", "extensions apps", "replicasets"),
			rule("get list update watch", "core", "pods"), eventsRule),
		r("disruption-controller", rule(read, "extensions apps", "deployments"),
			rule(read, "extensions apps", "replicasets"), rule(read, "core", "replicationcontrollers"),
			rule(read, "policy", "poddisruptionbudgets"), rule(read, "apps", "statefulsets"),
			rule("update", "policy", "poddisruptionbudgets/status"),
			rule("get", "*", "*/scale"), eventsRule, rule("patch update", "core", "pods/status")),
		r("endpoint-controller", rule(read, "core", "pods services"),
			rule("create delete get list update watch", "core", "endpoints"),
			rule("create", "core", "endpoints/restricted"), eventsRule),
		r("endpointslice-controller", rule(read, "core", "nodes pods services"),
			rule("update", "core", "services/finalizers"),
			rule("create delete get list update watch", "discovery.k8s.io", "endpointslices"), eventsRule),
		r("endpointslicemirroring-controller", rule(read, "core", "endpoints services"),
			rule("update", "core", "services/finalizers"), rule("update", "core", "endpoints/finalizers"),
			rule("create delete get list update watch", "discovery.k8s.io", "endpointslices"), eventsRule),
		r("ephemeral-volume-controller", rule("get list watch", "core", "pods"),
			rule("update", "core", "pods/finalizers"), rule("create get list watch", "core", "persistentvolumeclaims"),
			eventsRule),
		r("expand-controller", rule("get list patch update watch", "core", "persistentvolumes"),
			rule("patch update", "core", "persistentvolumeclaims/status"),
			rule(read, "core", "persistentvolumeclaims"), eventsRule),
		r("generic-garbage-collector", rule("delete get list patch update watch", "*", "*"), eventsRule),
		r("horizontal-pod-autoscaler", rule(read, "autoscaling", "horizontalpodautoscalers"),
			rule("update", "autoscaling", "horizontalpodautoscalers/status"),
			rule("get update", "*", "*/scale"), rule("list watch", "core", "pods"),
			rule("list watch", "metrics.k8s.io", "pods"),
			rule("get list watch", "custom.metrics.k8s.io external.metrics.k8s.io", "*"), eventsRule),
		r("job-controller", rule("get list patch update watch", "batch", "jobs"),
			rule("update", "batch", "jobs/status"), rule("update", "batch", "jobs/finalizers"),
			rule("create delete list patch watch", "core", "pods"), eventsRule),
		r("legacy-service-account-token-cleaner",
			rule("get", "core", "configmaps", "kube-apiserver-legacy-service-account-token-tracking"),
			rule("delete patch", "core", "secrets")),
		r("namespace-controller", rule("delete get list watch", "core", "namespaces"),
			rule("update", "core", "namespaces/finalize namespaces/status"),
			rule("delete deletecollection get list watch", "*", "*")),
		r("node-controller", rule("delete get list patch update watch", "core", "nodes"),
			rule("patch update", "core", "nodes/status"), rule("patch update", "core", "pods/status"),
			rule("delete get list watch", "core", "pods"), rule("get list watch", "coordination.k8s.io", "leases"),
			eventsRule),
		r("persistent-volume-binder", rule("create delete get list update watch", "core", "persistentvolumes"),
			rule("update", "core", "persistentvolumes/status"),
			rule("get list update watch", "core", "persistentvolumeclaims"),
			rule("update", "core", "persistentvolumeclaims/status"),
			rule("create delete get list watch", "core", "pods"),
			rule(read, "storage.k8s.io", "storageclasses"), rule("list watch", "core", "nodes"),
			rule("watch", "core", "events"), eventsRule),
		r("pod-garbage-collector", rule("delete list watch", "core", "pods"), rule(read, "core", "nodes"),
			rule("patch", "core", "pods/status")),
		r("pv-protection-controller", rule("get list update watch", "core", "persistentvolumes"), eventsRule),
		r("pvc-protection-controller", rule("get list update watch", "core", "persistentvolumeclaims"),
			rule("update", "core", "persistentvolumeclaims/status"),
			rule(read, "core", "pods"), eventsRule),
		r("replicaset-controller", rule("get list update watch", "extensions apps", "replicasets"),
			rule("update", "extensions apps", "replicasets/status"),
			rule("update", "extensions apps", "replicasets/finalizers"),
			rule("create delete list patch watch", "core", "pods"), eventsRule),
		r("replication-controller", rule("get list update watch", "core", "replicationcontrollers"),
			rule("update", "core", "replicationcontrollers/status"),
			rule("update", "core", "replicationcontrollers/finalizers"),
			rule("create delete list patch watch", "core", "pods"), eventsRule),
		r("resource-claim-controller", rule("get list watch", "core", "pods"),
			rule("update", "core", "pods/finalizers"), rule("patch update", "core", "pods/status"),
			rule("create delete get list patch update watch", "resource.k8s.io", "resourceclaims"),
			rule("patch update", "resource.k8s.io", "resourceclaims/status resourceclaims/binding"), eventsRule),
		r("resourcequota-controller", rule("list watch", "*", "*"), rule("update", "core", "resourcequotas/status"),
			eventsRule),
		r("root-ca-cert-publisher", rule("create update", "core", "configmaps"), eventsRule),
		r("route-controller", rule("list watch", "core", "nodes"), rule("patch", "core", "nodes/status"), eventsRule),
		r("selinux-warning-controller", rule("get list watch", "core", "persistentvolumeclaims persistentvolumes pods"),
			rule("get list watch", "storage.k8s.io", "csidrivers"), eventsRule),
		r("service-account-controller", rule("create", "core", "serviceaccounts"), eventsRule),
		r("service-cidrs-controller", rule("get list patch update watch", "networking.k8s.io", "servicecidrs"),
			rule("patch update", "networking.k8s.io", "servicecidrs/finalizers servicecidrs/status"),
			rule(read, "networking.k8s.io", "ipaddresses"), eventsRule),
		r("service-controller", rule(read, "core", "services"), rule("patch update", "core", "services/status"),
			rule("list watch", "core", "nodes"), eventsRule),
		r("statefulset-controller", rule("list watch", "core", "pods"), rule(read, "apps", "statefulsets"),
			rule("update", "apps", "statefulsets/status"),
			rule("update", "apps", "statefulsets/finalizers"), rule("create delete get patch update", "core", "pods"),
			rule("create delete get list patch update watch", "apps", "controllerrevisions"),
			rule("create delete get list update watch", "core", "persistentvolumeclaims"),
			rule("update", "core", "pods/finalizers"), eventsRule),
		r("ttl-controller", rule("list patch update watch", "core", "nodes"), eventsRule),
		r("ttl-after-finished-controller", rule("delete get list watch", "batch", "jobs"), eventsRule),
		r("validatingadmissionpolicy-status-controller",
			rule(read, "admissionregistration.k8s.io", "validatingadmissionpolicies"),
			rule("get patch update", "admissionregistration.k8s.io", "validatingadmissionpolicies/status"), eventsRule),
		r("certificate-controller", rule("delete get list watch", "certificates.k8s.io", "certificatesigningrequests"),
			rule("update", "certificates.k8s.io",
				"certificatesigningrequests/approval certificatesigningrequests/status"),
			rule("approve", "certificates.k8s.io", "signers", "kubernetes.io/kube-apiserver-client-kubelet"),
			rule("sign", "certificates.k8s.io", "signers", "kubernetes.io/kube-apiserver-client",
				"kubernetes.io/kube-apiserver-client-kubelet", "kubernetes.io/kubelet-serving",
				"kubernetes.io/legacy-unknown"),
			rule("create", "authorization.k8s.io", "subjectaccessreviews"), eventsRule),
	}
}

func controllerRoles() []*rbacv1.ClusterRole {
	var out []*rbacv1.ClusterRole
	for _, c := range controllers() {
		out = append(out, clusterRole(controllerPrefix+c.name, c.rules...))
	}
	return out
}

func controllerBindings() []*rbacv1.ClusterRoleBinding {
	var out []*rbacv1.ClusterRoleBinding
	for _, c := range controllers() {
		out = append(out, bindCluster(controllerPrefix+c.name, controllerPrefix+c.name, account("kube-system", c.name)))
	}
	return out
}
