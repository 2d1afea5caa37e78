package controllers

import (
	"carob/internal/controllers/accounttokens"
	"carob/internal/controllers/attach"
	"carob/internal/controllers/autoscaler"
	"carob/internal/controllers/bootstrap"
	"carob/internal/controllers/certificates"
	"carob/internal/controllers/cronjob"
	"carob/internal/controllers/daemonset"
	"carob/internal/controllers/deployment"
	"carob/internal/controllers/devicetaints"
	"carob/internal/controllers/disruption"
	"carob/internal/controllers/endpoints"
	"carob/internal/controllers/endpointslice"
	"carob/internal/controllers/endpointslicemirroring"
	"carob/internal/controllers/ephemeral"
	"carob/internal/controllers/garbage"
	"carob/internal/controllers/job"
	"carob/internal/controllers/localpath"
	"carob/internal/controllers/namespace"
	"carob/internal/controllers/nodelifecycle"
	"carob/internal/controllers/podgc"
	"carob/internal/controllers/protection"
	"carob/internal/controllers/quota"
	"carob/internal/controllers/replicaset"
	"carob/internal/controllers/resourceclaim"
	"carob/internal/controllers/rootca"
	"carob/internal/controllers/serviceaccount"
	"carob/internal/controllers/servicecidr"
	"carob/internal/controllers/source"
	"carob/internal/controllers/statefulset"
	"carob/internal/controllers/tainteviction"
	"carob/internal/controllers/ttlafterfinished"
	"carob/internal/controllers/unusedclaims"
	"carob/internal/controllers/volumes"
	"carob/internal/core/volume"
)

// builder builds a controller with the client of its service account, identity.
type builder struct {
	identity string
	build    func(c Clients) (controller, error)
}

