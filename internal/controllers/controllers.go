// Package controllers runs the controllers of the cluster in one process, on one set of watches.
// app runs it; each controller has its own package and communicates with the others only through
// the API.
//
// Contract: docs/spec/pod-lifecycle.md.
package controllers

import (
	"context"
	"fmt"
	"sync"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/record"
	"k8s.io/klog/v2"

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
	"carob/internal/controllers/inventory"
	"carob/internal/controllers/job"
	"carob/internal/controllers/localpath"
	"carob/internal/controllers/metrics"
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
	"carob/internal/controllers/unused"
	"carob/internal/controllers/volumes"
	"carob/internal/controllers/vpa"
	"carob/internal/core/volume"
)

// Options are what controllers need in addition to the API.
type Options struct {
	RootCA []byte // PEM of the API server's certificate authority, published in every namespace
	// Signer signs approved certificate requests; nil: another controller signs them.
	Signer certificates.Signer
	// SecretToken makes the tokens that Secrets hold; nil: these Secrets stay empty.
	SecretToken accounttokens.Signer
	// DefaultStatefulSet sets the defaults of a StatefulSet like the API server.
	DefaultStatefulSet func(*appsv1.StatefulSet)
	// Node is where LocalDisk keeps the volumes of the class local-path; nil: another provisioner
	// handles them.
	Node      string
	LocalDisk localpath.Disk
	// PodAutoscaler, optional, is called with the controller that sizes new pods, and with nil when
	// it stops.
	PodAutoscaler func(PodAutoscaler)
	// As returns a client configuration for another user. Each controller acts as its own service
	// account, system:serviceaccount:kube-system:NAME, which has only the permissions that it
	// needs. nil: all act as the user of the manager's config.
	As func(user string, groups ...string) *rest.Config
}

// PodAutoscaler sets the recommended requests of a pod that is being created.
type PodAutoscaler interface {
	AdmitPod(ctx context.Context, pod *corev1.Pod, ranges []*corev1.LimitRange)
}

// Clients are the clients of the API.
type Clients struct {
	Kubernetes kubernetes.Interface
	Metadata   metadata.Interface
	// Dynamic makes the client for custom resources, which only add-ons use; nil without add-ons.
	Dynamic func() (dynamic.Interface, error)
}

// controller is one of the controllers; it ends with its context.
type controller interface{ Run(ctx context.Context) }

// idle is a disabled controller.
type idle struct{}

func (idle) Run(context.Context) {}

// Measure updates the metrics that are not updated by events. Call it before they are read.
func Measure() { metrics.Update() }

// Manager runs all controllers. Make it with New and Run it once.
type Manager struct {
	inventory   *inventory.Inventory
	watches     []*source.Watch
	controllers []controller
	events      record.EventBroadcaster
	eventSink   kubernetes.Interface
	synced      chan struct{}
	vpa         addon
}

// New returns a manager that watches through the API of cfg and writes with the clients of o.As.
// The client-side rate limit is lifted.
func New(cfg *rest.Config, o Options) (*Manager, error) {
	metrics.Register()
	watcher, err := connect(cfg)
	if err != nil {
		return nil, err
	}
	as := func(string) (Clients, error) { return watcher, nil }
	if o.As != nil {
		as = func(name string) (Clients, error) {
			return connect(o.As("system:serviceaccount:kube-system:"+name, "system:serviceaccounts",
				"system:serviceaccounts:kube-system"))
		}
	}
	return newManager(watcher, as, o)
}

func connect(cfg *rest.Config) (Clients, error) {
	c := rest.CopyConfig(cfg)
	c.QPS = -1
	c.WarningHandler = rest.NoWarnings{} // the deletion of namespaces also lists deprecated kinds
	var clients Clients
	var err error
	if clients.Metadata, err = metadata.NewForConfig(c); err != nil {
		return clients, fmt.Errorf("controllers: make metadata client: %w", err)
	}
	custom := rest.CopyConfig(c)
	clients.Dynamic = func() (dynamic.Interface, error) { return dynamic.NewForConfig(custom) }
	if c.ContentType == "" {
		c.ContentType = "application/vnd.kubernetes.protobuf"
		c.AcceptContentTypes = "application/vnd.kubernetes.protobuf,application/json"
	}
	if clients.Kubernetes, err = kubernetes.NewForConfig(c); err != nil {
		return clients, fmt.Errorf("controllers: make API client: %w", err)
	}
	return clients, nil
}

// inventoryAfter delays the inventory, so that it does not slow down the first pods: garbage
// collection can wait.
const inventoryAfter = 3 * time.Second

