package auth

import (
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apiserver/pkg/authentication/user"
)

// DNSUser is the identity of carob's own DNS, and the name of its role.
const DNSUser = "system:carob-dns"

// Builtin returns the initial policy of every cluster: the roles and bindings of Kubernetes 1.37,
// except those that only alpha kinds need (pod groups), and one for carob's own DNS. The role
// system:node has no binding: Node authorizes nodes.
func Builtin() Policy {
	p := Policy{
		ClusterRoles: append([]*rbacv1.ClusterRole{
			clusterRole("cluster-admin", rule("*", "*", "*"), paths("*", "*")),
			clusterRole("system:discovery",
				paths("get",
					"/livez /readyz /healthz /version /version/ /openapi /openapi/* /api /api/* /apis /apis/*")),
			clusterRole("system:monitoring", rule("get", "core", "nodes/metrics"),
				paths("get",
					"/flagz /statusz /metrics /metrics/slis /livez /readyz /healthz /livez/* /readyz/* /healthz/*")),
			clusterRole("system:basic-user",
				rule("create", "authorization.k8s.io", "selfsubjectaccessreviews selfsubjectrulesreviews"),
				rule("create", "authentication.k8s.io", "selfsubjectreviews")),
			clusterRole("system:public-info-viewer", paths("get", "/livez /readyz /healthz /version /version/")),
			aggregated("admin", []string{"admin"}, concat(editRules(), viewRules(), adminRules())...),
			withLabel(aggregated("edit", []string{"edit"}, concat(editRules(), viewRules())...), "admin"),
			withLabel(aggregated("view", []string{"view"}, viewRules()...), "edit"),
			part("admin", adminRules()...), part("edit", editRules()...), part("view", viewRules()...),
			// As in metrics-server: users who may view may see the usage.
			withLabel(withLabel(withLabel(clusterRole("system:aggregated-metrics-reader",
				rule(read, "metrics.k8s.io", "pods nodes")), "view"), "edit"), "admin"),
			clusterRole("system:heapster", rule(read, "core", "events namespaces nodes pods"),
				rule(read, "extensions", "deployments")),
			clusterRole("system:node", nodeRules()...),
			clusterRole("system:node-problem-detector", rule("get", "core", "nodes"),
				rule("patch", "core", "nodes/status"), eventsRule),
			clusterRole("system:kubelet-api-admin", rule(read, "core", "nodes"), rule("proxy", "core", "nodes"),
				rule("*", "core",
					"nodes/proxy nodes/metrics nodes/stats nodes/log nodes/configz nodes/healthz nodes/pods")),
			clusterRole("system:node-bootstrapper",
				rule("create "+read, "certificates.k8s.io", "certificatesigningrequests")),
			clusterRole("system:auth-delegator", rule("create", "authentication.k8s.io", "tokenreviews"),
				rule("create", "authorization.k8s.io", "subjectaccessreviews")),
			clusterRole("system:kube-aggregator", rule(read, "core", "services endpoints")),
			clusterRole("system:kube-controller-manager", controllerManagerRules()...),
			clusterRole("system:kube-dns", rule("list watch", "core", "endpoints services")),
			clusterRole("system:persistent-volume-provisioner",
				rule("create delete "+read, "core", "persistentvolumes"),
				rule("get list update watch", "core", "persistentvolumeclaims"),
				rule(read, "storage.k8s.io", "storageclasses"), rule("watch", "core", "events"), eventsRule),
			clusterRole("system:certificates.k8s.io:certificatesigningrequests:nodeclient",
				rule("create", "certificates.k8s.io", "certificatesigningrequests/nodeclient")),
			clusterRole("system:certificates.k8s.io:certificatesigningrequests:selfnodeclient",
				rule("create", "certificates.k8s.io", "certificatesigningrequests/selfnodeclient")),
			approver("kube-apiserver-client-approver", "kubernetes.io/kube-apiserver-client"),
			approver("kube-apiserver-client-kubelet-approver", "kubernetes.io/kube-apiserver-client-kubelet"),
			approver("kubelet-serving-approver", "kubernetes.io/kubelet-serving"),
			approver("legacy-unknown-approver", "kubernetes.io/legacy-unknown"),
			clusterRole("system:volume-scheduler", rule("get list patch update watch", "core", "persistentvolumes"),
				rule(read, "storage.k8s.io", "storageclasses"),
				rule("get list patch update watch", "core", "persistentvolumeclaims")),
			clusterRole("system:kube-scheduler", schedulerRules()...),
			clusterRole("system:node-proxier", rule("list watch", "core", "services endpoints"),
				rule(read, "core", "nodes"), eventsRule,
				rule("list watch", "discovery.k8s.io", "endpointslices"),
				rule("list watch", "networking.k8s.io", "servicecidrs")),
			clusterRole("system:service-account-issuer-discovery",
				paths("get",
					"/.well-known/openid-configuration /.well-known/openid-configuration/ /openid/v1/jwks /openid/v1/jwks/")),
			clusterRole("system:cluster-trust-bundle-discovery",
				rule(read, "certificates.k8s.io", "clustertrustbundles")),
			// carob's own DNS, a part of the node: what the kubernetes plugin of CoreDNS reads.
			clusterRole(DNSUser, rule("list watch", "core", "namespaces pods services"),
				rule("list watch", "discovery.k8s.io", "endpointslices")),
		}, controllerRoles()...),
		ClusterRoleBindings: append([]*rbacv1.ClusterRoleBinding{
			bindCluster("cluster-admin", "cluster-admin", groupSubject(user.SystemPrivilegedGroup)),
			bindCluster("system:monitoring", "system:monitoring", groupSubject(user.MonitoringGroup)),
			bindCluster("system:discovery", "system:discovery", groupSubject(user.AllAuthenticated)),
			bindCluster("system:basic-user", "system:basic-user", groupSubject(user.AllAuthenticated)),
			bindCluster("system:public-info-viewer", "system:public-info-viewer", groupSubject(user.AllAuthenticated),
				groupSubject(user.AllUnauthenticated)),
			bindCluster("system:node-proxier", "system:node-proxier", userSubject(user.KubeProxy)),
			bindCluster("system:kube-controller-manager", "system:kube-controller-manager",
				userSubject(user.KubeControllerManager)),
			bindCluster("system:kube-dns", "system:kube-dns", account("kube-system", "kube-dns")),
			bindCluster(DNSUser, DNSUser, userSubject(DNSUser)),
			bindCluster("system:kube-scheduler", "system:kube-scheduler", userSubject(user.KubeScheduler)),
			bindCluster("system:volume-scheduler", "system:volume-scheduler", userSubject(user.KubeScheduler)),
			bindCluster("system:node", "system:node"), // no binding: the node authorizer authorizes nodes
			bindCluster("system:service-account-issuer-discovery", "system:service-account-issuer-discovery",
				groupSubject("system:serviceaccounts")),
			bindCluster("system:cluster-trust-bundle-discovery", "system:cluster-trust-bundle-discovery",
				groupSubject("system:serviceaccounts")),
		}, controllerBindings()...),
		Roles: []*rbacv1.Role{
			namespacedRole("kube-system", "extension-apiserver-authentication-reader",
				rule(read, "core", "configmaps", "extension-apiserver-authentication")),
			namespacedRole("kube-system", DNSUser, rule("create", "core", "events services"),
				rule("get update", "core", "services", "kube-dns"),
				rule("create", "discovery.k8s.io", "endpointslices"),
				rule("delete get update", "discovery.k8s.io", "endpointslices", "kube-dns-carob", "kube-dns-carob-second"),
				rule(read, "core", "configmaps", "coredns")),
			namespacedRole("kube-system", "system:controller:bootstrap-signer", rule(read, "core", "secrets")),
			namespacedRole("kube-system", "system:controller:cloud-provider",
				rule("create "+read, "core", "configmaps")),
			namespacedRole("kube-system", "system:controller:token-cleaner", rule("delete "+read, "core", "secrets"),
				eventsRule),
			namespacedRole("kube-system", "system::leader-locking-kube-controller-manager",
				rule("create get list update watch", "coordination.k8s.io", "leases leasecandidates")),
			namespacedRole("kube-system", "system::leader-locking-kube-scheduler",
				rule("create get list update watch", "coordination.k8s.io", "leases leasecandidates")),
			namespacedRole("kube-public", "system:controller:bootstrap-signer", rule(read, "core", "configmaps"),
				rule("update", "core", "configmaps", "cluster-info"), eventsRule),
		},
		RoleBindings: []*rbacv1.RoleBinding{
			bind("kube-system", "system::extension-apiserver-authentication-reader",
				"extension-apiserver-authentication-reader",
				userSubject(user.KubeControllerManager), userSubject(user.KubeScheduler)),
			bind("kube-system", DNSUser, DNSUser, userSubject(DNSUser)),
			bind("kube-system", "system:controller:bootstrap-signer", "system:controller:bootstrap-signer",
				account("kube-system", "bootstrap-signer")),
			bind("kube-system", "system:controller:cloud-provider", "system:controller:cloud-provider",
				account("kube-system", "cloud-provider")),
			bind("kube-system", "system:controller:token-cleaner", "system:controller:token-cleaner",
				account("kube-system", "token-cleaner")),
			bind("kube-system", "system::leader-locking-kube-controller-manager",
				"system::leader-locking-kube-controller-manager",
				userSubject(user.KubeControllerManager), account("kube-system", "kube-controller-manager"),
				account("kube-system", "leader-election-controller")),
			bind("kube-system", "system::leader-locking-kube-scheduler", "system::leader-locking-kube-scheduler",
				userSubject(user.KubeScheduler), account("kube-system", "kube-scheduler")),
			bind("kube-public", "system:controller:bootstrap-signer", "system:controller:bootstrap-signer",
				account("kube-system", "bootstrap-signer")),
		},
	}
	return p
}