// builders returns a builder for each controller that runs from the start.
func (m *Manager) builders(w *watches, o Options) []builder {
	return []builder{
		{"namespace-controller", func(c Clients) (controller, error) {
			return namespace.New(c.Kubernetes, c.Kubernetes.Discovery(), c.Metadata, w.namespaces, w.pods)
		}},
		{"service-account-controller", func(c Clients) (controller, error) {
			return serviceaccount.New(c.Kubernetes, w.namespaces, w.accounts)
		}},
		{"root-ca-cert-publisher", func(c Clients) (controller, error) {
			return rootca.New(c.Kubernetes, o.RootCA, w.namespaces, w.configMaps)
		}},
		{"node-controller", func(c Clients) (controller, error) {
			m.eventSink = c.Kubernetes
			return nodelifecycle.New(c.Kubernetes, m.recorder("node-controller"), w.nodes, w.leases, w.pods)
		}},
		{"node-controller", func(c Clients) (controller, error) {
			return tainteviction.New(c.Kubernetes, m.recorder("taint-eviction-controller"), w.nodes, w.pods)
		}},
		{"pod-garbage-collector", func(c Clients) (controller, error) {
			return podgc.New(c.Kubernetes, w.nodes, w.pods)
		}},
		{"disruption-controller", func(c Clients) (controller, error) {
			return disruption.New(c.Kubernetes, m.recorder("controllermanager"), m.inventory, w.budgets, w.pods)
		}},
		{"statefulset-controller", func(c Clients) (controller, error) {
			return statefulset.New(c.Kubernetes, m.recorder("statefulset-controller"),
				statefulset.Watches{Sets: w.statefulSets, Pods: w.pods, Claims: w.claims, Revisions: w.revisions},
				o.DefaultStatefulSet)
		}},
		{"daemon-set-controller", func(c Clients) (controller, error) {
			return daemonset.New(c.Kubernetes, m.recorder("daemonset-controller"),
				daemonset.Watches{Sets: w.daemonSets, Pods: w.pods, Nodes: w.nodes, Revisions: w.revisions})
		}},
		{"job-controller", func(c Clients) (controller, error) {
			return job.New(c.Kubernetes, m.recorder("job-controller"), w.jobs, w.pods)
		}},
		{"cronjob-controller", func(c Clients) (controller, error) {
			return cronjob.New(c.Kubernetes, m.recorder("cronjob-controller"), w.cronJobs, w.jobs)
		}},
		{"horizontal-pod-autoscaler", func(c Clients) (controller, error) {
			return autoscaler.New(c.Kubernetes, m.recorder("horizontal-pod-autoscaler"), m.inventory, w.autoscalers,
				w.pods)
		}},
		{"ttl-after-finished-controller", func(c Clients) (controller, error) {
			return ttlafterfinished.New(c.Kubernetes, w.jobs)
		}},
		{"replicaset-controller", func(c Clients) (controller, error) {
			return replicaset.New(c.Kubernetes, m.recorder("replicaset-controller"), w.sets, w.pods)
		}},
		{"replication-controller", func(c Clients) (controller, error) {
			return replicaset.NewForReplicationControllers(c.Kubernetes, m.recorder("replication-controller"),
				w.replicationControllers, w.pods)
		}},
		{"deployment-controller", func(c Clients) (controller, error) {
			return deployment.New(c.Kubernetes, m.recorder("deployment-controller"), w.deployments, w.sets, w.pods)
		}},
		{"endpointslice-controller", func(c Clients) (controller, error) {
			return endpointslice.New(c.Kubernetes, m.recorder("endpoint-slice-controller"),
				endpointslice.Watches{Services: w.services, Pods: w.pods, Slices: w.endpointSlices, Nodes: w.nodes})
		}},
		{"endpoint-controller", func(c Clients) (controller, error) {
			return endpoints.New(c.Kubernetes, m.recorder("endpoint-controller"), w.services, w.pods, w.legacyEndpoints)
		}},
		{"ephemeral-volume-controller", func(c Clients) (controller, error) {
			return ephemeral.New(c.Kubernetes, m.recorder("ephemeral_volume"), w.pods, w.claims)
		}},
		{"resource-claim-controller", func(c Clients) (controller, error) {
			return resourceclaim.New(c.Kubernetes, m.recorder("resource_claim"), m.inventory, resourceclaim.Watches{
				Pods: w.pods, Claims: w.deviceClaims, Templates: source.ResourceClaimTemplates(w.client)})
		}},
		{devicetaints.Name, func(c Clients) (controller, error) {
			return devicetaints.New(c.Kubernetes, m.recorder(devicetaints.Name), m.inventory,
				devicetaints.Watches{Pods: w.pods, Claims: w.deviceClaims, Slices: source.ResourceSlices(w.client),
					Rules: source.DeviceTaintRules(w.client)})
		}},
		{"endpointslicemirroring-controller", func(c Clients) (controller, error) {
			return endpointslicemirroring.New(c.Kubernetes, m.recorder("endpoint-slice-mirroring-controller"),
				endpointslicemirroring.Watches{Services: w.services, Endpoints: w.legacyEndpoints,
					Slices: w.endpointSlices})
		}},
		{"persistent-volume-binder", func(c Clients) (controller, error) {
			return volumes.New(c.Kubernetes, m.recorder("persistentvolume-controller"),
				m.recorder(volume.ExpandComponent), m.inventory,
				volumes.Watches{Claims: w.claims, Pods: w.pods, Volumes: w.persistent, Classes: w.classes})
		}},
		{"persistent-volume-binder", func(c Clients) (controller, error) {
			if o.LocalDisk == nil {
				return idle{}, nil
			}
			return localpath.New(c.Kubernetes, m.recorder(volume.LocalProvisioner+"_"+o.Node), o.Node, o.LocalDisk,
				localpath.Watches{Claims: w.claims, Nodes: w.nodes, Volumes: w.persistent, Classes: w.classes})
		}},
		{"attachdetach-controller", func(c Clients) (controller, error) {
			return attach.New(c.Kubernetes, m.recorder("attachdetach-controller"), m.inventory,
				attach.Watches{Pods: w.pods, Nodes: w.nodes, Claims: w.claims, Volumes: w.persistent,
					Attachments: source.VolumeAttachments(w.client), Drivers: source.CSIDrivers(w.client)})
		}},
		{"pvc-protection-controller", func(c Clients) (controller, error) {
			return protection.Claims(c.Kubernetes, m.inventory, w.pods)
		}},
		{"pvc-protection-controller", func(c Clients) (controller, error) {
			return unusedclaims.New(c.Kubernetes, w.pods, w.claims)
		}},
		{"pv-protection-controller", func(c Clients) (controller, error) {
			return protection.Volumes(c.Kubernetes, m.inventory), nil
		}},
		{"volumeattributesclass-protection-controller", func(c Clients) (controller, error) {
			return protection.AttributesClasses(c.Kubernetes, m.inventory), nil
		}},
		{"token-cleaner", func(c Clients) (controller, error) {
			return bootstrap.NewCleaner(c.Kubernetes, m.inventory), nil
		}},
		{"legacy-service-account-token-cleaner", func(c Clients) (controller, error) {
			return accounttokens.NewUnused(w.client, c.Kubernetes, m.inventory), nil
		}},
		{"bootstrap-signer",
			func(c Clients) (controller, error) { return bootstrap.NewSigner(c.Kubernetes, m.inventory), nil }},
		{"certificate-controller", func(c Clients) (controller, error) {
			return certificates.New(c.Kubernetes, m.inventory, o.Signer), nil
		}},
		{"service-cidrs-controller", func(c Clients) (controller, error) {
			return servicecidr.New(c.Kubernetes, m.inventory), nil
		}},
		{"generic-garbage-collector", func(c Clients) (controller, error) {
			return garbage.New(c.Metadata, m.inventory, m.recorder("garbage-collector-controller")), nil
		}},
		{"resourcequota-controller", func(c Clients) (controller, error) {
			return quota.New(c.Kubernetes, c.Metadata, m.inventory), nil
		}},
	}
}