// newManager builds the controllers on shared watches; as returns the client of each controller.
func newManager(clients Clients, as func(name string) (Clients, error), o Options) (*Manager, error) {
	watcher := clients.Kubernetes
	namespaces, pods, nodes := source.Namespaces(watcher), source.Pods(watcher), source.Nodes(watcher)
	accounts, configMaps := source.ServiceAccounts(watcher, serviceaccount.Name),
		source.ConfigMaps(watcher, rootca.Name)
	leases, budgets := source.Leases(watcher), source.Budgets(watcher)
	statefulSets, daemonSets := source.StatefulSets(watcher), source.DaemonSets(watcher)
	revisions, claims := source.Revisions(watcher), source.VolumeClaims(watcher)
	jobs, cronJobs, autoscalers := source.Jobs(watcher), source.CronJobs(watcher), source.Autoscalers(watcher)
	deployments, sets, replicationControllers := source.Deployments(watcher), source.ReplicaSets(watcher),
		source.ReplicationControllers(watcher)
	services, endpointSlices, legacyEndpoints := source.Services(watcher), source.EndpointSlices(watcher),
		source.Endpoints(watcher)
	persistent, classes := source.Volumes(watcher), source.StorageClasses(watcher) // run by the binder
	deviceClaims := source.ResourceClaims(watcher)                                 // run by its first user
	m := &Manager{
		inventory: inventory.New(watcher.Discovery(), clients.Metadata, inventoryAfter),
		watches: []*source.Watch{namespaces, pods, nodes, accounts, configMaps, leases, budgets,
			statefulSets, daemonSets, revisions, claims, jobs, cronJobs, autoscalers, deployments, sets,
			replicationControllers, services, endpointSlices, legacyEndpoints},
		events: record.NewBroadcaster(),
		synced: make(chan struct{}),
	}
	m.vpa.make = func() (controller, error) {
		return m.newVPA(as, vpa.Owners{Deployments: deployments, ReplicaSets: sets, StatefulSets: statefulSets,
			DaemonSets: daemonSets, Jobs: jobs, CronJobs: cronJobs, ReplicationControllers: replicationControllers})
	}
	m.vpa.set = o.PodAutoscaler
	for _, part := range []struct {
		identity string
		make     func(c Clients) (controller, error)
	}{
		{"namespace-controller", func(c Clients) (controller, error) {
			return namespace.New(c.Kubernetes, c.Kubernetes.Discovery(), c.Metadata, namespaces, pods)
		}},
		{"service-account-controller", func(c Clients) (controller, error) {
			return serviceaccount.New(c.Kubernetes, namespaces, accounts)
		}},
		{"root-ca-cert-publisher", func(c Clients) (controller, error) {
			return rootca.New(c.Kubernetes, o.RootCA, namespaces, configMaps)
		}},
		{"node-controller", func(c Clients) (controller, error) {
			m.eventSink = c.Kubernetes
			return nodelifecycle.New(c.Kubernetes, m.recorder("node-controller"), nodes, leases, pods)
		}},
		{"node-controller", func(c Clients) (controller, error) {
			return tainteviction.New(c.Kubernetes, m.recorder("taint-eviction-controller"), nodes, pods)
		}},
		{"pod-garbage-collector", func(c Clients) (controller, error) {
			return podgc.New(c.Kubernetes, nodes, pods)
		}},
		{"disruption-controller", func(c Clients) (controller, error) {
			return disruption.New(c.Kubernetes, m.recorder("controllermanager"), m.inventory, budgets, pods)
		}},
		{"statefulset-controller", func(c Clients) (controller, error) {
			return statefulset.New(c.Kubernetes, m.recorder("statefulset-controller"),
				statefulset.Watches{Sets: statefulSets, Pods: pods, Claims: claims, Revisions: revisions},
				o.DefaultStatefulSet)
		}},
		{"daemon-set-controller", func(c Clients) (controller, error) {
			return daemonset.New(c.Kubernetes, m.recorder("daemonset-controller"),
				daemonset.Watches{Sets: daemonSets, Pods: pods, Nodes: nodes, Revisions: revisions})
		}},
		{"job-controller", func(c Clients) (controller, error) {
			return job.New(c.Kubernetes, m.recorder("job-controller"), jobs, pods)
		}},
		{"cronjob-controller", func(c Clients) (controller, error) {
			return cronjob.New(c.Kubernetes, m.recorder("cronjob-controller"), cronJobs, jobs)
		}},
		{"horizontal-pod-autoscaler", func(c Clients) (controller, error) {
			return autoscaler.New(c.Kubernetes, m.recorder("horizontal-pod-autoscaler"), m.inventory, autoscalers, pods)
		}},
		{"ttl-after-finished-controller", func(c Clients) (controller, error) {
			return ttlafterfinished.New(c.Kubernetes, jobs)
		}},
		{"replicaset-controller", func(c Clients) (controller, error) {
			return replicaset.New(c.Kubernetes, m.recorder("replicaset-controller"), sets, pods)
		}},
		{"replication-controller", func(c Clients) (controller, error) {
			return replicaset.NewForReplicationControllers(c.Kubernetes, m.recorder("replication-controller"),
				replicationControllers, pods)
		}},
		{"deployment-controller", func(c Clients) (controller, error) {
			return deployment.New(c.Kubernetes, m.recorder("deployment-controller"), deployments, sets, pods)
		}},
		{"endpointslice-controller", func(c Clients) (controller, error) {
			return endpointslice.New(c.Kubernetes, m.recorder("endpoint-slice-controller"),
				endpointslice.Watches{Services: services, Pods: pods, Slices: endpointSlices, Nodes: nodes})
		}},
		{"endpoint-controller", func(c Clients) (controller, error) {
			return endpoints.New(c.Kubernetes, m.recorder("endpoint-controller"), services, pods, legacyEndpoints)
		}},
		{"ephemeral-volume-controller", func(c Clients) (controller, error) {
			return ephemeral.New(c.Kubernetes, m.recorder("ephemeral_volume"), pods, claims)
		}},
		{"resource-claim-controller", func(c Clients) (controller, error) {
			return resourceclaim.New(c.Kubernetes, m.recorder("resource_claim"), m.inventory, resourceclaim.Watches{
				Pods: pods, Claims: deviceClaims, Templates: source.ResourceClaimTemplates(watcher)})
		}},
		{devicetaints.Name, func(c Clients) (controller, error) {
			return devicetaints.New(c.Kubernetes, m.recorder(devicetaints.Name), m.inventory,
				devicetaints.Watches{Pods: pods, Claims: deviceClaims, Slices: source.ResourceSlices(watcher),
					Rules: source.DeviceTaintRules(watcher)})
		}},
		{"endpointslicemirroring-controller", func(c Clients) (controller, error) {
			return endpointslicemirroring.New(c.Kubernetes, m.recorder("endpoint-slice-mirroring-controller"),
				endpointslicemirroring.Watches{Services: services, Endpoints: legacyEndpoints, Slices: endpointSlices})
		}},
		{"persistent-volume-binder", func(c Clients) (controller, error) {
			return volumes.New(c.Kubernetes, m.recorder("persistentvolume-controller"),
				m.recorder(volume.ExpandComponent), m.inventory,
				volumes.Watches{Claims: claims, Pods: pods, Volumes: persistent, Classes: classes})
		}},
		{"persistent-volume-binder", func(c Clients) (controller, error) {
			if o.LocalDisk == nil {
				return idle{}, nil
			}
			return localpath.New(c.Kubernetes, m.recorder(volume.LocalProvisioner+"_"+o.Node), o.Node, o.LocalDisk,
				localpath.Watches{Claims: claims, Nodes: nodes, Volumes: persistent, Classes: classes})
		}},
		{"attachdetach-controller", func(c Clients) (controller, error) {
			return attach.New(c.Kubernetes, m.recorder("attachdetach-controller"), m.inventory,
				attach.Watches{Pods: pods, Nodes: nodes, Claims: claims, Volumes: persistent,
					Attachments: source.VolumeAttachments(watcher), Drivers: source.CSIDrivers(watcher)})
		}},
		{"pvc-protection-controller", func(c Clients) (controller, error) {
			return protection.Claims(c.Kubernetes, m.inventory, pods)
		}},
		{"pvc-protection-controller", func(c Clients) (controller, error) {
			return unused.New(c.Kubernetes, pods, claims)
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
			return accounttokens.NewUnused(watcher, c.Kubernetes, m.inventory), nil
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
	} {
		clients, err := as(part.identity)
		if err != nil {
			return nil, err
		}
		c, err := part.make(clients)
		if err != nil {
			return nil, fmt.Errorf("controllers: %w", err)
		}
		m.controllers = append(m.controllers, c)
	}
	if o.SecretToken != nil {
		// The manager's own user may write Secrets; the controllers' service accounts may not.
		m.controllers = append(m.controllers, accounttokens.New(watcher, m.inventory, o.SecretToken, o.RootCA))
	}
	return m, nil
}

func (m *Manager) recorder(component string) record.EventRecorder {
	return m.events.NewRecorder(scheme.Scheme, corev1.EventSource{Component: component})
}

// Synced is closed once the watches delivered their first lists and the controllers run. Programs that measure or
// compare controllers wait for it.
func (m *Manager) Synced() <-chan struct{} { return m.synced }

// Run runs the controllers until ctx ends, and returns when all of them have ended.
func (m *Manager) Run(ctx context.Context) error {
	ctx = klog.NewContext(ctx, klog.FromContext(ctx).WithName("controllers"))
	m.events.StartRecordingToSink(&typedcorev1.EventSinkImpl{Interface: m.eventSink.CoreV1().Events("")})
	defer m.events.Shutdown()
	var group sync.WaitGroup
	defer group.Wait()
	for _, w := range m.watches {
		group.Go(func() { w.Run(ctx) })
	}
	for _, w := range m.watches {
		select {
		case <-w.Synced():
		case <-ctx.Done():
			return nil
		}
	}
	group.Go(func() { m.inventory.Run(ctx) })
	for _, c := range m.controllers {
		group.Go(func() { c.Run(ctx) })
	}
	close(m.synced)
	defer m.vpa.open(ctx)()
	<-ctx.Done()
	return nil
}
