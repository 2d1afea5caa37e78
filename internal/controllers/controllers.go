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
	"carob/internal/controllers/certificates"
	"carob/internal/controllers/cronjob"
	"carob/internal/controllers/inventory"
	"carob/internal/controllers/localpath"
	"carob/internal/controllers/metrics"
	"carob/internal/controllers/source"
	"carob/internal/controllers/vpa"
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
	// Clock calls changed whenever the wall clock was set, until ctx is done; nil: nothing reports that.
	Clock func(ctx context.Context, changed func()) error
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

// clocked is a controller that waits for times of the wall clock.
type clocked interface{ ClockSet() }

var _ clocked = (*cronjob.Controller)(nil)

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
	clock       func(ctx context.Context, changed func()) error
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
	w := newWatches(clients.Kubernetes)
	m := &Manager{
		inventory: inventory.New(w.client.Discovery(), clients.Metadata, inventoryAfter),
		watches:   w.shared(),
		events:    record.NewBroadcaster(),
		clock:     o.Clock,
		synced:    make(chan struct{}),
	}
	m.vpa.make = func() (controller, error) {
		return m.newVPA(as, vpa.Owners{Deployments: w.deployments, ReplicaSets: w.sets, StatefulSets: w.statefulSets,
			DaemonSets: w.daemonSets, Jobs: w.jobs, CronJobs: w.cronJobs,
			ReplicationControllers: w.replicationControllers})
	}
	m.vpa.set = o.PodAutoscaler
	for _, b := range m.builders(w, o) {
		clients, err := as(b.identity)
		if err != nil {
			return nil, err
		}
		c, err := b.build(clients)
		if err != nil {
			return nil, fmt.Errorf("controllers: %w", err)
		}
		m.controllers = append(m.controllers, c)
	}
	if o.SecretToken != nil {
		// The manager's own user may write Secrets; the controllers' service accounts may not.
		m.controllers = append(m.controllers, accounttokens.New(w.client, m.inventory, o.SecretToken, o.RootCA))
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
	if m.clock != nil {
		group.Go(func() { m.followClock(ctx) })
	}
	close(m.synced)
	defer m.vpa.open(ctx)()
	<-ctx.Done()
	return nil
}

// followClock notifies the controllers when the wall clock was set. Without these notices they act late.
func (m *Manager) followClock(ctx context.Context) {
	err := m.clock(ctx, func() {
		klog.FromContext(ctx).Info("The clock was set, or the machine was suspended")
		for _, c := range m.controllers {
			if c, ok := c.(clocked); ok {
				c.ClockSet()
			}
		}
	})
	if err != nil {
		klog.FromContext(ctx).Error(err, "Changes of the clock are not noticed")
	}
}
