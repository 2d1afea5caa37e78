package controllers

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"k8s.io/klog/v2"

	"carob/internal/controllers/vpa"
)

// addon is a controller that runs only while it is enabled. A disabled one uses no resources.
type addon struct {
	make func() (controller, error)
	set  func(PodAutoscaler) // called with the running controller

	mu     sync.Mutex
	wanted bool
	start  func()        // set while the manager runs
	stop   func()        // set while the controller runs
	ended  chan struct{} // closed when the last controller has ended; nil before the first
}

// want sets whether the controller should run. It does not wait for its start or end.
func (a *addon) want(on bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.wanted = on; !on && a.stop != nil {
		a.stop()
		a.stop = nil
	}
	if on && a.stop == nil && a.start != nil {
		a.start()
	}
}

// open runs the controller while it is enabled, until ctx ends. The returned function waits until
// the controller has ended.
func (a *addon) open(ctx context.Context) (wait func()) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.start = func() { a.run(ctx) }
	if a.wanted {
		a.start()
	}
	return func() {
		a.mu.Lock()
		a.start = nil
		last := a.ended
		a.mu.Unlock()
		if last != nil {
			<-last
		}
	}
}

// run starts the controller after the previous one has ended. The lock is held.
func (a *addon) run(ctx context.Context) {
	ctx, cancel := context.WithCancel(ctx)
	before, ended := a.ended, make(chan struct{})
	a.stop, a.ended = cancel, ended
	go func() {
		defer close(ended)
		if before != nil {
			<-before
		}
		c, err := a.make()
		if err != nil {
			klog.FromContext(ctx).Error(err, "An add-on cannot run")
			return
		}
		if p, ok := c.(PodAutoscaler); ok && a.set != nil && ctx.Err() == nil {
			a.set(p)
			defer a.set(nil)
		}
		c.Run(ctx)
	}()
}

// SetVPA enables or disables the controller of VerticalPodAutoscalers. It may be called at any time.
func (m *Manager) SetVPA(on bool) { m.vpa.want(on) }

func (m *Manager) newVPA(as func(name string) (Clients, error), owners vpa.Owners) (controller, error) {
	recommender, err := as("vpa-recommender")
	if err != nil {
		return nil, err
	}
	updater, err := as("vpa-updater")
	if err != nil {
		return nil, err
	}
	if recommender.Dynamic == nil {
		return nil, errors.New("there is no client for its objects")
	}
	custom, err := recommender.Dynamic()
	if err != nil {
		return nil, fmt.Errorf("make a client for its objects: %w", err)
	}
	return vpa.New(vpa.Config{Recommender: recommender.Kubernetes, Updater: updater.Kubernetes,
		Events: m.recorder("vpa-updater"), VPAs: vpa.Watch(custom), Owners: owners, Kinds: m.inventory})
}
