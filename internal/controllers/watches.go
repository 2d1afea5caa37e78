package controllers

import (
	"k8s.io/client-go/kubernetes"

	"carob/internal/controllers/rootca"
	"carob/internal/controllers/serviceaccount"
	"carob/internal/controllers/source"
)

// watches are the watches that controllers share.
type watches struct {
	client kubernetes.Interface

	namespaces, pods, nodes, leases, budgets    *source.Watch
	accounts, configMaps                        *source.Watch // only those that controllers create
	statefulSets, daemonSets, revisions, claims *source.Watch
	jobs, cronJobs, autoscalers                 *source.Watch
	deployments, sets, replicationControllers   *source.Watch
	services, endpointSlices, legacyEndpoints   *source.Watch
	persistent, classes                         *source.Watch // run by the binder
	deviceClaims                                *source.Watch // run by its first user
}

func newWatches(c kubernetes.Interface) *watches {
	return &watches{client: c,
		namespaces: source.Namespaces(c), pods: source.Pods(c), nodes: source.Nodes(c), leases: source.Leases(c),
		budgets: source.Budgets(c), accounts: source.ServiceAccounts(c, serviceaccount.Name),
		configMaps: source.ConfigMaps(c, rootca.Name), statefulSets: source.StatefulSets(c),
		daemonSets: source.DaemonSets(c), revisions: source.Revisions(c), claims: source.VolumeClaims(c),
		jobs: source.Jobs(c), cronJobs: source.CronJobs(c), autoscalers: source.Autoscalers(c),
		deployments: source.Deployments(c), sets: source.ReplicaSets(c),
		replicationControllers: source.ReplicationControllers(c), services: source.Services(c),
		endpointSlices: source.EndpointSlices(c), legacyEndpoints: source.Endpoints(c),
		persistent: source.Volumes(c), classes: source.StorageClasses(c), deviceClaims: source.ResourceClaims(c)}
}

// shared returns the watches that the manager runs.
func (w *watches) shared() []*source.Watch {
	return []*source.Watch{w.namespaces, w.pods, w.nodes, w.accounts, w.configMaps, w.leases, w.budgets,
		w.statefulSets, w.daemonSets, w.revisions, w.claims, w.jobs, w.cronJobs, w.autoscalers, w.deployments, w.sets,
		w.replicationControllers, w.services, w.endpointSlices, w.legacyEndpoints}
}