func withLabel(r *rbacv1.ClusterRole, to string) *rbacv1.ClusterRole {
	r.Labels[aggregateTo+to] = "true"
	return r
}

func approver(name, signer string) *rbacv1.ClusterRole {
	return clusterRole("system:certificates.k8s.io:"+name, rule("approve", "certificates.k8s.io", "signers", signer))
}

func adminRules() []rbacv1.PolicyRule {
	return []rbacv1.PolicyRule{
		rule("create", "authorization.k8s.io", "localsubjectaccessreviews"),
		rule(readWrite, "rbac.authorization.k8s.io", "roles rolebindings"),
	}
}

func editRules() []rbacv1.PolicyRule {
	return []rbacv1.PolicyRule{
		rule(read, "core", "pods/attach pods/proxy pods/exec pods/portforward secrets services/proxy"),
		rule("impersonate", "core", "serviceaccounts"),
		rule(write, "core", "pods pods/attach pods/proxy pods/exec pods/portforward"),
		rule("create", "core", "pods/eviction"),
		rule(write, "core",
			"replicationcontrollers replicationcontrollers/scale serviceaccounts services services/proxy persistentvolumeclaims configmaps secrets events"),
		rule("create", "core", "serviceaccounts/token"),
		rule(write, "apps",
			"statefulsets statefulsets/scale daemonsets deployments deployments/scale deployments/rollback replicasets replicasets/scale"),
		rule(write, "autoscaling", "horizontalpodautoscalers"),
		rule(write, "batch", "jobs cronjobs"),
		rule(write, "extensions",
			"daemonsets deployments deployments/scale deployments/rollback ingresses replicasets replicasets/scale replicationcontrollers/scale networkpolicies"),
		rule(write, "policy", "poddisruptionbudgets"),
		rule(write, "events.k8s.io", "events"),
		rule(write, "networking.k8s.io", "networkpolicies ingresses"),
		rule(readWrite, "coordination.k8s.io", "leases"),
		rule(write, "resource.k8s.io", "resourceclaims resourceclaimtemplates"),
	}
}

