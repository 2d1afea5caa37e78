// Package controllers runs the controllers of the cluster in one process, on one
// set of watches. app runs it; each controller lives in a folder of its own and
// talks to the others through the API only.
package controllers

import (
	"context"
	"fmt"
	"sync"

	"k8s.io/client-go/discovery"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"

	"carob/internal/controllers/namespace"
	"carob/internal/controllers/rootca"
	"carob/internal/controllers/serviceaccount"
	"carob/internal/controllers/source"
)

// Options are what controllers need to know beside the API.
type Options struct {
	RootCA []byte // PEM of the API server's certificate authority, published in every namespace
}

// Clients are the ways to the API; New makes them from one config.
type Clients struct {
	Kubernetes kubernetes.Interface
	Discovery  discovery.DiscoveryInterface
	Metadata   metadata.Interface
}

// controller is one of the parts; it ends with its context.
type controller interface{ Run(ctx context.Context) }

// Manager runs all controllers. Make it with New and Run it once.
type Manager struct {
	informers   []cache.SharedIndexInformer
	controllers []controller
	synced      chan struct{}
}

// New returns a manager that talks to the API of cfg. The client-side rate limit is lifted.
func New(cfg *rest.Config, o Options) (*Manager, error) {
	c := rest.CopyConfig(cfg)
	c.QPS = -1
	rest.AddUserAgent(c, "carob-controllers")
	var clients Clients
	var err error
	if clients.Metadata, err = metadata.NewForConfig(c); err != nil {
		return nil, fmt.Errorf("controllers: make metadata client: %w", err)
	}
	if c.ContentType == "" {
		c.ContentType = "application/vnd.kubernetes.protobuf"
		c.AcceptContentTypes = "application/vnd.kubernetes.protobuf,application/json"
	}
	if clients.Kubernetes, err = kubernetes.NewForConfig(c); err != nil {
		return nil, fmt.Errorf("controllers: make API client: %w", err)
	}
	clients.Discovery = clients.Kubernetes.Discovery()
	return NewForClients(clients, o)
}

// NewForClients is New for clients that are there already.
func NewForClients(c Clients, o Options) (*Manager, error) {
	namespaces, pods := source.Namespaces(c.Kubernetes), source.Pods(c.Kubernetes)
	accounts := source.ServiceAccounts(c.Kubernetes, serviceaccount.Name)
	configMaps := source.ConfigMaps(c.Kubernetes, rootca.Name)
	m := &Manager{
		informers: []cache.SharedIndexInformer{namespaces, pods, accounts, configMaps},
		synced:    make(chan struct{}),
	}
	ns, err := namespace.New(c.Kubernetes, c.Discovery, c.Metadata, namespaces, pods)
	if err != nil {
		return nil, fmt.Errorf("controllers: %w", err)
	}
	sa, err := serviceaccount.New(c.Kubernetes, namespaces, accounts)
	if err != nil {
		return nil, fmt.Errorf("controllers: %w", err)
	}
	ca, err := rootca.New(c.Kubernetes, o.RootCA, namespaces, configMaps)
	if err != nil {
		return nil, fmt.Errorf("controllers: %w", err)
	}
	m.controllers = []controller{ns, sa, ca}
	return m, nil
}

// Synced is closed once the watches delivered their first lists and the controllers work.
func (m *Manager) Synced() <-chan struct{} { return m.synced }

// Run runs the controllers until ctx ends, and returns when all of them have ended.
func (m *Manager) Run(ctx context.Context) error {
	ctx = klog.NewContext(ctx, klog.FromContext(ctx).WithName("controllers"))
	var group sync.WaitGroup
	defer group.Wait()
	synced := make([]cache.DoneChecker, 0, len(m.informers))
	for _, i := range m.informers {
		group.Go(func() { i.RunWithContext(ctx) })
		synced = append(synced, i.HasSyncedChecker())
	}
	if !cache.WaitFor(ctx, "", synced...) {
		return nil // ctx ended first
	}
	for _, c := range m.controllers {
		group.Go(func() { c.Run(ctx) })
	}
	close(m.synced)
	<-ctx.Done()
	return nil
}
