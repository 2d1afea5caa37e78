package policy

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"k8s.io/klog/v2"

	"carob/internal/base/backoff"
	"carob/internal/base/netns"
	"carob/internal/core/netplan/policies"
	"carob/internal/network/nft"
)

// half is one family's table in the kernel. Only the writer uses it.
type half struct {
	*family
	of    func(*policies.Table) *policies.Family
	part  func(*policies.Change) *policies.FamilyChange
	table *nft.Table               // nil: there is none
	kinds map[string]policies.Kind // of the sets that are in the table
	empty bool                     // the plan isolates nothing
	wrong bool                     // the kernel's table may differ from what was written last
	stop  context.CancelFunc       // ends the watch
	ended chan struct{}
}

func halves() []*half {
	return []*half{
		{family: v4, wrong: true, of: func(t *policies.Table) *policies.Family { return &t.V4 },
			part: func(c *policies.Change) *policies.FamilyChange { return &c.V4 }},
		{family: v6, wrong: true, of: func(t *policies.Table) *policies.Family { return &t.V6 },
			part: func(c *policies.Change) *policies.FamilyChange { return &c.V6 }},
	}
}

// retry is the wait after a write that failed.
var retry = backoff.Exponential{Initial: 50 * time.Millisecond, Max: 30 * time.Second}

// write keeps the kernel's tables equal to the plan until ctx ends. Nothing else writes them.
func (e *Enforcer) write(ctx context.Context) {
	both := halves()
	defer func() {
		for _, h := range both {
			h.close()
		}
	}()
	failures := 0
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-e.wake:
		case <-timer.C:
		case <-both[0].disturbed():
			both[0].wrong = true
		case <-both[1].disturbed():
			both[1].wrong = true
		}
		err := e.put(ctx, both)
		if timer.Stop(); err == nil {
			failures = 0
			continue
		}
		failures++
		wait := retry.Delay(failures)
		klog.FromContext(ctx).Error(err, "Network policies cannot be written; pods that they isolate do not start",
			"wait", wait, "failures", failures)
		timer.Reset(wait)
	}
}

func (h *half) disturbed() <-chan struct{} {
	if h.table == nil {
		return nil
	}
	return h.table.Disturbed()
}

// put writes what has changed. A refused transaction has changed nothing: the second time, the
// kernel's table is compared with the plan, and repaired.
func (e *Enforcer) put(ctx context.Context, both []*half) error {
	for {
		e.mu.Lock()
		if !e.settledNow() {
			e.mu.Unlock()
			return nil
		}
		at, change := e.planned, e.plan.Take()
		both[0].empty, both[1].empty = e.plan.Empty()
		compare := slices.ContainsFunc(both, func(h *half) bool { return h.mustCompare(&change) })
		var whole policies.Table
		if compare {
			whole = e.plan.Table()
		}
		e.mu.Unlock()

		var errs []error
		refused := false
		for _, h := range both {
			switch {
			case h.mustCompare(&change):
				errs = append(errs, e.compare(ctx, h, h.of(&whole)))
			case h.table != nil:
				if err := h.table.Apply(h.change(h.part(&change), h.kinds)); err != nil {
					klog.FromContext(ctx).V(2).Info("A change of rules was refused", "table", e.cfg.Table, "err", err)
					h.wrong, refused = true, true
				}
			}
		}
		err := errors.Join(errs...)
		if refused && err == nil {
			continue
		}
		e.mu.Lock()
		e.tried, e.failed = at, err
		if err == nil {
			e.written = at
		}
		close(e.round)
		e.round = make(chan struct{})
		if compare || !change.Empty() {
			poke(e.flowCheck)
		}
		e.mu.Unlock()
		return err
	}
}

// mustCompare reports whether the kernel's table has to be made, removed, or repaired.
func (h *half) mustCompare(c *policies.Change) bool {
	return h.wrong || h.table == nil && !h.part(c).Empty() || h.table != nil && h.empty
}

// compare makes the kernel's table that of the plan.
func (e *Enforcer) compare(ctx context.Context, h *half, want *policies.Family) (err error) {
	h.wrong = true
	if want.Empty() {
		h.close()
		if err := e.inNS(func() error { return nft.Remove(e.cfg.Table, h.nf) }); err != nil {
			return err
		}
		h.wrong = false
		return nil
	}
	if h.table == nil {
		err := e.inNS(func() (err error) { h.table, err = nft.Open(h.config(e.cfg.Table)); return err })
		if err != nil {
			return fmt.Errorf("open the table of network policies: %w", err)
		}
		ctx, h.stop = context.WithCancel(ctx)
		h.ended = make(chan struct{})
		go h.watch(ctx, h.table, h.ended)
	}
	if err := h.table.Sync(h.content(want)); err != nil {
		return err
	}
	h.kinds, h.wrong = kinds(want), false
	return nil
}

// watch follows changes of the table by other programs.
func (h *half) watch(ctx context.Context, t *nft.Table, ended chan struct{}) {
	defer close(ended)
	for failures := 1; ctx.Err() == nil; failures++ {
		err := t.Watch(ctx)
		if ctx.Err() != nil {
			return
		}
		klog.FromContext(ctx).Error(err,
			"Changes of the rules of network policies by others are not noticed for a while")
		select {
		case <-ctx.Done():
		case <-time.After(retry.Delay(failures)):
		}
	}
}

// close ends the work on the table, which stays in the kernel.
func (h *half) close() {
	if h.table == nil {
		return
	}
	h.stop()
	<-h.ended
	_ = h.table.Close() // only sockets
	h.table = nil
}

// inNS runs f in the network namespace of the host.
func (e *Enforcer) inNS(f func() error) error {
	return netns.Do(fmt.Sprintf("/proc/self/fd/%d", e.ns.Fd()), f)
}