func viewRules() []rbacv1.PolicyRule {
	return []rbacv1.PolicyRule{
		rule(read, "core",
			"pods replicationcontrollers replicationcontrollers/scale serviceaccounts services endpoints persistentvolumeclaims configmaps"),
		rule(read, "core",
			"limitranges resourcequotas bindings events pods/status resourcequotas/status namespaces/status replicationcontrollers/status pods/log"),
		rule(read, "core", "persistentvolumeclaims/status services/status"),
		rule(read, "core", "namespaces"),
		rule(read, "discovery.k8s.io", "endpointslices"),
		rule(read, "events.k8s.io", "events"),
		rule(read, "apps",
			"controllerrevisions statefulsets statefulsets/status statefulsets/scale daemonsets daemonsets/status deployments deployments/status deployments/scale "+
				"replicasets replicasets/status replicasets/scale"),
		rule(read, "autoscaling", "horizontalpodautoscalers horizontalpodautoscalers/status"),
		rule(read, "batch", "jobs cronjobs cronjobs/status jobs/status"),
		rule(read, "extensions",
			"daemonsets daemonsets/status deployments deployments/scale deployments/status ingresses ingresses/status replicasets replicasets/scale "+
				"replicasets/status replicationcontrollers/scale networkpolicies"),
		rule(read, "policy", "poddisruptionbudgets poddisruptionbudgets/status"),
		rule(read, "networking.k8s.io", "networkpolicies ingresses ingresses/status"),
		rule(read, "resource.k8s.io", "resourceclaims resourceclaims/status resourceclaimtemplates"),
	}
}

