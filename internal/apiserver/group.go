package apiserver

import (
	"context"
	"sync"
)

// group runs functions that end with one context and waits for all of them.
type group struct {
	ctx context.Context
	wg  sync.WaitGroup
}

func newGroup(ctx context.Context) *group { return &group{ctx: ctx} }

func (g *group) run(f func(context.Context)) { g.wg.Go(func() { f(g.ctx) }) }
func (g *group) wait()                       { g.wg.Wait() }
