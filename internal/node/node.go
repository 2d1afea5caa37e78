// Package node is the node agent: it makes the pods that the API server binds to
// this machine run, through a container runtime, and reports what became of them.
//
// app builds an Agent and runs it. What must happen to a pod is decided by
// core/podlife; this package and its parts only drive: pods/ owns each pod,
// observe/ looks at the runtime, execute/ carries actions out, status/ writes to
// the API. It must never decide about a pod by itself, and knows of a runtime only
// what CRI says.
package node

import (
	"context"
)

// Agent is one node agent.
//
//	New ──Run──▶ registering ──node object stored, runtime looked at──▶ Ready ──ctx ends──▶ stopped
//
// Containers outlive it: a later Agent on the same RootDir takes them over.
type Agent struct {
	cfg   Config
	ready chan struct{}
}

// New checks cfg and builds an agent; nothing is started or touched before Run.
func New(cfg Config) (*Agent, error) {
	cfg.setDefaults()
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	return &Agent{cfg: cfg, ready: make(chan struct{})}, nil
}

// Run drives the node until ctx ends and everything it started has stopped. It
// returns nil then, or why the agent could not start. Run may be called once.
func (a *Agent) Run(ctx context.Context) error {
	<-ctx.Done()
	return nil
}

// Ready is closed when the Node object is stored as Ready and pods are taken.
func (a *Agent) Ready() <-chan struct{} { return a.ready }