func nodeRules() []rbacv1.PolicyRule {
	return []rbacv1.PolicyRule{
		rule("create", "authentication.k8s.io", "tokenreviews"),
		rule("create", "authorization.k8s.io", "localsubjectaccessreviews subjectaccessreviews"),
		rule(read, "core", "services"),
		rule("create get list watch", "core", "nodes"),
		rule("patch update", "core", "nodes/status"),
		rule("patch update", "core", "nodes"),
		eventsRule,
		rule(read, "core", "pods"),
		rule("create delete", "core", "pods"),
		rule("patch update", "core", "pods/status"),
		rule("create", "core", "pods/eviction"),
		rule(read, "core", "configmaps secrets"),
		rule("get", "core", "persistentvolumeclaims persistentvolumes"),
		rule("get", "core", "endpoints"),
		rule("create get list watch", "certificates.k8s.io", "certificatesigningrequests"),
		rule("create delete get patch update", "coordination.k8s.io", "leases"),
		rule("get", "storage.k8s.io", "volumeattachments"),
		rule("create", "core", "serviceaccounts/token"),
		rule("get patch update", "core", "persistentvolumeclaims/status"),
		rule(read, "storage.k8s.io", "csidrivers"),
		rule("create delete get patch update", "storage.k8s.io", "csinodes"),
		rule("create "+read, "certificates.k8s.io", "podcertificaterequests"),
		rule(read, "node.k8s.io", "runtimeclasses"),
		rule("get", "resource.k8s.io", "resourceclaims"),
		rule("deletecollection", "resource.k8s.io", "resourceslices"),
		rule(read, "certificates.k8s.io", "clustertrustbundles"),
		rule("get", "core", "serviceaccounts"),
	}
}

func schedulerRules() []rbacv1.PolicyRule {
	return []rbacv1.PolicyRule{
		eventsRule,
		rule("create", "coordination.k8s.io", "leases"),
		rule("get list update watch", "coordination.k8s.io", "leases", "kube-scheduler"),
		rule(readWrite, "coordination.k8s.io", "leasecandidates"),
		rule(read, "core", "nodes"),
		rule("delete "+read, "core", "pods"),
		rule("create", "core", "bindings pods/binding"),
		rule("patch update", "core", "pods/status"),
		rule(read, "core", "replicationcontrollers services"),
		rule(read, "apps extensions", "replicasets"),
		rule(read, "apps", "statefulsets"),
		rule(read, "policy", "poddisruptionbudgets"),
		rule(read, "core", "persistentvolumeclaims persistentvolumes"),
		rule("create", "authentication.k8s.io", "tokenreviews"),
		rule("create", "authorization.k8s.io", "subjectaccessreviews"),
		rule(read, "storage.k8s.io", "csinodes csidrivers csistoragecapacities volumeattachments"),
		rule(read, "core", "namespaces"),
		rule(read, "resource.k8s.io", "deviceclasses resourceslices devicetaintrules"),
		rule("create delete get list patch update watch", "resource.k8s.io", "resourceclaims"),
		rule("get list patch update watch", "resource.k8s.io", "resourceclaims/status"),
		rule("patch update", "resource.k8s.io", "resourceclaims/binding"),
		rule("update", "core", "pods/finalizers"),
	}
}

func controllerManagerRules() []rbacv1.PolicyRule {
	return []rbacv1.PolicyRule{
		eventsRule,
		rule("create", "coordination.k8s.io", "leases"),
		rule("get update", "coordination.k8s.io", "leases", "kube-controller-manager"),
		rule("create", "core", "secrets serviceaccounts"),
		rule("delete", "core", "secrets"),
		rule("get", "core", "configmaps namespaces secrets serviceaccounts"),
		rule("update", "core", "secrets serviceaccounts"),
		rule("create", "authentication.k8s.io", "tokenreviews"),
		rule("create", "authorization.k8s.io", "subjectaccessreviews"),
		rule("list watch", "*", "*"),
		rule("create", "core", "serviceaccounts/token"),
	}
}
