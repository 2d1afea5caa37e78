package apiserver

import (
	"context"
	"sync"
)

// taskGroup runs functions that end with one context and waits for all of them.
type taskGroup struct {
	ctx context.Context
	wg  sync.WaitGroup
}

func newTaskGroup(ctx context.Context) *taskGroup { return &taskGroup{ctx: ctx} }

func (g *taskGroup) run(f func(context.Context)) { g.wg.Go(func() { f(g.ctx) }) }

func (g *taskGroup) wait() { g.wg.Wait() }
